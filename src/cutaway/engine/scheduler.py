"""Who computes what in the next step: admission, blocks, rows, preemption.

Knows lengths, priorities and block ids. Refuses to know logits, text and stop conditions.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from cutaway.engine.block_manager import BlockManager
from cutaway.engine.sequence import Sequence

Propose = Callable[[list[tuple[Sequence, int]]], list[list[int]]]
"""Guesses for each of (decoding sequence, how many at most): see speculation.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a step is filled. None of it changes a token.

    max_rows         rows of one step: bounds the memory of a long prompt's activations
    max_rows_beside  the same where somebody decodes, and should not wait long for the next token
    max_logit_rows   rows of a prompt of which every row's logits are asked for
    max_guess_rows   rows of decoding and guessing together: where compute overtakes memory
    max_running      sequences in one step
    max_waiting      sequences in the queue; None has no limit
    prefix_cache     keep what was computed, for texts that begin alike
    """

    max_rows: int = 512
    max_rows_beside: int = 128
    max_logit_rows: int = 64
    max_guess_rows: int = 16
    max_running: int = 64
    max_waiting: int | None = None
    prefix_cache: bool = True


@dataclass(slots=True)
class Scheduled:
    """A sequence's rows in one step: its pending tokens, then guesses of what follows."""

    sequence: Sequence
    tokens: list[int]
    guesses: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return len(self.tokens) + len(self.guesses)

    @property
    def draws(self) -> bool:
        """Whether the text's last token is among them, so that the next one is drawn."""
        return len(self.tokens) == self.sequence.num_pending


