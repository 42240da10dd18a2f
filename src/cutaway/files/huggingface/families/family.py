"""Family: what is particular to the folders of one kind of model, and the names that many share.

Some folders have a draft head as one more layer, others apart under mtp. Knows no family.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Rewrite

Names = Mapping[str, str]

OUTSIDE = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
"""Outside the layers, as llama and most others have it."""
ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
"""Of each layer, its norms included."""
TEXT = ("model.language_model.", "language_model.model.", "language_model.", "model.")
"""Prefixes of models that read pictures, for which the rest is a part."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model.

    architecture  GGUF's name, and the prefix of its metadata keys
    prefixes      what a tensor's name may begin with
    outside       tensors outside the layers: transformers' name without ".weight" or ".bias" ->
                  GGUF's
    layer         tensors of each layer, likewise; "a+b" is two in one, which `rewrites` split
    whole         tensors of each layer by their whole names, of both
    experts       tensors of each expert of a layer, likewise; {} stands for the expert's number
    scalars       tensors of one number in each layer, whole names with {} for the layer's number ->
                  GGUF's key of all of them
    experts_turned  whether the tensors that hold all experts of a layer are (experts, inputs,
                  outputs), not (experts, outputs, inputs); None where the shapes say it
    experts_alternate  whether an output of gate and one of up take turns in these
    skipped       endings of tensors' names that are not read: masks, tables, copies, other heads
    first_position  which row of the matrix of positions is the first position's
    names         config.json's names of keys, where they differ from llama's
    defaults      transformers' values of keys that config.json lacks
    rewrites      by GGUF's name of a tensor, from the heads; rewrites_of: from all of the config
    own           gives the family's own metadata, and refuses what GGUF cannot express
    grouped       whether heads may share keys and values; if not, config.json's number is ignored
    layer_norm    whether norms subtract the mean
    attention     "causal"; of a diffusion model "bidirectional", or "block-causal", with blocks of
                  config.json's block_size, and bidirectional where it has none
    shifts        whether rows of a diffusion model predict the next position
    head_dim      gives the width of heads, where config.json does not say it under that name
    own_width     whether its own metadata has the MLP's width
    proportional_rope  whether the pairs of a head that are not rotated lie behind those that are
    ntk_alpha     whether dynamic rope with an alpha is one with a larger base
    yarn_truncates  whether yarn's ramp begins and ends at a pair, not in between
    rank          tensors outside the layers of a head that scores texts, likewise, in the place of
                  one that predicts tokens; rank_activation: its own;
                  is_rank: whether a folder has one
    shared        whether all layers are one, named as layer 0
    relative      whether distances have rows that each layer projects: DeBERTa's
    modulated     whether MDLM's modulation is folded into norms and matrices
    """

    architecture: str
    prefixes: tuple[str, ...] = ("model.",)
    outside: Names
    layer: Names
    whole: Names = field(default_factory=dict)
    experts: Names = field(default_factory=dict)
    scalars: Names = field(default_factory=dict)
    experts_turned: bool | None = None
    experts_alternate: bool = False
    skipped: tuple[str, ...] = ("rotary_emb.inv_freq",)
    first_position: int = 0
    names: Names = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    own: Callable[[JsonObject], dict[str, Any]] = keys.plain
    rewrites: Callable[[int, int], Mapping[str, Rewrite]] = lambda _heads, _kv_heads: {}
    rewrites_of: Callable[[JsonObject], Mapping[str, Rewrite]] = lambda _config: {}
    grouped: bool = True
    layer_norm: bool = False
    rope: bool = True
    partial_rope: bool = False
    longrope: bool = False
    proportional_rope: bool = False
    ntk_alpha: bool = False
    head_dim: Callable[[JsonObject], int] | None = None
    own_width: bool = False
    yarn_truncates: bool = True
    attention: str = "causal"
    shifts: bool = False
    rank: Names = field(default_factory=dict)
    rank_activation: str = "tanh"
    is_rank: bool = False
    shared: bool = False
    relative: bool = False
    modulated: bool = False


# -- a draft head (multi-token prediction), which GGUF calls nextn ---------------------------------


NEXTN = {
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens", "shared_head.norm": "nextn.shared_head_norm",
    "shared_head.head": "nextn.shared_head_head",
}  # fmt: skip
"""Of the layer behind the model's own, beside what its layers have. See ``Family.layer``."""
NEXTN_NORMS = ("enorm", "hnorm", "shared_head_norm")
_APART = {
    "mtp.fc.": "eh_proj.", "mtp.pre_fc_norm_embedding.": "enorm.",
    "mtp.pre_fc_norm_hidden.": "hnorm.", "mtp.norm.": "shared_head.norm.",
    "mtp.layers.0.": "",
}  # fmt: skip


def as_layer(name: str, layer: int) -> str:
    """The name of a tensor as that of a layer, if it is one of a draft head that is apart."""
    for old, new in _APART.items():
        if name.startswith(old):
            return f"model.layers.{layer}.{new}{name.removeprefix(old)}"
    return name


def has_draft_head(names: Iterable[str], layer: int) -> bool:
    """Whether that layer is one."""
    ending = f"layers.{layer}.eh_proj.weight"
    return any(as_layer(name, layer).endswith(ending) for name in names)
