"""The tensors of a draft head (multi-token prediction), which GGUF calls nextn.

Some folders have it as one more layer, others apart under mtp. Knows names alone.
"""

from collections.abc import Iterable

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
