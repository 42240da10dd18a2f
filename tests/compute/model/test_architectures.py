"""Each architecture takes the tensors of llama.cpp's converter, all of them and no other."""

import numpy as np
import pytest

from cutaway import FormatError
from cutaway.compute import model
from cutaway.compute.model.architectures import tables

N, FF, VOCAB, CONTEXT, HEAD = 24, 40, 50, 64, 8
Q, KV = 4 * HEAD, 2 * HEAD

QKV = {"attn_q.weight": (Q, N), "attn_k.weight": (KV, N), "attn_v.weight": (KV, N)}
QKV_BIASES = {"attn_q.bias": (Q,), "attn_k.bias": (KV,), "attn_v.bias": (KV,)}
HEAD_NORMS = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
GATED = {"ffn_gate.weight": (FF, N), "ffn_up.weight": (FF, N), "ffn_down.weight": (N, FF)}
PRE = {"attn_norm.weight": (N,), "ffn_norm.weight": (N,)}
NORM_BIASES = {"attn_norm.bias": (N,), "ffn_norm.bias": (N,)}
GATE_AND_UP = {"ffn_up.weight": (2 * FF, N), "ffn_down.weight": (N, FF)}
RELU2 = {"ffn_up.weight": (FF, N), "ffn_down.weight": (N, FF)}
POST = {"post_attention_norm.weight": (N,), "post_ffw_norm.weight": (N,)}
EXPERTS = {
    "ffn_gate_inp.weight": (4, N), "ffn_gate_exps.weight": (4, FF, N),
    "ffn_up_exps.weight": (4, FF, N), "ffn_down_exps.weight": (4, N, FF),
}  # fmt: skip
SHARED = {
    "ffn_gate_shexp.weight": (FF, N), "ffn_up_shexp.weight": (FF, N),
    "ffn_down_shexp.weight": (N, FF),
}  # fmt: skip
SHARED_GATE = {"ffn_gate_inp_shexp.weight": (N,)}
CHOOSING = {"exp_probs_b.bias": (4,)}
RELU2_EXPERTS = CHOOSING | {
    name: shape for name, shape in (EXPERTS | SHARED).items() if "gate_exps" not in name
    and "gate_shexp" not in name
}  # fmt: skip
FUSED = {"attn_qkv.weight": (Q + 2 * KV, N)}
PLAIN_MLP = {
    "ffn_up.weight": (FF, N), "ffn_up.bias": (FF,),
    "ffn_down.weight": (N, FF), "ffn_down.bias": (N,),
}  # fmt: skip
BIASES = {
    "attn_norm.bias": (N,), "ffn_norm.bias": (N,), "attn_output.bias": (N,),
    "attn_qkv.bias": (Q + 2 * KV,),
}  # fmt: skip
MASKED_HEAD = {
    "cls.weight": (N, N), "cls.bias": (N,), "cls.norm.weight": (N,), "cls.norm.bias": (N,),
    "output.bias": (VOCAB,),
}  # fmt: skip
HALF = (HEAD // 2,)
FACTORS = {"rope_factors_long.weight": HALF, "rope_factors_short.weight": HALF}

POST_BERT = dict.fromkeys(
    ("attn_output.bias", "attn_output_norm.weight", "attn_output_norm.bias",
     "layer_output_norm.weight", "layer_output_norm.bias"), (N,),
)  # fmt: skip

RWKV7 = {
    "time_mix_lerp_fused.weight": (6, 1, 1, N), "channel_mix_lerp_k.weight": (1, 1, N),
    "channel_mix_key.weight": (FF, N), "channel_mix_value.weight": (N, FF),
    **{f"{norm}.{role}": (N,) for norm in ("attn_norm", "attn_norm_2", "time_mix_ln")
       for role in ("weight", "bias")},
    **{f"time_mix_{matrix}.weight": (N, N) for matrix in ("receptance", "key", "value", "output")},
    **{f"time_mix_{vector}.weight": (N,)
       for vector in ("k_k", "k_a", "r_k", "w0", "a0", "v0")},
    **{f"time_mix_{part}1.weight": (4, N) for part in "wavg"},
    **{f"time_mix_{part}2.weight": (N, 4) for part in "wavg"},
}  # fmt: skip

LAYERS = {
    "llama": PRE | QKV | GATED,
    "mixtral": PRE | QKV | EXPERTS,
    "smollm3": PRE | QKV | GATED,
    "qwen2": PRE | QKV | QKV_BIASES | GATED,
    "qwen3": PRE | QKV | HEAD_NORMS | GATED,
    "qwen3moe": PRE | QKV | HEAD_NORMS | EXPERTS,
    "qwen2moe": PRE | QKV | QKV_BIASES | EXPERTS | SHARED | SHARED_GATE,
    "olmoe": PRE | QKV | EXPERTS | {"attn_q_norm.weight": (Q,), "attn_k_norm.weight": (KV,)},
    "granitemoe": PRE | QKV | EXPERTS | SHARED,
    "ernie4_5-moe": PRE | QKV | EXPERTS | SHARED | CHOOSING,
    "glm4moe": QKV | QKV_BIASES | HEAD_NORMS | EXPERTS | SHARED | CHOOSING | {
        "attn_norm.weight": (N,), "post_attention_norm.weight": (N,),
    },
    "dots1": PRE | QKV | HEAD_NORMS | EXPERTS | SHARED | CHOOSING,
    "gpt-oss": QKV | QKV_BIASES | EXPERTS | {
        "attn_norm.weight": (N,), "post_attention_norm.weight": (N,), "attn_sinks.weight": (4,),
        "attn_output.bias": (N,), "ffn_gate_inp.bias": (4,), "ffn_gate_exps.bias": (4, FF),
        "ffn_up_exps.bias": (4, FF), "ffn_down_exps.bias": (4, N),
    },
    "hunyuan-moe": PRE | QKV | HEAD_NORMS | EXPERTS | SHARED,
    "phimoe": PRE | NORM_BIASES | QKV | QKV_BIASES | EXPERTS | {"attn_output.bias": (N,)},
    "afmoe": PRE | POST | QKV | HEAD_NORMS | EXPERTS | SHARED | CHOOSING | {
        "attn_gate.weight": (Q, N),
    },
    "deepseek2": PRE | EXPERTS | SHARED | CHOOSING | {  # 4 heads of 6 and 2, a latent of 16
        "attn_q_a.weight": (10, N), "attn_q_a_norm.weight": (10,), "attn_q_b.weight": (Q, 10),
        "attn_kv_a_mqa.weight": (16 + 2, N), "attn_kv_a_norm.weight": (16,),
        "attn_k_b.weight": (4, 16, 6), "attn_v_b.weight": (4, HEAD, 16),
    },
    "minicpm3": PRE | GATED | {
        "attn_q_a.weight": (10, N), "attn_q_a_norm.weight": (10,), "attn_q_b.weight": (Q, 10),
        "attn_kv_a_mqa.weight": (16 + 2, N), "attn_kv_a_norm.weight": (16,),
        "attn_k_b.weight": (4, 16, 6), "attn_v_b.weight": (4, HEAD, 16),
    },
    "kimi-linear": PRE | EXPERTS | SHARED | CHOOSING | {
        "attn_q.weight": (Q, N), "attn_kv_a_mqa.weight": (16 + 2, N),
        "attn_kv_a_norm.weight": (16,), "attn_k_b.weight": (4, 16, 6),
        "attn_v_b.weight": (4, HEAD, 16),
    },
    "minimax-m2": PRE | QKV | EXPERTS | CHOOSING | {
        "attn_q_norm.weight": (Q,), "attn_k_norm.weight": (KV,),
    },
    "mellum": PRE | QKV | HEAD_NORMS | EXPERTS,
    "laguna": PRE | QKV | HEAD_NORMS | EXPERTS | SHARED | CHOOSING | {"attn_gate.weight": (4, N)},
    "mimo2": PRE | QKV | EXPERTS | CHOOSING | {
        "attn_sinks.weight": (4,), "attn_v.weight": (2 * 6, N),
    },
    "exaone-moe": PRE | QKV | HEAD_NORMS | EXPERTS | SHARED | CHOOSING,
    "flex-olmo": POST | QKV | EXPERTS | {
        "attn_q_norm.weight": (Q,), "attn_k_norm.weight": (KV,),
    },
    "bailingmoe": PRE | QKV | EXPERTS | SHARED,
    "bailingmoe2": PRE | FUSED | HEAD_NORMS | EXPERTS | SHARED | CHOOSING,
    "llama4": PRE | QKV | EXPERTS | SHARED,
    "gemma2": PRE | POST | QKV | GATED,
    "vaultgemma": PRE | QKV | GATED,
    "gemma3": PRE | POST | QKV | HEAD_NORMS | GATED,
    "gemma4": PRE | POST | HEAD_NORMS | GATED | EXPERTS | {  # values are keys
        "attn_q.weight": (Q, N), "attn_k.weight": (KV, N), "layer_output_scale.weight": (1,),
        "inp_gate.weight": (6, N), "proj.weight": (N, 6), "post_norm.weight": (N,),
        "ffn_gate_inp.scale": (N,), "pre_ffw_norm_2.weight": (N,), "post_ffw_norm_1.weight": (N,),
        "post_ffw_norm_2.weight": (N,),
    },
    "diffusion-gemma": PRE | POST | HEAD_NORMS | GATED | EXPERTS | {  # as it reads a prompt
        "attn_q.weight": (Q, N), "attn_k.weight": (KV, N), "enc_layer_output_scale.weight": (1,),
        "ffn_gate_inp.scale": (N,), "pre_ffw_norm_2.weight": (N,), "post_ffw_norm_1.weight": (N,),
        "post_ffw_norm_2.weight": (N,),
    },
    "inkling2": PRE | QKV | EXPERTS | CHOOSING | {
        "attn_gate.weight": (Q, N), "attn_sink.weight": (4, N), "attn_q_clip.weight": (4, HEAD),
        "attn_rel.weight": (8, N), "attn_rel_clip.weight": (4, 2), "attn_rel_bank.weight": (6, 2),
        "attn_k_conv.weight": (KV, 4), "attn_v_conv.weight": (KV, 4), "attn_conv.weight": (N, 4),
        "ffn_conv.weight": (N, 4), "attn_mix.weight": (N,), "ffn_mix.weight": (N,),
    },
    "gemma3n": PRE | POST | QKV | HEAD_NORMS | GATED | {  # 3 streams
        "inp_gate.weight": (6, N), "proj.weight": (N, 6), "post_norm.weight": (N,),
        "altup_correct_coef.weight": (3, 3), "altup_correct_scale.weight": (N,),
        "altup_predict_coef.weight": (9, 3), "altup_router.weight": (3, N),
        "altup_router_norm.weight": (N,), "laurel_l.weight": (5, N), "laurel_r.weight": (N, 5),
        "laurel_post_norm.weight": (N,),
    },
    "phi3": PRE | FUSED | GATE_AND_UP,
    "gpt2": PRE | FUSED | BIASES | PLAIN_MLP,
    "gptneox": PRE | FUSED | BIASES | PLAIN_MLP,
    "starcoder": PRE | FUSED | BIASES | PLAIN_MLP,
    "opt": PRE | NORM_BIASES | QKV | QKV_BIASES | PLAIN_MLP | {"attn_output.bias": (N,)},
    "bloom": PRE | FUSED | BIASES | PLAIN_MLP,
    "mpt": PRE | FUSED | RELU2,
    "falcon": FUSED | RELU2 | {
        f"attn_norm{number}.{role}": (N,) for number in ("", "_2") for role in ("weight", "bias")
    },
    "gptj": QKV | PLAIN_MLP | {"attn_norm.weight": (N,), "attn_norm.bias": (N,)},
    "olmo": QKV | GATED,
    "mistral3": PRE | QKV | GATED,
    "internlm2": PRE | QKV | GATED,
    "chatglm": PRE | QKV | QKV_BIASES | GATE_AND_UP,
    "ernie4_5": PRE | QKV | GATED,
    "minicpm": PRE | QKV | GATED,
    "exaone": PRE | QKV | GATED,
    "cwm": PRE | QKV | GATED,
    "hyperclovax": PRE | POST | QKV | GATED,
    "nanochat": QKV | RELU2,
    "muse-glimmer": PRE | POST | QKV | HEAD_NORMS | GATED | {"attn_gate.weight": (Q, N)},
    "granite-swash": PRE | QKV | GATED | {"attn_sinks.weight": (4,)},
    "seed_oss": QKV | QKV_BIASES | GATED | {
        "attn_norm.weight": (N,), "post_attention_norm.weight": (N,),
    },
    "hunyuan-dense": PRE | QKV | HEAD_NORMS | GATED,
    "qwen2vl": PRE | QKV | QKV_BIASES | GATED,
    "qwen3vl": PRE | QKV | HEAD_NORMS | GATED,
    "qwen3vlmoe": PRE | QKV | HEAD_NORMS | EXPERTS,
    "gemma": PRE | QKV | GATED,
    "exaone4": POST | QKV | HEAD_NORMS | GATED,
    "glm4": PRE | POST | QKV | QKV_BIASES | GATE_AND_UP,
    "command-r": QKV | GATED | {"attn_norm.weight": (N,)},
    "cohere2": QKV | GATED | {"attn_norm.weight": (N,)},
    "starcoder2": PRE | NORM_BIASES | QKV | QKV_BIASES | PLAIN_MLP,
    "phi2": QKV | QKV_BIASES | PLAIN_MLP | {"attn_norm.weight": (N,), "attn_norm.bias": (N,)},
    "nemotron": PRE | NORM_BIASES | QKV | RELU2,
    "arcee": PRE | QKV | RELU2,
    "bitnet": PRE | QKV | GATED | {"attn_sub_norm.weight": (Q,), "ffn_sub_norm.weight": (FF,)},
    "hrm-text": GATE_AND_UP | {
        **{f"attn_{x}.weight": (Q, N) for x in ("q", "k", "v", "gate")},
    },
    "apertus": PRE | QKV | HEAD_NORMS | RELU2,
    "jais2": PRE | NORM_BIASES | QKV | QKV_BIASES | PLAIN_MLP | {"attn_output.bias": (N,)},
    "stablelm": PRE | NORM_BIASES | QKV | QKV_BIASES | GATED,
    "olmo2": POST | QKV | GATED | {"attn_q_norm.weight": (Q,), "attn_k_norm.weight": (KV,)},
    "granite": PRE | QKV | GATED,
    "modern-bert": PRE | FUSED | GATE_AND_UP,
    "lfm2": PRE | QKV | HEAD_NORMS | GATED,
    "lfm3": PRE | POST | QKV | HEAD_NORMS | GATED | {"attn_gate.weight": (4, N)},
    "lfm2moe": PRE | QKV | HEAD_NORMS | EXPERTS | CHOOSING,
    "olmo-hybrid": POST | QKV | GATED | {"attn_q_norm.weight": (Q,), "attn_k_norm.weight": (KV,)},
    "qwen35": PRE | QKV | HEAD_NORMS | GATED,
    "qwen35moe": PRE | QKV | HEAD_NORMS | EXPERTS | SHARED | SHARED_GATE,
    "qwen3next": PRE | QKV | HEAD_NORMS | EXPERTS | SHARED | SHARED_GATE,
    "mamba2": {"attn_norm.weight": (N,)},
    "mamba": {"attn_norm.weight": (N,)},
    "rwkv7": RWKV7,
    "jamba": PRE | QKV | EXPERTS,
    "granitehybrid": PRE | QKV | GATED,
    "falcon-h1": PRE | QKV | GATED,
    "nemotron_h": {"attn_norm.weight": (N,)} | QKV,
    "nemotron_h_moe": {"attn_norm.weight": (N,)} | QKV | RELU2_EXPERTS,
    "llada": PRE | QKV | GATED,
    "llada-moe": PRE | QKV | HEAD_NORMS | EXPERTS,
    "dream": PRE | QKV | QKV_BIASES | GATED,
    "rnd1": PRE | QKV | HEAD_NORMS | EXPERTS,
    "bert": QKV | QKV_BIASES | PLAIN_MLP | POST_BERT,
    "mpnet": QKV | QKV_BIASES | PLAIN_MLP | POST_BERT,
    "deberta-v2": PLAIN_MLP | POST_BERT | {
        **{f"attn_{x}.weight": (Q, N) for x in "qkv"}, **{f"attn_{x}.bias": (Q,) for x in "qkv"},
        **{f"attn_{x}_rel.weight": (4, 16, HEAD) for x in "qk"},
    },
    "jina-bert-v2": QKV | QKV_BIASES | GATE_AND_UP | POST_BERT,
    "jina-bert-v3": FUSED | PLAIN_MLP | POST_BERT,
    "nomic-bert": FUSED | GATED | POST_BERT,
    "nomic-bert-moe": FUSED | POST_BERT | {
        name: shape for name, shape in EXPERTS.items() if "gate_exps" not in name
    },
    "gte": FUSED | GATED | POST_BERT,
    "eurobert": PRE | QKV | GATED,
    "gemma-embedding": PRE | POST | QKV | HEAD_NORMS | GATED,
    "embedding-gemma2": PRE | POST | HEAD_NORMS | GATED | {
        "attn_q.weight": (Q, N), "attn_k.weight": (KV, N), "inp_gate.weight": (6, N),
        "proj.weight": (N, 6), "post_norm.weight": (N,),
        "layer_output_scale.weight": (1,),
    },
}  # fmt: skip
BERT_BODY = {
    "token_types.weight": (2, N), "token_embd_norm.weight": (N,), "token_embd_norm.bias": (N,),
}  # fmt: skip
OUTSIDE = {
    "inkling2": {
        "output.weight": (VOCAB, N), "token_embd_norm.weight": (N,), "output_mix.weight": (N,),
    },
    "llama": {"output.weight": (VOCAB, N), "rope_freqs.weight": HALF},
    "gemma4": {
        "per_layer_token_embd.weight": (VOCAB, 12), "per_layer_model_proj.weight": (12, N),
        "per_layer_proj_norm.weight": (6,), "rope_freqs.weight": HALF,
    },
    "embedding-gemma2": {
        "per_layer_model_proj.weight": (12, N), "per_layer_proj_norm.weight": (6,),
        "output_proj.weight": (30, N),
    },
    "gemma3n": {
        "per_layer_token_embd.weight": (VOCAB - 3, 12), "per_layer_model_proj.weight": (12, N),
        "per_layer_proj_norm.weight": (6,), "altup_proj.weight": (2, N, N),
        "altup_unembd_proj.weight": (2, N, N),
    },
    "phi3": {"output.weight": (VOCAB, N)} | FACTORS,
    "phimoe": {
        "output.weight": (VOCAB, N), "output.bias": (VOCAB,), "output_norm.bias": (N,),
    },
    "rwkv7": {
        "token_embd_norm.weight": (N,), "token_embd_norm.bias": (N,), "output_norm.bias": (N,),
        "output.weight": (VOCAB, N),
    },
    "gpt2": {"position_embd.weight": (CONTEXT, N), "output_norm.bias": (N,)},
    "starcoder": {"position_embd.weight": (CONTEXT, N), "output_norm.bias": (N,)},
    "opt": {"position_embd.weight": (CONTEXT, N), "output_norm.bias": (N,)},
    "bloom": {
        "token_embd_norm.weight": (N,), "token_embd_norm.bias": (N,), "output_norm.bias": (N,),
    },
    "falcon": {"output.weight": (VOCAB, N), "output_norm.bias": (N,)},
    "gptj": {"output.weight": (VOCAB, N), "output.bias": (VOCAB,), "output_norm.bias": (N,)},
    "gptneox": {"output.weight": (VOCAB, N), "output_norm.bias": (N,)},
    "starcoder2": {"output_norm.bias": (N,)},
    "nemotron": {"output.weight": (VOCAB, N), "output_norm.bias": (N,)},
    "jais2": {"output.weight": (VOCAB, N), "output_norm.bias": (N,)},
    "stablelm": {"output.weight": (VOCAB, N), "output_norm.bias": (N,)},
    "phi2": {"output.weight": (VOCAB, N), "output.bias": (VOCAB,), "output_norm.bias": (N,)},
    "modern-bert": {
        "token_embd_norm.weight": (N,), "cls.weight": (N, N), "cls.norm.weight": (N,),
        "output.bias": (VOCAB,),
    },
    "bert": MASKED_HEAD | BERT_BODY | {"position_embd.weight": (CONTEXT, N)},
    "mpnet": BERT_BODY | {
        "position_embd.weight": (CONTEXT, N), "position_bias.weight": (32, 4),
    },
    **dict.fromkeys(
        ("deberta-v2", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "gte"),
        BERT_BODY,
    ),
    "eurobert": {"output.weight": (VOCAB, N)},
    "hrm-text": {"output.weight": (VOCAB, N), "fast_init.weight": (1, N)},
}  # fmt: skip
OPTIONAL = ("output.weight", "rope_freqs.weight", "token_types.weight")


def is_optional(tensor):
    """These, and biases other than those of norms."""
    return (
        tensor in OPTIONAL
        or "layer_output_scale" in tensor
        or (tensor.endswith(".bias") and not any(x in tensor for x in ("norm", "ssm_dt", "mix_ln")))
    )


CONV = {"shortconv.in_proj.weight": (3 * N, N), "shortconv.conv.weight": (N, 3),
        "shortconv.out_proj.weight": (N, N)}  # fmt: skip
DELTA_NET = {
    "attn_qkv.weight": (96, N), "attn_gate.weight": (64, N), "ssm_conv1d.weight": (96, 4),
    "ssm_norm.weight": (16,), "ssm_out.weight": (N, 64), "ssm_a": (4,), "ssm_dt.bias": (4,),
}  # fmt: skip
MAMBA = {
    "ssm_in.weight": (164, N), "ssm_conv1d.weight": (96, 4), "ssm_conv1d.bias": (96,),
    "ssm_a": (4, 1), "ssm_d": (4, 1), "ssm_dt.bias": (4,), "ssm_norm.weight": (2, 32),
    "ssm_out.weight": (N, 64),
}  # fmt: skip
MAMBA1 = {
    "ssm_in.weight": (128, N), "ssm_conv1d.weight": (64, 4), "ssm_conv1d.bias": (64,),
    "ssm_x.weight": (4 + 2 * 8, 64), "ssm_dt.weight": (64, 4), "ssm_dt.bias": (64,),
    "ssm_a": (64, 8), "ssm_d": (64,), "ssm_out.weight": (N, 64),
}  # fmt: skip
APART = {"ssm_alpha.weight": (4, N), "ssm_beta.weight": (4, N)}
APART_NETS = {
    "attn_q.weight": (16, N), "attn_k.weight": (16, N), "attn_v.weight": (64, N),
    "ssm_conv1d.weight": (96, 4), "attn_gate.weight": (64, N), "ssm_norm.weight": (16,),
    "ssm_out.weight": (N, 64), "ssm_a": (4,), "ssm_dt.bias": (4,), "attn_norm.weight": (N,),
}  # fmt: skip
KEYS_FORGET = {f"ssm_conv1d_{x}.weight": (1, Q, 1, 4) for x in "qkv"} | {
    "attn_q.weight": (Q, N), "attn_k.weight": (Q, N), "attn_v.weight": (Q, N),
    **{f"ssm_{x}_a.weight": (HEAD, N) for x in "fg"},
    **{f"ssm_{x}_b.weight": (Q, HEAD) for x in "fg"},
    "ssm_beta.weight": (4, N), "ssm_a": (1, 1, 4, 1), "ssm_dt.bias": (Q,),
    "ssm_norm.weight": (HEAD,), "attn_output.weight": (N, Q),
}  # fmt: skip
STATES = {
    "olmo-hybrid": APART_NETS | APART, "kimi-linear": KEYS_FORGET,
    **dict.fromkeys(("lfm2", "lfm2moe", "lfm3"), CONV),
    **dict.fromkeys(("qwen35", "qwen35moe"), DELTA_NET | APART),
    "qwen3next": DELTA_NET | {"ssm_ba.weight": (8, N)},
    **dict.fromkeys(("granitehybrid", "falcon-h1", "mamba2"), MAMBA),
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), MAMBA),
    **dict.fromkeys(("mamba", "jamba"), MAMBA1),
}  # fmt: skip
"""What the second layer has instead of attention."""
SIZES_OF_STATES = {  # 2 heads of 8 for keys, 4 of 16 for values
    "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.state_size": 8, "ssm.inner_size": 4 * 16,
}  # fmt: skip


