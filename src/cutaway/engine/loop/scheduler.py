"""Which rows of which sequences the next step computes: admission, KV blocks, rows, preemption.

This is continuous batching with chunked prefill. A preempted sequence is computed again.
``StepTime`` limits a prompt's rows in a step in which other sequences decode, since these wait for
the prompt's rows. A row costs more the further it is from the prompt's beginning. ``StepTime``
learns the costs of decoding and of rows from the times of steps. No token depends on it.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

from cutaway.base.checks import check_bool, check_int, check_number
from cutaway.compute.backends import STEP_ROWS
from cutaway.engine.memory import SequenceBlocks
from cutaway.engine.scheduled import Scheduled, rows_to_state_change
from cutaway.engine.sequence import Sequence
from cutaway.engine.speculation import Speculator
from cutaway.engine.speculation.length import median_low

# -- how long a step takes -------------------------------------------------------------------------

LEAST_ROWS = 4
"""The fewest rows of a prompt in a step: a step of two takes 1.4 times as long as one of eight."""
LEAST_STEPS = 2
"""The smallest target, in times of a step that only decodes: a prompt then has half of it."""
ALONE_EVERY = 16
"""How many steps with prompts' rows come between two that only decode, and measure decoding."""
_RECENT = 3  # the median of so many steps counts, so that one slow step changes nothing
_NEAR = 256  # tokens; beyond, rows are grouped by the power of two of their position


class StepRows(NamedTuple):
    """How many rows a step computes.

    decoding  rows of sequences that decode, draft tokens included
    prompts   rows of the other sequences
    position  the first position of the prompt with the most rows
    """

    decoding: int
    prompts: int
    position: int


