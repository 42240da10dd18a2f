"""Tiny random masked diffusion models, saved as folders: the bodies that transformers has.

transformers (5.23) has none of these models. So each is the body of another model, called with the
attention mask of its own; `save` then writes the names of its own files. `tiny_mdlm` has MDLM's
body, `tiny_ling` LLaDA 2's.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from re import sub
from typing import Any, NamedTuple

from support import families, random_models, tiny_ling, tiny_mdlm
from support.families.row import VOCAB
from support.random_models import FAMILIES, edit

MASK = 5
TOKENS = 40


class Row(NamedTuple):
    """A row of ``random_models.FAMILIES``, with the differences of its masked diffusion model.

    keys: key of the body's config.json -> key of the model's; more: additional keys; names: pattern
    in the body's tensor names -> its replacement
    """

    body: str
    model_type: str
    architecture: str
    attention: str | int
    shift: bool = False
    keys: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}
    names: Mapping[str, str] = {}
    mask: int = MASK


_LLADA = {
    "hidden_size": "d_model", "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads",
    "num_hidden_layers": "n_layers", "intermediate_size": "mlp_hidden_size",
    "hidden_act": "activation_type", "max_position_embeddings": "max_sequence_length",
    "tie_word_embeddings": "weight_tying",
}  # fmt: skip
_LLADA_MORE = {
    "block_type": "llama", "block_group_size": 1, "layer_norm_type": "rms", "rope": True,
    "layer_norm_with_affine": True, "alibi": False, "attention_layer_norm": False,
    "input_emb_norm": False, "multi_query_attention": None, "scale_logits": False,
}  # fmt: skip
_LLADA_NAMES = {
    r"model\.embed_tokens": "model.transformer.wte", r"model\.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out", r"model\.layers": "model.transformer.blocks",
    r"self_attn\.o_proj": "attn_out", r"self_attn\.": "", r"mlp\.gate_proj": "ff_proj",
    r"mlp\.up_proj": "up_proj", r"mlp\.down_proj": "ff_out", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}  # fmt: skip
_WRAPPED_LLAMA = {r"^model\.embed_tokens": "embed_tokens", r"^model\.": "denoise_model."}
_WRAPPED_GPT2 = {r"^transformer\.wte": "embed_tokens", r"^transformer\.": "denoise_model."}

DIFFUSION: Mapping[str, Row] = {
    "llada": Row(
        "llama-tied", "llada", "llada", "bidirectional", False, _LLADA, _LLADA_MORE, _LLADA_NAMES
    ),
    "llada-untied": Row(
        "llama-biased", "llada", "llada", "bidirectional", False, _LLADA, _LLADA_MORE, _LLADA_NAMES
    ),
    "llada-moe": Row(
        "qwen3_moe-unnormed", "llada", "llada-moe", "bidirectional", False,
        {
            "intermediate_size": "dense_intermediate_size",
            "moe_intermediate_size": "expert_intermediate_size", "num_local_experts": "num_experts",
        },
        {
            "norm_topk_prob": None, "moe_layer_freq": [1] * 4, "qk_layernorm": True,
            "moe_router_score_function": "softmax", "shared_expert_intermediate_size": None,
        },
    ),
    "dream": Row("qwen2", "Dream", "dream", "bidirectional", True),
    "sdar": Row("qwen3", "sdar", "qwen3", 4),
    "sdar-blocks": Row("qwen3", "sdar", "qwen3", 7, more={"block_size": 7}),
    "sdar-moe": Row("qwen3_moe", "sdar_moe", "qwen3moe", 4),
    "llada2": Row("", "llada2_moe", "bailingmoe2", 32),  # with its own body
    "llada2-blocks": Row("", "llada2_moe", "bailingmoe2", 8, more={"block_size": 8}),
    "a2d-llama": Row("llama3-rope", "a2d-llama", "llama", "bidirectional"),
    "a2d-qwen2": Row("qwen2", "a2d-qwen2", "qwen2", "bidirectional"),
    "a2d-qwen3": Row("qwen3", "a2d-qwen3", "qwen3", "bidirectional"),
    "a2d-blocks": Row("qwen3", "a2d-qwen3", "qwen3", 32, more={"block_size": 32}),
    "diffugpt": Row("gpt2", "gpt2", "gpt2", "bidirectional", True, names=_WRAPPED_GPT2),
    "diffullama": Row("llama", "llama", "llama", "bidirectional", True, names=_WRAPPED_LLAMA),
    "rnd1": Row(
        "qwen3_moe", "rnd1", "rnd1", "bidirectional", True,
        more={"rope_scaling": False, "sliding_window": False},
    ),
    "mdlm": Row("", "mdlm", "gptneox", "bidirectional", mask=VOCAB - 1),  # with its own body
}  # fmt: skip


def context(_name: str) -> None:
    """Return what ``random_models.context`` does."""


def row(name: str) -> families.row.Row:
    """Return the row of the body, with GGUF's name of the model's architecture."""
    body = FAMILIES.get(DIFFUSION[name].body, families.row.Row("not there", {}, ""))
    return body._replace(architecture=DIFFUSION[name].architecture)


def save(name: str, folder: Path, **options: Any) -> Any:
    """Write a model as ``random_models.save`` does; the body keeps the model's attention."""
    from safetensors.numpy import load_file, save_file

    row = DIFFUSION[name]
    if name == "mdlm":
        return tiny_mdlm.save(folder, **options)
    if row.model_type == "llada2_moe":
        ling = tiny_ling.save("llada2", folder, **options)
        ling.block = int(row.attention)
        edit(folder / "config.json", **row.more)
        return ling
    body = random_models.save(row.body, folder, **options)
    body.attention = row.attention
    file = folder / "model.safetensors"
    save_file({_rename(k, row.names): v for k, v in load_file(file).items()}, file)
    config = json.loads((folder / "config.json").read_text())
    config = {row.keys.get(k, k): v for k, v in config.items()}
    (folder / "config.json").write_text(json.dumps(_flat(config)))
    edit(folder / "config.json", model_type=row.model_type, mask_token_id=MASK, **row.more)
    return body


def _rename(name: str, names: Mapping[str, str]) -> str:
    for pattern, instead in names.items():
        name = sub(pattern, instead, name)
    return name


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Write plain rotary positions as these models' own configs do."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "default":
        config = {k: v for k, v in config.items() if k != "rope_parameters"}
        config["rope_theta"] = rope["rope_theta"]
    return config


def logits(body: Any, ids: list[int]) -> Any:
    """Return transformers' logits under the model's attention: float32 (n, vocab)."""
    import torch

    if isinstance(body, dict):
        return tiny_mdlm.logits(body, ids)
    if isinstance(body, tiny_ling.Ling):
        return body.logits(ids)
    n = len(ids)
    rows, columns = torch.arange(n)[:, None], torch.arange(n)[None]
    block = n if body.attention == "bidirectional" else body.attention
    seen = columns // block <= rows // block
    mask = torch.where(seen, 0.0, float("-inf"))[None, None]
    body.set_attn_implementation("eager")
    with torch.no_grad():
        return body(torch.tensor([ids]), attention_mask=mask).logits[0].float().numpy()


__all__ = ["DIFFUSION", "MASK", "TOKENS", "VOCAB", "context", "logits", "row", "save"]
