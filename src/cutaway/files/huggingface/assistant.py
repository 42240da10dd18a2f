"""Folders of Gemma 4's assistants, which draft for one model (transformers' ``gemma4_assistant``).

Knows how transformers names their tensors and settings. The result has GGUF's keys of Gemma 4
behind "assistant.", and GGUF's names of tensors behind the same.
"""

import re
from typing import Any

from cutaway.errors import FormatError
from cutaway.files.huggingface.config import CONFIG, complete
from cutaway.files.huggingface.draft_folder import MOST_LAYERS, DraftFolder
from cutaway.files.huggingface.families.gemma import ROWS, gemma4
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import rope_metadata
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

_KINDS = ("gemma4_assistant", "gemma4_unified_assistant")
_FAMILY = ROWS["gemma4_text"]
_OUTSIDE = {
    "embed_tokens": "token_embd", "norm": "output_norm",
    "pre_projection": "pre_projection", "post_projection": "post_projection",
}  # fmt: skip
_UNREAD = re.compile(r"(masked_embedding\..+|lm_head\.weight|.+\.self_attn\.[kv]_(proj|norm)\..+)")
"""Centroids, which only save work; a copy of the embedding; keys and values that nothing reads."""
_NAME = re.compile(r"(?:model\.)?(?:layers\.(\d{1,3})\.)?(.+?)(\.weight|\.bias)?")


class AssistantFolder(DraftFolder):
    """The folder of an assistant, with tensors such as assistant.token_embd.weight."""

    key_prefix = tensor_prefix = "assistant."

    def _check_config(self, config: JsonObject) -> None:
        if config.text("model_type") not in _KINDS:
            raise FormatError(f"{CONFIG} has no model_type of an assistant ({' or '.join(_KINDS)})")

    def _rename(self, name: str, _shards: Shards) -> str | None:
        if _UNREAD.fullmatch(name):
            return None
        match = _NAME.fullmatch(name)
        assert match is not None
        new = (_OUTSIDE if match[1] is None else _FAMILY.layer).get(match[2])
        whole = _FAMILY.whole.get(match[2]) if match[1] is not None else None
        if not new and not whole:
            raise FormatError(f"the tensor {quote(name)} has no place in an assistant of Gemma 4")
        at = whole or f"{new}{match[3] or ''}"
        return at if match[1] is None else f"blk.{match[1]}.{at}"

    def _read_config(self, config: JsonObject) -> tuple[dict[str, Any], dict[str, Any]]:
        return _metadata(complete(config.part("text_config")))


def _metadata(config: JsonObject) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata, without a prefix, and the tensors of the rope."""
    layers = config.size("num_hidden_layers", MOST_LAYERS)
    for key in ("hidden_size_per_layer_input", "attention_bias", "enable_moe_block"):
        config.must_be(key, 0, False)
    assert _FAMILY.head_dim is not None
    assert _FAMILY.rope is not None
    width = _FAMILY.head_dim(config)
    metadata = {
        "block_count": layers,
        "attention.head_count": config.size("num_attention_heads"),
        "attention.key_length": width,
        "attention.layer_norm_rms_epsilon": config.positive("rms_norm_eps"),
    }
    rope, tensors = rope_metadata(config, width, _FAMILY.rope, "full_attention")
    return metadata | gemma4(config) | rope, tensors