class Scheduler:
    """Queues and blocks. The oldest of the highest priority always gets what it needs."""

    def __init__(self, blocks: BlockManager, policy: Policy, propose: Propose) -> None:
        self.blocks, self.policy, self._propose = blocks, policy, propose
        self.waiting: list[Sequence] = []  # both in the order of their keys
        self.running: list[Sequence] = []
        self.copies: list[tuple[int, int]] = []  # blocks to copy before the next run
        self.most_running = min(policy.max_running, policy.max_rows)
        self.preemptions = 0

    def schedule(self) -> list[Scheduled]:
        """The rows of the next step, in the order of the queue; empty where nobody is left."""
        self._admit()
        turn = self._decoding()
        turn += self._reading(turn)
        turn = [s for s in turn if s.sequence.blocks]  # an older one may have sent it away
        return sorted(turn, key=lambda s: s.sequence.key)

    def add(self, sequence: Sequence) -> None:
        """Queue it."""
        insort(self.waiting, sequence, key=lambda s: s.key)

    def remove(self, sequence: Sequence) -> None:
        """Let go of a sequence and its blocks, wherever it is."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._take_blocks(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Let others find what was computed for it."""
        whole = sequence.num_computed_tokens // self.blocks.block
        if whole <= sequence.published or not (self.policy.prefix_cache and sequence.run.kv_cache):
            return
        text = sequence.tokens(0, whole * self.blocks.block)
        sequence.blocks = self.blocks.publish(sequence.blocks, text, sequence.published)
        sequence.published = whole

    def copied(self) -> None:
        """The copies were made: let go of the originals."""
        self.blocks.give_back([source for source, _ in self.copies])
        self.copies = []

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.blocks.block)

    # -- admission ---------------------------------------------------------------------------

    def _admit(self) -> None:
        while self.waiting:
            first = self.waiting[0]
            leader = self._leader(first)
            if leader and not leader.has_read_prompt:
                return  # soon its blocks can be shared
            full = len(self.running) == self.most_running
            wanted = 0 if full else self._enter(first, leader)
            if wanted is None:
                insort(self.running, self.waiting.pop(0), key=lambda s: s.key)
            elif self._can_yield(first, wanted):
                self._preempt(self.running[-1])
            else:
                return

    def _can_yield(self, first: Sequence, wanted: int) -> bool:
        """Whether those who matter less hold enough to let it in; else they would go in vain."""
        less = [s for s in self.running if s.run.priority > first.run.priority]
        room = self.blocks.free + sum(len(s.blocks) for s in less)
        return bool(less) and wanted + _spare(len(self.running) - len(less)) <= room

    def _enter(self, sequence: Sequence, leader: Sequence | None) -> int | None:
        """Give it blocks for all that is known of its text, found ones first.

        None, or how many it still wants where there are too few.
        """
        held, computed = self._find(sequence, leader)
        begun = computed % self.blocks.block > 0  # the last block found will be written into
        fresh = self.blocks_for(len(sequence)) - len(held) + begun
        if fresh + _spare(len(self.running)) > self.blocks.free:
            self.blocks.give_back(held)
            return fresh
        taken = self.blocks.take(fresh)
        if begun:
            self.copies.append((held.pop(), taken[0]))
        sequence.blocks, sequence.num_computed_tokens = held + taken, computed
        sequence.published = len(held) if leader is None else min(leader.published, len(held))
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = computed
        return None

    def _find(self, sequence: Sequence, leader: Sequence | None) -> tuple[list[int], int]:
        """Blocks that hold the beginning of its text already, and how many tokens of it."""
        last = len(sequence) - 1  # its logits are needed, so it is computed again
        if not sequence.run.kv_cache or sequence.wants_prompt_logprobs:
            return [], 0
        if leader:
            return self.blocks.share(leader.blocks[: self.blocks_for(last)]), last
        if not self.policy.prefix_cache:
            return [], 0
        held = self.blocks.match(sequence.tokens(0, last))
        return held, len(held) * self.blocks.block

    def _leader(self, sequence: Sequence) -> Sequence | None:
        """The sample of the same prompt that runs, while this one has not begun to write."""
        shares = sequence.run.kv_cache and not sequence.output_token_ids
        return sequence.leader if shares and sequence.leader in self.running else None

    # -- rows --------------------------------------------------------------------------------

    def _decoding(self) -> list[Scheduled]:
        """Those with one token to compute, each with a block for it, and with guesses."""
        turn = []
        for sequence in list(self.running):
            if sequence.num_pending == 1 and self._grow(sequence):
                turn.append(Scheduled(sequence, sequence.tokens(len(sequence) - 1, len(sequence))))
        self._guess(turn)
        return turn

    def _guess(self, turn: list[Scheduled]) -> None:
        """Share the rows that are nearly free among those who know or guess what follows."""
        most = min(self.policy.max_guess_rows, self.policy.max_rows)
        able = [s for s in turn if s.sequence.num_forced or s.sequence.run.speculate != "off"]
        room = (most - len(turn)) // max(len(able), 1)
        wishes = []
        for scheduled in able if room > 0 else []:
            sequence, fits = scheduled.sequence, self._room_to_guess(scheduled.sequence, room)
            if sequence.num_forced:
                scheduled.guesses = sequence.forced(fits)
            else:
                wishes.append((scheduled, fits))
        proposed = self._propose([(s.sequence, fits) for s, fits in wishes]) if wishes else []
        for (scheduled, _), guesses in zip(wishes, proposed, strict=True):
            scheduled.guesses = guesses

    def _reading(self, turn: list[Scheduled]) -> list[Scheduled]:
        """The next part of every text of which more than one token is to be computed."""
        policy, taken = self.policy, {s.sequence.id for s in turn}
        room = (policy.max_rows_beside if turn else policy.max_rows) - sum(s.rows for s in turn)
        reading = []
        for sequence in list(self.running):
            if room > 0 and sequence.id not in taken and self._grow(sequence):
                most = min(room, policy.max_logit_rows) if sequence.wants_prompt_logprobs else room
                start = sequence.num_computed_tokens
                reading.append(Scheduled(sequence, sequence.tokens(start, start + most)))
                room -= reading[-1].rows
        return reading

    def _room_to_guess(self, sequence: Sequence, room: int) -> int:
        """How many guesses fit, with blocks for them; nobody is sent away for a guess."""
        room = max(0, min(room, sequence.longest - len(sequence) - 1))
        wanted = self.blocks_for(len(sequence) + room) - len(sequence.blocks)
        sequence.blocks += self.blocks.take(min(max(wanted, 0), self.blocks.free))
        return min(room, len(sequence.blocks) * self.blocks.block - len(sequence))

    # -- blocks ------------------------------------------------------------------------------

    def _grow(self, sequence: Sequence) -> bool:
        """Hold blocks for all known tokens; the last in the queue make room. False: it had to."""
        if not sequence.blocks:
            return False
        wanted = self.blocks_for(len(sequence)) - len(sequence.blocks)
        while wanted > self.blocks.free:
            last = self.running[-1]
            self._preempt(last)
            if last is sequence:
                return False
        sequence.blocks += self.blocks.take(max(wanted, 0))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Back into the queue; its text is computed again, as far as the cache has lost it."""
        self.running.remove(sequence)
        self._take_blocks(sequence)
        self.add(sequence)
        self.preemptions += 1

    def _take_blocks(self, sequence: Sequence) -> None:
        self._drop_copies(sequence.blocks)
        self.blocks.give_back(sequence.blocks)
        sequence.blocks, sequence.published, sequence.num_computed_tokens = [], 0, 0

    def _drop_copies(self, targets: list[int]) -> None:
        """Copies into blocks that are let go of: the next to hold one may want another copy."""
        dropped = [pair for pair in self.copies if pair[1] in targets]
        self.copies = [pair for pair in self.copies if pair[1] not in targets]
        self.blocks.give_back([source for source, _ in dropped])


def _spare(running: int) -> int:
    """Blocks left free: one for each who writes, or somebody would soon have to leave again."""
    return running + 1 if running else 0
