"""Ways to generate one text on a real engine, which must not change a bit of the text.

Knows how to cause company, cache hits, drafts and lack of blocks, and how to check that they
happened. All texts of a trial, also those of neighbours and of requests that preempt, can be
compared with the same texts generated alone.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from cutaway import LLM
from cutaway.engine import (
    ConstraintParams,
    DraftModel,
    Engine,
    Event,
    Policy,
    RunParams,
    Sequence,
    StopParams,
)
from cutaway.sampling import SamplingParams, derive_seed
from support.engine_mock import GREEDY, MockRequest, Written, check, forget_cached, read_written

BLOCK = 32
CHEAP = 0.05
"""Cost of a draft model's step at which every engine drafts many tokens."""


@dataclass(frozen=True)
class Way:
    """One way to generate a text.

    company     no other text; others of other lengths from the first step; others already decoding
    prefix      blocks of the prompt in the cache: none, all complete ones, all of these but one
    preempted   whether other requests take every block during generation
    speculate   the drafter: "itself" is a draft model with the target's own weights
    n           number of samples of the prompt
    """

    company: Literal["alone", "beside", "late"]
    prefix: Literal["cold", "warm", "evicted"]
    preempted: bool
    speculate: Literal["off", "ngram", "jacobi", "draft", "itself"]
    n: int


