"""An engine whose model can be worked out by hand, and what sequences wrote on it.

The logits at a row are a pure function of the tokens from 0 to that row. The mock knows
those tokens only from what it stored in KV blocks, so that wrong tables, forgotten rows
and shared blocks give wrong logits.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import shake_128
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cutaway.backends import HostSampling, KVGroup, KVLayout
from cutaway.changes import Bound
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
    RunParams,
    Score,
    Scored,
    Sequence,
    Step,
    StopParams,
)
from cutaway.engine import Request as EngineRequest
from cutaway.grammar import Compiler
from cutaway.sampling import Observe, SamplingParams

END = 256
VOCAB, WIDTH = 257, 5
LETTERS = [*b"ab", *"éè".encode(), END]
NEVER_WRITTEN = -7
NOT_SEEN = -8
AT = -9
GREEDY = SamplingParams(temperature=0)

Model = Callable[[tuple[int, ...]], np.ndarray]


def token_bytes(token_id: int) -> bytes:
    """A byte per token; the end token has bytes too, so that a text that shows them is caught."""
    return b"<end>" if token_id == END else bytes([token_id])


class Words:
    """The tokens of the mock models, as a compiler of grammars reads them."""

    vocab_size, end_ids = VOCAB, (END,)
    bos_id: int | None = None

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END else bytes([token_id])

    def token_name(self, token_id: int) -> str:
        return f"<{token_id}>"

    def encode(self, text: str, *, goes_on: bool = False) -> list[int]:
        return [*text.encode()]


COMPILER = Compiler(Words())


def GRAMMARS() -> Compiler:
    return COMPILER


# -- models: tokens 0 … t -> logits (VOCAB,) ---------------------------------------------------


def noise(tokens: tuple[int, ...]) -> np.ndarray:
    """Any token may come next."""
    digest = shake_128(np.array(tokens, np.int32).tobytes()).digest(2 * VOCAB)
    return (np.frombuffer(digest, np.uint16).astype(np.float32) - 32768) / 8192


def narrow(tokens: tuple[int, ...]) -> np.ndarray:
    """Almost only LETTERS come: stop strings, split characters and ends are common."""
    logits = noise(tokens)
    logits[LETTERS] += 20
    return logits


def scripted(script: list[int], prompt_length: int) -> Model:
    """Writes the script after any prompt of that length, and then zeros."""

    def model(tokens: tuple[int, ...]) -> np.ndarray:
        logits, done = noise(tokens), len(tokens) - prompt_length
        logits[script[done] if 0 <= done < len(script) else 0] += 100
        return logits

    return model


def broken_after(tokens: tuple[int, ...], value: float) -> Model:
    """Noise, but that one logit after exactly these tokens is ``value``."""

    def model(history: tuple[int, ...]) -> np.ndarray:
        logits = noise(history)
        if history == tokens:
            logits[3] = value
        return logits

    return model


# -- the backend -------------------------------------------------------------------------------


class MockBackend(HostSampling):
    """Keeps the tokens in KV blocks; checks that each Batch is as its docstring says.

    With a window it keeps them twice, and reads the last ones of a row from where they can be let
    go of: whatever is read too late or from another block changes the logits, or fails.
    Where it tells places, the model is called with that of a row that sees what is behind it.
    """

    name = tier = "mock"
    threads = 0

    def __init__(
        self, kv_blocks: int, model: Model = noise, block: int = 32, window: int = 0
    ) -> None:
        self.kv_blocks, self.model, self.window = kv_blocks, model, window
        groups = [KVGroup((0,), 0, "tokens", 4), KVGroup((1,), window, "tokens", 4)]
        self.block, self.kv = block, KVLayout(block, (*groups[: 2 if window else 1],))
        self.most_rows, self.tells_places = 512, False
        self.windows: dict[int, np.ndarray] = {}  # by block, until it is let go of
        self.most_windows = 0
        self.slots = np.full((kv_blocks, self.block), NEVER_WRITTEN, np.int32)
        self.runs: list[int] = []
        self.failures = 0
        self._result: np.ndarray = np.empty(0, np.float32)

    def run(self, batch, changed=None):
        if self.failures:
            self.failures -= 1
            raise OSError("the mock was told to fail")
        self._check(batch)
        self.runs.append(len(batch.tokens))
        tokens = batch.tokens if changed is None else changed
        for row, token in enumerate(tokens):
            block, place = self._slot(batch, row, batch.positions[row])
            self.slots[block, place] = token
            if self.window:
                self.windows.setdefault(block, self._nothing())[place] = token
        self.most_windows = max(self.most_windows, len(self.windows))
        return self._hand_out([self._row(batch, r) for r in batch.logit_rows])

    def _row(self, batch, row) -> np.ndarray:
        history, position = self._history(batch, row), int(batch.positions[row])
        if not self.tells_places or batch.limits is None or batch.limits[row] == position:
            return self.model(history)
        return self.model((*history, AT, position))

    def hidden(self, batch):
        """The first numbers of the rows' logits, exactly."""
        return self.run(batch)[:, :WIDTH].copy()

    def _slot(self, batch, row, position) -> tuple[int, int]:
        block = batch.block_tables[batch.sequences[row], position // self.block]
        assert 0 <= block < self.kv_blocks
        return block, position % self.block

    def _history(self, batch, row) -> tuple[int, ...]:
        limits = batch.positions if batch.limits is None else batch.limits
        positions = range(limits[row] + 1)
        seen = [int(self.slots[self._slot(batch, row, p)]) for p in positions]
        for p in positions[max(0, batch.positions[row] - self.window + 1) :] if self.window else ():
            block, place = self._slot(batch, row, p)
            assert block in self.windows, f"block {block} was let go of, and position {p} is seen"
            seen[p] = int(self.windows[block][place])
        if batch.blind is not None:
            first = batch.blind[batch.sequences[row]]
            seen = [NOT_SEEN if first[p] <= batch.positions[row] else t for p, t in enumerate(seen)]
        return tuple(seen)

    def _nothing(self) -> np.ndarray:
        return np.full(self.block, NEVER_WRITTEN, np.int32)

    def _hand_out(self, rows) -> np.ndarray:
        """Read-only, and spoiled by the next call, as the protocol allows."""
        self._result.flags.writeable = True
        self._result.fill(np.nan)
        self._result = np.array(rows, np.float32).reshape(len(rows), VOCAB)
        self._result.flags.writeable = False
        return self._result

    def _check(self, batch) -> None:
        for name in ("tokens", "positions", "sequences", "block_tables", "logit_rows"):
            assert getattr(batch, name).dtype == np.int32, name
        rows = len(batch.tokens)
        assert 1 <= rows <= self.most_rows
        assert len(batch.positions) == len(batch.sequences) == rows
        rows_of = [*zip(batch.sequences.tolist(), batch.positions.tolist(), strict=True)]
        for (sequence, position), following in pairwise(rows_of):
            assert following == (sequence, position + 1) or following[0] == sequence + 1
        assert all(a < b for a, b in pairwise(batch.logit_rows.tolist()))
        tables = batch.block_tables.tolist()
        holders = Counter(block for table in tables for block in {*table} - {-1})
        for sequence, position in rows_of:
            block = tables[sequence][position // self.block]
            assert holders[block] == 1, f"sequence {sequence} writes into a block of another"

    def copy_blocks(self, pairs) -> None:
        sources, targets = zip(*pairs, strict=True)
        assert len({*targets} - {*sources}) == len(targets)
        for source, target in pairs:
            self.slots[target] = self.slots[source]
        self.copy_windows(pairs)

    def tap(self, batch, names, edits=()):
        assert not names  # there are no ops
        assert not edits
        return self.run(batch), {}

    def run_changed(self, batch, edits):
        """There is one tensor, the token as a number, and it is what is stored."""
        assert edits
        tokens = batch.tokens.astype(np.float32)[:, None]
        for edit in edits:
            assert edit.tensor == "token"
            tokens[edit.rows, edit.columns] = edit.change(tokens[edit.rows, edit.columns])
        return self.run(batch, tokens[:, 0].astype(np.int32))

    def head(self, x):
        raise NotImplementedError

    def adapted(self, graph, file):
        raise NotImplementedError

    def keys_values(self, layer, table, first, last):
        raise NotImplementedError

    def weight(self, name, first=0, last=None):
        raise NotImplementedError

    def as_read(self, name, x):
        raise NotImplementedError

    def copy_windows(self, pairs) -> None:
        for source, target in pairs:
            if target == -1:
                self.windows.pop(source, None)
            elif source in self.windows:
                self.windows[target] = self.windows[source].copy()
            else:
                self.windows.pop(target, None)

    def block_memory(self, block_id, *, windows=False) -> list[np.ndarray]:
        assert 0 <= block_id < self.kv_blocks
        if windows and self.window:
            self.windows.setdefault(block_id, self._nothing())
        held = [self.slots[block_id]]
        if block_id in self.windows:
            held.append(self.windows[block_id])
        return [piece.view(np.uint8) for piece in held]


def make_engine(
    model: Model = noise, *, context: int = 64, kv_blocks: int = 64, block: int = 32,
    pieces=token_bytes, draft: Model | None = None, window: int = 0, sight: str | int = "past",
    shift: bool = False, tells_places: bool = False, **policy,
) -> Engine:  # fmt: skip
    """policy: as for Policy; ``rows`` bounds every step, also where somebody decodes."""
    rows = policy.pop("rows", 512)
    limits = Limits(
        context_length=context, vocab_size=VOCAB, end_ids=frozenset({END}), sight=sight, shift=shift
    )
    backend = MockBackend(kv_blocks, model, block, window)
    backend.most_rows = rows if sight == "past" else rows + 64  # a whole text, beside others
    backend.tells_places = tells_places
    beside = policy.pop("max_prefill_rows_while_decoding", rows)
    made = Policy(max_rows=rows, max_prefill_rows_while_decoding=beside, **policy)
    engine = Engine(backend, limits, pieces, GRAMMARS, made)
    if draft:
        drafting = MockBackend(kv_blocks, draft, block, window)
        engine.speculator.draft = DraftModel(drafting, context, 0.1)
    return engine


def check(engine: Engine) -> None:
    """The integrity of the blocks, whatever happened before."""
    running = engine.running
    engine.blocks.check([s.blocks for s in running], [s.passed for s in running])
    assert not any(s.blocks for s in engine.waiting)
    if draft := engine.speculator.draft:
        copies = draft._copies.values()
        draft.blocks.check([copy.blocks for copy in copies], [copy.passed for copy in copies])


# -- what a sequence wrote ---------------------------------------------------------------------


class Written(NamedTuple):
    """A finished text; ``fingerprints`` has one per token."""

    token_ids: tuple[int, ...]
    text: str
    fingerprints: tuple[int, ...]
    finish_reason: FinishReason | None
    matched: str | int | None


def run_to_end(engine: Engine, events: list[Event] | None = None) -> list[Event]:
    """Step until nobody is left; every step must compute something."""
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
    """The steps among some events, of one sequence or of all."""
    return [
        event
        for event in events
        if isinstance(event, Step) and (sequence is None or event.id == sequence.id)
    ]


def end_of(events: Iterable[Event], sequence: Sequence) -> Ended | None:
    """The end of a sequence, which comes once."""
    ends = [event for event in events if isinstance(event, Ended) and event.id == sequence.id]
    assert len(ends) < 2
    return ends[0] if ends else None


def written(sequence: Sequence, events: Iterable[Event]) -> Written:
    """What the events tell of a sequence that wrote to its end, or until now."""
    events = list(events)
    mine, ended = steps_of(events, sequence), end_of(events, sequence)
    return Written(
        tuple(step.token_id for step in mine),
        "".join(step.text for step in mine),
        tuple(step.fingerprint for step in mine),
        ended.reason if ended else None,
        ended.matched if ended else None,
    )


@dataclass(frozen=True)
class Request:
    """What is asked of the engine, apart from the company."""

    prompt: tuple[int, ...]
    params: SamplingParams = GREEDY
    stops: StopParams = StopParams(max_tokens=8)  # noqa: RUF009 - frozen
    run: RunParams = RunParams()  # noqa: RUF009 - frozen
    observe: Observe = Observe()  # noqa: RUF009 - frozen
    constraint: ConstraintParams = ConstraintParams()  # noqa: RUF009 - frozen
    decoder: Decoder = Autoregressive()  # noqa: RUF009 - frozen
    changes: Bound | None = None

    def asked(self) -> EngineRequest:
        return EngineRequest(
            prompt_token_ids=self.prompt,
            sampling=self.params,
            stopping=self.stops,
            constraint=self.constraint,
            run=self.run,
            observe=self.observe,
            decoder=self.decoder,
            changes=self.changes,
        )

    def add_to(self, engine: Engine) -> Sequence:
        [sequence] = engine.add(self.asked())
        return sequence

    def run_on(self, engine: Engine) -> Written:
        sequence = self.add_to(engine)
        return written(sequence, run_to_end(engine))


def add(engine: Engine, prompt, params=GREEDY, stops=StopParams(), run=RunParams()) -> Sequence:  # noqa: B008
    """Queue one request."""
    return Request(prompt, params, stops, run).add_to(engine)


def score(engine: Engine, token_ids, start: int = 0) -> np.ndarray:
    """Teacher-forced logits, computed beside whatever else is in the engine."""
    [sequence] = engine.add(
        EngineRequest(prompt_token_ids=token_ids, decoder=Score(logits_from=start))
    )
    events: list[Event] = []
    while sequence.finish_reason is None:
        events += engine.step()
    mine = [e for e in events if isinstance(e, Scored) and e.id == sequence.id]
    return np.concatenate([e.logits for e in mine if e.logits is not None])


def write(model: Model, prompt, params=GREEDY, *, context: int = 64, **stops) -> Written:
    """One text from a fresh engine."""
    request = Request(tuple(prompt), params, StopParams(**stops))
    return request.run_on(make_engine(model, context=context))
