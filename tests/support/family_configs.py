"""Random configs of every family, and the result of reading each: a ModelConfig, or a refusal.

``PYTHONPATH=tests python -m support.family_configs`` writes tests/data/family_configs.json; with
``--whole FILE`` all results go there, line by line, for comparison with another tree's. Configs are
those of tests/data/absent_keys.json, or of the few families that transformers lacks, with some keys
changed. GGUF metadata of each result is changed likewise, and read again. Knows names of keys.
Does not know the tables of families.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cutaway import FormatError
from cutaway.compute import model
from cutaway.files.huggingface.config import CONFIG, Config
from support import absent_keys
from support.absent_keys import TEXT
from support.diffusion_models import DIFFUSION
from support.tiny_ling import CONFIGS as LING
from support.tiny_rwkv import CONFIGS as RWKV

PATH = absent_keys.PATH.with_name("family_configs.json")
USUAL, SLOW = 6, 400
"""Number of configs of a family in the usual run, and in the slow one."""
Values = dict[str, Any]

# -- configs to begin with -------------------------------------------------------------------------


_FULL = [line["full"] for line in json.loads(absent_keys.PATH.read_text()).values()]
_LIKE = {
    "qwen2_vl": "qwen2_5_vl", "mimo": "qwen2", "kimi_k2": "deepseek_v3", "camembert": "roberta",
    "new": "gte", "lfm2_bidirectional": "lfm2",
    "gemma4_unified_text": "gemma4_text", "a2d-llama": "llama",
}  # fmt: skip
_WHOLE = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text", "embedding_gemma2": "embedding_gemma2_text",
    "inkling2": "inkling2_text", "inkling2_loop": "inkling2_loop_text", "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
}  # fmt: skip
_NOMIC = {
    "model_type": "nomic_bert", "n_embd": 64, "n_inner": 96, "n_head": 4, "n_layer": 4,
    "n_positions": 512, "layer_norm_epsilon": 1e-5, "activation_function": "gelu",
    "rotary_emb_base": 900.0, "rotary_emb_fraction": 1.0, "num_experts": 5, "moe_top_k": 2,
    "moe_every_n_layers": 2, "moe_normalize_expert_weights": False,
}  # fmt: skip
_EXAONE = {
    "model_type": "exaone", "vocab_size": 384, "hidden_size": 64, "intermediate_size": 96,
    "num_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 256, "rope_theta": 900.0, "activation_function": "silu",
    "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
_MDLM = {
    "model_type": "mdlm", "vocab_size": 384, "model_length": 256, "hidden_dim": 64, "cond_dim": 32,
    "n_blocks": 2, "n_heads": 4, "time_conditioning": False,
}  # fmt: skip
_TENSORS: tuple[tuple[str, ...], ...] = (
    ("classifier.weight",), ("classifier.out_proj.weight",), ("denoise_model.a",),
    *((f"model.layers.{i}.eh_proj.weight",) for i in (3, 4, 5)), ("mtp.fc.weight",),
)  # fmt: skip


def _configs_of(model_type: str) -> list[Values]:
    return [full for full in _FULL if full["model_type"] == model_type]


def sound_configs() -> Mapping[str, list[Values]]:
    """Return valid configs by kind: by model_type or by the key that changes the family."""
    configs: dict[str, list[Values]] = {}
    for full in _FULL:
        configs.setdefault(full["model_type"], []).append(full)
    for name, like in _LIKE.items():
        configs[name] = [full | {"model_type": name} for full in _configs_of(like)]
    for name, text in _WHOLE.items():
        configs[name] = [{"model_type": name, TEXT: full} for full in _configs_of(text)]
    configs |= {name: [dict(values)] for name, values in {**LING, **RWKV}.items()}
    configs["ling2-by-name"] = [{**LING["ling2"], "model_type": "bailing_moe_v2"}]
    configs |= {"mdlm": [_MDLM], "nomic-moe": [_NOMIC], "exaone": [_EXAONE]}
    configs |= {"nomic-own": [_NOMIC | {"num_experts": 0, "activation_function": "swiglu"}]}
    configs["jina-v2"] = [
        full | {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
        for full in _configs_of("bert")
    ]
    configs["jina-v3"] = [
        full | {"position_embedding_type": "rotary"} for full in _configs_of("xlm-roberta")
    ]
    configs["gemma-embedding"] = [
        full | {"use_bidirectional_attention": True} for full in _configs_of("gemma3_text")
    ]
    configs["lfm2-encoder"] = [
        full | {"architectures": ["Lfm2BidirectionalModel"]} for full in _configs_of("lfm2")
    ]
    configs["muse_glimmer_text"] = [full[TEXT] for full in _configs_of("muse_glimmer")]
    configs["diffusion_gemma"] = [
        {"model_type": "diffusion_gemma", "canvas_length": 16,
         TEXT: full | {"model_type": "diffusion_gemma_text"}}
        for full in _configs_of("gemma4_text") if full.get("enable_moe_block")
    ]  # fmt: skip
    configs |= {name: list(_diffusion(name)) for name in DIFFUSION if name not in configs}
    return configs


def _diffusion(name: str) -> Iterator[Values]:
    row = DIFFUSION[name]
    lines = json.loads(absent_keys.PATH.read_text())
    if row.body in lines:
        full = {row.keys.get(k, k): v for k, v in lines[row.body]["full"].items()}
        yield full | {"model_type": row.model_type, **row.more}
    else:
        yield {**(LING["llada2"] if "llada2" in name else _MDLM), **row.more}


# -- changes ---------------------------------------------------------------------------------------


_ROPES: tuple[Values, ...] = (
    {"rope_type": "default", "rope_theta": 700.0}, {"rope_type": "linear", "factor": 4.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 8.0},
    {"rope_type": "yarn", "factor": 2.0, "truncate": False, "attention_factor": 1.5},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}, {"rope_type": "ntk", "factor": 3.0},
    {"rope_type": "longrope", "long_factor": [1.5] * 8, "short_factor": [1.0] * 8},
    {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    {"rope_type": "mrope", "mrope_section": [4, 2, 2]}, {"partial_rotary_factor": 0.5},
)  # fmt: skip
_ALTERNATIVES: Mapping[str, tuple[Any, ...]] = {
    "rope_parameters": _ROPES, "rope_scaling": _ROPES, "sliding_window": (None, 7, 0),
    "hidden_act": ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu2"),
    "block_size": (8,), "head_dim": (8, 24, 32), "num_key_value_heads": (1, 2, 3),
    "tie_word_embeddings": (True, False), "num_nextn_predict_layers": (1, 2),
    "architectures": (["LlamaModel"], ["GPT2LMHeadModel"], ["BailingMoeV2ForCausalLM"]),
    "position_embedding_type": ("absolute", "alibi", "rotary", "rope", "nope"),
    "use_bidirectional_attention": (True, False), "partial_rotary_factor": (0.5, 0.25, 2.0),
    "id2label": ({"0": "a", "1": "b", "2": "c"}, {"1": "a"}), "num_labels": (1, 3),
    "classifier_pooling": ("mean", "cls", "max"), "attn_logit_softcapping": (None, 20.0),
    "final_logit_softcapping": (None, 20.0), "norm_topk_prob": (True, False),
    "layer_types": (["full_attention"] * 4, ["sliding_attention"] * 3 + ["full_attention"]),
    "num_experts": (0, 4), "num_local_experts": (0, 4), "n_group": (1, 2), "topk_group": (1, 2),
    "rope_theta": (500.0, 1e6), "max_position_embeddings": (2, 512), "mask_token_id": (4,),
    "hybrid_override_pattern": ("M*-M", "MEM*", "MM?*"), "is_decoder": (True,),
    "attn_temperature_tuning": (False, None), "rotary_emb_base": (300.0,),
}  # fmt: skip
_ODD: tuple[Any, ...] = (0, 1, -1, 3, 0.5, 1e30, "x", [], {}, True, False)


def change(values: Values, rng: Random, seen: Mapping[str, list[Any]], limit: int) -> Values:
    """Change, add or remove at most ``limit`` keys of a copy. seen: key -> valid values."""
    values, keys = json.loads(json.dumps(values)), sorted({*seen, *_ALTERNATIVES})
    for _ in range(rng.randrange(limit + 1)):
        part = values[TEXT] if TEXT in values and rng.random() < 0.8 else values
        present = sorted({*part} - {"model_type", TEXT})
        key = rng.choice(keys if rng.random() < 0.4 or not present else present)
        kind = rng.random()
        if kind < 0.25:
            part.pop(key, None)
        elif kind < 0.33:
            part[key] = None
        elif kind < 0.4:
            part[key] = rng.choice(_ODD)
        elif kind < 0.6 and type(part.get(key)) in (int, float):
            part[key] *= rng.choice((2, 3))
        else:
            part[key] = rng.choice([*_ALTERNATIVES.get(key, ()), *seen.get(key, [None])])
    return values


def _seen(configs: Mapping[str, list[Values]]) -> dict[str, list[Any]]:
    """Return each key's distinct values, in a fixed order."""
    values_of: dict[str, dict[str, Any]] = {}
    for full in (full for fulls in configs.values() for full in fulls):
        for key, value in full.get(TEXT, full).items():
            if key not in ("model_type", "vocab_size"):
                values_of.setdefault(key, {})[json.dumps(value)] = value
    return {key: [*values_of[key].values()] for key in sorted(values_of)}


