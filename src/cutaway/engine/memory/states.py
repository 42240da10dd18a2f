"""Recurrent states: which KV blocks have one, which keep it, and after which tokens it is stored.

A text's state is stored with the KV block of its last token, and is overwritten as the text grows.
Where the block's last token is the text's, the state belongs to the block as its keys and values
do: any text that begins with the same tokens can continue from it. Such states are kept where a
later text is likely to continue, while there is room; the least recently used are freed first.

A sequence's state is stored after the last token that is certain, and after each draft token, so
that a rejected one costs nothing. It is also stored at ends of KV blocks where later texts may
continue: the last one before the prompt's last token, the last one of the prompt, the last one of
the text so far, the one where another text began to differ, and after every ``STATE_TOKENS``
tokens.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterator
from collections.abc import Sequence as Items

from cutaway.compute.backends import STATE_TOKENS, KVLayout
from cutaway.engine.scheduled import Scheduled
from cutaway.engine.sequence import Sequence

# -- of KV blocks ----------------------------------------------------------------------------------


class States:
    """The states of one BlockManager's blocks, by id, and a step's states after draft tokens.

    max_unread  how many states without a reader may be kept
    drafts      slots for the states after the draft tokens of one step
    on_loss     is called with a block before its state is freed to make room
    """

    def __init__(self, max_unread: int, drafts: range) -> None:
        self.max_unread, self.drafts = max_unread, drafts
        self.on_loss: Callable[[int], object] = lambda _: None
        self._stored: set[int] = set()
        self._readers: Counter[int] = Counter()  # none is at zero
        # Blocks whose state is that after their last token, the longest unused first.
        self._whole: OrderedDict[int, None] = OrderedDict()
        self._changes: list[tuple[int, int]] = []

    @property
    def num_stored(self) -> int:
        """How many blocks have a state."""
        return len(self._stored)

    def is_whole(self, block_id: int) -> bool:
        """Whether the block has the state after its last token."""
        return block_id in self._whole

    def usable(self, ids: Items[int]) -> int:
        """Return how many blocks a text has up to the last one that has a usable state."""
        for count in range(len(ids), 0, -1):
            if ids[count - 1] in self._whole:
                self._whole.move_to_end(ids[count - 1])
                return count
        return 0

    def store(self, block_id: int) -> None:
        """Note that a run stores a state in this block's slot, after some of the block's tokens."""
        self._stored.add(block_id)
        self._whole.pop(block_id, None)

    def complete(self, block_id: int) -> None:
        """Note that the block's state is the one after its last token."""
        self._whole[block_id] = None

    def copy(self, source: int, target: int) -> None:
        """Have a state copied before the next run."""
        self._stored.add(target)
        self._changes.append((source, target))

    # -- who reads -------------------------------------------------------------------------------

    def begin(self, block_id: int) -> None:
        """Note that a text reads the block's state, to continue from it."""
        self._readers[block_id] += 1

    def end(self, block_id: int, *, keep: bool) -> None:
        """Note that a text no longer reads a state. keep: keep a whole block's for later texts."""
        self._readers[block_id] -= 1
        if self._readers[block_id]:
            return
        del self._readers[block_id]
        if not (keep and block_id in self._whole):
            self.forget(block_id)

    def take_over(self, block_id: int, equal_id: int) -> None:
        """Let the readers of a block's state read the state of an equal block instead."""
        if block_id in self._whole and equal_id not in self._whole:
            self.copy(block_id, equal_id)
            self.complete(equal_id)
        if readers := self._readers.pop(block_id, 0):
            self._readers[equal_id] += readers

    def forget(self, block_id: int) -> None:
        """Free a block's state, because the block may hold another text soon."""
        self._whole.pop(block_id, None)
        if block_id in self._stored:
            self._stored.remove(block_id)
            self._changes.append((block_id, -1))

    def trim(self) -> None:
        """Free the least recently used unread states beyond ``max_unread``."""
        unread = [i for i in self._whole if i not in self._readers]
        for block_id in unread[: max(len(unread) - self.max_unread, 0)]:
            self.on_loss(block_id)
            self.forget(block_id)

    def settle(self, copy_states: Callable[[list[tuple[int, int]]], object]) -> None:
        """Make the pending copies with ``Backend.copy_states``; call it before the next run."""
        changes = list(self._changes)
        copy_states(changes)
        del self._changes[: len(changes)]  # only now: an exception in the copying loses no change

    def reset(self, published: Container[int], count: int) -> None:
        """Drop all readers; of blocks 0 … count - 1 keep the published ones' complete states.

        A state is not kept where a pending copy may not have been made.
        """
        unsure = {i for change in self._changes for i in change}
        retained = dict.fromkeys(i for i in self._whole if i in published and i not in unsure)
        self._changes = [(i, -1) for i in range(count) if i not in retained]
        self._stored, self._readers, self._whole = set(retained), Counter(), OrderedDict(retained)