def make_recurrent(name, metadata, shapes):
    """The second layer, or, where one is not one thing alone, both."""
    states = STATES[name].items()
    if name in ("falcon-h1", "mamba2", "mamba"):
        shapes |= {f"blk.{i}.{tensor}": shape for i in range(2) for tensor, shape in states}
    if name in ("mamba2", "mamba"):
        metadata[f"{name}.attention.head_count"] = 0
        for i in range(2):
            del shapes[f"blk.{i}.attn_output.weight"]
    if name in ("falcon-h1", "mamba2", "mamba"):
        return
    has_only = {"kimi-linear": LAYERS[name], "olmo-hybrid": ("post_ffw_norm.weight",)}
    only_there = (t for t in has_only.get(name, ()) if not t.startswith(("ffn", "exp")))
    of_attention = (*QKV, *HEAD_NORMS, "attn_output.weight", "attn_gate.weight", *only_there)
    for tensor in of_attention:
        if tensor != "attn_norm.weight":
            shapes.pop(f"blk.1.{tensor}", None)
    shapes |= {f"blk.1.{tensor}": shape for tensor, shape in states}
    if STATES[name] is CONV:
        shapes["token_embd_norm.weight"] = shapes.pop("output_norm.weight")
    metadata[f"{name}.attention.recurrent_layers"] = np.array([False, True])
    if name == "olmo-hybrid":
        return
    if name.startswith("qwen"):  # queries have gates
        shapes["blk.0.attn_q.weight"] = (2 * Q, N)
        for i in range(2):
            shapes[f"blk.{i}.post_attention_norm.weight"] = shapes.pop(f"blk.{i}.ffn_norm.weight")
        return
    metadata[f"{name}.attention.head_count_kv"] = np.array([2, 0], np.int32)
    if name == "lfm3":  # a third layer attends
        metadata["lfm3.block_count"] = 3
        metadata["lfm3.attention.head_count_kv"] = np.array([2, 0, 2], np.int32)
        first = {k.removeprefix("blk.0."): v for k, v in shapes.items() if k.startswith("blk.0.")}
        shapes |= {f"blk.2.{tensor}": shape for tensor, shape in first.items()}
    if name.startswith("nemotron_h"):  # a third layer is an MLP, or experts
        metadata[f"{name}.block_count"] = 3
        metadata[f"{name}.attention.head_count_kv"] = np.array([2, 0, 0], np.int32)
        metadata[f"{name}.feed_forward_length"] = np.array([0, 0, FF], np.int32)
        mlp = RELU2_EXPERTS if name == "nemotron_h_moe" else RELU2
        for i, tensor in ((i, tensor) for i in range(2) for tensor in mlp):
            shapes.pop(f"blk.{i}.{tensor}", None)
        layer = {"attn_norm.weight": (N,)} | mlp
        shapes |= {f"blk.2.{tensor}": shape for tensor, shape in layer.items()}