def _change_metadata(metadata: Values, rng: Random) -> Values:
    """Change or remove some keys of GGUF metadata, or return that of a llama without a folder."""
    name = metadata["general.architecture"]
    copy = {k: v for k, v in metadata.items() if rng.random() > 0.06 or k.startswith("general")}
    keys = sorted(k for k in copy if k.startswith(f"{name}."))
    for key in rng.sample(keys, min(len(keys), rng.randrange(3))):
        value = copy[key]
        copy[key] = value * rng.choice((2, 3)) if type(value) in (int, float) else rng.choice(_ODD)
    if rng.random() < 0.3:
        key, *values = rng.choice(_GGUF_KEYS)
        copy[f"{name}.{key}"] = rng.choice(values)
    if name == "llama" and rng.random() < 0.6:
        architecture = rng.choice(("internlm2", "minicpm", "exaone"))
        copy = {k.replace("llama.", f"{architecture}."): v for k, v in copy.items()}
        copy["general.architecture"] = architecture
    return copy


_GGUF_KEYS: tuple[tuple[Any, ...], ...] = (
    ("attention.sliding_window", 0, 5, 4096), ("attention.sliding_window_pattern", 2, 3),
    ("attention.scale", 0.3, 0), ("attention.causal", True, False), ("logit_scale", 0.5, 0),
    ("expert_gating_func", 1, 2, 3, 4), ("expert_weights_norm", True, False),
    ("expert_weights_scale", 0, 2.5), ("expert_group_count", 2, 0), ("embedding_scale", 3.0, 0),
    ("attention.max_alibi_bias", 0, 8.0), ("use_parallel_residual", True, False),
    ("hidden_activation", "gelu", "silu", "relu2", "gelu_pytorch_tanh"), ("residual_scale", 0.5),
    ("attn_logit_softcapping", 0, 30.0), ("final_logit_softcapping", 0, 30.0),
    ("rope.freq_base_swa", 300.0), ("rope.dimension_count_swa", 8), ("rope.scaling.type", "none"),
    ("rope.scaling.finetuned", True, False), ("nextn_predict_layers", 1), ("block_count", 46, 62),
    ("full_attention_interval", 2, 3), ("attention.clamp_kqv", 0, 8.0),
    ("attention.key_length", 24), ("rope.scaling.yarn_log_multiplier", 0.1),
    ("attention.temperature_length", 0, 32), ("attention.shared_kv_layers", 1, 9),
)  # fmt: skip


