"""After which of its tokens a sequence's recurrent state is stored, and what is kept of it.

Stored is the state after the last token that is certain, and after each draft token, so that a
rejected one costs nothing; and at ends of KV blocks from which later texts may go on: the last one
before the prompt's end, the last one of the text so far, where another text parted from this, and
after every ``STATE_TOKENS`` tokens.
"""

from collections.abc import Iterator

from cutaway.compute.backends import STATE_TOKENS
from cutaway.engine.scheduled import Scheduled
from cutaway.engine.sequence import Sequence
from cutaway.engine.states import States


class SequenceStates:
    """The states of sequences, in the slots of their KV blocks."""

    def __init__(self, states: States, block: int) -> None:
        """block: tokens of one."""
        self._states, self._block = states, block

    def begin(self, sequence: Sequence, parted: int) -> None:
        """It goes on from the state after the tokens that were found, if any were.

        parted: how many tokens it shares with another text, or 0
        """
        sequence.parted, sequence.stored_states = parted, {}
        self._read(sequence, [sequence.num_computed_tokens] if sequence.num_computed_tokens else [])

    def place(self, scheduled: list[Scheduled]) -> None:
        """Say after which rows of the next step states are stored, and where."""
        drafts = iter(self._states.drafts)
        for one in scheduled:
            stored = one.sequence.stored_states = dict(self._slots(one, drafts))
            one.states = [(tokens - 1 - one.start, slot) for tokens, slot in stored.items()]

    def _slots(self, one: Scheduled, drafts: Iterator[int]) -> Iterator[tuple[int, int]]:
        """(tokens, slot): of the state after so many tokens of the text."""
        sequence, block = one.sequence, self._block
        certain = one.start + len(one.token_ids)
        if one.drafted_by in ("forced", "replay"):
            certain = one.start + one.num_rows
        last = certain // block * block
        for tokens in range((one.start // block + 1) * block, certain + 1, block):
            if tokens == last or self._is_kept(sequence, tokens):
                yield tokens, self._place(sequence, tokens)
        if certain > last:
            yield certain, self._place(sequence, certain)
        yield from zip(range(certain + 1, one.start + one.num_rows + 1), drafts, strict=False)

    def _place(self, sequence: Sequence, tokens: int) -> int:
        block_id = self._block_of(sequence, tokens)
        self._states.store(block_id)
        return block_id

    def _block_of(self, sequence: Sequence, tokens: int) -> int:
        """The block of the last of so many tokens."""
        return sequence.blocks[(tokens - 1) // self._block]

    def _is_kept(self, sequence: Sequence, tokens: int) -> bool:
        """Whether the state after so many tokens is kept when the text has gone on."""
        before_end = (len(sequence.prompt_token_ids) - 1) // self._block * self._block
        return tokens % STATE_TOKENS == 0 or tokens in (before_end, sequence.parted)

    def is_lost(self, sequence: Sequence) -> bool:
        """Whether no state was stored after the tokens that turned out to be right."""
        computed = sequence.num_computed_tokens
        return computed > 0 and computed not in sequence.stored_states

    def advance(self, sequence: Sequence) -> None:
        """The step is over: keep the states after tokens that turned out to be right."""
        computed, block = sequence.num_computed_tokens, self._block
        whole = {tokens for tokens in sequence.read_states if tokens % block == 0}
        for tokens, slot in sequence.stored_states.items():
            if tokens > computed or (tokens < computed and tokens % block):
                continue
            block_id = self._block_of(sequence, tokens)
            if slot != block_id:
                self._states.copy(slot, block_id)
            if tokens % block == 0:
                self._states.complete(block_id)
                whole.add(tokens)
        known = computed in sequence.stored_states
        last = max((tokens for tokens in whole if tokens <= computed), default=0)
        sequence.stored_states = {}
        self._read(sequence, [tokens for tokens in {last, computed * known} if tokens])

    def _read(self, sequence: Sequence, ends: list[int]) -> None:
        """Hold the states after so many tokens, and no others."""
        before = sequence.read_states
        sequence.read_states = {tokens: self._block_of(sequence, tokens) for tokens in ends}
        for block_id in sequence.read_states.values():
            self._states.begin(block_id)
        for tokens, block_id in before.items():
            self._states.end(block_id, keep=self._is_kept(sequence, tokens))

    def follow(self, sequence: Sequence) -> None:
        """Its blocks may be others now, equal ones."""
        held = sequence.read_states
        sequence.read_states = {tokens: self._block_of(sequence, tokens) for tokens in held}

    def release(self, sequence: Sequence) -> None:
        """It ends, or its blocks are taken; the last state at a block's end is kept."""
        for block_id in sequence.read_states.values():
            self._states.end(block_id, keep=True)
        sequence.read_states, sequence.stored_states = {}, {}
