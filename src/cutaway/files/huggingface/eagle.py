"""Folders of EAGLE-3 heads, which draft for one model (Li et al. 2025, arXiv 2503.01840).

Knows how their publishers name files, tensors and settings: the paper's authors, SpecForge,
AngelSlim (midlayer), and publishers who write the layer as vLLM reads it (layers.0). The resulting
keys begin with eagle3, and the tensors' names with eagle.
"""

import re
from collections.abc import Container
from typing import Any

from cutaway.errors import FormatError
from cutaway.files.huggingface.config import CONFIG
from cutaway.files.huggingface.draft_folder import DraftFolder, llama_sizes
from cutaway.files.huggingface.draft_vocabulary import MAPS
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import Ropes, rope_metadata
from cutaway.files.huggingface.shards import Shards
from cutaway.files.weights.cursor import quote

_LAYER = {
    "hidden_norm": "hidden_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_OUTSIDE = {
    "fc": "fc", "norm": "output_norm", "lm_head": "output", "embed_tokens": "token_embd",
}  # fmt: skip
_TENSOR_NAME = re.compile(r"(?:model\.)?(?:(midlayer|layers\.0)\.)?(.+)\.(weight|bias)")


class EagleFolder(DraftFolder):
    """The folder of a head, with tensors such as eagle.fc.weight."""

    key_prefix, tensor_prefix = "eagle3.", "eagle."

    def _check_config(self, config: JsonObject) -> None:
        if not config:
            raise FormatError(f"there is no {CONFIG}, so this is no folder of a draft head")

    def _check_tensors(self, names: Container[str]) -> None:
        if "eagle.fc.weight" not in names or "eagle.hidden_norm.weight" not in names:
            raise FormatError(
                "it lacks fc or hidden_norm, so this is no EAGLE-3 head "
                "(EAGLE 1 and 2 are not supported)"
            )

    def _rename(self, name: str, _shards: Shards) -> str | None:
        if name in MAPS:
            return None
        match = _TENSOR_NAME.fullmatch(name)
        new = match and (_LAYER if match[1] else _OUTSIDE).get(match[2])
        if not match or not new:
            raise FormatError(
                f"the tensor {quote(name)} has no place in an EAGLE-3 head of one Llama layer; "
                "this variant is not supported"
            )
        return f"{new}.{match[3]}"

    def _read_config(self, config: JsonObject) -> tuple[dict[str, Any], dict[str, Any]]:
        config.must_be("num_hidden_layers", 1)
        metadata = llama_sizes(config)
        metadata["norm_before_residual"] = config.flag("norm_before_residual")
        rope, tensors = rope_metadata(config, metadata["attention.key_length"], Ropes())
        if (layers := _layers(config)) is not None:
            metadata["target_layers"] = layers
        return metadata | rope, tensors


def _layers(config: JsonObject) -> list[int] | None:
    """Return how many of the model's layers come before each stream that the head reads.

    None: the paper's layers. Ids at the top of the config name layers whose input is read, as in
    vLLM; ids in ``eagle_config`` name layers whose output is read, as in SpecForge and SGLang.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    at_top = config.get(key) is not None
    section = config if at_top else config.part("eagle_config")
    ids = section.get(key)
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or any(type(i) is not int or i < 0 for i in ids):
        section.fail(key, "a list of layers, from 0")
    return ids if at_top else [after + 1 for after in ids]