@dataclass
class Trial:
    """An engine, its requests (``asked``) and their events (``steps``).

    cached  the prompt that fills the cache beforehand; None: one with another last token
    """

    engine: Engine
    drafts: dict[str, DraftModel] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()
    neighbours: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    stops: StopParams = field(default_factory=StopParams)
    constraint: ConstraintParams = field(default_factory=ConstraintParams)
    requests: list[tuple[MockRequest, Sequence]] = field(default_factory=list)
    steps: list[Event] = field(default_factory=list)
    cached: tuple[int, ...] | None = None

    def add(self, request: MockRequest) -> Sequence:
        sequence = request.add_to(self.engine)
        self.requests.append((request, sequence))
        return sequence

    def add_samples(self, request: MockRequest, n: int) -> list[Sequence]:
        """Add the n samples of a request."""
        samples = self.engine.add(request.to_request(), n)
        for i, sequence in enumerate(samples):
            seed = derive_seed(request.params.seed or 0, i)
            request_of_sample = replace(request, params=replace(request.params, seed=seed))
            self.requests.append((request_of_sample, sequence))
        return samples

    def step(self) -> None:
        self.steps += self.engine.step()

    def finish(self) -> None:
        """Step until no sequence is left."""
        most_steps = 100 + len(self.steps) + 10 * sum(s.longest for _, s in self.requests)
        for _ in range(most_steps):
            if not (self.engine.running or self.engine.waiting):
                return check_all_free(self.engine)
            self.step()
        raise AssertionError("the loop does not end")

    def texts(self) -> Iterator[tuple[MockRequest, Written]]:
        """Yield each request with its text."""
        for request, sequence in self.requests:
            yield request, read_written(sequence, self.steps)

    def write(self, way: Way, params: SamplingParams) -> Counter[str]:
        """Generate the prompt's samples in this way; return counts of what happened."""
        self.requests, self.steps = [], []
        self.engine.speculator.draft = self.drafts.get(way.speculate)
        before = self._counts()
        self._prepare(way.prefix)
        samples = self._begin(way, params)
        if way.preempted:
            self._send_away(samples[0])
        self.finish()
        self._check_found(way, samples)
        happened = self._counts()
        happened.subtract(before)
        for sample in samples:
            happened["proposed"] += sample.speculation.proposed
            happened["accepted"] += sample.speculation.accepted
        return happened

    def _counts(self) -> Counter[str]:
        engine = self.engine
        return Counter(preempted=engine.scheduler.preemptions, evicted=engine.blocks.evictions)

    # -- the conditions of a way ---------------------------------------------------------------

    def _prepare(self, prefix: str) -> None:
        """Put none of the prompt's complete blocks into the cache, all of them, or all but one."""
        blocks = self.engine.blocks
        forget_cached(blocks)
        if prefix != "cold":
            self.add(quick(self.cached or (*self.prompt[:-1], self.prompt[-1] - 1)))
            self.finish()
        if prefix == "evicted":
            taken_blocks = blocks.allocate(blocks.free - len(self.prompt) // BLOCK)
            self.add(quick(self.prompt[::-1][: BLOCK - 1]))  # overwrites the prompt's last block
            while self.engine.running or self.engine.waiting:
                self.step()
            blocks.release(taken_blocks)

    def _begin(self, way: Way, params: SamplingParams) -> list[Sequence]:
        """Add the company and the samples, whose rows come between the neighbours'."""
        run = RunParams(speculate="draft" if way.speculate in self.drafts else way.speculate)
        first, last = (
            self._request(p, replace(params, seed=50 + i), replace(run, priority=2 * i))
            for i, p in enumerate(self.neighbours)
        )
        if way.company == "late":
            company = [self.add(first), self.add(last)]
            while not all(s.output_token_ids for s in company):
                self.step()
        if way.company == "beside":
            self.add(first)
        run = replace(run, priority=1)
        samples = self.add_samples(self._request(self.prompt, params, run), way.n)
        if way.company == "beside":
            self.add(last)
        return samples

    def _request(
        self, prompt: tuple[int, ...], params: SamplingParams, run: RunParams
    ) -> MockRequest:
        return MockRequest(prompt, params, self.stops, run, constraint=self.constraint)

    def _send_away(self, leader: Sequence) -> None:
        """Let other requests take every free block once the first sample decodes."""
        while not leader.output_token_ids:
            self.step()
        block_ids, preempted = [], self.engine.scheduler.preemptions
        while leader.memory.blocks:
            block_ids += self.engine.blocks.allocate(self.engine.blocks.free)
            self.add(replace(quick(self.prompt[:20]), run=RunParams(priority=-1)))
            self.step()
        assert leader in self.engine.waiting, "it had ended before it could be sent away"
        assert self.engine.scheduler.preemptions > preempted
        self.engine.blocks.release(block_ids)

    def _check_found(self, way: Way, samples: list[Sequence]) -> None:
        """Check the number of cached tokens, and that samples share the first one's blocks."""
        before_last = len(self.prompt) - 1
        whole = before_last // BLOCK * BLOCK
        has_state = self.engine.blocks.states is not None  # after whole blocks, at the prompt's end
        expected_cached = {"cold": 0, "warm": whole, "evicted": whole - BLOCK}[way.prefix]
        if has_state:
            expected_cached, before_last = whole if way.prefix == "warm" else 0, whole
        assert samples[0].num_cached_tokens == expected_cached, way
        if not way.preempted:
            assert [s.num_cached_tokens for s in samples[1:]] == [before_last] * (way.n - 1), way


class Alone:
    """The text of each request on an engine of its own, computed once."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._texts: dict[str, Written] = {}

    def write(self, request: MockRequest) -> Written:
        plain = replace(request, run=RunParams())
        if (key := repr(plain)) not in self._texts:
            forget_cached(self.engine.blocks)
            sequence, steps = plain.add_to(self.engine), []
            while sequence.finish_reason is None:
                steps += self.engine.step()
            self._texts[key] = read_written(sequence, steps)
        return self._texts[key]


def check_all_free(engine: Engine) -> None:
    """Check that the engine has no sequence, block or draft state left."""
    check(engine)
    assert engine.blocks.free == engine.blocks.count
    assert not engine.speculator._states
    if isinstance(draft := engine.speculator.draft, DraftModel):
        assert draft.blocks.free == draft.blocks.count


def quick(prompt: tuple[int, ...]) -> MockRequest:
    """Return a request that generates one token."""
    return MockRequest(prompt, GREEDY, StopParams(max_tokens=1))


def open_llm(path: Path, threads: int, kv_blocks: int) -> LLM:
    return LLM(path, backend="cpu", threads=threads, kv_tokens=kv_blocks * BLOCK, progress=False)


def new_engine(llm: LLM, *, rows: int = 512, **policy) -> Engine:
    """Return another engine on the model's backend; the model's own must not be used meanwhile."""
    assert llm.backend.kv.block_tokens == BLOCK
    engine_policy = Policy(max_rows=rows, max_prefill_rows_while_decoding=rows, **policy)
    limits, token_bytes = llm.engine.limits, llm.engine.token_bytes
    return Engine(llm.backend, limits, token_bytes, lambda: llm.model.grammars, engine_policy)


def new_draft(llm: LLM) -> DraftModel:
    return DraftModel(llm.backend, llm.engine.limits.context_length, CHEAP)


def repeating(seed: int, period: int, length: int) -> tuple[int, ...]:
    """Return random tokens that repeat with a period."""
    tokens = np.random.default_rng(seed).integers(4, 264, period).tolist()
    return tuple((tokens * (length // period + 1))[:length])