def states_of(kv: KVLayout, kv_blocks: int, drafts: int) -> States | None:
    """Return the states of a backend's blocks; None where no layer has one."""
    if kv.state is None:
        return None
    return States(kv.kept_states(kv_blocks * kv.block_tokens), range(kv_blocks, kv_blocks + drafts))


# -- of a sequence ---------------------------------------------------------------------------------


class SequenceStates:
    """The states of sequences, in the slots of their KV blocks."""

    def __init__(self, states: States, block: int) -> None:
        """block: tokens per KV block."""
        self._states, self._block = states, block

    def begin(self, sequence: Sequence, num_shared: int) -> None:
        """Have a sequence continue from the state after the tokens found in the cache, if any.

        num_shared: how many first tokens it shares with another text, or 0
        """
        sequence.memory.num_shared, sequence.memory.stored_states = num_shared, {}
        self._read(sequence, [sequence.num_computed_tokens] if sequence.num_computed_tokens else [])

    def place(self, scheduled: list[Scheduled]) -> None:
        """Choose the rows of the next step after which states are stored, and their slots."""
        drafts = iter(self._states.drafts)
        for entry in scheduled:
            stored = entry.sequence.memory.stored_states = dict(self._slots(entry, drafts))
            entry.states = [(tokens - 1 - entry.start, slot) for tokens, slot in stored.items()]

    def _slots(self, entry: Scheduled, drafts: Iterator[int]) -> Iterator[tuple[int, int]]:
        """Yield (tokens, slot) for each state to store: after this many tokens of the text."""
        sequence, block = entry.sequence, self._block
        certain = entry.start + len(entry.token_ids)
        if entry.drafted_by in ("forced", "replay"):
            certain = entry.start + entry.num_rows
        last = certain // block * block
        for tokens in range((entry.start // block + 1) * block, certain + 1, block):
            if tokens == last or self._is_kept(sequence, tokens):
                yield tokens, self._place(sequence, tokens)
        if certain > last:
            yield certain, self._place(sequence, certain)
        yield from zip(range(certain + 1, entry.start + entry.num_rows + 1), drafts, strict=False)

    def _place(self, sequence: Sequence, tokens: int) -> int:
        block_id = self._block_of(sequence, tokens)
        self._states.store(block_id)
        return block_id

    def _block_of(self, sequence: Sequence, tokens: int) -> int:
        """Return the block of the text's ``tokens``-th token."""
        return sequence.memory.blocks[(tokens - 1) // self._block]

    def _is_kept(self, sequence: Sequence, tokens: int) -> bool:
        """Whether the state after this many tokens is kept once the text no longer reads it."""
        prompt, block = len(sequence.prompt_token_ids), self._block
        # Where the prompt fills its last block, the same prompt continues from the one before,
        # since its last token is computed; a longer text continues from the last.
        ends = ((prompt - 1) // block * block, prompt // block * block)
        return tokens % STATE_TOKENS == 0 or tokens in (*ends, sequence.memory.num_shared)

    def is_lost(self, sequence: Sequence) -> bool:
        """Whether no state was stored after the last accepted token."""
        computed = sequence.num_computed_tokens
        return computed > 0 and computed not in sequence.memory.stored_states

    def advance(self, sequence: Sequence) -> None:
        """Keep the states after accepted tokens when a step is over."""
        computed, block, memory = sequence.num_computed_tokens, self._block, sequence.memory
        whole = {tokens for tokens in memory.read_states if tokens % block == 0}
        for tokens, slot in memory.stored_states.items():
            if tokens > computed or (tokens < computed and tokens % block):
                continue
            block_id = self._block_of(sequence, tokens)
            if slot != block_id:
                self._states.copy(slot, block_id)
            if tokens % block == 0:
                self._states.complete(block_id)
                whole.add(tokens)
        has_state = computed in memory.stored_states
        last = max((tokens for tokens in whole if tokens <= computed), default=0)
        memory.stored_states = {}
        self._read(sequence, [tokens for tokens in {last, computed * has_state} if tokens])

    def _read(self, sequence: Sequence, ends: list[int]) -> None:
        """Read the states after these numbers of tokens, and no others."""
        memory, before = sequence.memory, sequence.memory.read_states
        memory.read_states = {tokens: self._block_of(sequence, tokens) for tokens in ends}
        for block_id in memory.read_states.values():
            self._states.begin(block_id)
        for tokens, block_id in before.items():
            self._states.end(block_id, keep=self._is_kept(sequence, tokens))

    def follow(self, sequence: Sequence) -> None:
        """Update a sequence whose blocks were replaced by equal ones."""
        memory = sequence.memory
        memory.read_states = {n: self._block_of(sequence, n) for n in memory.read_states}

    def release(self, sequence: Sequence) -> None:
        """Stop reading when the sequence ends or is preempted; complete states are kept."""
        for block_id in sequence.memory.read_states.values():
            self._states.end(block_id, keep=True)
        sequence.memory.read_states, sequence.memory.stored_states = {}, {}
