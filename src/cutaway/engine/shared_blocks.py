"""Prefix sharing: KV blocks that a text takes from others, and computes for them."""

from collections.abc import Hashable

from cutaway.engine.block_manager import BlockManager
from cutaway.engine.sequence import Sequence


class SharedBlocks:
    """What sequences give to each other by way of the blocks.

    prefix_cache  whether they do, but for samples of one prompt
    """

    def __init__(self, blocks: BlockManager, *, prefix_cache: bool) -> None:
        self._blocks, self._prefix_cache = blocks, prefix_cache

    def publish(self, sequence: Sequence) -> None:
        """Let others find what was computed for it."""
        whole = sequence.num_computed_tokens // self._blocks.block
        shares = self._is_cached(sequence) and sequence.decoder.shares(sequence)
        if shares and whole > sequence.published:
            text = sequence.tokens(0, whole * self._blocks.block)
            sequence.blocks = self._blocks.publish(
                sequence.blocks, text, sequence.published, sequence.request.salt
            )
            sequence.published = whole

    def find(self, sequence: Sequence, fork_of: Sequence | None) -> tuple[list[int], int]:
        """Blocks that hold the beginning of its text already, and how many tokens of it.

        fork_of: the sample of the same prompt whose blocks it has a part in
        """
        last, blocks = sequence.decoder.reusable(sequence), self._blocks
        if not sequence.request.run.kv_cache:
            return [], 0
        if fork_of and last:
            shared = fork_of.blocks[: -(-last // blocks.block)]
            outside = blocks.num_out_of_window(last)
            if not blocks.windows or blocks.windows.are_stored(shared[outside:]):
                return blocks.retain(shared, outside), last
        if not self._is_cached(sequence):
            return [], 0
        held = blocks.match(sequence.tokens(0, last), sequence.request.salt)
        return held, len(held) * blocks.block

    def find_more(self, sequence: Sequence) -> None:
        """Take the blocks of its text that others have computed since it was admitted.

        Of equal prompts that come together the first is read, and the others find it.
        """
        if not self._finds(sequence):
            return
        block, last = self._blocks.block, sequence.decoder.reusable(sequence)
        found = self._blocks.match(sequence.tokens(0, last), sequence.request.salt)
        if len(found) <= sequence.published:
            self._blocks.release(found)
            return
        self._blocks.release(sequence.blocks[: len(found)])
        sequence.blocks[: len(found)] = found
        sequence.published, sequence.num_computed_tokens = len(found), len(found) * block

    def next_block(self, sequence: Sequence) -> Hashable:
        """What its next whole block is; None where none is for others."""
        start, block = sequence.num_computed_tokens, self._blocks.block
        text = tuple(sequence.tokens(start, start + block))
        if len(text) < block or not self._finds(sequence):
            return None
        before = sequence.blocks[sequence.published - 1] if start else None
        return before, sequence.request.salt, text

    def _finds(self, sequence: Sequence) -> bool:
        """Whether what others compute of its next block is of use to it.

        Not where layers see a window: looking a block up keeps it, and there is room for few.
        """
        if self._blocks.windows or not self._is_cached(sequence):
            return False
        aligned = sequence.published * self._blocks.block == sequence.num_computed_tokens
        return aligned and sequence.decoder.shares(sequence)

    def _is_cached(self, sequence: Sequence) -> bool:
        """Whether it takes from the prefix cache and leaves its own there."""
        run = sequence.request.run
        return self._prefix_cache and run.kv_cache and run.cache_prompt
