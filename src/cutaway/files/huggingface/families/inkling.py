"""Inkling 2: names and keys. Its graph is in ``compute/model/architectures/inkling.py``.

transformers writes its folders with the publisher's names.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.families import keys, mixtures
from cutaway.files.huggingface.families.family import Family
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization import FACTOR
from cutaway.files.huggingface.rewrites import FirstRows, Rewrite, Taps, transpose
from cutaway.files.huggingface.shards import Shards, Sources, TensorSource
from cutaway.files.weights import FORMATS, dequantize

_FULL, _SLIDING = "hybrid", "hybrid_sliding"  # of layers with convolutions


def inkling(config: JsonObject) -> dict[str, Any]:
    """Return the keys of windows, experts, and of what grows and is cut in attention."""
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        config.must_be(f"swa_{key}", config.size(key))
    config.must_be("scoring_func", "sigmoid")
    config.must_be("mlp_gate_softcap", 4.0)
    config.must_be("mlp_up_softcap", 25.0)
    growth = float(np.float32(config.number("log_scaling_alpha")))  # as a file will hold it
    return _windows(config) | mixtures.experts(config, "n_routed_experts") | {
        "feed_forward_length": config.size("moe_intermediate_size"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        "expert_gating_func": mixtures.SIGMOID,
        "expert_weights_norm": True,
        "expert_weights_scale": config.positive("route_scale"),
        "attention.residual_block_size": config.size("n_layers_per_attn_res_block"),
        "attention.head_clip": config.positive("qk_l2_clip_threshold"),
        "attention.relative_clip": config.positive("rel_l2_clip_threshold"),
        "attention.query_growth": growth,
        "attention.query_growth_floor": config.size("log_scaling_n_floor"),
        "final_logit_softcapping": config.positive("final_logit_softcapping"),
        "loop.passes": 1,
    }  # fmt: skip


def looped_inkling(config: JsonObject) -> dict[str, Any]:
    """Return also the keys of loops."""
    loop = _loop(config)
    return inkling(config) | {
        "loop.first": loop.size("core_start"),
        "loop.last": loop.size("core_end"),
        "loop.passes": loop.size("num_passes"),
    }


def _loop(config: JsonObject) -> JsonObject:
    """Return the keys of loops, which the publisher has in an object of their own."""
    names = {
        "core_start": "loop_layer_index_start", "core_end": "loop_layer_index_end",
        "num_passes": "loop_num_passes",
    }  # fmt: skip
    usual = {new: config.get(old) for new, old in names.items()}
    return config.part("loop_config").with_defaults({}, usual)


def _windows(config: JsonObject) -> dict[str, Any]:
    layers = config.size("num_hidden_layers")
    kinds = config.get("layer_types") or [_SLIDING if (i + 1) % 6 else _FULL for i in range(layers)]
    keys.check_kinds(config, kinds, _FULL, _SLIDING)
    return {
        keys.WINDOW: config.size("sliding_window_size"),
        f"{keys.WINDOW}_pattern": np.array([kind == _SLIDING for kind in kinds]),
    }


# -- names and rewrites of tensors -----------------------------------------------------------------


_QUERIES = re.compile(r"(.*)attn_res\.(attn|mlp)_queries\.(\d{1,5})")
_ENDINGS = (".weight", ".bias", FACTOR)


def _plain_name(name: str) -> str:
    """Return the name with its layer where other families have it, and with an ending."""
    if match := _QUERIES.fullmatch(name):
        layer = int(match[3]) + (match[2] == "attn")  # the first layer has nothing to choose from
        name = f"{match[1]}layers.{layer}.{match[2]}_queries"
    return name if name.endswith(_ENDINGS) else f"{name}.weight"


def _rewrites(config: JsonObject) -> Mapping[str, Rewrite]:
    kv_heads, taps = config.size("num_key_value_heads", 1 << 16), config.size("conv_kernel_size")

    def oldest_first(x: NDArray[Any]) -> NDArray[Any]:
        if len(x) != kv_heads * taps:
            raise FormatError(
                f"weights of convolutions have {len(x)} rows, and the config has "
                f"{kv_heads} key-value heads of {taps} taps"
            )
        return x.reshape(kv_heads, taps, -1)[:, ::-1].reshape(x.shape)

    return {
        **dict.fromkeys(("attn_k_conv", "attn_v_conv", "attn_conv", "ffn_conv"), Taps()),
        **dict.fromkeys(("attn_k_taps", "attn_v_taps"), oldest_first),
        "attn_rel_bank": transpose,
        **dict.fromkeys(("token_embd", "output"), FirstRows(config.size("unpadded_vocab_size"))),
    }  # fmt: skip


def _split_messages(sources: Sources, config: JsonObject, shards: Shards) -> dict[str, Any]:
    """Give each looped layer its queries of messages: for queries, keys, values and experts."""
    pairs = [sources.pop(f"{name}.weight", None) for name in ("loop_queries", "loop_kv_queries")]
    numbers = [_read_queries(pair, config, shards) for pair in pairs if pair is not None]
    if len(numbers) == len(pairs):
        outer, inner = numbers
        by_layer = np.concatenate([outer[:, :1], inner, outer[:, 1:]], axis=1)
        for layer, queries in enumerate(by_layer, _loop(config).size("core_start")):
            name = f"blk.{layer}.loop_mix.weight"
            sources[name] = TensorSource(name, "F32", queries.shape, (), values=queries)
    return {}


def _read_queries(source: TensorSource, config: JsonObject, shards: Shards) -> NDArray[np.float32]:
    """Return the two queries of each looped layer: (layers, 2, hidden)."""
    loop, hidden = _loop(config), config.size("hidden_size")
    layers = loop.size("core_end") - loop.size("core_start")
    if source.shape != (2 * layers, hidden):
        raise FormatError(
            f"the tensor {source.sources[0]} has the shape {source.shape}; it must be "
            f"{2 * layers, hidden}: two rows for each of the {layers} looped layers"
        )
    return dequantize(FORMATS[source.format], source.make(shards)[:]).reshape(layers, 2, hidden)


_CONTROLLERS = {"attn": "q", "k": "k", "v": "v", "mlp": "ffn"}
_INKLING = Family(
    architecture="inkling2", prefixes=("model.llm.",), metadata=inkling, rope=None, must_be={},
    outside={
        "embed": "token_embd", "embed_norm": "token_embd_norm", "norm": "output_norm",
        "unembed": "output", "attn_res.output_query": "output_mix",
        "middle_cycle_cross_pass_queries": "loop_queries",
        "middle_cycle_cross_pass_kv_queries": "loop_kv_queries",
    },
    layer={
        "attn_norm": "attn_norm", "mlp_norm": "ffn_norm",
        **{f"{part}_input_norm": f"attn_norm_{part}" for part in "qkv"},
        "attn.wq_du": "attn_q", "attn.wk_dv": "attn_k", "attn.wv_dv": "attn_v",
        "attn.wo_ud": "attn_output", "attn.gate_attn": "attn_gate",
        "attn.attn_sink_proj": "attn_sink", "attn.q_l2_clip.scale": "attn_q_clip",
        "attn.wr_du": "attn_rel", "attn.rel_l2_clip.scale": "attn_rel_clip",
        "attn.rel_logits_proj.proj": "attn_rel_bank",
        **{f"attn.{x}_sconv{end}": f"attn_{x}_conv" for x in "kv" for end in ("", ".static_w")},
        **{f"attn.{x}_sconv.weight_proj": f"attn_{x}_taps" for x in "kv"},
        "attn_sconv": "attn_conv", "mlp_sconv": "ffn_conv",
        "attn_queries": "attn_mix", "mlp_queries": "ffn_mix",
        **{
            f"controllers.{old}.{part}_weight": f"loop_{new}_{part}"
            for old, new in _CONTROLLERS.items() for part in ("down", "forget", "gain")
        },
        "mlp.gate": "ffn_gate_inp",
        "mlp.experts.w13_weight": "ffn_gate_exps+ffn_up_exps",
        "mlp.experts.w2_weight": "ffn_down_exps",
    },
    whole={"mlp.gate.bias": "exp_probs_b.bias"},
    experts_turned=False, experts_alternate=True,
    plain_name=_plain_name, rewrites_of=_rewrites,
)  # fmt: skip

_LOOPED = replace(_INKLING, metadata=looped_inkling, rebuild=_split_messages)

ROWS: Mapping[str, Family] = {
    "inkling2": _INKLING, "inkling2_text": _INKLING,
    "inkling2_loop": _LOOPED, "inkling2_loop_text": _LOOPED,
}  # fmt: skip
