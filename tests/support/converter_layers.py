"""The tensors of each architecture's layers, as llama.cpp's converter writes them.

Their shapes are those of a small model.
"""

from typing import Any

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

LAYERS: dict[str, Any] = {
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
OUTSIDE: dict[str, Any] = {
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
    """Whether a file may lack the tensor: those of ``OPTIONAL``, and biases but for norms'."""
    return (
        tensor in OPTIONAL
        or "layer_output_scale" in tensor
        or (tensor.endswith(".bias") and not any(x in tensor for x in ("norm", "ssm_dt", "mix_ln")))
    )
