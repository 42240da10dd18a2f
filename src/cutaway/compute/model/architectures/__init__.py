"""The architectures: one row each.

A new one is a row here and, where no other has its graph, a short function that builds it in a
module of this package (``parts.py`` has what they share). Folders of transformers need a row in
``files/huggingface/families.py`` (what its tensors are called), and in a module of keys beside it
what its config says in a way of its own; a tokenizer of its own is one more. docs/models.md lists
it, and ``tests/support/families`` has a random model of it.
"""

from collections.abc import Mapping
from functools import partial

from cutaway.compute.model.architectures.bert import (
    bert,
    gated_bert,
    jina_bert_v2,
    modern_bert,
    mpnet,
)
from cutaway.compute.model.architectures.gemma import gemma, gemma2, gemma3, gemma4, gemma_embedding
from cutaway.compute.model.architectures.gpt import gpt2, gptneox, phi2, stablelm
from cutaway.compute.model.architectures.llama import (
    apertus,
    arcee,
    cohere,
    cohere2,
    eurobert,
    exaone4,
    glm4,
    glm4_moe,
    glm4_moe_layer,
    gpt_oss,
    hunyuan,
    llama,
    minicpm,
    olmo2,
    olmoe,
    qwen2_moe,
    qwen3,
    seed_oss,
    smollm3,
)
from cutaway.compute.model.architectures.mixtures import (
    afmoe,
    deepseek2,
    deepseek2_layer,
    llama4,
    phimoe,
)
from cutaway.compute.model.architectures.recurrent import (
    falcon_h1,
    granite_hybrid,
    lfm2,
    mamba2,
    nemotron_h,
    qwen35,
    qwen35_layer,
)
from cutaway.compute.model.config import Architecture
from cutaway.compute.model.mixture import Mixture

_UNNORMED = Mixture(used=1, normed=False)
_SIGMOID = Mixture(used=1, gating="sigmoid", normed=False)
_GELU = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_TANH = {"gelu_pytorch_tanh": "gelu_tanh"}