NORMS_ALONE = ("nanochat", "olmo", "hrm-text")
"""Architectures whose norms have no weights."""


def loop_second_layer(shapes):
    """It gets messages; its norms and convolutions are those of layers that see the whole text."""
    del shapes["blk.0.attn_mix.weight"], shapes["blk.1.attn_norm.weight"]
    shapes |= {"blk.1.attn_mix.weight": (3, N), "blk.1.loop_mix.weight": (4, N)}
    for name in ("q", "k", "v", "ffn"):
        shapes[f"blk.1.loop_{name}_down.weight"] = (3, 2 * N)
        shapes |= {f"blk.1.loop_{name}_{part}.weight": (N, 3) for part in ("forget", "gain")}
    shapes |= {f"blk.1.attn_norm_{name}.weight": (N,) for name in "qkv"}
    shapes |= {f"blk.1.attn_{name}_taps.weight": (2 * 4, N) for name in "kv"}


LATENT_KEYS = {
    "attention.key_length_mla": HEAD, "attention.value_length_mla": HEAD,
    "attention.kv_lora_rank": 16, "rope.dimension_count": 2, "attention.head_count_kv": 1,
}  # fmt: skip
KEYS = {
    "deepseek2": LATENT_KEYS, "minicpm3": LATENT_KEYS, "kimi-linear": LATENT_KEYS,
    "hrm-text": {"attention.head_count_kv": 4, "slow_cycles": 2, "fast_cycles": 3},
    "gemma3n": {"altup.num_inputs": 3},
    "deberta-v2": {"attention.head_count_kv": 4, "attention.relative_buckets_count": 8},
    "mimo2": {"attention.value_length": 6, "attention.sliding_window": 8},
    "rwkv7": {"attention.head_count": 0, "wkv.head_size": HEAD},
    "inkling2": {
        "loop.first": 1, "loop.last": 2, "loop.passes": 2, "attention.head_clip": 2.0,
        "attention.relative_clip": 2.0, "attention.residual_block_size": 1,
        "attention.query_growth": 0.1, "attention.query_growth_floor": 9,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": np.array([True, False]),
    },
}  # fmt: skip
"""The metadata of some architectures, beside or instead of what all have."""

