"""An engine on the mock backend, and the texts of its sequences."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cutaway.engine import (
    Autoregressive,
    ConstraintParams,
    Decoder,
    DraftModel,
    Ended,
    Engine,
    Event,
    FinishReason,
    Limits,
    Policy,
    Request,
    RunParams,
    Score,
    Scored,
    Sequence,
    Step,
    StopParams,
)  # fmt: skip
from cutaway.engine.interventions import BoundInterventions
from cutaway.engine.memory.block_manager import BlockManager
from cutaway.sampling import Observe, SamplingParams
from support.block_integrity import check_blocks, check_states
from support.mock_backend import END, GRAMMARS, VOCAB, MockBackend, Model, noise, token_bytes

GREEDY = SamplingParams(temperature=0)


def make_engine(
    model: Model = noise, *, context: int = 64, kv_blocks: int = 64, block: int = 32,
    pieces=token_bytes, draft: Model | None = None, window: int = 0,
    attention: str | int = "causal", shift: bool = False, tells_places: bool = False,
    has_state: bool = False, **policy,
) -> Engine:  # fmt: skip
    """policy: fields of Policy; ``rows`` bounds every step, also while sequences decode."""
    rows = policy.pop("rows", 512)
    limits = Limits(
        context_length=context, vocab_size=VOCAB, end_ids=frozenset({END}), attention=attention,
        shift=shift,
    )  # fmt: skip
    backend = MockBackend(kv_blocks, model, block, window, has_state=has_state)
    backend.most_rows = rows if attention == "causal" else rows + 64  # a whole text, beside others
    backend.tells_places = tells_places
    beside = policy.pop("max_prefill_rows_while_decoding", rows)
    policy_of_engine = Policy(max_rows=rows, max_prefill_rows_while_decoding=beside, **policy)
    engine = Engine(backend, limits, pieces, GRAMMARS, policy_of_engine)
    if draft:
        drafting = MockBackend(kv_blocks, draft, block, window)
        engine.speculator.draft = DraftModel(drafting, context, 0.1)
    return engine


def check(engine: Engine) -> None:
    """Check the integrity of the engine's blocks."""
    running = engine.running
    check_blocks(
        engine.blocks,
        [s.memory.blocks for s in running],
        [s.memory.num_out_of_window for s in running],
    )
    if states := engine.blocks.states:
        read = [block for s in running for block in s.memory.read_states.values()]
        check_states(states, read, {*engine.blocks._nodes, *engine.blocks._refcounts})
    assert not any(s.memory.blocks or s.memory.read_states for s in engine.waiting)
    if isinstance(draft := engine.speculator.draft, DraftModel):
        copies = draft._copies.values()
        check_blocks(
            draft.blocks,
            [copy.blocks for copy in copies],
            [copy.num_out_of_window for copy in copies],
        )


def forget_cached(blocks: BlockManager) -> None:
    """Empty the prefix cache, without a count of evictions."""
    evictions = blocks.evictions
    blocks.release(blocks.allocate(blocks.free))
    blocks.evictions = evictions


# -- the text of a sequence --------------------------------------------------------------------


class Written(NamedTuple):
    """A finished text; ``fingerprints`` has one per token."""

    token_ids: tuple[int, ...]
    text: str
    fingerprints: tuple[int, ...]
    finish_reason: FinishReason | None
    matched: str | int | None


class Finished(NamedTuple):
    """A request that ran to its end: its sequence, and all events of the engine during the run."""

    sequence: Sequence
    events: list[Event]

    @property
    def steps(self) -> list[Step]:
        return steps_of(self.events, self.sequence)

    @property
    def token_ids(self) -> list[int]:
        return [step.token_id for step in self.steps]

    @property
    def end(self) -> Ended:
        [end_event] = [e for e in self.events if isinstance(e, Ended) and e.id == self.sequence.id]
        return end_event

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps) + self.end.held_text

    @property
    def written(self) -> Written:
        return read_written(self.sequence, self.events)


