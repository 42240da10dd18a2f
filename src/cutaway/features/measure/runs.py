"""Timed runs of the real engine, and of its plan inside them.

Prompts are random tokens of a fixed seed, and end tokens end no text: the times do not depend on
what the model writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import numpy as np

from cutaway.api.llm import LLM
from cutaway.compute.backends import Backend, Batch, Logits
from cutaway.engine import Engine, Policy, Request, Step, StopParams
from cutaway.engine import Sequence as EngineSequence
from cutaway.sampling import History, RowDraw, SamplingParams

STEPS = 32
"""Decode steps of one run; the first WARM of them do not count."""
WARM = 4
MOST_STREAMS = Policy().max_num_seqs
DEFAULTS = SamplingParams(seed=1)
"""The command line's."""


@dataclass
class Steps:
    """Times of some steps, in seconds: each list has one value per step."""

    step: list[float] = field(default_factory=list)
    plan: list[float] = field(default_factory=list)
    sampling: list[float] = field(default_factory=list)


class TimedBackend:
    """A backend that notes the time and the result of its latest run."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.seconds = 0.0
        self.rows = 0
        self.logits: Logits | None = None

    def __getattr__(self, name: str) -> Any:
        """All else is the backend's own."""
        return getattr(self._backend, name)

    def run(self, batch: Batch) -> Logits:
        """As the backend itself."""
        started = perf_counter()
        self.logits = self._backend.run(batch)
        self.seconds = perf_counter() - started
        self.rows = len(batch.tokens)
        return self.logits


@contextmanager
def timed(engine: Engine) -> Iterator[TimedBackend]:
    """The engine with a stop-watch around its backend."""
    backend = engine.backend
    watch = TimedBackend(backend)
    engine.backends[""] = cast("Backend", watch)
    try:
        yield watch
    finally:
        engine.backends[""] = backend


def decode(
    llm: LLM, rng: np.random.Generator, context: int, batch: int,
    params: SamplingParams = DEFAULTS, *, resample: bool = True,
) -> Steps:  # fmt: skip
    """STEPS - WARM decode steps of ``batch`` sequences that begin with ``context`` tokens.

    Steps in which a prompt is still being read do not count.
    resample: draw each token once more, to time sampling alone
    """
    steps, warm = Steps(), 0
    with timed(llm.engine) as watch, _sequences(llm, rng, context, batch, params) as sequences:
        while warm + len(steps.step) < STEPS:
            started = perf_counter()
            drawn = _steps(llm.engine)
            seconds = perf_counter() - started
            if watch.rows != batch or drawn != batch:
                continue
            if warm < WARM:
                warm += 1
                continue
            steps.step.append(seconds)
            steps.plan.append(watch.seconds)
            if resample:
                steps.sampling.append(_sampling_seconds(llm.engine, sequences, watch.logits))
    return steps


def prefill(
    llm: LLM, rng: np.random.Generator, tokens: int, params: SamplingParams = DEFAULTS
) -> Steps:
    """One value: a prompt, from the request to its first new token."""
    started, plan = perf_counter(), 0.0
    with timed(llm.engine) as watch, _sequences(llm, rng, tokens, 1, params):
        drawn = 0
        while not drawn:
            drawn = _steps(llm.engine)
            plan += watch.seconds
        return Steps([perf_counter() - started], [plan], [])


def blocks_needed(context: int, batch: int, block: int) -> int:
    """KV blocks of a decode run: every sequence's longest text, in whole blocks."""
    return batch * -(-longest(context, batch) // block)


def longest(context: int, batch: int) -> int:
    """Tokens of the longest text of a decode run."""
    # While the last prompt is read, the first sequence already writes: room for that.
    rows = Policy().max_prefill_rows_while_decoding - min(batch, MOST_STREAMS)
    return context + STEPS + -(-context * batch // rows)


def _steps(engine: Engine) -> int:
    """Step; how many tokens were drawn."""
    return sum(isinstance(event, Step) for event in engine.step())


@contextmanager
def _sequences(
    llm: LLM, rng: np.random.Generator, context: int, batch: int, params: SamplingParams
) -> Iterator[list[EngineSequence]]:
    stops = StopParams(max_tokens=longest(context, batch) - context, ignore_eos=True)
    vocab = llm.engine.limits.vocab_size
    sequences = []
    try:
        for _ in range(batch):
            prompt = rng.integers(vocab // 64, vocab, context).tolist()
            request = Request(prompt_token_ids=prompt, sampling=params, stopping=stops)
            sequences += llm.engine.add(request)
        yield sequences
    finally:
        for sequence in sequences:
            llm.engine.abort(sequence)


def _sampling_seconds(
    engine: Engine, sequences: list[EngineSequence], logits: Logits | None
) -> float:
    """Seconds of the same draw once more, alone, on the same threads."""
    assert logits is not None
    draws = [
        RowDraw(s.chain, History(s.prompt_token_ids, s.output_token_ids[:-1]), s.seed, len(s) - 1)
        for s in sequences
    ]
    started = perf_counter()
    engine.backend.sample(logits, draws)
    return perf_counter() - started