ABSENT = {
    "modern-bert": ("blk.0.attn_norm",),  # what its first layer reads is normed already
    "rwkv7": (  # the first layer's values are its own
        "blk.0.attn_output", "blk.1.attn_output", *(f"blk.0.time_mix_v{i}" for i in range(3)),
    ),
}  # fmt: skip
"""The tensors of ``LAYERS`` that a file lacks."""


def metadata_of(name):
    architecture = {"mixtral": "llama"}.get(name, name)
    keys = {
        "context_length": CONTEXT, "embedding_length": N, "block_count": 2,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 5000.0,
        "embedding_scale": 2.0,
    }  # fmt: skip
    if "ffn_up_exps.weight" in LAYERS[name]:
        keys |= {"expert_count": 4, "expert_used_count": 2}
    keys |= KEYS.get(name, {})
    metadata = {f"{architecture}.{key}": value for key, value in keys.items()}
    if name == "apertus":
        metadata |= dict.fromkeys(("xielu.alpha_p", "xielu.alpha_n", "xielu.beta"), 0.5)
        metadata["xielu.eps"] = -1e-6
    return {"general.architecture": architecture} | metadata


def file_of(name):
    """(metadata, the tensor table) of a model of two layers."""
    metadata = metadata_of(name)
    shapes = {"token_embd.weight": (VOCAB, N), "output_norm.weight": (N,)} | OUTSIDE.get(name, {})
    if POST_BERT.items() <= LAYERS[name].items() or name in NORMS_ALONE:
        del shapes["output_norm.weight"]
    width = 4 * metadata[f"{metadata['general.architecture']}.attention.value_length"]
    for i in range(2):
        layer = LAYERS[name] | {"attn_output.weight": (N, width)}
        shapes |= {f"blk.{i}.{tensor}": shape for tensor, shape in layer.items()}
    if name in STATES:
        metadata |= {f"{name}.{key}": value for key, value in SIZES_OF_STATES.items()}
        make_recurrent(name, metadata, shapes)
    if name == "inkling2":
        loop_second_layer(shapes)
    for tensor in ABSENT.get(name, ()):
        del shapes[f"{tensor}.weight"]
    return metadata, shapes


