"""An exception at any line of the engine ends one text: others have their bits, nothing is left."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from support.interrupted import bits, check_nothing_is_left, interrupt_at, lines_of
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_llama import write_tiny_llama

INTERRUPTED: Any = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True, "seed": 5}
OTHER: Any = {"max_tokens": 12, "temperature": 1.0, "ignore_eos": True, "seed": 9}
PROMPT = "ab" * 20


def stream_and_close(llm: LLM) -> None:
    with llm.stream(PROMPT, **INTERRUPTED) as stream:
        next(stream)


WORK: dict[str, Callable[[LLM], object]] = {
    "generate": lambda llm: llm.generate([PROMPT, "b"], n=2, **INTERRUPTED),
    "stream": stream_and_close,
    "drafts": lambda llm: llm.generate("ab" * 8, speculate="ngram", **INTERRUPTED),
    "regex": lambda llm: llm.generate("a", regex="[ab]{3,9}", max_tokens=6, seed=5),
    "embed": lambda llm: llm.embed(["ab", "aab"]),
    "logits": lambda llm: llm.logits([3, 4, 5] * 12),
    "each": lambda llm: list(llm.generate_each(["ab", "b"], **INTERRUPTED)),
}
"""By name: what is interrupted."""


WINDOW = {"llama.attention.sliding_window": 24, "llama.attention.sliding_window_pattern": 2}
MODELS: dict[str, Any] = {
    "attention": lambda path: write_tiny_llama(path, context=512),
    "window": lambda path: write_tiny_llama(path, context=512, metadata=WINDOW),
    "state": write_tiny_granite_hybrid,
}
"""By name: what writes it, by what its layers keep of a text."""


@pytest.fixture(scope="module", params=MODELS)
def llm(request, tmp_path_factory):
    path = MODELS[request.param](tmp_path_factory.mktemp("interrupted") / "tiny.gguf")
    with LLM(path, threads=1, progress=False) as llm:
        yield llm


def interrupt_lines(llm, work, every, write=LLM.generate):
    """Interrupt each n-th line that some work runs, its first time and in the middle.

    Each time, another text goes on meanwhile, the model works, and nothing stays behind.
    """
    expected, right = bits(write(llm, "aab", **OTHER)), bits(write(llm, PROMPT, **INTERRUPTED))
    denoise = {} if write is LLM.generate else {"denoise": True}
    lines = lines_of(lambda: work(llm))
    interrupted = 0
    for line, times in sorted(lines.items())[::every]:
        for time in {1, (times + 1) // 2}:
            other = llm.stream("aab", **OTHER, **denoise)
            next(other)
            interrupted += interrupt_at(line, time, lambda: work(llm))
            assert bits(write(llm, PROMPT, **INTERRUPTED)) == right
            assert bits(other.finish()) == expected
            check_nothing_is_left(llm)
    print(f"{len(lines)} lines, interrupted {interrupted} times")
    assert interrupted > len(lines) // every // 2


@pytest.mark.parametrize("name", WORK)
def test_at_some_lines(llm, name):
    interrupt_lines(llm, WORK[name], every=83)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORK)
def test_at_every_line(llm, name):
    interrupt_lines(llm, WORK[name], every=1)


def interrupt_canvas(path, every):
    with LLM(path, threads=1, progress=False) as llm:
        work = partial(LLM.denoise, llm, PROMPT, block=3, **INTERRUPTED)
        interrupt_lines(llm, lambda _: work(), every, LLM.denoise)


def test_a_canvas_at_some_lines(tiny_diffusion_path):
    interrupt_canvas(tiny_diffusion_path, every=41)


@pytest.mark.slow
def test_a_canvas_at_every_line(tiny_diffusion_path):
    interrupt_canvas(tiny_diffusion_path, every=1)
