"""What is kept of texts, and which KV blocks a sequence has: shared ones, and its own.

The copies that a fork needs before it writes, and the sliding windows and recurrent states of the
blocks, included.
"""

from collections.abc import Hashable
from itertools import takewhile

from cutaway.engine.memory.block_manager import BlockManager
from cutaway.engine.memory.states import SequenceStates
from cutaway.engine.scheduled import Scheduled
from cutaway.engine.sequence import Sequence


class SequenceBlocks:
    """Gives blocks of one BlockManager to sequences, and takes them back.

    prefix_cache  whether sequences share blocks; samples of one prompt always do
    copies        (source, target): blocks to copy before the next run
    """

    def __init__(self, blocks: BlockManager, *, prefix_cache: bool) -> None:
        self._blocks, self._prefix_cache = blocks, prefix_cache
        self._states = SequenceStates(blocks.states, blocks.block) if blocks.states else None
        self.copies: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """How many blocks can be given."""
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
        """Give it blocks for all known tokens, first those that hold their beginning already.

        fork_of: the sample of the same prompt whose blocks it shares; spare: blocks to leave free.
        Returns None; or how many it lacks, where there are too few, and it has none.
        """
        held, computed = self._find(sequence, fork_of)
        begun = computed % self._blocks.block > 0  # the last block found will be written into
        fresh = self.count_for(sequence.decoder.positions(sequence)) - len(held) + begun
        outside = self._blocks.num_out_of_window(computed)
        if fresh + spare > self._blocks.free:
            self._blocks.release(held, outside)
            return fresh
        taken = self._blocks.allocate(fresh)
        if begun:
            self.copies.append((held.pop(), taken[0]))
        memory = sequence.memory
        memory.blocks = held + taken
        sequence.num_computed_tokens = memory.stored = computed
        memory.num_out_of_window = outside
        memory.published = len(held)
        if fork_of is not None:
            memory.published = min(fork_of.memory.published, len(held))
        if self._states:
            self._states.begin(sequence, self._parted(sequence))
        return None

    def lacking(self, sequence: Sequence, positions: int) -> int:
        """How many more blocks it needs for this many positions."""
        return max(self.count_for(positions) - len(sequence.memory.blocks), 0)

    def extend(self, sequence: Sequence, count: int) -> None:
        """Give it ``count`` more blocks; RuntimeError if that exceeds ``free``."""
        sequence.memory.blocks += self._blocks.allocate(count)

    def release(self, sequence: Sequence) -> None:
        """Take back all of its blocks."""
        memory = sequence.memory
        self._drop_copies(memory.blocks)
        if self._states:
            self._states.release(sequence)
        self._blocks.release(memory.blocks, memory.num_out_of_window)
        memory.blocks, memory.published, memory.num_out_of_window = [], 0, 0
        sequence.num_computed_tokens = 0

    def reset(self) -> None:
        """Take back all blocks of all sequences, whatever an exception left half done."""
        self.copies = []
        self._blocks.reset()

    def copied(self) -> None:
        """The copies were made: release the originals."""
        self._blocks.release([source for source, _ in self.copies])
        self.copies = []

    def _drop_copies(self, targets: list[int]) -> None:
        """Take back copies into blocks that are released: the next owner wants other content."""
        dropped = [pair for pair in self.copies if pair[1] in targets]
        self.copies = [pair for pair in self.copies if pair[1] not in targets]
        self._blocks.release([source for source, _ in dropped])

    # -- sharing -----------------------------------------------------------------------------

    def publish(self, sequence: Sequence) -> None:
        """Let others find what was computed for it; free windows that none of its rows will see."""
        if self._states:
            self._states.advance(sequence)
        if not sequence.request.run.kv_cache:
            return
        memory, whole = sequence.memory, sequence.num_computed_tokens // self._blocks.block
        shares = self._is_cached(sequence) and sequence.decoder.shares(sequence)
        if shares and whole > memory.published:
            text = sequence.tokens(0, whole * self._blocks.block)
            memory.blocks = self._blocks.publish(
                memory.blocks, text, memory.published, sequence.request.salt
            )
            memory.published = whole
        if self._states:
            self._states.follow(sequence)
        if self._blocks.windows:
            self._free_windows(sequence)

    def _find(self, sequence: Sequence, fork_of: Sequence | None) -> tuple[list[int], int]:
        """Blocks that hold the beginning of its text already, and how many tokens of it."""
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
        held = blocks.match(sequence.tokens(0, last), sequence.request.salt)
        return held, len(held) * blocks.block

    def find_more(self, sequence: Sequence) -> None:
        """Take the blocks of its text that others have computed since it was admitted.

        Of equal prompts that come together the first is computed, and the others find its blocks.
        """
        if not self._finds(sequence):
            return
        block, last = self._blocks.block, sequence.decoder.reusable(sequence)
        found = self._blocks.match(sequence.tokens(0, last), sequence.request.salt)
        memory = sequence.memory
        if len(found) <= memory.published:
            self._blocks.release(found)
            return
        self._blocks.release(memory.blocks[: len(found)])
        memory.blocks[: len(found)] = found
        memory.published, sequence.num_computed_tokens = len(found), len(found) * block
        if self._states:
            self._states.begin(sequence, memory.parted)

    def next_block(self, sequence: Sequence) -> Hashable:
        """What identifies its next whole block; None where others cannot use that block."""
        start, block = sequence.num_computed_tokens, self._blocks.block
        text = tuple(sequence.tokens(start, start + block))
        if len(text) < block or not self._finds(sequence):
            return None
        before = sequence.memory.blocks[sequence.memory.published - 1] if start else None
        return before, sequence.request.salt, text

    def _finds(self, sequence: Sequence) -> bool:
        """Whether it can use its next block where another computes that.

        Not where layers have sliding windows: a look-up keeps the windows of what it finds, and
        there is room for few.
        """
        if self._blocks.windows or not self._is_cached(sequence):
            return False
        aligned = sequence.memory.published * self._blocks.block == sequence.num_computed_tokens
        return aligned and sequence.decoder.shares(sequence)

    def _is_cached(self, sequence: Sequence) -> bool:
        """Whether it takes from the prefix cache and leaves its own blocks there."""
        run = sequence.request.run
        return self._prefix_cache and run.kv_cache and run.cache_prompt

    # -- recurrent states --------------------------------------------------------------------

    def place_states(self, scheduled: list[Scheduled]) -> None:
        """Say where the next step stores states, and make room for them."""
        if self._states and self._blocks.states:
            self._states.place(scheduled)
            self._blocks.states.trim()

    def has_lost_state(self, sequence: Sequence) -> bool:
        """Whether it cannot go on after its last step, and must be computed again."""
        return self._states is not None and self._states.is_lost(sequence)

    def note_partings(self, running: list[Sequence], new: Sequence) -> None:
        """Have those that still read what a new text begins with keep a state where they part."""
        if not self._states or not self._is_cached(new):
            return
        last = new.decoder.reusable(new)
        ids, block = new.tokens(0, last), self._blocks.block
        for one in running:
            if one.num_computed_tokens < last and one.request.salt == new.request.salt:
                pairs = zip(ids, one.tokens(0, last), strict=False)
                alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                one.memory.parted = max(one.memory.parted, alike // block * block)

    def _parted(self, sequence: Sequence) -> int:
        """The tokens that the cache has more of than a state was found for."""
        if not self._is_cached(sequence):
            return 0
        ids = sequence.tokens(0, sequence.decoder.reusable(sequence))
        return self._blocks.num_known(ids, sequence.request.salt) * self._blocks.block

    # -- sliding windows ---------------------------------------------------------------------

    def _free_windows(self, sequence: Sequence) -> None:
        """Free the windows that no later row attends to; those before the prompt's end may be kept.

        The same prompt can then be found again. Tokens that may be taken back keep theirs.
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
        """Make room for the windows in which the next step's rows are stored."""
        if not self._blocks.windows:
            return
        for one in scheduled:
            memory = one.sequence.memory
            memory.stored = max(memory.stored, one.start + one.num_rows)
        read = {source for source, _ in self.copies}
        for sequence in running:
            memory = sequence.memory
            last = self.count_for(memory.stored)
            read.update(memory.blocks[memory.num_out_of_window : last])
        self._blocks.windows.trim(len(read))
