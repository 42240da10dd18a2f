"""Family: the particulars of one kind of model's folders, and the names that many share.

Some folders have a draft head as one more layer; others have it apart, under mtp or mtp_layers.
This module knows no family.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Rewrite
from cutaway.files.huggingface.rope import USUAL, Ropes
from cutaway.files.huggingface.shards import Shards, Sources

Names = Mapping[str, str]
RANK_HEAD = "cls.output"
"""GGUF's name of the last matrix of a head that scores texts."""
SCORE = {"score": RANK_HEAD}
"""A head that scores the last row of a decoder."""

SILU = {"hidden_act": "silu"}
OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
"""Tensors outside the layers, as in llama and most others."""
ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
"""Tensors of each layer, its norms included."""


def mlp(name: str = "mlp", ending: str = "") -> dict[str, str]:
    """Return the names of a gated MLP's three matrices; ending: the end of GGUF's names."""
    return {f"{name}.{part}_proj": f"ffn_{part}{ending}" for part in ("gate", "up", "down")}


LAYER = ATTENTION | mlp()
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
EXPERTS = mlp("mlp.experts.{}", "_exps")
FUSED_EXPERTS = {
    "mlp.experts.gate_up_proj": "ffn_gate_exps+ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
"""Names of the two tensors that hold all experts of a layer."""
MIXTRAL_EXPERTS = {
    f"block_sparse_moe.experts.{{}}.{old}": f"ffn_{new}_exps"
    for old, new in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
}
TEXT = ("model.language_model.", "language_model.model.", "language_model.", "model.")
"""Prefixes of tensors' names in models that read pictures, of which the text model is a part."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model.

    architecture  GGUF's name, and the prefix of its metadata keys
    prefixes      what a tensor's name may begin with
    outside       tensors outside the layers: transformers' name without ".weight" or ".bias" ->
                  GGUF's
    layer         tensors of each layer, likewise; "a+b" is one tensor that `rewrites` split
    whole         tensors of each layer by their whole names, transformers' and GGUF's
    experts       tensors of each expert of a layer, or of each head, likewise; {} stands for the
                  expert's or the head's number
    experts_turned  whether the tensors that hold all experts of a layer are (experts, inputs,
                  outputs), not (experts, outputs, inputs); None: their shapes decide
    experts_alternate  whether outputs of gate and up alternate in these tensors
    plain_name    turns a publisher's name of a tensor into one that the tables can have
    skipped       endings of tensors' names that are not read: masks, tables, copies, other heads
    names         config.json's names of keys, where they differ from llama's
    defaults      transformers' values of keys that config.json lacks
    rewrites      returns rewrites by GGUF's name of a tensor, from the numbers of heads;
                  rewrites_of: likewise, from all of the config
    must_be       the value that a key must have, or a tuple of those allowed, the default first
    metadata      returns the family's own metadata, and refuses what GGUF cannot express
    rebuild       replaces tensors that the graph wants in another form, and returns metadata that
                  the files have as tensors
    grouped       whether heads may share keys and values; if they may not, config.json's number of
                  key-value heads is ignored
    layer_norm    whether norms subtract the mean
    attention     "causal"; for a diffusion model "bidirectional" or "block-causal". The size of
                  blocks is config.json's block_size; without it, attention is bidirectional
    shifts        whether rows of a diffusion model predict the next position
    head_dim      returns the width of heads, if config.json has another name for it
    rope          the kinds of rotary positions that models may have; None: they have none
    rank          tensors, likewise, of a head that scores texts, by the last row where none is
                  named. This head replaces the one that predicts tokens; rank_activation: the
                  activation of the head that scores
    shared        whether all layers are one, named as layer 0
    stacks        what precedes the names of the layers of each stack, if there are several, each of
                  equally many layers; they are numbered one stack after the other
    """

    architecture: str
    prefixes: tuple[str, ...] = ("model.",)
    outside: Names = field(default_factory=lambda: OUTSIDE)
    layer: Names = field(default_factory=lambda: LAYER)
    whole: Names = field(default_factory=dict)
    experts: Names = field(default_factory=dict)
    experts_turned: bool | None = None
    experts_alternate: bool = False
    plain_name: Callable[[str], str] = lambda name: name
    skipped: tuple[str, ...] = ("rotary_emb.inv_freq",)
    names: Names = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    must_be: Mapping[str, Any] = field(default_factory=lambda: SILU)
    metadata: Callable[[JsonObject], dict[str, Any]] = lambda _config: {}
    rewrites: Callable[[int, int], Mapping[str, Rewrite]] = lambda _heads, _kv_heads: {}
    rewrites_of: Callable[[JsonObject], Mapping[str, Rewrite]] = lambda _config: {}
    rebuild: Callable[[Sources, JsonObject, Shards], dict[str, Any]] = lambda *_: {}
    grouped: bool = True
    layer_norm: bool = False
    rope: Ropes | None = USUAL
    head_dim: Callable[[JsonObject], int] | None = None
    attention: str = "causal"
    shifts: bool = False
    rank: Names = field(default_factory=lambda: SCORE)
    rank_activation: str = "tanh"
    shared: bool = False
    stacks: tuple[str, ...] = ()

    @property
    def is_rank(self) -> bool:
        """Whether the family has a head that scores texts."""
        return RANK_HEAD in self.outside.values()

    def join_stacks(self, name: str, layers: int) -> str:
        """Return the name that a tensor of a stack would have if the model had one stack.

        layers: of all stacks together. Other names are returned unchanged
        """
        for i, stack in enumerate(self.stacks):
            before, _, after = name.partition(f"{stack}layers.")
            number, dot, inside = after.partition(".")
            if dot and number.isdecimal():
                return f"{before}layers.{int(number) + i * layers // len(self.stacks)}.{inside}"
        return name

    def ranking(self, tensors: Iterable[str]) -> "Family":
        """Return the family, with a head that scores texts if the folder has such a head."""
        last = next((name for name, new in self.rank.items() if new == RANK_HEAD), None)
        if last is None or not any(name.endswith(f"{last}.weight") for name in tensors):
            return self
        first = tuple(f"{name}.{end}" for name in self.rank for end in ("weight", "bias"))
        heads = ("cls", "cls.norm", "output")
        body = {name: new for name, new in self.outside.items() if new not in heads}
        skipped = tuple(end for end in self.skipped if not end.endswith(first))
        return replace(self, outside={**body, **self.rank}, skipped=skipped)


Variant = Callable[[JsonObject, Iterable[str]], Family | None]
"""Chooses another family than the model_type's, by the config or the names of the tensors."""


# -- a draft head (multi-token prediction), which GGUF calls nextn ---------------------------------


NEXTN = {
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens", "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
}  # fmt: skip
"""Tensors that a draft layer has in addition to those of any layer. See ``Family.layer``."""
NEXTN_NORMS = ("enorm", "hnorm", "shared_head_norm")
_APART = {
    "mtp.fc.": "eh_proj.", "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.", "mtp.norm.": "shared_head.norm.",
    "mtp.layers.0.": "",
    "model.mtp_layers.0.input_proj.": "eh_proj.", "model.mtp_layers.0.token_layernorm.": "enorm.",
    "model.mtp_layers.0.hidden_layernorm.": "hnorm.",
    "model.mtp_layers.0.final_layernorm.": "shared_head.norm.", "model.mtp_layers.0.": "",
}  # fmt: skip


def as_layer(name: str, layer: int) -> str:
    """Return the name that a draft head's tensor under mtp or mtp_layers would have in a layer.

    Other names are returned unchanged.
    """
    for old, new in _APART.items():
        if name.startswith(old):
            return f"model.layers.{layer}.{new}{name.removeprefix(old)}"
    return name


def has_draft_head(names: Iterable[str], layer: int) -> bool:
    """Whether that layer is a draft head."""
    ending = f"layers.{layer}.eh_proj.weight"
    return any(as_layer(name, layer).endswith(ending) for name in names)
