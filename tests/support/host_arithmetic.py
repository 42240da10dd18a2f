"""A host that changes the floating-point mode, and hashes of all results of a model in it.

``python -m support.host_arithmetic MODE FOLDER NAME…`` prints the hashes as JSON, for each model
loaded before and after the host changed the mode. Only on Linux with glibc, on x86-64.
"""

import asyncio
import ctypes
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from cutaway import LLM, AsyncLLM, InputError
from cutaway.methods.importance import constraint_estimate
from cutaway.trace import Trace, canvas_figures, step_view, to_openai, why

MODES = ("usual", "down", "up", "zero", "flushed", "x87 singles", "all at once")
_ROUNDED = {"down": 0x400, "up": 0x800, "zero": 0xC00, "all at once": 0x800}
_FLUSHED, _PRECISION = 0x8040, 0x300  # FTZ and DAZ of MXCSR; of the x87's control word

PROMPT = "The old house by the sea was"


def is_known() -> bool:
    """Return whether this module can change the machine's arithmetic."""
    return platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc"


@contextmanager
def arithmetic(mode: str) -> Iterator[Callable[[], tuple[int, int]]]:
    """Compute in a mode; yield a function that returns the thread's present mode."""
    libm, before, now = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()

    def state() -> tuple[int, int]:
        libm.fegetenv(now)
        return now[0] & 0xFFFF, now[7] & ~0x3F  # less what was raised

    libm.fegetenv(before)
    environment = (ctypes.c_uint32 * 8)(*before)
    if mode in ("x87 singles", "all at once"):
        environment[0] &= ~_PRECISION
    if mode in ("flushed", "all at once"):
        environment[7] |= _FLUSHED
    environment[0] |= _ROUNDED.get(mode, 0)
    environment[7] |= _ROUNDED.get(mode, 0) << 3
    try:
        libm.fesetenv(environment)
        yield state
    finally:
        libm.fesetenv(before)


def plain(value: Any) -> Any:
    """Return a value without the parts that differ between runs."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        unlike = ("timing", "phases", "ms", "cost")
        return {k: plain(v) for k, v in value.items() if k not in unlike}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [plain(element) for element in value]
    return plain(value.to_dict()) if hasattr(value, "to_dict") else value


def figures(llm: LLM, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, function) of each result of a model."""
    text, other = PROMPT, "A house near the water"
    for pooling in ("mean", "cls", "last", "weighted"):
        yield (
            f"vectors {pooling}",
            lambda pooling=pooling: llm.embed([text, other], pooling=pooling),
        )
    yield "similarities", lambda: llm.embed([text, other], pooling="mean").similarities()
    yield "near", lambda: llm.near(text, other, method="cosine")
    yield "rerank", lambda: llm.rerank(text, [other, text])
    yield "logits", lambda: llm.logits(llm.tokenize(text))
    yield "fill", lambda: llm.fill("The old [MASK] was")
    yield "fill targets", lambda: llm.fill("The old [MASK] was", targets=["house", "sea"])
    if not llm.config.is_causal:
        yield "pseudo-likelihood", lambda: llm.pseudo_likelihood(text)
        yield "canvas", lambda: trace_figures(llm.denoise, text, folder, max_tokens=12, seed=5)
        return
    yield (
        "score",
        lambda: [
            (answer, answer.total, answer.perplexity)
            for answer in llm.score(text, [" old", " and grey"])
        ],
    )
    yield "likelihood", lambda: llm.likelihood(text * 3, window=16).perplexity
    yield "text", lambda: llm.generate(text, max_tokens=24, seed=7, logprobs=5).to_dict()
    chains: list[dict[str, Any]] = [
        {"top_p": 0.9, "min_p": 0.02, "temperature": 1.3}, {"typical_p": 0.8},
        {"repetition_penalty": 1.1, "top_k": 40},
    ]  # fmt: skip
    for chain in chains:
        yield (
            f"text {chain}",
            lambda chain=chain: trace_figures(
                llm.generate, text, folder, max_tokens=16, seed=7, ignore_eos=True, **chain
            ),
        )
    yield "draft", lambda: llm.generate(text, max_tokens=24, seed=7, speculate="ngram").to_dict()
    options: dict[str, Any] = {"max_tokens": 12, "seed": 7, "regex": "[a-m ]+", "temperature": 1.0}
    yield "aligned", lambda: llm.generate(text, n=3, align=True, **options).to_dict()
    yield "estimate", lambda: constraint_estimate(llm.generate(text, n=3, **options))
    changed: dict[str, Any] = {"interventions": ["L0.mlp x 0.7", "L1.attn x 1.3 at 3"], **options}
    yield "intervened", lambda: llm.generate(text, **changed).to_dict()
    yield "asynchronously", lambda: asyncio.run(asked_asynchronously(llm))
    yield "revision", lambda: llm.revise(text, seed=3, max_tokens=10, rule="metropolis")
    tensors = [op.out.name for op in llm.graph.ops][1:4]
    yield "tensors", lambda: list(llm.tensors(llm.tokenize(text), tensors).values())


async def asked_asynchronously(llm: LLM) -> list[Any]:
    """Return results of a model whose engine has a thread of its own, started by this one."""
    async with AsyncLLM(llm) as model:
        vectors, fills, done = await asyncio.gather(
            model.embed([PROMPT, "A house"], pooling="mean"),
            model.fill("The old [MASK] was"),
            model.generate(PROMPT, max_tokens=12, seed=7, logprobs=3),
        )
    return [vectors, fills, done.to_dict()]


def trace_figures(
    write: Callable[..., Any], prompt: str, folder: Path, **options: Any
) -> list[Any]:
    """Return a text, its trace, and the figures computed from the trace."""
    path = folder / "run.jsonl"
    done = write(prompt, trace=path, **options)
    trace = Trace.read(path)
    path.unlink()
    figures = [done.to_dict(), done.neg_log_z, [plain(s._asdict()) for s in trace.steps]]
    if done.passes:
        return [*figures, canvas_figures(trace)]
    views = [step_view(trace, step).to_dict() for step in trace.steps]
    return [*figures, views, why(trace), to_openai(trace)]


def hashes(llm: LLM, folder: Path, state: Callable[[], Any]) -> dict[str, str]:
    """Hash each result that this model supports; the thread's mode must not change."""
    hashes, before = {}, state()
    for name, ask in figures(llm, folder):
        with suppress(InputError):
            hashes[name] = sha256(repr(plain(ask())).encode()).hexdigest()[:12]
        assert state() == before, (name, before, state())
    return hashes


def main(mode: str, folder: Path, names: list[str]) -> None:
    """Print the hashes of each model."""
    table = {}
    for name in names:
        with arithmetic(mode) as state, LLM(name, context=128, progress=False) as llm:
            table[f"{name}, loaded in it"] = hashes(llm, folder, state)
        with LLM(name, context=128, progress=False) as llm, arithmetic(mode) as state:
            table[f"{name}, loaded before"] = hashes(llm, folder, state)
    print(json.dumps(table))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
