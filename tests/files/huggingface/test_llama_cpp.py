"""What `cutaway quantize` writes of a folder is a model that llama.cpp reads as we do."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.loading.open import open_model
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.files.weights.llama_cpp import convert_for_llama_cpp

pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support import tiny_tokenizers
from support.random_models import FAMILIES, IDS, logits, save, save_row
from support.tiny_rwkv import CONFIGS

pytestmark = pytest.mark.slow
# llama-cpp-python 0.3.36 has no window for llama, phi3 and starcoder2, one for exaone4 only where
# that has 64 layers, no scale of its own for gemma, normed weights of experts only, and chooses
# longrope's factors by another length. Its chatglm divides the hidden size by the heads. Its lfm2
# has no biases, its qwen35 heads of one width. Of mixtures, olmoe and dots1 have a KV head for each
# head there, and gpt-oss's yarn rounds where its ramp begins. Its llama4 has chunks of 8192 alone,
# its deepseek2 queries of one matrix in files of 27 layers alone and groups by their best two, its
# phimoe other norms and another choice, its minicpm3 the 4B's scales, its command-r norms of heads
# from 64 layers on, its exaone-moe one shared expert, its bitnet silu, its jamba no such biases.
# Layers of its gemma4 read the keys of the last two before them, one with a window and one without;
# with experts the largest difference is 0.3. Its kimi-linear has queries of one matrix alone; its
# gemma3n cuts the gates of the first ten layers, shares keys from layer 20 on, and has embeddings
# of layers 256 wide. Its rwkv7 has heads of 64. Its mimo2 has no groups, its laguna windows. Its
# mellum has one rotary base, its lfm2moe no factor of what experts add. It has none of the others.
# Those of a size that it knows are compared below.
OTHERWISE = (
    "mistral-window", "ministral", "starcoder2-window", "exaone4-window", "phi3-window",
    "phi3-longrope",
    "gemma2", "gemma3", "glm", "qwen3_moe-unnormed", "lfm2-last", "qwen3_5-last", "olmoe", "dots1",
    "gpt_oss", "phimoe", "llama4", "deepseek_v2", "deepseek_v2-groups", "gemma4",
    "gemma4-moe", "minicpm3", "cohere-normed-heads", "mellum", "exaone_moe", "bitnet",
    "jamba-dense", "kimi_linear-last", "gemma3n", "gemma3n-other",
    "cwm", "granite_swa", "granitemoe_swa", "hyperclovax", "hyperclovax-plain", "nanochat",
    "vaultgemma", "flex_olmo", "opt", "gptj", "lfm3", "lfm3-plain",
    "laguna-element", "mimo_v2_flash-groups",
    "olmo_hybrid", "olmo_hybrid-rotated", "hrm_text", "hrm_text-other",
    "rwkv7-old", "inkling2", "inkling2-plain", "inkling2-last", "lfm2_moe",
)  # fmt: skip
ONE_BASE = {
    "full_attention": {
        "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
}  # fmt: skip
"""Mellum's positions with one base for all layers."""


def log_softmax(rows):
    rows = rows.astype(float)
    return rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("name", [
    name for name in (*FAMILIES, *CONFIGS, "lfm2-masked") if name not in OTHERWISE
])  # fmt: skip
def test_llama_cpp_reads_what_we_write(name, tmp_path):
    compare(save(name, tmp_path / "a model"), tmp_path)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("cohere-normed-heads", {"num_hidden_layers": 64}),
        ("exaone_moe", {"num_shared_experts": 1}),
        ("falcon_h1", {"tie_word_embeddings": True}),
        ("gemma4", {"num_kv_shared_layers": 2}),
        ("lfm2_moe", {"routed_scaling_factor": 1.0}),
        ("mellum", {"rope_parameters": ONE_BASE}),
        ("minicpm3", {"scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4}),
    ],
)  # fmt: skip
def test_llama_cpp_reads_those_of_a_size_that_it_knows(name, size, tmp_path):
    compare(save_with(name, size, tmp_path), tmp_path)


def test_minicpm3_of_llama_cpp_s_converter(tmp_path):
    """Its files do not say how wide values are: the hidden size is divided by the heads."""
    model = save_with("minicpm3", {"v_head_dim": 16}, tmp_path)
    with open_model(tmp_path / "a model") as opened:
        file = convert_for_llama_cpp(opened)
        absent = ("key_length_mla", "value_length_mla", "value_length")
        file.metadata = {k: v for k, v in file.metadata.items() if not k.endswith(absent)}
        write_gguf(tmp_path / "one.gguf", file)
    ours = LLM(tmp_path / "one.gguf", backend="reference").logits(IDS)
    assert np.abs(ours - logits(model, IDS)).max() < 1e-3


def save_with(name, values, path):
    row, tokenizer = FAMILIES[name], tiny_tokenizers.byte_level()
    row = row._replace(values={**row.values, **values})
    return save_row(row, path / "a model", "float32", tokenizer)


def compare(model, path):
    """Compare log-probabilities of transformers, of the reference backend and of llama.cpp."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    file, ours = path / "one.gguf", log_softmax(logits(model, IDS[:30]))
    with open_model(path / "a model") as opened:
        write_gguf(file, convert_for_llama_cpp(opened))
    llm = LLM(file, backend="reference")
    assert np.abs(log_softmax(llm.logits(IDS[:30])) - ours).max() < 1e-3
    theirs = llama_cpp.Llama(str(file), n_ctx=64, logits_all=True, verbose=False)
    theirs.eval(IDS[:30])
    errors = np.abs(log_softmax(theirs.scores[:30]) - ours).max(axis=1)
    # A row whose scores of experts are nearly equal may go to others.
    assert (np.median(errors) if llm.config.experts else errors.max()) < 0.05
