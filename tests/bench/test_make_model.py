"""bench/make_model.py: the file that it writes is a model of the shape, with a usable tokenizer."""

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.text import Tokenizer
from make_model import LOW_BIT, SHAPES, RandomModel

SMALL = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 96}
STATES = {
    "lfm2-1.2b": {"attends": (1,)},
    "qwen3.5-0.8b": {"layers": 4, "attends": (3,), "state": (16, 2, 4, 64)},
    "granite4-h-1b": {"attends": (1,), "state": (16, 2, 4, 64)},
}
OWN = {
    "gpt-oss-20b": {"experts": (4, 2)},
    "deepseek-v2-lite": {
        "kv_heads": 1, "head_dim": 48, "experts": (4, 2),
        "own": SHAPES["deepseek-v2-lite"].own | {
            "attention.kv_lora_rank": 32, "attention.value_length": 32,
            "attention.key_length_mla": 32, "attention.value_length_mla": 16,
            "rope.dimension_count": 16, "feed_forward_length": 96,
        },
    },
    "gemma4-e2b": {
        "kv_heads": 1, "layers": 4,
        "own": SHAPES["gemma4-e2b"].own | {
            "attention.key_length_swa": 16, "attention.value_length_swa": 16,
            "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 8,
            "attention.sliding_window_pattern": np.array([True, False, True, False]),
            "feed_forward_length": np.array([96, 96, 128, 128], np.int32),
            "rope.dimension_count_swa": 16,
        },
    },
}  # fmt: skip
TEXTS = "The sky is blue, isn't it?\n\n  Why 12,345 of the words", "the of and to naïve 你好"

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    "name", ["llama-1b", "llama-8b", "qwen2-1.5b", "qwen3-0.6b", *STATES, *OWN]
)
def test_a_shape_is_written_and_runs(name, smollm2_path, tmp_path):
    shape = replace(SHAPES[name], **SMALL | STATES.get(name, {}) | OWN.get(name, {}), vocab=50_000)
    with GGUFFile(smollm2_path) as donor:
        model = RandomModel(shape, name, donor)
        write_gguf(tmp_path / "m.gguf", model)
        original = Tokenizer.from_gguf(donor.metadata)
    llm = LLM(tmp_path / "m.gguf", context=256)
    assert (llm.config.hidden, llm.tokenizer.vocab_size) == (64, 50_000)
    assert ("output.weight" in model.tensors) == (not shape.tied)
    for text in TEXTS:  # none of the new tokens stands in a text
        assert llm.tokenizer.encode(text) == original.encode(text)
    assert llm.generate(TEXTS[0], max_tokens=4, temperature=0).token_ids


@pytest.mark.parametrize("format", LOW_BIT)
def test_low_bit_formats_are_drawn_without_a_quantiser(format, smollm2_path, tmp_path):
    wide = {"hidden": 256, "layers": 1, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 256}
    shape = replace(SHAPES["llama-1b"], **wide, vocab=50_000)
    with GGUFFile(smollm2_path) as donor:
        model = RandomModel(shape, format, donor, format=format.upper())
        write_gguf(tmp_path / "m.gguf", model)
    name = "blk.0.ffn_down.weight"
    assert model.tensors[name].format == format.upper()
    assert model.dequantize(name).std() == pytest.approx(256**-0.5, rel=0.3)
    llm = LLM(tmp_path / "m.gguf", context=256, progress=False)
    assert np.isfinite(llm.logits(llm.tokenize(TEXTS[0]))).all()


def test_the_sizes_are_those_of_the_published_models(smollm2_path):
    with GGUFFile(smollm2_path) as donor:
        counts = {
            name: sum(math.prod(i.shape) for i in RandomModel(s, name, donor).tensors.values())
            for name, s in SHAPES.items()
        }
    billions = {name: round(count / 1e9, 2) for name, count in counts.items()}
    assert billions == {
        "llama-1b": 1.24, "llama-3b": 3.21, "llama-8b": 8.03,
        "qwen3-0.6b": 0.6, "qwen3-1.7b": 1.72, "qwen3-8b": 8.19,
        "qwen2-1.5b": 1.54, "qwen2-7b": 7.62,
        "olmoe-7b": 6.92, "granite-3b": 3.3, "qwen3-30b": 30.53,
        "gpt-oss-20b": 20.91, "deepseek-v2-lite": 15.71, "gemma4-e2b": 4.63,
        "lfm2-1.2b": 1.17, "qwen3.5-0.8b": 0.75,
        "qwen3.5-4b": 4.21, "granite4-h-1b": 1.46,
    }  # fmt: skip


def test_a_tensor_is_the_same_whenever_it_is_read(smollm2_path):
    with GGUFFile(smollm2_path) as donor:
        model = RandomModel(replace(SHAPES["llama-1b"], **SMALL), "m", donor)
    name = "blk.1.ffn_down.weight"
    assert np.array_equal(model.raw(name)[:], model.raw(name)[:])
    drawn = model.raw(name)[:].view(np.float16).astype(np.float32)
    assert drawn.std() == pytest.approx(96**-0.5, rel=0.05)
