"""ModelConfig: the sizes and constants of one model. Knows not where they were read."""

from dataclasses import dataclass

from cutaway.compute.model.distance import Relative
from cutaway.compute.model.layer_keys import Attention, Latent, OwnHeads
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.rope import Rope
from cutaway.compute.model.state_keys import StateHeads
from cutaway.compute.model.xielu import Xielu

MAX_CONTEXT = 2**24
"""Tokens. No model has more, and its KV cache would not fit into any machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers that a graph is built from. Sizes are in elements, context in tokens.

    attention          which tokens a token attends to: "causal", itself and those before it;
                       "bidirectional", all of its text; a number, block-causal: all to the end of
                       its own block of this many tokens, counted from the first
    shift              whether a row predicts the next position, where attention is not causal
    learned_positions  whether positions are vectors that are added, not rotations
    rope, rope_local   of the layers that see the whole text, and of those that see a window
    unrun_layers       blocks after these that guess tokens ahead (MTP): a draft head at most
    rope_queries       of the queries of layers that see the whole text
    extends_context    whether texts may be longer than the model was first trained for
    windows            tokens that a row of each layer attends to, its own included, or where
                       attention is bidirectional how many to each side; 0: all
    recurrent          whether each layer has a recurrent state instead of attention
    state_heads        of layers that are gated delta nets or Mamba 2; None where none is
    relative           how distances have rows of a matrix (DeBERTa); None where they have none
    is_rotated         whether attention has rotary positions
    own_heads          of each layer where layers differ, and head_dim is the largest; else empty
    latent             what is stored of a token in place of keys and values; None where these are
    activation         of an MLP: "gelu", "gelu_tanh", "silu"; "" where it is the wiring's own
    xielu              of an MLP with xIELU, its constants by layer; else empty
    temperature_*      of queries in layers without positions: see ``GrowingRope``; 0: they stay
    attention_scale    of scores before the softmax
    *_softcap          largest score or logit, approached smoothly; 0: none
    *_scale            of the embedding and of what a layer adds; logits are divided by logit_scale
    experts            of a layer that has some; 0 where none has
    mixture            how they are chosen; None where there are none
    """

    architecture: str
    context_length: int
    attention: Attention
    shift: bool
    layers: int
    unrun_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    learned_positions: bool
    rope: Rope
    rope_queries: Rope
    rope_local: Rope
    extends_context: bool
    windows: tuple[int, ...]
    recurrent: tuple[bool, ...]
    state_heads: StateHeads | None
    relative: Relative | None
    is_rotated: bool
    own_heads: tuple[OwnHeads, ...]
    latent: Latent | None
    activation: str
    xielu: tuple[Xielu, ...]
    temperature_growth: float
    temperature_period: int
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    norm_eps: float
    is_parallel: bool  # attention and MLP of a layer read the same input
    experts: int
    mixture: Mixture | None

    @property
    def experts_used(self) -> int:
        """How many experts of a layer compute a token."""
        return self.mixture.used if self.mixture else 0

    @property
    def is_causal(self) -> bool:
        """Whether a token attends to itself and those before it alone, so that texts can grow."""
        return self.attention == "causal"
