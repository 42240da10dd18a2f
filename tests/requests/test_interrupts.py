"""An exception at any line of the engine ends one text: others have their bits, nothing is left."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from support.interrupted import bits, check_nothing_is_left, interrupt_at, lines_of
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_llama import write_tiny_llama

OPTIONS: Any = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True, "seed": 5}
OTHER: Any = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True, "seed": 9}
PROMPT = "ab" * 20


def stream_and_close(llm: LLM) -> None:
    with llm.stream(PROMPT, **OPTIONS) as stream:
        next(stream)


WORK: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate([PROMPT, "b"], n=2, **OPTIONS),
    "stream": stream_and_close,
    "drafts": lambda llm: llm.generate("ab" * 8, speculate="ngram", **OPTIONS),
    "regex": lambda llm: llm.generate("a", regex="[ab]{3,9}", max_tokens=6, seed=5),
    "embed": lambda llm: llm.embed(["ab", "aab"]),
    "logits": lambda llm: llm.logits([3, 4, 5] * 12),
    "each": lambda llm: list(llm.generate_each(["ab", "b"], **OPTIONS)),
}
"""By name: what is interrupted."""


def windowed(path):
    metadata = {"gemma2.attention.sliding_window": 32}
    return write_tiny_llama(path / "w.gguf", architecture="gemma2", context=512, metadata=metadata)


MODELS: dict[str, Any] = {
    "attention": lambda path: write_tiny_llama(path / "t.gguf", context=512),
    "state": lambda path: write_tiny_granite_hybrid(path / "s.gguf"),
}


@pytest.fixture(scope="module", params=MODELS)
def llm(request, tmp_path_factory):
    with LLM(MODELS[request.param](tmp_path_factory.mktemp("m")), threads=1, progress=False) as llm:
        yield llm


def check_after(llm, other, expected, right):
    """The interrupted model works, the other text goes on, and nothing stays behind."""
    assert bits(llm.generate(PROMPT, **OPTIONS)) == right
    assert bits(other.finish()) == expected
    check_nothing_is_left(llm)


def interrupt_lines(llm, name, every):
    """Interrupt each n-th line that the work runs, its first time and in the middle; how many."""
    work = WORK[name]
    expected, right = bits(llm.generate("aab", **OTHER)), bits(llm.generate(PROMPT, **OPTIONS))
    lines = lines_of(lambda: work(llm))
    interrupted = 0
    for line, times in sorted(lines.items())[::every]:
        for time in {1, (times + 1) // 2}:
            other = llm.stream("aab", **OTHER)
            next(other)
            interrupted += interrupt_at(line, time, lambda: work(llm))
            check_after(llm, other, expected, right)
    print(f"{name}: {len(lines)} lines, interrupted {interrupted} times")
    assert interrupted > len(lines) // every // 2


@pytest.mark.parametrize("name", WORK)
def test_at_some_lines(llm, name):
    interrupt_lines(llm, name, every=41)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_at_every_line(llm, name):
    interrupt_lines(llm, name, every=1)
