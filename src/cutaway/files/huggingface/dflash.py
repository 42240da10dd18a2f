"""Folders of block drafters, DFlash and DSpark, which draft for one model (arXiv 2602.06036).

Knows how their publishers name files, tensors and settings: z-lab, SpecForge, DeepSpec, vLLM's
speculators, and transformers (Muse Glimmer's). The result has GGUF's keys of ``dflash``, and GGUF's
names of tensors behind "dflash.".
"""

import re
from collections.abc import Container
from typing import Any

from cutaway.errors import FormatError
from cutaway.files.huggingface.config import CONFIG
from cutaway.files.huggingface.draft_folder import MOST_LAYERS, DraftFolder, llama_sizes
from cutaway.files.huggingface.draft_vocabulary import MAPS
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import Ropes, rope_metadata
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

_LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_OUTSIDE = {
    "fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm",
    "encoder.fc": "fc", "encoder.output_norm_enc": "enc.output_norm",
    "markov_head.markov_w1": "markov_w1", "markov_head.markov_w2": "markov_w2",
    "lm_head": "output",
}  # fmt: skip
_UNREAD = re.compile(r"(model\.)?(embed_tokens|verifier_.+|confidence_head\..+)\.(weight|bias)")
"""Copies of the model's own weights, and DSpark's guess of what will be accepted."""
_HEAD = re.compile(r"(model\.)?lm_head\.weight")
"""A copy of the model's own head, unless the drafter has a smaller vocabulary."""
_NAME = re.compile(r"(?:model\.)?(?:layers\.(\d{1,3})\.)?(.+)\.(weight|bias)")
_OF_TRANSFORMERS = "muse_glimmer_assistant"
"""The model_type of the drafter that transformers itself has."""


class BlockDrafterFolder(DraftFolder):
    """The folder of a drafter, with tensors such as dflash.fc.weight."""

    key_prefix = tensor_prefix = "dflash."

    def _check_config(self, config: JsonObject) -> None:
        if not config:
            raise FormatError(f"there is no {CONFIG}, so this is no folder of a block drafter")

    def _check_tensors(self, names: Container[str]) -> None:
        if "dflash.fc.weight" not in names or "dflash.enc.output_norm.weight" not in names:
            raise FormatError("it lacks fc or hidden_norm, so this is no DFlash or DSpark drafter")

    def _rename(self, name: str, shards: Shards) -> str | None:
        unread = [_UNREAD] if any(name in shards for name in MAPS) else [_UNREAD, _HEAD]
        if name in MAPS or any(pattern.fullmatch(name) for pattern in unread):
            return None
        match = _NAME.fullmatch(name)
        new = match and (_OUTSIDE if match[1] is None else _LAYER).get(match[2])
        if not match or not new:
            raise FormatError(
                f"the tensor {quote(name)} has no place in a DFlash or DSpark drafter of Qwen 3's "
                "layers; this variant, such as DFlash 2, is not supported"
            )
        return f"{new if match[1] is None else f'blk.{match[1]}.{new}'}.{match[3]}"

    def _read_config(self, config: JsonObject) -> tuple[dict[str, Any], dict[str, Any]]:
        for part in ("dflash_config", "transformer_layer_config"):
            config = config.with_fallback(config.part(part))
        config.must_be("markov_head_type", "vanilla")
        config.must_be("proposal_hidden_offset", 0)
        metadata = llama_sizes(config) | {
            "block_count": config.size("num_hidden_layers", MOST_LAYERS),
            "mask_token_id": config.id("mask_token_id"), "target_layers": _target_layers(config),
            "sample_from_anchor": config.flag("sample_from_anchor", _is_dspark(config)),
            "block_size": config.with_defaults({}, {"block_size": 16}).size("block_size"),
        }  # fmt: skip
        for key, new in (
            ("input_embedding_scale", "embedding_scale"), ("output_multiplier", "logit_scale"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ):  # fmt: skip
            if config.get(key):
                metadata[new] = config.positive(key)
        rope, tensors = rope_metadata(config, metadata["attention.key_length"], Ropes())
        return metadata | _windows(config, metadata["block_count"]) | rope, tensors


def _is_dspark(config: JsonObject) -> bool:
    """Whether the row of a block's first token drafts, too, as DeepSpec's drafters are trained."""
    return "DSpark" in str(config.get("architectures"))


def _target_layers(config: JsonObject) -> list[int]:
    """Return how many of the model's layers come before each stream that the drafter reads.

    speculators names the layers whose input is read, the others those whose output is.
    """
    names_inputs = config.get("aux_hidden_state_layer_ids") is not None
    key = "aux_hidden_state_layer_ids" if names_inputs else "target_layer_ids"
    ids = config.get(key)
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        config.fail(key, "a list of layers, from 0")
    return [number + (not names_inputs) for number in ids]


def _layer_types(config: JsonObject, layers: int) -> list[str]:
    kinds = config.get("layer_types") or ["full_attention"] * layers
    is_list = isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
    if not is_list or len(kinds) != layers:
        config.fail("layer_types", f"a list of {layers} texts, one for each layer")
    return kinds


def _windows(config: JsonObject, layers: int) -> dict[str, Any]:
    """Return which layers see only a window, and in which a block's rows see none after them.

    As the authors define it, a layer with a window is causal, and another one is not, unless the
    config says of all. transformers' windows have one more token, and its layers are not causal.
    """
    windows = [kind == "sliding_attention" for kind in _layer_types(config, layers)]
    causal = config.get("causal" if config.get("is_causal") is None else "is_causal")
    if config.flag("sliding_window_non_causal"):
        causal = False
    of_transformers = config.text("model_type") == _OF_TRANSFORMERS
    if causal is not None or of_transformers:
        metadata: dict[str, Any] = {"causal_layers": [bool(causal)] * layers}
    else:
        metadata = {"causal_layers": windows}
    if any(windows):
        metadata["attention.sliding_window"] = config.size("sliding_window") + of_transformers
        metadata["attention.sliding_window_pattern"] = windows
    return metadata
