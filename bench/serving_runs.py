"""The measurements of bench/serving.py: timed runs of one engine, each of them once.

Knows timers and the engine's requests. Knows nothing of rounds, ratios and tables.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from cutaway import LLM
from cutaway.engine import Engine, Request, Step, StopParams
from cutaway.engine import Sequence as EngineSequence
from cutaway.features.measure import bench as runs
from cutaway.sampling import SamplingParams

Prompt = str | Sequence[int]
CONTEXT = 64
"""Tokens of a stream's prompt."""

SHARED, OWN = 400, 20
"""Tokens of a prompt's beginning, which another prompt shares, and of the rest."""

BEFORE = 24
"""Tokens of a stream before another request's prompt is read beside it."""


@dataclass(frozen=True)
class Decoded:
    """The decoding of some texts: seconds after each first token, and the tokens."""

    seconds: float
    tokens: int
    texts: tuple[tuple[int, ...], ...]
    proposed: int
    accepted: int

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Streams:
    """Streams that decode together: tokens per second, and the share of a step beside the plan."""

    rate: float
    outside: float


@dataclass(frozen=True)
class Beside:
    """A prompt read beside a stream that decodes. Times are in seconds.

    before  times between the stream's tokens while it is alone; during: while the prompt is read
    ttft    time to first token of the prompt; alone: of a similar prompt without a stream
    """

    before: list[float]
    during: list[float]
    ttft: float
    alone: float


def decode(llm: LLM, prompts: Sequence[Prompt], speculate: str, **options: Any) -> Decoded:
    """Decode the prompts one after the other; a text may end by itself."""
    done = [llm.generate(prompt, speculate=speculate, seed=1, **options) for prompt in prompts]
    rates = [c.timing.decode_tokens_per_s for c in done]
    timed = [(len(c.token_ids) - 1, rate) for c, rate in zip(done, rates, strict=True) if rate]
    return Decoded(
        sum(tokens / rate for tokens, rate in timed),
        sum(tokens for tokens, _ in timed),
        tuple(c.token_ids for c in done),
        sum(c.speculation.proposed for c in done),
        sum(c.speculation.accepted for c in done),
    )


def shared_prefix(llm: LLM, rng: np.random.Generator) -> tuple[float, float, int]:
    """Seconds to the first token of a new prompt and of one with the same beginning, and the
    number of cached tokens."""
    shared = random_tokens(llm, rng, SHARED)
    cold, _ = ttft(llm, [*shared, *random_tokens(llm, rng, OWN)])
    warm, cached = ttft(llm, [*shared, *random_tokens(llm, rng, OWN)])
    return cold, warm, cached


def ttft(llm: LLM, prompt: Prompt) -> tuple[float, int]:
    """Seconds from the request to its first token, and the number of cached tokens."""
    started = perf_counter()
    with closing(llm.stream(prompt, max_tokens=2, ignore_eos=True, seed=1)) as stream:
        next(stream)
        return perf_counter() - started, stream.usage().cached_tokens


@contextmanager
def without_prefix_cache(llm: LLM) -> Iterator[None]:
    """Switch the prefix cache off in this block."""
    scheduler = llm.engine.scheduler
    before = scheduler.policy
    scheduler.policy = replace(before, prefix_cache=False)
    try:
        yield
    finally:
        scheduler.policy = before


def streams(llm: LLM, rng: np.random.Generator, count: int) -> Streams:
    """Decode ``count`` texts at once, sampled with the command's defaults."""
    steps = runs.decode(llm, rng, CONTEXT, count, resample=False)
    outside = 1 - np.array(steps.plan) / np.array(steps.step)
    return Streams(count / float(np.median(steps.step)), float(np.median(outside)))


def beside(llm: LLM, rng: np.random.Generator, tokens: int) -> Beside:
    """Add a prompt of ``tokens`` tokens while a stream decodes."""
    alone, _ = ttft(llm, random_tokens(llm, rng, tokens))
    engine = llm.engine
    times: list[float] = []
    arrived = 0.0
    stream = add_text(engine, random_tokens(llm, rng, CONTEXT), tokens)
    other = None
    try:
        while other is None or not other.output_token_ids:
            if len(times) == BEFORE and other is None:
                arrived = perf_counter()
                other = add_text(engine, random_tokens(llm, rng, tokens), 1)
            if any(isinstance(e, Step) and e.id == stream.id for e in engine.step()):
                times.append(perf_counter())
        first = perf_counter() - arrived
    finally:
        for sequence in filter(None, (stream, other)):
            engine.abort(sequence)
    gaps = np.diff(times).tolist()
    return Beside(gaps[4 : BEFORE - 1], gaps[BEFORE - 1 :], first, alone)


def add_text(engine: Engine, prompt: list[int], max_tokens: int) -> EngineSequence:
    """Queue a text that ends only at ``max_tokens``."""
    stopping = StopParams(max_tokens=max_tokens, ignore_eos=True)
    request = Request(
        prompt_token_ids=tuple(prompt), sampling=SamplingParams(seed=1), stopping=stopping
    )
    [sequence] = engine.add(request)
    return sequence


def random_tokens(llm: LLM, rng: np.random.Generator, count: int) -> list[int]:
    """Draw random token ids, none of the first 64th of the vocabulary."""
    vocab = llm.engine.limits.vocab_size
    tokens: list[int] = rng.integers(vocab // 64, vocab, count).tolist()
    return tokens