# -- what is read ----------------------------------------------------------------------------------


_XIELU = {"xielu.alpha_p": 0.5, "xielu.alpha_n": 0.25, "xielu.beta": 0.5, "xielu.eps": -1e-6}
"""Values that a folder has in tensors, which these tests do not read."""


def read(folder: Path, values: Values, rng: Random) -> str:
    """Return the result of reading a config and its changed metadata, as one text."""
    (folder / CONFIG).write_text(json.dumps(values))
    tensors = rng.choice(_TENSORS) if rng.random() < 0.3 else ()
    try:
        config = Config(folder, tensors)
    except FormatError:
        return "refused"
    metadata = {k: v for k, v in config.metadata.items() if k != "general.name"}
    if metadata["general.architecture"] == "apertus":
        metadata |= _XIELU
    models = [_model(metadata), *(_model(_change_metadata(metadata, rng)) for _ in range(3))]
    config_values = {
        "metadata": metadata, "tensors": config.tensors, "tied": config.tied,
        "is_body": config.is_body, "draft_layers": config.draft_layers, "layers": config.layers,
        "behind": [*config.behind], "sees_all": config.sees_all, "experts": config.experts,
        "heads": [config.heads, config.kv_heads],
    }  # fmt: skip
    return json.dumps([plain(config_values), *models], sort_keys=True)


def _model(metadata: Values) -> Any:
    try:
        return plain(facts(model.config_of(metadata, 99)))
    except FormatError:
        return "refused"


def facts(config: model.ModelConfig) -> Values:
    """Return a model's numbers by name, without the neutral ones."""
    return {k: v for k, v in asdict(config).items() if v or v == 1}


def plain(value: Any) -> Any:
    """Return a value for JSON; floats have six digits, in which all machines agree."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [str(value.dtype.kind), *(plain(item) for item in value.ravel().tolist())]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def texts(name: str, count: int) -> Iterator[str]:
    """Yield the results of the first ``count`` configs of a kind."""
    with TemporaryDirectory() as folder:
        for seed in range(count):
            rng = Random(f"{name} {seed}")
            values = change(rng.choice(CONFIGS[name]), rng, SEEN, 4 if seed else 0)
            yield read(Path(folder), values, rng)


CONFIGS = sound_configs()
"""See `sound_configs`."""
SEEN = _seen(
    {
        name: configs
        for name, configs in CONFIGS.items()
        if name not in {*RWKV, "lfm2-encoder", "lfm2_bidirectional"}
    }
)


def digest(name: str, count: int) -> str:
    """Return the number of accepted configs of a kind, and a hash of all results."""
    all_read, sha = [*texts(name, count)], sha256()
    for text in all_read:
        sha.update(text.encode())
    return f"{sum(text != 'refused' for text in all_read)} {sha.hexdigest()[:16]}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--whole"]:
        with Path(sys.argv[2]).open("w") as file:
            for name in CONFIGS:
                file.writelines(f"{name} {i} {t}\n" for i, t in enumerate(texts(name, SLOW)))
    else:
        lines = [json.dumps({n: [digest(n, USUAL), digest(n, SLOW)]})[1:-1] for n in CONFIGS]
        PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
