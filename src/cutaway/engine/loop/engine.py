"""The loop: schedule → run → sample → commit → emit.

scheduler.py chooses the sequences of a step. decoders/ has the ways to write a sequence.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cutaway.compute.backends import DRAFT_STATES, Backend, Logits
from cutaway.engine.constraint import ConstraintVocabulary
from cutaway.engine.decoders import Computed, Outcome
from cutaway.engine.events import Event, FinishReason, Phases
from cutaway.engine.limits import Limits
from cutaway.engine.loop.scheduler import Policy, Scheduler
from cutaway.engine.memory import SequenceBlocks
from cutaway.engine.memory.block_manager import BlockManager
from cutaway.engine.memory.states import states_of
from cutaway.engine.memory.windows import windows_of
from cutaway.engine.request import Request
from cutaway.engine.scheduled import CANVAS, Scheduled, run_scheduled
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation import Speculator
from cutaway.errors import InputError, Name, QueueFullError
from cutaway.sampling import RowDraw

if TYPE_CHECKING:
    from cutaway.compute.backends.canvas import CanvasBackends
    from cutaway.engine.memory.store import BlockStore, StoreCounts
    from cutaway.text.grammar.compiler import GrammarCompiler


class Engine:
    """Runs any number of sequences, a step at a time. Only one thread may use it at a time.

    adapters  the backend with each adapter that a request can name, by the adapter's hash
    canvas    what computes a canvas whose cells read more than their tokens; None: nothing does
    steps     how many steps have begun
    grammars  makes the compiler for a request whose grammar is not compiled (``Request.grammar``)
    early     is called with the events so far, such as ``Started``, before the model runs. None:
              ``step`` returns them with the other events
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
        canvas: "CanvasBackends | None" = None,
    ) -> None:
        policy = policy or Policy()
        self.backends = {"": backend, **(adapters or {})}
        if canvas:
            self.backends[CANVAS] = canvas.rows
        self._canvas = canvas
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
        self._changing: int | None = None  # during a change: the next id when it began

    @property
    def backend(self) -> Backend:
        """The model without an adapter."""
        return self.backends[""]

    @property
    def store(self) -> "BlockStore | None":
        """Where blocks of the prefix cache are kept outside of this process; None: nowhere."""
        return self._sequence_blocks.store

    def use_store(self, store: "BlockStore") -> None:
        """Keep blocks of the prefix cache in a store too."""
        self._sequence_blocks.store = store
        self.blocks.on_loss, self.blocks.name_of = store.save, store.name_of
        if self.blocks.windows:
            self.blocks.windows.on_loss = store.save
        if self.blocks.states:
            self.blocks.states.on_loss = store.save

    # -- the loop ----------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one step of the model for all scheduled sequences; return their events, in order.

        An exception ends no sequence: the next step repeats what this step did not emit.
        """
        self.begin_change()
        self.steps += 1
        self.phases = phases = Phases()
        started = perf_counter()
        scheduled = self.scheduler.schedule(self._copy_blocks)
        self._emit_started()
        if scheduled:
            self._copy_blocks()
            total, started = lap(started)
            phases.draft = self.scheduler.draft_s
            phases.schedule = total - phases.draft
            # Before the run, so that sampling follows it at once, while the threads are awake.
            draws = [entry.sequence.decoder.draws(entry) for entry in scheduled]
            phases.sample, started = lap(started)
            rows, logits = run_scheduled(self.backends, scheduled, self.speculator)
            phases.run, started = lap(started)
            outcomes = self._sample(draws, rows, logits)
            phases.sample += lap(started)[0]
            self.scheduler.learn(phases.run + phases.sample)
            for entry, entry_rows, entry_outcomes in zip(scheduled, rows, outcomes, strict=True):
                self._commit(entry, entry_rows, entry_outcomes)
        self.end_change()
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Return the events since the last call; a sequence may have ended between two steps."""
        events, self._events = self._events, []
        return events

    def _emit_started(self) -> None:
        for sequence in self.scheduler.started:
            self._emit(sequence, sequence.starting_events())
        if self.early and self._events:
            self.early(self.take_events())

    def _emit(self, sequence: Sequence, events: list[Event]) -> None:
        self._events += sequence.emit(events)

    def settle_blocks(self) -> None:
        """Copy or free the windows and states that are to be, before their memory is used."""
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
            self._sequence_blocks.finish_copies()

    def _sample(
        self, draws: list[list[RowDraw]], rows: list[Logits], logits: Logits
    ) -> list[list[Outcome]]:
        """Draw the next tokens of each sequence, as if its draft tokens were right.

        rows    the logits of each sequence; tokens are drawn from the last of them
        logits  all of these in one array if one run computed them; else an empty array
        """
        last = [part[len(part) - len(d) :] for part, d in zip(rows, draws, strict=True) if d]
        if not last:
            return [[] for _ in draws]
        together = logits if sum(map(len, last)) == len(logits) else np.concatenate(last)
        outcomes = iter(self.backend.sample(together, [draw for part in draws for draw in part]))
        return [[*islice(outcomes, len(part))] for part in draws]

    def _commit(self, scheduled: Scheduled, logits: Logits, outcomes: list[Outcome]) -> None:
        """Append the drawn tokens, emit events and publish KV blocks; or end the sequence."""
        sequence = scheduled.sequence
        if sequence.finish_reason:  # aborted while the step ran
            return
        backend, finish = self.backend, self.backends[sequence.request.adapter].finish
        blend = self._canvas.blend if self._canvas else None
        computed = Computed(
            logits, outcomes, backend.read, backend.read_distributions, self.phases, finish, blend
        )
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
            self.speculator.learn(sequence, scheduled.draft_token_ids, outcomes, max(steps - 1, 0))
        # The end is emitted together with the last steps: a restore finds both, or neither.
        self._emit(sequence, [*events, *sequence.ending_events()] if is_over else events)
        self._sequence_blocks.publish(sequence)
        if is_over:
            self._remove(sequence)

    # -- changes, which an exception may interrupt -------------------------------------------

    def begin_change(self) -> None:
        """Begin a change of the engine, after undoing one that an exception interrupted.

        A step is a change, and so is a call of the engine's owner. Sequences that an interrupted
        call added have no reader, and are forgotten. All other sequences are restored from the
        events that they emitted. What the prefix cache has lost of them is computed again, which
        changes no bit.
        """
        if self._changing is not None:
            self._restore(self._changing)
        self._changing = self._next_id

    def end_change(self) -> None:
        """Note that the change is complete."""
        self._changing = None

    def _restore(self, first_new: int) -> None:
        """Restore every sequence; if an exception interrupts this, it is done again."""
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
            except Exception as error:  # raised by the request's own code, such as a constraint
                failed.append((sequence, error))
        self._sequence_blocks.reset()
        self.scheduler.reset(living)
        self._sequences = {sequence.id: sequence for sequence in living}
        for sequence, cause in failed:
            self.fail(sequence, cause)

    # -- adding and ending sequences ---------------------------------------------------------

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences in the queue, in order."""
        return self.scheduler.waiting

    @property
    def running(self) -> list[Sequence]:
        """Sequences that hold KV blocks, in the order of the queue."""
        return self.scheduler.running

    @property
    def is_idle(self) -> bool:
        """Whether no sequence is in the engine."""
        return not (self.scheduler.running or self.scheduler.waiting)

    def find(self, sequence_id: int) -> Sequence | None:
        """Return the sequence with this id; None where it has ended."""
        return self._sequences.get(sequence_id)

    def add(self, request: Request, samples: int = 1) -> list[Sequence]:
        """Queue ``samples`` of a request, all or none; each sequence has a seed of its own.

        InputError where the request does not fit the model, QueueFullError where the queue is full.
        """
        longest = self._check(request)
        if request.run.replay and samples > 1:
            raise InputError(
                "replay", ": it is of one text, and n must be 1; request each by its seed"
            )
        max_waiting = self.scheduler.policy.max_waiting
        if max_waiting is not None and len(self.waiting) + samples > max_waiting:
            raise QueueFullError(f"the queue is full with {max_waiting} waiting: try again later")
        if request.grammar is None and (source := request.constraint.source) is not None:
            request = request.but(grammar=self.grammars().compile(source))
        sequences: list[Sequence] = []
        for sample in request.samples(samples):
            first = sequences[0] if sequences else None
            sequences.append(Sequence(self._next_id, sample, self.vocabulary, longest, first))
            self._next_id += 1
        for sequence in sequences:
            self._sequences[sequence.id] = sequence
            self.scheduler.add(sequence)
        return sequences

    def abort(self, sequence: Sequence) -> None:
        """End a sequence at once, queued or running; its KV blocks become free."""
        if sequence.finish_reason is None and sequence.id in self._sequences:
            sequence.finish_reason = FinishReason.ABORTED
            self._release(sequence)

    def abort_all(self, error: Exception | None = None) -> None:
        """End every sequence with ``error`` as its error, also after a step that raised."""
        for sequence in [*self.running, *self.waiting]:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ABORTED
            sequence.error = sequence.error or error
            self._release(sequence)
        self._sequence_blocks.finish_copies()  # no fork is left to copy for

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error of its own, unless it has ended; the others continue."""
        if isinstance(error, StopIteration):  # it would end a reader's loop as if all were read
            error = _as_runtime_error(error)
        sequence.error = error
        if sequence.finish_reason is None and sequence.id in self._sequences:
            sequence.finish_reason = FinishReason.ERROR
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._emit(sequence, sequence.ending_events())
        self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.speculator.forget(sequence)
        self._sequences.pop(sequence.id, None)
        if self.store and not self._sequences:
            self.store.rest()

    def _check(self, request: Request) -> int:
        """Return the most tokens that the sequence can have; InputError where it cannot run."""
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
        if self.limits.attention == "prefix-lm":
            _check_knockouts(request)
        if request.adapter not in self.backends:
            raise InputError("adapter", ": it is not loaded where the text is to be written")
        self._check_blocks(longest)
        return longest

    def _check_blocks(self, longest: int) -> None:
        """Raise InputError where this many tokens need more KV blocks than there are."""
        num_blocks = self._sequence_blocks.count_for(longest)
        if num_blocks > self.blocks.count:
            raise InputError(
                "prompt",
                " and ",
                Name("max_tokens"),
                f" need {num_blocks} KV blocks of {self.blocks.block} tokens; "
                f"there are {self.blocks.count}: shorten the prompt or lower ",
                Name("max_tokens"),
            )