class StepTime:
    """Learns from recent steps how many rows of a prompt the next step has time for."""

    def __init__(self) -> None:
        self._alone: deque[float] = deque(maxlen=_RECENT)  # seconds of steps that only decode
        self._row: dict[int, deque[float]] = {}  # seconds of a prompt's row, by its distance
        self._steps_beside = ALONE_EVERY  # since the last step that only decoded

    def learn(self, rows: StepRows, seconds: float) -> None:
        """Note the rows of a step and its seconds."""
        if not rows.prompts:
            self._alone.append(seconds)
            self._steps_beside = 0
            return
        if rows.decoding:
            self._steps_beside += 1
        if rows.prompts >= LEAST_ROWS and (self._alone or not rows.decoding):
            alone = median_low(self._alone) if rows.decoding else 0.0
            prompt_s = max(seconds - alone, seconds / 10, 1e-9)  # noise may leave less
            self._row_times_near(rows.position + rows.prompts // 2).append(prompt_s / rows.prompts)

    def room(self, position: int, step_ms: float) -> int | None:
        """Return how many rows of a prompt, from this position on, fit into a step with decoding.

        step_ms: the longest that the step should take
        The result is 0 where this step is to measure the time of decoding alone, and None until a
        prompt's row has been measured.
        """
        if self._steps_beside >= ALONE_EVERY:
            return 0
        if not self._row:
            return None
        alone = median_low(self._alone)
        target = max(step_ms / 1e3, LEAST_STEPS * alone)
        return max(LEAST_ROWS, int((target - alone) / median_low(self._row_times_near(position))))

    def _row_times_near(self, position: int) -> deque[float]:
        """Return the row times of a position's group; if it has none, the nearest group's."""
        distance = (position // _NEAR).bit_length()
        if distance not in self._row:
            nearest_first = sorted(self._row, key=lambda other: abs(other - distance))
            first_times = [median_low(self._row[other]) for other in nearest_first[:1]]
            self._row[distance] = deque(first_times, maxlen=_RECENT)
        return self._row[distance]


# -- the scheduler ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of a step and of the queue; none changes a token. InputError for a bad value.

    max_rows       rows of one step, which bound the memory of a long prompt's activations. Only a
                   longer text that is read to both sides has more, in a step that reads no other
                   prompt
    max_prefill_rows_while_decoding  rows of a step in which a sequence decodes: its next token
                   should not wait long
    step_ms        milliseconds that a step in which a sequence decodes should take at most; a
                   prompt has half of the step or more; 0: no target
    max_logit_rows rows of a text that needs the logits of every row: of a prompt that is scored,
                   or of prescribed tokens
    max_draft_rows rows of decoding and draft tokens together: with more, a step is compute-bound
    max_num_seqs   sequences in one step
    max_waiting    sequences in the queue; None: no limit
    prefix_cache   keep computed keys and values for later texts that begin alike
    """

    max_rows: int = STEP_ROWS
    max_prefill_rows_while_decoding: int = 128
    step_ms: float = 0
    max_logit_rows: int = 64
    max_draft_rows: int = 16
    max_num_seqs: int = 64
    max_waiting: int | None = None
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        check_int("max_num_seqs", self.max_num_seqs, 1, 1024)
        if self.max_waiting is not None:
            check_int("max_waiting", self.max_waiting, 0)
        check_number("step_ms", self.step_ms, 0, 60000)
        check_bool("prefix_cache", self.prefix_cache)


class Scheduler:
    """The queue and the running sequences. Of the highest priority, the oldest always advances."""

    def __init__(self, blocks: SequenceBlocks, policy: Policy, speculator: Speculator) -> None:
        self._blocks, self.policy, self._speculator = blocks, policy, speculator
        self.waiting: list[Sequence] = []  # waiting and running are in the order of their keys
        self.running: list[Sequence] = []
        self.started: list[Sequence] = []  # those that left the queue for the first time this step
        self.max_num_seqs = min(policy.max_num_seqs, policy.max_rows)
        self.preemptions = 0
        self.draft_s = 0.0  # seconds that the last step spent on draft tokens
        self._step_time, self._step_rows = StepTime(), StepRows(0, 0, 0)

    def schedule(self, settle: Callable[[], None]) -> list[Scheduled]:
        """The rows of the next step, in the order of the queue; empty without sequences.

        settle: makes the pending copies of KV blocks, before a draft head reads these
        """
        self.started, self.draft_s = [], 0.0
        self._speculator.begin_step()
        self._admit()
        decoding = self._decode(settle)
        prefill = self._prefill(decoding)
        # A sequence that was scheduled may have been preempted for an older one since.
        decoding = [s for s in decoding if s.sequence.memory.blocks]
        prefill = [s for s in prefill if s.sequence.memory.blocks]
        self._step_rows = _step_rows(decoding, prefill)
        scheduled = decoding + prefill
        self._blocks.trim_windows(self.running, scheduled)
        self._blocks.place_states(scheduled)
        return sorted(scheduled, key=lambda s: s.sequence.key) if prefill else decoding

    def learn(self, seconds: float) -> None:
        """Note how long the last scheduled step took."""
        self._step_time.learn(self._step_rows, seconds)
        if not self._step_rows.prompts:
            self._speculator.learn_step(self._step_rows.decoding, seconds)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence into the queue, in the order of its key."""
        insort(self.waiting, sequence, key=lambda s: s.key)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._blocks.release(sequence)

    def reset(self, sequences: Iterable[Sequence]) -> None:
        """Make these sequences, which hold no blocks, the queue; no sequence runs."""
        self.running, self.started = [], []
        self.waiting = sorted(sequences, key=lambda s: s.key)

    def preempt(self, sequence: Sequence) -> None:
        """Move a sequence back into the queue; what the cache loses of it is computed again."""
        self.running.remove(sequence)
        self._blocks.release(sequence)
        self.add(sequence)
        self.preemptions += 1

    # -- admission ---------------------------------------------------------------------------

    def _admit(self) -> None:
        while self.waiting:
            first = self.waiting[0]
            first.take_scores()
            fork_of = self._running_parent(first)
            if fork_of and _reads_for(fork_of, first):
                return  # wait: the parent's blocks can soon be shared
            full = len(self.running) == self.max_num_seqs
            if not full and self._blocks.fetch(first):
                return  # wait: the next steps fetch more of its blocks
            spare = _watermark(len(self.running))
            lacking = 0 if full else self._blocks.admit(first, fork_of, spare)
            if lacking is None:
                self._start(first)
            elif self._can_preempt_for(first, lacking):
                self.preempt(self.running[-1])
            else:
                return

    def _can_preempt_for(self, first: Sequence, lacking: int) -> bool:
        """Whether preempting sequences of lower priority frees enough KV blocks."""
        less = [s for s in self.running if s.request.run.priority > first.request.run.priority]
        room = self._blocks.free + sum(len(s.memory.blocks) for s in less)
        return bool(less) and lacking + _watermark(len(self.running) - len(less)) <= room

    def _start(self, first: Sequence) -> None:
        """Move the first of the queue, which has its blocks now, to the running sequences."""
        self._blocks.note_partings(self.running, first)
        insort(self.running, self.waiting.pop(0), key=lambda s: s.key)
        if first.num_cached_tokens is None:
            first.num_cached_tokens = first.num_computed_tokens
            self.started.append(first)

    def _running_parent(self, sequence: Sequence) -> Sequence | None:
        """The running sample that shares its prompt's blocks with ``sequence``; else None."""
        shares = sequence.request.run.kv_cache and sequence.decoder.shares(sequence)
        begins = shares and not sequence.output_token_ids
        return sequence.fork_of if begins and sequence.fork_of in self.running else None

    # -- rows --------------------------------------------------------------------------------

    def _decode(self, settle: Callable[[], None]) -> list[Scheduled]:
        """The rows of sequences that decode, with draft tokens."""
        scheduled: list[Scheduled] = []
        waiting = [s for s in self.running if s.decoder.is_decoding(s)]
        room = self.policy.max_rows
        for left, sequence in zip(range(len(waiting), 0, -1), waiting, strict=True):
            if self._grow(sequence):
                entry = self._rows(sequence, room - left + 1)  # leaves each of the others a row
                if num_rows := entry.num_rows:  # else it waits for room
                    scheduled.append(entry)
                    room -= num_rows
        drafting = [s for s in scheduled if s.sequence.decoder.drafts]
        self._draft(drafting, len(scheduled), settle)
        return scheduled

    def _draft(self, scheduled: list[Scheduled], rows: int, settle: Callable[[], None]) -> None:
        """Set draft tokens; the sequences share the step's room equally."""
        drafting = []
        for entry in scheduled:
            if not _wants_drafts(entry.sequence):
                continue
            if not entry.sequence.expected and self._speculator.sleeps(entry.sequence):
                entry.drafted_by = "draft"
            else:
                drafting.append(entry)
        if not drafting:
            return
        room = (min(self.policy.max_draft_rows, self.policy.max_rows) - rows) // len(drafting)
        draft_requests = []
        for entry in drafting if room > 0 else []:
            sequence, fits = entry.sequence, self._room_to_draft(entry.sequence, room)
            if sequence.expected:
                entry.set_drafts(sequence.expected[:fits], "grammar")
            else:
                draft_requests.append((entry, fits))
        if not draft_requests:
            return
        started = perf_counter()
        requests = [(s.sequence, fits) for s, fits in draft_requests]
        proposed = self._speculator.propose(requests, rows, settle)
        self.draft_s = perf_counter() - started
        for (entry, _), drafts in zip(draft_requests, proposed, strict=True):
            entry.set_drafts(drafts, "draft")

    def _prefill(self, decoding: list[Scheduled]) -> list[Scheduled]:
        """The next rows of sequences that do not decode, most of which read their prompts.

        Sequences with fewer rows left than the oldest one go first, and leave it at least half of
        the room. A sequence waits while the step computes its next block for another sequence: the
        block is there afterwards.
        """
        policy, decoding_ids = self.policy, {s.sequence.id for s in decoding}
        reading = [sequence for sequence in self.running if sequence.id not in decoding_ids]
        if not reading:
            return []
        room = self._room_beside(decoding, reading[0]) if decoding else policy.max_rows
        prefill: dict[int, Scheduled] = {}  # by sequence id
        coming, size = dict[Hashable, int](), self._blocks.size  # which sequence computes a block
        oldest, short = reading[0], self._shorter_than_oldest(reading, room)
        reserved = room - room // 2 if short else 0  # for the oldest, until it has had its turn
        if reserved >= size and (block := self._blocks.next_block(oldest)) is not None:
            coming[block] = oldest.id
        for sequence in [*short, *reading]:
            reserved = 0 if sequence is oldest else reserved
            fits = room - reserved
            if fits <= 0 or sequence.id in prefill or not self._grow(sequence):
                continue
            self._blocks.find_more(sequence)
            block, after = self._blocks.next_block(sequence), sequence.num_computed_tokens + size
            is_coming = coming.get(block, sequence.id) != sequence.id
            if is_coming and sequence.decoder.reusable(sequence) >= after:
                continue
            entry = self._rows(sequence, fits)
            whole = sequence.decoder.positions(sequence)
            for limit in (policy.max_rows, whole):  # a text that must be in one step
                if not (entry.num_rows or prefill or short):
                    entry = self._rows(sequence, limit)
            if entry.num_rows:  # else it keeps its blocks
                prefill[sequence.id] = entry
                room -= entry.num_rows
            if block is not None and len(entry.token_ids) >= size:
                coming[block] = sequence.id
        return [*prefill.values()]

    def _shorter_than_oldest(self, reading: list[Sequence], room: int) -> list[Sequence]:
        """Sequences of the oldest one's priority that have fewer rows left, the fewest first.

        There are none if half of the room is enough for the oldest sequence, or if one step must
        read it whole and half of the room is too small.
        """
        if len(reading) == 1:
            return []
        oldest, least = reading[0], room - room // 2
        self._blocks.find_more(oldest)
        left = _unread(oldest)
        if left <= least or not self._rows(oldest, least).num_rows:
            return []
        priority = oldest.request.run.priority
        alike = [s for s in reading[1:] if s.request.run.priority == priority]
        return sorted([s for s in alike if _unread(s) < left], key=_unread)

    def _room_beside(self, decoding: list[Scheduled], reading: Sequence) -> int:
        """How many rows of prompts fit into the step beside decoding; ``reading`` is the first."""
        policy = self.policy
        decoded = sum(s.num_rows for s in decoding)
        room = max(policy.max_prefill_rows_while_decoding - decoded, LEAST_ROWS)
        room = min(room, policy.max_rows - decoded)
        if not policy.step_ms:
            return room
        fits = self._step_time.room(reading.num_computed_tokens, policy.step_ms)
        return room if fits is None else min(room, fits)

    def _rows(self, sequence: Sequence, room: int) -> Scheduled:
        room = min(room, rows_to_state_change(sequence, sequence.num_computed_tokens))
        return sequence.decoder.rows(sequence, room, self.policy.max_logit_rows)

    def _room_to_draft(self, sequence: Sequence, room: int) -> int:
        """Return how many draft tokens fit, after taking free KV blocks for them."""
        room = min(room, rows_to_state_change(sequence, len(sequence) - 1) - 1)
        room = max(0, min(room, sequence.longest - len(sequence) - 1))
        lacking = self._blocks.lacking(sequence, len(sequence) + room)
        self._blocks.extend(sequence, min(lacking, self._blocks.free))
        return min(room, len(sequence.memory.blocks) * self._blocks.size - len(sequence))

    def _grow(self, sequence: Sequence) -> bool:
        """Take KV blocks for all of a sequence's positions, preempting the youngest sequences.

        Return False where this sequence itself was preempted.
        """
        if not sequence.memory.blocks:
            return False
        lacking = self._blocks.lacking(sequence, sequence.decoder.positions(sequence))
        if not lacking:
            return True
        while lacking > self._blocks.free:
            last = self.running[-1]
            self.preempt(last)
            if last is sequence:
                return False
        self._blocks.extend(sequence, lacking)
        return True


def _step_rows(decoding: list[Scheduled], prefill: list[Scheduled]) -> StepRows:
    decoded = sum([s.num_rows for s in decoding])
    if not prefill:
        return StepRows(decoded, 0, 0)
    longest = max(prefill, key=lambda s: s.num_rows)
    return StepRows(decoded, sum([s.num_rows for s in prefill]), longest.start)


def _unread(sequence: Sequence) -> int:
    """How many of the sequence's positions are not computed."""
    return sequence.decoder.positions(sequence) - sequence.num_computed_tokens


def _reads_for(fork_of: Sequence, sequence: Sequence) -> bool:
    """Whether ``fork_of`` still computes a part of the prompt that ``sequence`` can then share."""
    if fork_of.wants_prompt_scores:
        return True
    return fork_of.num_computed_tokens < sequence.decoder.reusable(sequence)


def _watermark(running: int) -> int:
    """How many blocks to leave free, one per running sequence, so that admission preempts none."""
    return running + 1 if running else 0


def _wants_drafts(sequence: Sequence) -> bool:
    return bool(sequence.expected) or sequence.request.run.speculate != "off"