def test_no_architecture_is_forgotten():
    assert set(LAYERS) - {"mixtral"} == {name for rows in tables() for name in rows}


@pytest.mark.parametrize("name", ["neo-bert", "t5encoder"])
def test_encoders_that_are_wired_otherwise_are_refused_by_name(name):
    with pytest.raises(FormatError, match=rf"^architecture '{name}' is not supported; docs/fam"):
        model.build({"general.architecture": name}, {})


@pytest.mark.parametrize("name", LAYERS)
def test_every_tensor_is_read_and_none_is_missed(name):
    metadata, shapes = file_of(name)
    _, graph = model.build(metadata, shapes)
    used = {weight for op in graph.ops for weight in op.weights.values()}
    assert used == set(shapes) - ({"rope_factors_long.weight"} if name == "phi3" else set())
    for tensor in shapes:
        fewer = {other: shape for other, shape in shapes.items() if other != tensor}
        if is_optional(tensor):
            model.build(metadata, fewer)
        else:
            with pytest.raises(FormatError, match=r"lacks the tensor|no place|has no head"):
                model.build(metadata, fewer)


def test_a_fused_matrix_has_no_rows_that_nobody_reads():
    metadata, shapes = file_of("phi3")
    rows, cols = shapes["blk.1.attn_qkv.weight"]
    shapes["blk.1.attn_qkv.weight"] = (rows + HEAD, cols)
    with pytest.raises(FormatError, match=rf"blk\.1\.attn_qkv\.weight has {rows + HEAD} rows, not"):
        model.build(metadata, shapes)