def _check_with_state(request: Request) -> None:
    """Raise InputError for settings that a model with recurrent states does not support."""
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


def _check_knockouts(request: Request) -> None:
    """Raise InputError where tokens are hidden that other tokens of the prompt have read."""
    if request.interventions and request.interventions.knocked_out:
        raise InputError(
            "interventions",
            ": this model reads its prompt to both sides, and earlier tokens would have read the "
            "token that is knocked out; leave tokens out of the text instead",
        )


def _as_runtime_error(error: StopIteration) -> RuntimeError:
    """Return the RuntimeError into which a generator would turn the error (PEP 479)."""
    raised = RuntimeError("what the request brought, such as a processor, raised StopIteration")
    raised.__cause__ = error
    return raised


def lap(started: float) -> tuple[float, float]:
    """Return the seconds since ``started``, and the time now."""
    now = perf_counter()
    return now - started, now


# -- how busy an engine is -------------------------------------------------------------------------


class EngineState(NamedTuple):
    """How busy an engine is at one moment; each of n samples counts as one sequence.

    running       sequences that hold KV blocks
    most_running  how many sequences may run at once
    waiting       sequences in the queue
    preemptions   sequences that were sent back to the queue, since the start
    kv_blocks     all KV blocks of the engine
    kv_held       KV blocks of running sequences; the others are free or in the prefix cache
    window_blocks KV blocks that take memory in layers with a sliding window; None if there is no
                  such layer
    states        recurrent states of KV blocks in memory; None where no layer has one
    stored        counts of the store that keeps blocks of the prefix cache; None without one
    """

    running: int
    most_running: int
    waiting: int
    preemptions: int
    kv_blocks: int
    kv_held: int
    window_blocks: int | None
    states: int | None
    stored: "StoreCounts | None" = None

    @classmethod
    def read(cls, engine: Engine) -> "EngineState":
        """Read lengths and integers only, since another thread may be stepping the engine."""
        blocks = engine.blocks
        free = min(blocks.free, blocks.count)  # the two may change while they are read
        return cls(
            running=len(engine.running), most_running=engine.scheduler.max_num_seqs,
            waiting=len(engine.waiting),
            preemptions=engine.scheduler.preemptions, kv_blocks=blocks.count,
            kv_held=blocks.count - free,
            window_blocks=blocks.windows.num_stored if blocks.windows else None,
            states=blocks.states.num_stored if blocks.states else None,
            stored=engine.store.counts() if engine.store else None,
        )  # fmt: skip