def run_to_end(engine: Engine, events: list[Event] | None = None) -> list[Event]:
    """Step until no sequence is left; every step must compute something."""
    events = [] if events is None else events
    assert isinstance(engine.backend, MockBackend)
    backend = engine.backend
    while not engine.is_idle:
        runs = len(backend.runs)
        events.extend(engine.step())
        assert len(backend.runs) > runs, "a step that computes nothing never ends"
        check(engine)
    assert engine.blocks.free == engine.blocks.count
    return events


def steps_of(events: Iterable[Event], sequence: Sequence | None = None) -> list[Step]:
    """Return the steps among events, of one sequence or of all."""
    return [
        event
        for event in events
        if isinstance(event, Step) and (sequence is None or event.id == sequence.id)
    ]


def end_of(events: Iterable[Event], sequence: Sequence) -> Ended | None:
    """Return the end of a sequence, None if it has not ended; there must be no second end."""
    ends = [event for event in events if isinstance(event, Ended) and event.id == sequence.id]
    assert len(ends) < 2
    return ends[0] if ends else None


def read_written(sequence: Sequence, events: Iterable[Event]) -> Written:
    """Return a sequence's text from its events, finished or so far."""
    events = list(events)
    steps, end = steps_of(events, sequence), end_of(events, sequence)
    return Written(
        tuple(step.token_id for step in steps),
        "".join(step.text for step in steps),
        tuple(step.fingerprint for step in steps),
        end.reason if end else None,
        end.matched if end else None,
    )


@dataclass(frozen=True)
class MockRequest:
    """A request for the mock engine, with short names."""

    prompt: tuple[int, ...]
    params: SamplingParams = GREEDY
    stops: StopParams = StopParams(max_tokens=8)  # noqa: RUF009 - frozen
    run: RunParams = RunParams()  # noqa: RUF009 - frozen
    observe: Observe = Observe()  # noqa: RUF009 - frozen
    constraint: ConstraintParams = ConstraintParams()  # noqa: RUF009 - frozen
    decoder: Decoder = Autoregressive()  # noqa: RUF009 - frozen
    interventions: BoundInterventions | None = None

    def to_request(self) -> Request:
        return Request(
            prompt_token_ids=self.prompt, sampling=self.params, stopping=self.stops,
            constraint=self.constraint, run=self.run, observe=self.observe, decoder=self.decoder,
            interventions=self.interventions,
        )  # fmt: skip

    def add_to(self, engine: Engine) -> Sequence:
        [sequence] = engine.add(self.to_request())
        return sequence

    def finish(self, engine: Engine | None = None) -> Finished:
        """Run the request to its end, on an engine of its own if none is given."""
        engine = engine or make_engine()
        return Finished(self.add_to(engine), run_to_end(engine))

    def run_on(self, engine: Engine) -> Written:
        return self.finish(engine).written


def add(engine: Engine, prompt, params=GREEDY, stops=StopParams(), run=RunParams()) -> Sequence:  # noqa: B008
    """Queue one request."""
    return MockRequest(prompt, params, stops, run).add_to(engine)


def score(engine: Engine, token_ids, start: int = 0) -> np.ndarray:
    """Return teacher-forced logits, computed next to the engine's other sequences."""
    [sequence] = engine.add(Request(prompt_token_ids=token_ids, decoder=Score(logits_from=start)))
    events: list[Event] = []
    while sequence.finish_reason is None:
        events += engine.step()
    scores = [e for e in events if isinstance(e, Scored) and e.id == sequence.id]
    return np.concatenate([e.logits for e in scores if e.logits is not None])


def write(model: Model, prompt, params=GREEDY, *, context: int = 64, **stops) -> Written:
    """Write one text on a new engine."""
    request = MockRequest(tuple(prompt), params, StopParams(**stops))
    return request.run_on(make_engine(model, context=context))