ARCHITECTURES: Mapping[str, Architecture] = {
    # llama, smollm 1 and 2, mistral, mixtral and many descendants
    "llama": Architecture(llama, interleaved_rope=True),
    "mistral3": Architecture(llama, interleaved_rope=True),  # Mistral Small 3, Ministral 3
    "internlm2": Architecture(llama, interleaved_rope=True),
    "chatglm": Architecture(llama, interleaved_rope=True),  # GLM 4 9B of 2024
    "ernie4_5": Architecture(llama, interleaved_rope=True),
    "minicpm": Architecture(minicpm, interleaved_rope=True),
    "exaone": Architecture(llama),
    "seed_oss": Architecture(seed_oss),
    "hunyuan-dense": Architecture(hunyuan),
    "smollm3": Architecture(smollm3, interleaved_rope=True),
    "qwen2": Architecture(llama),  # and 2.5: it has biases
    "qwen3": Architecture(qwen3),
    "qwen3moe": Architecture(qwen3),
    # mixtures; experts that all rows share are where the file has them
    "qwen2moe": Architecture(qwen2_moe, mixture=_UNNORMED),
    "olmoe": Architecture(olmoe, mixture=_UNNORMED),
    "granitemoe": Architecture(llama, interleaved_rope=True),  # as granite
    "ernie4_5-moe": Architecture(llama, interleaved_rope=True),
    "glm4moe": Architecture(glm4_moe, mixture=_SIGMOID, layer=glm4_moe_layer),
    "dots1": Architecture(qwen3, mixture=_SIGMOID),
    "hunyuan-moe": Architecture(hunyuan),
    "gpt-oss": Architecture(
        gpt_oss, window=128, full_every=2, yarn_truncates=False,
        mixture=Mixture(used=1, activation="clamped_swiglu", limit=7.0),
    ),
    "phimoe": Architecture(
        phimoe, mixture=Mixture(used=1, gating="sparsemixer", normed=False, tolerance=0.02)
    ),
    "afmoe": Architecture(afmoe, full_every=4, mixture=_SIGMOID),
    "deepseek2": Architecture(  # V2, V3, R1, Kimi K2, GLM 4.7 Flash
        deepseek2, interleaved_rope=True, has_latent=True, layer=deepseek2_layer,
        mixture=Mixture(used=1, normed=False, best_of_group=1), biased_gating=2,
    ),
    "bailingmoe": Architecture(llama, interleaved_rope=True, mixture=_UNNORMED),  # Ling 1
    "bailingmoe2": Architecture(qwen3, mixture=_SIGMOID),  # Ling and Ring 2
    "llama4": Architecture(
        llama4, interleaved_rope=True, window=8192, full_every=4, temperature=(0.1, 8192),
        mixture=Mixture(used=1, gating="sigmoid", normed=False, weighs_input=True),
    ),
    # those that read pictures, for text alone, in which their three positions are one
    "qwen2vl": Architecture(llama),
    "qwen3vl": Architecture(qwen3),
    "qwen3vlmoe": Architecture(qwen3),
    "gemma": Architecture(gemma),
    "gemma2": Architecture(
        gemma2, window=4096, full_every=2, attention_softcap=50.0, logit_softcap=30.0,
        scaled_by_width_at=46,
    ),
    "gemma3": Architecture(gemma3, full_every=6, scaled_by_width_at=62),
    "gemma4": Architecture(
        gemma4, has_own_heads=True, attention_scale=1.0,
        mixture=Mixture(used=1, activation="gelu_mul"),
    ),
    "gemma-embedding": Architecture(gemma_embedding, full_every=6, is_causal=False),
    "phi3": Architecture(llama),  # and 4: its matrices are fused
    "gpt2": Architecture(gpt2, layer_norm=True, learned_positions=True),
    # and pythia
    "gptneox": Architecture(gptneox, layer_norm=True, is_parallel=True, activations=_GELU),
    "starcoder2": Architecture(gptneox, layer_norm=True, activations=_TANH),
    "nemotron": Architecture(gptneox, layer_norm=True, activations={"relu2": "relu2"}),
    "jais2": Architecture(gptneox, layer_norm=True, activations={"relu2": "relu2"}),
    "arcee": Architecture(arcee, interleaved_rope=True),
    "apertus": Architecture(apertus),
    "phi2": Architecture(phi2, layer_norm=True),
    "stablelm": Architecture(stablelm, layer_norm=True),
    "olmo2": Architecture(olmo2, full_every=4, local_base=0),  # and 3, which has windows
    "exaone4": Architecture(exaone4, full_every=4),
    "glm4": Architecture(glm4, interleaved_rope=True),
    "lfm2": Architecture(lfm2, has_states=True),  # and 2.5
    "lfm2moe": Architecture(lfm2, has_states=True, mixture=Mixture(used=1, gating="sigmoid")),
    "qwen35": Architecture(  # and 3.6
        qwen35, has_states=True, attends_every=4, layer=qwen35_layer
    ),
    "qwen35moe": Architecture(qwen35, has_states=True, attends_every=4, layer=qwen35_layer),
    "qwen3next": Architecture(
        partial(qwen35, grouped=True), has_states=True, attends_every=4, layer=qwen35_layer
    ),
    "mamba2": Architecture(mamba2, has_states=True),
    "granitehybrid": Architecture(granite_hybrid, interleaved_rope=True, has_states=True),
    "falcon-h1": Architecture(falcon_h1, has_states=True),
    "nemotron_h": Architecture(nemotron_h, has_states=True),  # and Nemotron Nano 2
    "nemotron_h_moe": Architecture(  # Nemotron 3 Nano
        nemotron_h, has_states=True, mixture=Mixture(used=1, gating="sigmoid", activation="relu2")
    ),
    "command-r": Architecture(
        cohere, layer_norm=True, interleaved_rope=True, multiplies_logits=True
    ),
    "cohere2": Architecture(
        cohere2, layer_norm=True, interleaved_rope=True, multiplies_logits=True, full_every=4
    ),
    # it has scales; where rope's scaling is not "finetuned", nothing is rotated
    "granite": Architecture(
        llama, interleaved_rope=True, must_be={"rope.scaling.finetuned": (True,)}
    ),
    # and 1.5: diffusion models
    "llada": Architecture(llama, interleaved_rope=True, is_causal=False),
    "llada-moe": Architecture(qwen3, is_causal=False, mixture=_UNNORMED),
    "dream": Architecture(llama, is_causal=False, shift=True),  # and diffucoder
    "rnd1": Architecture(qwen3, is_causal=False, shift=True),
    # and roberta, distilbert
    "bert": Architecture(
        bert, layer_norm=True, learned_positions=True, is_causal=False, activations=_GELU
    ),
    "mpnet": Architecture(
        mpnet, layer_norm=True, learned_positions=True, is_causal=False, activations=_GELU
    ),
    "jina-bert-v2": Architecture(
        jina_bert_v2, layer_norm=True, is_causal=False, activations=_GELU,
        must_be={"attention.max_alibi_bias": (8,)},
    ),
    "deberta-v2": Architecture(  # and v3
        bert, layer_norm=True, has_relative=True, is_causal=False, activations=_GELU
    ),
    "jina-bert-v3": Architecture(bert, layer_norm=True, is_causal=False, activations=_GELU),
    "nomic-bert": Architecture(
        gated_bert, layer_norm=True, is_causal=False, activations={"silu": "silu"}
    ),
    "nomic-bert-moe": Architecture(
        bert, layer_norm=True, is_causal=False, activations=_GELU,
        mixture=Mixture(used=1, normed=False, activation="gelu_exact"),
    ),
    "gte": Architecture(gated_bert, layer_norm=True, is_causal=False, activations=_GELU),
    "eurobert": Architecture(eurobert, is_causal=False),
    "modern-bert": Architecture(
        modern_bert, layer_norm=True, is_causal=False, full_every=3, full_first=True,
        activations=_GELU | {"silu": "silu"},
    ),
}  # fmt: skip
"""By GGUF's ``general.architecture``."""
