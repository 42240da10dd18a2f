"""Files whose metadata is nonsense: an LLM that works, or one sentence."""

import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cutaway import LLM, CutawayError, FormatError, InputError
from support.random_llama import write_tiny_llama

NAMES = [
    *("context_length", "embedding_length", "block_count", "feed_forward_length", "expert_count"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count"),
    *("rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"),
]
TOKENIZER = [
    *("model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id"),
    *("eot_token_id", "unknown_token_id", "add_bos_token", "add_space_prefix"),
]
KEYS = [
    "general.architecture", "general.alignment", "tokenizer.chat_template",
    *(f"llama.{name}" for name in NAMES), *(f"tokenizer.ggml.{name}" for name in TOKENIZER),
]  # fmt: skip
SCALARS = (
    st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300) | st.floats() | st.booleans(),
    st.text(max_size=5) | st.sampled_from(["llama", "gpt2", "gpt-2", "none", "yarn"]),
)
LISTS = [st.lists(kind, min_size=1, max_size=3) for kind in (
    st.integers(-3, 300), st.floats(width=32), st.text(max_size=3), st.booleans(),
)]  # fmt: skip
SIZED = st.sampled_from([[float("nan")] * 264, [1.5] * 264, [1] * 264, ["a"] * 264, [[1]] * 264])
VALUES = st.none() | st.one_of(*SCALARS) | st.one_of(*LISTS) | SIZED


@settings(max_examples=150)
@pytest.fixture(scope="module", autouse=True)
def quiet_writer():
    """What writes the file has a word on a key written twice."""
    logger = logging.getLogger("gguf.gguf_writer")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
@example({"llama.expert_count": [0, 0]})
@example({"llama.rope.scaling.type": ["none", "none"]})
@example({"tokenizer.ggml.model": ["llama"]})
@example({"tokenizer.ggml.model": [1, 2]})
@example({"tokenizer.ggml.add_bos_token": [True, False]})
@example({"tokenizer.ggml.bos_token_id": [1]})
@example({"llama.context_length": 2**24})
@example({"llama.rope.freq_base": 1e-15})
@example({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2"})
@example({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
          "tokenizer.ggml.merges": ["a"]})  # fmt: skip
def test_it_works_or_gets_one_sentence(metadata):
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_llama(Path(folder) / "m.gguf", metadata=metadata)
        try:
            llm = LLM(path, backend="reference")
        except InputError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 600
            return
        try:
            llm.generate("ab", max_tokens=2)
            llm.chat([{"role": "user", "content": "ab"}], max_tokens=1)
        except CutawayError as error:
            assert "\n" not in str(error)


def test_an_embedding_of_another_size_than_the_vocabulary_is_refused(tmp_path):
    with pytest.raises(FormatError, match="the model reads 200 tokens and predicts 264"):
        LLM(write_tiny_llama(tmp_path / "m.gguf", rows=200))


def test_an_absurd_context_is_refused(tmp_path):
    path = write_tiny_llama(tmp_path / "m.gguf", context=2**31)
    with pytest.raises(FormatError, match=r"llama\.context_length must be a whole number up to"):
        LLM(path)


def test_a_context_that_does_not_fit_into_memory_says_what_to_do(tmp_path, monkeypatch):
    def full(*_, **__):
        raise MemoryError

    path = write_tiny_llama(tmp_path / "m.gguf")
    monkeypatch.setattr("cutaway.compute.loading.model.backends.load", full)
    with pytest.raises(InputError, match=r"m\.gguf does not fit into memory .*: lower context"):
        LLM(path)
