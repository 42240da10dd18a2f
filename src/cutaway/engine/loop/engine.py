"""The loop: schedule → run → sample → commit → emit.

scheduler.py says which sequences are in a step, decoders/ how a sequence is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from cutaway.compute.backends import DRAFT_STATES, Backend, Logits
from cutaway.engine.constraint import ConstraintVocabulary
from cutaway.engine.decoders import Computed, Outcome
from cutaway.engine.events import Event, FinishReason, Phases
from cutaway.engine.limits import Limits
from cutaway.engine.loop.scheduler import Policy, Scheduler
from cutaway.engine.memory import SequenceBlocks
from cutaway.engine.memory.block_manager import BlockManager, windows_of
from cutaway.engine.memory.states import states_of
from cutaway.engine.request import Request
from cutaway.engine.scheduled import Scheduled, compute
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation import Speculator
from cutaway.errors import InputError, Name, QueueFullError

if TYPE_CHECKING:
    from cutaway.text.grammar.compiler import GrammarCompiler


class Engine:
    """Runs any number of sequences, a step at a time. One thread at a time may use it.

    adapters  the backend with each adapter that a request can name, by the adapter's hash
    steps     how many were begun
    grammars  compiles the grammar of a request that has none compiled (``Request.grammar``)
    early     is called with the events so far, such as ``Started``, before the model runs;
              without it ``step`` returns them with the others
    """

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        token_bytes: Callable[[int], bytes],
        grammars: "Callable[[], GrammarCompiler]",
        policy: Policy | None = None,
        *,
        adapters: Mapping[str, Backend] | None = None,
    ) -> None:
        policy = policy or Policy()
        self.backends = {"": backend, **(adapters or {})}
        self.limits, self.token_bytes = limits, token_bytes
        self.vocabulary, self.grammars = ConstraintVocabulary(limits, token_bytes), grammars
        windows = windows_of(backend.kv, backend.kv_blocks, limits.context_length, policy.max_rows)
        states = states_of(backend.kv, backend.kv_blocks, DRAFT_STATES)
        self.blocks = BlockManager(backend.kv_blocks, backend.kv.block_tokens, windows, states)
        self.speculator = Speculator()
        self._sequence_blocks = SequenceBlocks(self.blocks, prefix_cache=policy.prefix_cache)
        self.scheduler = Scheduler(self._sequence_blocks, policy, self.speculator)
        self.phases = Phases()
        self.early: Callable[[list[Event]], object] | None = None
        self._events: list[Event] = []
        self._sequences: dict[int, Sequence] = {}  # all that have not ended, by id
        self._next_id, self.steps = 0, 0
        self._changing: int | None = None  # while it changes: the next id when that began

    @property
    def backend(self) -> Backend:
        """The model without an adapter."""
        return self.backends[""]

    # -- the loop ----------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """One step of the model for all sequences that are scheduled; their events, in order.

        An exception ends no sequence: the next step does again what this one did not emit.
        """
        self.begin()
        self.steps += 1
        self.phases = phases = Phases()
        started = perf_counter()
        scheduled = self.scheduler.schedule()
        self._emit_started()
        if scheduled:
            self._copy_blocks()
            total, started = lap(started)
            phases.draft = self.scheduler.draft_s
            phases.schedule = total - phases.draft
            rows, logits = compute(self.backends, scheduled, self.speculator)  # of each; together
            phases.run, started = lap(started)
            drawn = self._sample(scheduled, rows, logits)
            phases.sample, _ = lap(started)
            self.scheduler.learn(phases.run + phases.sample)
            for part, its_rows, its_tokens in zip(scheduled, rows, drawn, strict=True):
                self._commit(part, its_rows, its_tokens)
        self.end()
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Events since the last call, also of sequences that were ended between two steps."""
        events, self._events = self._events, []
        return events

    def _emit_started(self) -> None:
        for sequence in self.scheduler.started:
            self._emit(sequence, sequence.started())
        if self.early and self._events:
            self.early(self.take_events())

    def _emit(self, sequence: Sequence, events: list[Event]) -> None:
        self._events += sequence.emit(events)

    def settle_blocks(self) -> None:
        """Copy and free windows and states as decided, before memory is read or written."""
        if self.blocks.windows:
            self.blocks.windows.settle(self.backend.copy_windows)
        if self.blocks.states:
            self.blocks.states.settle(self.backend.copy_states)

    def _copy_blocks(self) -> None:
        """Copy each block that a fork will write into; copy and free windows and states."""
        self.settle_blocks()
        if self._sequence_blocks.copies:
            self.backend.copy_blocks(self._sequence_blocks.copies)
            self.speculator.copy_blocks(self._sequence_blocks.copies)
            self._sequence_blocks.copied()

    def _sample(
        self, scheduled: list[Scheduled], rows: list[Logits], logits: Logits
    ) -> list[list[Outcome]]:
        """Draw for each sequence, as if its draft tokens were right.

        rows: the logits of each sequence, of which the last are drawn from; logits: all in one
        array, if they are
        """
        draws = [one.sequence.decoder.draws(one) for one in scheduled]
        last = [mine[len(mine) - len(d) :] for mine, d in zip(rows, draws, strict=True) if d]
        if not last:
            return [[] for _ in scheduled]
        together = logits if sum(map(len, last)) == len(logits) else np.concatenate(last)
        drawn = iter(self.backend.sample(together, [draw for part in draws for draw in part]))
        return [[next(drawn) for _ in part] for part in draws]

    def _commit(self, scheduled: Scheduled, logits: Logits, drawn: list[Outcome]) -> None:
        """Append what was drawn, then publish what was computed; or end the sequence."""
        sequence = scheduled.sequence
        if sequence.finish_reason:  # aborted while the step ran
            return
        finish = self.backends[sequence.request.adapter].finish
        computed = Computed(logits, drawn, self.backend.read, self.phases, finish)
        before = len(sequence.output_token_ids)
        events = sequence.decoder.commit(scheduled, computed)
        if sequence.error:
            self._emit(sequence, events)
            self.fail(sequence, sequence.error)
            return
        is_over = sequence.finish_reason is not None
        if sequence.rewound or (not is_over and self._sequence_blocks.has_lost_state(sequence)):
            self._emit(sequence, events)
            sequence.rewound = False  # forget what was computed for tokens that were taken back
            self.speculator.forget(sequence)
            self.scheduler.preempt(sequence)
            return
        if scheduled.drafted_by == "draft":
            steps = len(sequence.output_token_ids) - before
            self.speculator.learn(sequence, scheduled.draft_token_ids, drawn, max(steps - 1, 0))
        # Its end comes with its last steps: who restores it finds both, or neither.
        self._emit(sequence, [*events, *sequence.left()] if is_over else events)
        self._sequence_blocks.publish(sequence)
        if is_over:
            self._remove(sequence)

    # -- changes, which an exception may tear ------------------------------------------------

    def begin(self) -> None:
        """Begin to change it. Where an exception tore the change before, all is put right first.

        A step is a change. An owner's call is one, too: sequences that it added while it was torn
        have no reader, and are forgotten. All others are restored from what they have emitted, and
        computed again as far as the prefix cache has lost them, which changes no bit.
        """
        if self._changing is not None:
            self._restore(self._changing)
        self._changing = self._next_id

    def end(self) -> None:
        """The change that was begun is whole."""
        self._changing = None

    def _restore(self, first_new: int) -> None:
        """Put everything right; it may be torn in its turn, and is then done again."""
        self.speculator.reset()
        living = [
            sequence
            for sequence in self._sequences.values()
            if sequence.id < first_new and not sequence.outbox.end
        ]
        failed: list[tuple[Sequence, Exception]] = []
        for sequence in living:
            try:
                sequence.restore()
            except Exception as error:  # of what its request brought, such as a constraint
                failed.append((sequence, error))
        self._sequence_blocks.reset()
        self.scheduler.reset(living)
        self._sequences = {sequence.id: sequence for sequence in living}
        for sequence, cause in failed:
            self.fail(sequence, cause)

    # -- adding and ending sequences ---------------------------------------------------------

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences in the queue, the next one first."""
        return self.scheduler.waiting

    @property
    def running(self) -> list[Sequence]:
        """Sequences that hold KV blocks, in the same order."""
        return self.scheduler.running

    @property
    def is_idle(self) -> bool:
        """Whether no sequence is in the engine."""
        return not (self.scheduler.running or self.scheduler.waiting)

    def find(self, sequence_id: int) -> Sequence | None:
        """Return the sequence with this id; None where it has ended."""
        return self._sequences.get(sequence_id)

    def add(self, request: Request, samples: int = 1) -> list[Sequence]:
        """Queue ``samples`` of a request, all or none; each sequence's own request names its seed.

        InputError where it does not fit the model, QueueFullError where the queue is full.
        """
        longest = self._check(request)
        if request.run.replay and samples > 1:
            raise InputError(
                "replay", ": it is of one text, and n must be 1; request each by its seed"
            )
        most = self.scheduler.policy.max_waiting
        if most is not None and len(self.waiting) + samples > most:
            raise QueueFullError(f"the queue is full with {most} waiting: try again later")
        if request.grammar is None and (source := request.constraint.source) is not None:
            request = request.but(grammar=self.grammars().compile(source))
        added: list[Sequence] = []
        for own in request.samples(samples):
            first = added[0] if added else None
            added.append(Sequence(self._next_id, own, self.vocabulary, longest, first))
            self._next_id += 1
        for sequence in added:
            self._sequences[sequence.id] = sequence
            self.scheduler.add(sequence)
        return added

    def abort(self, sequence: Sequence) -> None:
        """End a sequence at once, wherever it is; its KV blocks are free again."""
        if sequence.finish_reason is None and sequence.id in self._sequences:
            sequence.finish_reason = FinishReason.ABORTED
            self._release(sequence)

    def abort_all(self, error: Exception | None = None) -> None:
        """End every sequence, also after a step that raised; ``error`` becomes each one's own."""
        for sequence in [*self.running, *self.waiting]:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ABORTED
            sequence.error = sequence.error or error
            self._release(sequence)
        self._sequence_blocks.copied()  # no fork is left to copy for

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence, unless it has ended, with an error of its own; the others continue."""
        if isinstance(error, StopIteration):  # which would end a reader's loop without a word
            error = _as_runtime_error(error)
        sequence.error = error
        if sequence.finish_reason is None and sequence.id in self._sequences:
            sequence.finish_reason = FinishReason.ERROR
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._emit(sequence, sequence.left())
        self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.speculator.forget(sequence)
        self._sequences.pop(sequence.id, None)

    def _check(self, request: Request) -> int:
        """The most tokens the sequence can have; InputError where it cannot run here."""
        if request.constraint.heal is True:
            raise InputError("heal", ": pass the id of the trimmed prompt token")
        longest, heal = request.decoder.longest(request, self.limits), request.constraint.heal
        for name, ids in (
            ("logit_bias", request.sampling.logit_bias),
            ("stop_token_ids", request.stopping.stop_token_ids),
            ("forced", request.run.forced),
            ("replay", request.run.replay),
            ("track", request.observe.track),
            ("allowed_token_ids", request.constraint.allowed_token_ids or ()),
            ("heal", () if isinstance(heal, bool) else (heal,)),
        ):
            self.limits.check_ids(name, ids)
        if request.constraint.source and request.stopping.ignore_eos:
            raise InputError("ignore_eos", ": a text of a grammar ends where the grammar ends it")
        if lacking := self.speculator.lacks(request.run.speculate):
            raise InputError("speculate", lacking)
        if self.backend.kv.state:
            _check_with_state(request)
        if request.adapter not in self.backends:
            raise InputError("adapter", ": it is not loaded where the text is to be written")
        self._check_blocks(longest)
        return longest

    def _check_blocks(self, longest: int) -> None:
        """InputError where this many tokens need more KV blocks than there are."""
        wanted = self._sequence_blocks.count_for(longest)
        if wanted > self.blocks.count:
            raise InputError(
                "prompt",
                " and ",
                Name("max_tokens"),
                f" need {wanted} KV blocks of {self.blocks.block} tokens; "
                f"there are {self.blocks.count}: shorten the prompt or lower ",
                Name("max_tokens"),
            )


def _check_with_state(request: Request) -> None:
    """InputError for what a model with recurrent states cannot do."""
    if request.decoder.goes_back:
        raise InputError(
            "denoise",
            ": layers of this model have a recurrent state, and it writes from left to "
            "right only, with generate",
        )
    if request.interventions and request.interventions.knocked_out:
        raise InputError(
            "interventions",
            ": layers of this model have a recurrent state, from which no token can "
            "be knocked out; leave tokens out of the text instead",
        )


def _as_runtime_error(error: StopIteration) -> RuntimeError:
    """What Python makes of it where a generator raises it (PEP 479)."""
    raised = RuntimeError("what the request brought, such as a processor, raised StopIteration")
    raised.__cause__ = error
    return raised


def lap(started: float) -> tuple[float, float]:
    """Seconds since then, and now."""
    now = perf_counter()
    return now - started, now


# -- how busy an engine is -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """One engine at one moment; each of n samples is one sequence.

    running       sequences that hold KV blocks
    most_running  as many may at once
    waiting       sequences in the queue
    preemptions   sequences that were sent back to it, since the start
    kv_blocks     all of the engine
    kv_held       of these, by running sequences; the others are free or the prefix cache's
    window_blocks KV blocks that take memory in the layers that see a window; None without such
    states        recurrent states in memory, those of KV blocks; None where no layer has one
    """

    running: int
    most_running: int
    waiting: int
    preemptions: int
    kv_blocks: int
    kv_held: int
    window_blocks: int | None
    states: int | None

    @classmethod
    def of(cls, engine: Engine) -> "EngineState":
        """Read while another thread may step it: lengths and integers only."""
        blocks = engine.blocks
        free = min(blocks.free, blocks.count)  # the two may change while they are read
        return cls(
            running=len(engine.running), most_running=engine.scheduler.max_num_seqs,
            waiting=len(engine.waiting),
            preemptions=engine.scheduler.preemptions, kv_blocks=blocks.count,
            kv_held=blocks.count - free,
            window_blocks=blocks.windows.held if blocks.windows else None,
            states=blocks.states.held if blocks.states else None,
        )  # fmt: skip