def test_a_phi_that_may_read_longer_texts_than_at_first_takes_the_long_factors():
    metadata, shapes = file_of("phi3")
    metadata["phi3.rope.scaling.original_context_length"] = 32
    for context, length in ((None, "long"), (33, "long"), (32, "short")):
        _, graph = model.build(metadata, shapes, context)
        used = {op.weights["factors"] for op in graph.ops if op.kind == "rope"}
        assert used == {f"rope_factors_{length}.weight"}


def test_a_minicpm_without_its_scales_is_to_be_converted_again():
    metadata, shapes = file_of("minicpm")
    del metadata["minicpm.embedding_scale"]
    with pytest.raises(FormatError, match=r"minicpm\.embedding_scale is missing: convert"):
        model.build(metadata, shapes)


def test_every_fourth_layer_of_smollm3_has_no_positions():
    metadata, shapes = file_of("smollm3")
    for i in range(2, 8):
        shapes |= {n.replace("blk.0.", f"blk.{i}."): s for n, s in shapes.items() if "blk.0." in n}
    _, graph = model.build(metadata | {"smollm3.block_count": 8}, shapes)
    turned = {op.out.name.split(".")[1] for op in graph.ops if op.kind == "rope"}
    assert turned == set("012456")


@pytest.mark.parametrize(("said", "has_bias", "gating", "best"), [
    ({}, True, "sigmoid", 2), ({}, False, "softmax", 1),
    ({"deepseek2.expert_gating_func": 1}, True, "softmax", 1),
    ({"deepseek2.expert_gating_func": 2}, True, "sigmoid", 2),
])  # fmt: skip
def test_a_deepseek_that_adds_a_bias_for_the_choice_has_sigmoids(said, has_bias, gating, best):
    metadata, shapes = file_of("deepseek2")
    if not has_bias:
        shapes = {name: shape for name, shape in shapes.items() if "exp_probs_b" not in name}
    _, graph = model.build(metadata | said, shapes)
    [mixture] = {op.mixture for op in graph.ops if op.kind == "experts"}
    assert (mixture.gating, mixture.best_of_group) == (gating, best)


@pytest.mark.parametrize(("said", "gating"), [
    ({}, "sigmoid"), ({"deepseek2.expert_gating_func": 1}, "softmax"),
])  # fmt: skip
def test_a_draft_head_of_a_deepseek_chooses_its_experts_as_the_model_does(said, gating):
    metadata, shapes = file_of("deepseek2")
    metadata |= {"deepseek2.block_count": 3, "deepseek2.nextn_predict_layers": 1, **said}
    shapes |= {n.replace("blk.1.", "blk.2."): s for n, s in shapes.items() if "blk.1." in n}
    shapes |= {f"blk.2.nextn.{name}.weight": (N,) for name in ("enorm", "hnorm")}
    shapes["blk.2.nextn.eh_proj.weight"] = (N, 2 * N)
    graph = model.build_draft_head(metadata, shapes)
    assert {op.mixture.gating for op in graph.ops if op.kind == "experts"} == {gating}
