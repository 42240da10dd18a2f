"""The memory of sequences: the KV blocks of each one, its own or shared with other sequences.

It also has the copies that a fork needs before it writes into a block, and the sliding windows and
recurrent states of the blocks.
"""

from collections.abc import Hashable
from itertools import takewhile
from typing import TYPE_CHECKING

from cutaway.engine.memory.block_manager import BlockManager
from cutaway.engine.memory.states import SequenceStates
from cutaway.engine.scheduled import Scheduled
from cutaway.engine.sequence import Sequence

if TYPE_CHECKING:
    from cutaway.engine.memory.store import BlockStore


class SequenceBlocks:
    """Gives blocks of one BlockManager to sequences, and takes them back.

    prefix_cache  whether sequences share blocks; samples of one prompt always do
    copies        (source, target): blocks to copy before the next run
    store         where blocks are that memory lacks; None: they are in memory alone
    """

    def __init__(self, blocks: BlockManager, *, prefix_cache: bool) -> None:
        self._blocks, self._prefix_cache = blocks, prefix_cache
        self._states = SequenceStates(blocks.states, blocks.block) if blocks.states else None
        self.copies: list[tuple[int, int]] = []
        self.store: BlockStore | None = None
        self._fetched_for = -1  # the last sequence that found no more blocks in the store

    @property
    def free(self) -> int:
        """How many blocks can be given to sequences."""
        return self._blocks.free

    @property
    def size(self) -> int:
        """Tokens per block."""
        return self._blocks.block

    def count_for(self, tokens: int) -> int:
        """How many blocks this many tokens need."""
        return -(-tokens // self._blocks.block)

    # -- giving and taking back --------------------------------------------------------------

    def admit(self, sequence: Sequence, fork_of: Sequence | None, spare: int) -> int | None:
        """Give a sequence blocks for all its tokens, computed ones where the cache has them.

        fork_of  the sample of the same prompt whose blocks it shares
        spare    blocks to leave free

        Returns None. Where too few blocks are free, it gives none and returns the number needed.
        """
        shared, computed = self._find(sequence, fork_of)
        is_partial = computed % self._blocks.block > 0  # the last block found will be written into
        num_fresh = self.count_for(sequence.decoder.positions(sequence)) - len(shared) + is_partial
        outside = self._blocks.num_out_of_window(computed)
        if num_fresh + spare > self._blocks.free:
            self._blocks.release(shared, outside)
            return num_fresh
        fresh = self._blocks.allocate(num_fresh)
        if is_partial:
            self.copies.append((shared.pop(), fresh[0]))
        memory = sequence.memory
        memory.blocks = shared + fresh
        sequence.num_computed_tokens = memory.stored = computed
        memory.num_out_of_window = outside
        memory.published = len(shared)
        if fork_of is not None:
            memory.published = min(fork_of.memory.published, len(shared))
        if self._states:
            self._states.begin(sequence, self._count_shared(sequence))
        return None

    def lacking(self, sequence: Sequence, positions: int) -> int:
        """How many more blocks the sequence needs for this many positions."""
        return max(self.count_for(positions) - len(sequence.memory.blocks), 0)

    def extend(self, sequence: Sequence, count: int) -> None:
        """Give the sequence ``count`` more blocks; RuntimeError if that exceeds ``free``."""
        sequence.memory.blocks += self._blocks.allocate(count)

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence."""
        memory = sequence.memory
        self._drop_copies(memory.blocks)
        if self._states:
            self._states.release(sequence)
        self._blocks.release(memory.blocks, memory.num_out_of_window)
        memory.blocks, memory.published, memory.num_out_of_window = [], 0, 0
        sequence.num_computed_tokens = 0

    def reset(self) -> None:
        """Take back all blocks of all sequences, even after an exception within a change."""
        self.copies = []
        self._blocks.reset()

    def finish_copies(self) -> None:
        """Release the source blocks, once the backend has copied them."""
        self._blocks.release([source for source, _ in self.copies])
        self.copies = []

    def _drop_copies(self, targets: list[int]) -> None:
        """Cancel copies into blocks that are released: their next owner has other content."""
        dropped = [pair for pair in self.copies if pair[1] in targets]
        self.copies = [pair for pair in self.copies if pair[1] not in targets]
        self._blocks.release([source for source, _ in dropped])

    # -- sharing -----------------------------------------------------------------------------

    def publish(self, sequence: Sequence) -> None:
        """Let other texts find the computed blocks; free windows that no later row attends to."""
        if self._states:
            self._states.advance(sequence)
        if not sequence.request.run.kv_cache:
            return
        memory, whole = sequence.memory, sequence.num_computed_tokens // self._blocks.block
        is_new = whole > memory.published
        if is_new and self._is_cached(sequence) and sequence.decoder.shares(sequence):
            text = sequence.tokens(0, whole * self._blocks.block)
            memory.blocks = self._blocks.publish(
                memory.blocks, text, memory.published, sequence.salt
            )
            memory.published = whole
        if self._states:
            self._states.follow(sequence)
        if self._blocks.windows:
            self._free_windows(sequence)

    def _find(self, sequence: Sequence, fork_of: Sequence | None) -> tuple[list[int], int]:
        """Find blocks that have the text's beginning; return them and the number of its tokens."""
        last, blocks = sequence.decoder.reusable(sequence), self._blocks
        if not sequence.request.run.kv_cache:
            return [], 0
        if fork_of and last and blocks.states:
            shared = fork_of.memory.blocks[: last // blocks.block]
            shared = shared[: blocks.states.usable(shared)]
            if shared and not blocks.windows:
                return blocks.retain(shared), len(shared) * blocks.block
        elif fork_of and last:
            shared = fork_of.memory.blocks[: self.count_for(last)]
            outside = blocks.num_out_of_window(last)
            if not blocks.windows or blocks.windows.are_stored(shared[outside:]):
                return blocks.retain(shared, outside), last
        if not self._is_cached(sequence):
            return [], 0
        cached = blocks.match(sequence.tokens(0, last), sequence.salt)
        return cached, len(cached) * blocks.block

    def fetch(self, sequence: Sequence) -> bool:
        """Put a few blocks of a waiting text from the store into the prefix cache.

        Return whether more can come, so that the sequence waits for them.
        """
        if not self.store or sequence.id == self._fetched_for or not self._is_cached(sequence):
            return False
        token_ids = sequence.tokens(0, sequence.decoder.reusable(sequence))
        if self.store.fetch(token_ids, sequence.salt):
            return True
        self._fetched_for = sequence.id
        return False

    def find_more(self, sequence: Sequence) -> None:
        """Take blocks of the sequence's text that others have computed since it was admitted.

        Of equal prompts that arrive together only the first is computed: the others wait for its
        blocks, and find them here.
        """
        if not self._finds(sequence):
            return
        block, last = self._blocks.block, sequence.decoder.reusable(sequence)
        cached = self._blocks.match(sequence.tokens(0, last), sequence.salt)
        memory = sequence.memory
        if len(cached) <= memory.published:
            self._blocks.release(cached)
            return
        self._blocks.release(memory.blocks[: len(cached)])
        memory.blocks[: len(cached)] = cached
        memory.published, sequence.num_computed_tokens = len(cached), len(cached) * block
        if self._states:
            self._states.begin(sequence, memory.num_shared)

    def next_block(self, sequence: Sequence) -> Hashable:
        """Return a key of the sequence's next whole block; None if no other sequence can use it."""
        start, block = sequence.num_computed_tokens, self._blocks.block
        text = tuple(sequence.tokens(start, start + block))
        if len(text) < block or not self._finds(sequence):
            return None
        before = sequence.memory.blocks[sequence.memory.published - 1] if start else None
        return before, sequence.salt, text

    def _finds(self, sequence: Sequence) -> bool:
        """Whether the sequence can use its next block if another sequence computes it.

        It cannot where layers have sliding windows: a look-up keeps the windows of the blocks that
        it finds, and there is room for few windows.
        """
        if self._blocks.windows or not self._is_cached(sequence):
            return False
        aligned = sequence.memory.published * self._blocks.block == sequence.num_computed_tokens
        return aligned and sequence.decoder.shares(sequence)

    def _is_cached(self, sequence: Sequence) -> bool:
        """Whether the sequence uses the prefix cache."""
        run = sequence.request.run
        return self._prefix_cache and run.kv_cache and run.cache_prompt

    # -- recurrent states --------------------------------------------------------------------

    def place_states(self, scheduled: list[Scheduled]) -> None:
        """Choose where the next step stores states, and make room for them."""
        if self._states and self._blocks.states:
            self._states.place(scheduled)
            self._blocks.states.trim()

    def has_lost_state(self, sequence: Sequence) -> bool:
        """Whether the state after its last right token is lost, so that it is computed again."""
        return self._states is not None and self._states.is_lost(sequence)

    def note_partings(self, running: list[Sequence], new: Sequence) -> None:
        """Note where running texts begin to differ from a new one: a state will be kept there."""
        if not self._states or not self._is_cached(new):
            return
        last = new.decoder.reusable(new)
        ids, block = new.tokens(0, last), self._blocks.block
        for sequence in running:
            if sequence.num_computed_tokens < last and sequence.salt == new.salt:
                pairs = zip(ids, sequence.tokens(0, last), strict=False)
                alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                sequence.memory.num_shared = max(sequence.memory.num_shared, alike // block * block)

    def _count_shared(self, sequence: Sequence) -> int:
        """Return how many first tokens the cache has, with or without a state after them."""
        if not self._is_cached(sequence):
            return 0
        ids = sequence.tokens(0, sequence.decoder.reusable(sequence))
        return len(self._blocks.published_ids(ids, sequence.salt)) * self._blocks.block

    # -- sliding windows ---------------------------------------------------------------------

    def _free_windows(self, sequence: Sequence) -> None:
        """Free the windows that no later row attends to.

        Windows before the prompt's end are kept for a while, so that the same prompt can be found
        again. Windows of tokens that may be taken back are not freed.
        """
        block, memory = self._blocks.block, sequence.memory
        delayed = sequence.backtracker.window if sequence.backtracker else 0
        certain = sequence.num_computed_tokens - delayed
        outside = self._blocks.num_out_of_window((certain - 1) // block * block)
        if outside > memory.num_out_of_window:
            whole = (len(sequence.prompt_token_ids) - 1) // block
            keep = memory.blocks[self._blocks.num_out_of_window(whole * block) : whole]
            freed = memory.blocks[memory.num_out_of_window : outside]
            self._blocks.free_windows(freed, keep)
            memory.num_out_of_window = outside

    def trim_windows(self, running: list[Sequence], scheduled: list[Scheduled]) -> None:
        """Make room for the windows that the next step's rows write."""
        if not self._blocks.windows:
            return
        for entry in scheduled:
            memory = entry.sequence.memory
            memory.stored = max(memory.stored, entry.start + entry.num_rows)
        read = {source for source, _ in self.copies}
        for sequence in running:
            memory = sequence.memory
            last = self.count_for(memory.stored)
            read.update(memory.blocks[memory.num_out_of_window : last])
        self._blocks.windows.trim(len(read))
