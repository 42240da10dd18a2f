"""Architecture: how models of one name are wired, and what their files leave unsaid."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field

from cutaway.compute.model.config import ModelConfig
from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.mixture import Mixture

_MIXTURE = Mixture(used=1)  # as most are: a softmax, normed


@dataclass(frozen=True, slots=True)
class Architecture:
    """How an architecture is wired, and what its files leave unsaid, as llama.cpp has it.

    build                adds its ops to a graph; returns the logits, or the rows of a head
    layer_norm           norms subtract the mean; files name their epsilon differently
    learned_positions    vectors that are added to the tokens', not rotations
    interleaved_rope     a rotated pair are neighbours, not a half of the rotated numbers apart
    yarn_truncates       see ``Yarn``
    is_causal, shift, is_parallel, window, *_softcap  see ``ModelConfig``
    mixture              what files do not say of it: how many experts are used, they do
    biased_gating        GGUF's number of the gating of files that do not say it, and add a bias for
                         the choice of experts (DeepSeek V3, not V2); 0: the same as of others
    full_every           of this many layers one sees the whole text: the last, or the first
    has_own_heads        layers differ in their heads: ``OwnHeads``
    has_latent           what is stored of a token is a latent: ``Latent``
    has_relative         distances have rows of a matrix: ``Relative``
    has_states           layers without kv heads keep a recurrent state instead, or all do
    attends_every        or all do but every so-many-th, unless files say another number
    activations          of an MLP: GGUF's name -> ``ModelConfig.activation``, the usual one first
    local_base           of the rope of layers that see a window; 0: the same as of the others
    multiplies_logits    files have the factor of logits, not the divisor
    attention_scale      of scores; 0: by the heads' width
    scaled_by_width_at   layers of the one model of the family that scales attention's scores by
                         hidden / heads, not by the heads' own width
    temperature          of layers without positions: how much queries grow, after how many tokens
    layer                adds one layer by its number, of those whose files may have a draft head
    must_be              keys of which other values would be another graph; the first is the usual
    """

    build: Callable[[Graph, ModelConfig], Tensor]
    _: KW_ONLY
    layer_norm: bool = False
    learned_positions: bool = False
    interleaved_rope: bool = False
    yarn_truncates: bool = True
    is_causal: bool = True
    shift: bool = False
    is_parallel: bool = False
    mixture: Mixture = _MIXTURE
    biased_gating: int = 0
    window: int = 0
    full_every: int = 0
    full_first: bool = False
    has_own_heads: bool = False
    has_latent: bool = False
    has_relative: bool = False
    has_states: bool = False
    attends_every: int = 0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    activations: Mapping[str, str] = field(default_factory=dict)
    local_base: float = 10000.0
    multiplies_logits: bool = False
    attention_scale: float = 0.0
    scaled_by_width_at: int = 0
    temperature: tuple[float, int] = (0.0, 0)
    layer: Callable[[Graph, ModelConfig, Tensor, int], Tensor] | None = None
    must_be: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
