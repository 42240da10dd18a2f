"""KV blocks by id: reference counts, the prefix cache, eviction. One manager serves one model.

A published block is a node of a tree of texts: its key is its parent's number, its own tokens, and
the salt's name where the salt begins. Python's dict compares the tokens themselves, so two texts
are never mistaken for each other, as they could be by a chained hash alone; only one block's tokens
are compared, since the parent's number identifies all that comes before. A number is never used
twice: once a parent is evicted, its children are not found any more, even when the parent's text is
published again, and they are evicted in their turn.

Where blocks are kept outside of this process too, a node also has a name, which every process gives
to its text. Nothing here is found by it.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import count as counting
from typing import NamedTuple

from cutaway.engine.memory.states import States
from cutaway.engine.memory.windows import Windows

Key = tuple[int, str, tuple[int, ...]]
Salt = tuple[int, str]
"""(position, name): from this position on, texts share blocks only under the same name."""

ROOT = 0
"""The number of the empty text."""


class Node(NamedTuple):
    """A published block's place in the tree.

    number  identifies the text up to the block's end, in this manager
    key     (parent's number, salt, own tokens)
    place   the block's index in the text
    name    what every process calls the text up to the block's end; b"" if there is no store
    """

    number: int
    key: Key
    place: int
    name: bytes


EMPTY = Node(ROOT, (ROOT, "", ()), -1, b"")
"""The node of the empty text."""


class BlockManager:
    """Hands out block ids 0 … count - 1; each is free, held, or cached: published and not held.

    count      how many blocks there are
    block      tokens per block
    windows    where layers have sliding windows: which blocks still have theirs
    states     where layers have a recurrent state: which blocks have one
    evictions  cached blocks that were taken for other texts
    on_loss    is called with a published block before it loses its content
    name_of    returns a block's name, given its parent's name, its salt's name, and its tokens

    An id list is one text's blocks, in the order of the text. A caller publishes whole blocks
    before it shares them, and never gives back a block while it holds a later one of the text; so
    all blocks before a held block are held, and leaves are evicted first. A holder of a text's
    blocks also reads their windows, except those of the first ``outside``, which lie outside the
    sliding window of every later row.
    """

    def __init__(
        self, count: int, block: int, windows: Windows | None = None, states: States | None = None
    ) -> None:
        self.count, self.block, self.windows, self.states = count, block, windows, states
        self.evictions = 0
        self.on_loss: Callable[[int], object] = lambda _: None
        self.name_of: Callable[[bytes, str, Sequence[int]], bytes] = lambda *_: b""
        self._free = list(range(count - 1, -1, -1))
        self._refcounts: Counter[int] = Counter()  # held ids only: none is at zero
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._nodes: dict[int, Node] = {}  # of published blocks, by id
        self._index: dict[Key, int] = {}
        self._numbers = counting(ROOT + 1)

    # -- holding -----------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many blocks can be taken now, cached ones included."""
        return len(self._free) + len(self._cached)

    def allocate(self, n: int) -> list[int]:
        """Hand out n blocks, each held once: free ones, then the least recently used cached ones.

        RuntimeError, and no block taken, if n exceeds ``free``.
        """
        if n > self.free:
            raise RuntimeError(f"{n} KV blocks wanted, {self.free} free")
        evicted = max(0, n - len(self._free))
        ids = [self._free.pop() for _ in range(n - evicted)]
        ids += [self._drop_oldest() for _ in range(evicted)]
        self.evictions += evicted
        self._refcounts.update(ids)
        if self.windows:
            self.windows.begin(ids)
        return ids

    def release(self, ids: Sequence[int], outside: int = 0) -> None:
        """Release one hold of each block; one without holds is cached if published, else free.

        The last block of a text counts as used first, so that leaves are evicted before parents.
        RuntimeError, and no hold released, if an id is named more often than it is held.
        """
        self._check_held(ids)
        if self.windows:
            self.windows.end(reversed(ids[outside:]), self._nodes)
        for i in reversed(ids):
            self._release_one(i)

    def retain(self, ids: Sequence[int], outside: int = 0) -> list[int]:
        """Hold each block once more, for a fork of the text; return a copy of the list.

        RuntimeError if an id is not held, or a window is not stored.
        """
        self._check_held(ids)
        if self.windows:
            if not self.windows.are_stored(ids[outside:]):
                raise RuntimeError(f"KV blocks {ids[outside:]} have lost their windows")
            self.windows.begin(ids[outside:])
        self._refcounts.update(ids)
        return list(ids)

    def reset(self) -> None:
        """Release every hold: a block is cached if it is published, else free.

        Repairs a change that an exception interrupted: a block counts as published if it is a node.
        """
        self._index = {node.key: i for i, node in self._nodes.items()}
        self._refcounts = Counter()
        cached = [i for i in self._cached if i in self._nodes]
        others_by_age = sorted(self._nodes.keys() - cached, key=lambda i: -self._nodes[i].number)
        self._cached = OrderedDict.fromkeys(
            [*cached, *others_by_age]
        )  # leaves before their parents
        self._free = [i for i in reversed(range(self.count)) if i not in self._nodes]
        if self.windows:
            self.windows.reset(self._nodes, self.count)
        if self.states:
            self.states.reset(self._nodes, self.count)

    def num_out_of_window(self, position: int) -> int:
        """How many of a text's first blocks no row attends to from this position on."""
        return self.windows.num_out_of_window(position) if self.windows else 0

    def free_windows(self, ids: Sequence[int], keep: Sequence[int] = ()) -> None:
        """Stop reading these blocks' windows. keep: blocks that keep theirs, if published."""
        if self.windows:
            self.windows.end(ids, [i for i in keep if i in self._nodes])

    # -- finding what was computed before ----------------------------------------------------

    def match(self, tokens: Sequence[int], salt: Salt | None = None) -> list[int]:
        """Look up the prefix cache: the longest chain of published blocks these tokens begin with.

        Each block is held once more, with the windows that a row after the chain attends to. Where
        layers have a state, the last block has one. A caller that needs the logits of the last
        token leaves that token out.
        """
        ids = self.published_ids(tokens, salt)
        length = -1
        while length != len(ids):  # until the chain has both the windows and the state
            length = len(ids)
            if self.windows:
                ids = ids[: self.windows.usable(ids)]
            if self.states:
                ids = ids[: self.states.usable(ids)]
        return self._hold(ids, self.num_out_of_window(len(ids) * self.block))

    def published_ids(self, tokens: Sequence[int], salt: Salt | None = None) -> list[int]:
        """Return the published blocks that the tokens begin with, even without window or state.

        They are not held.
        """
        ids, parent = [], ROOT
        for place in range(len(tokens) // self.block):
            block_id = self._index.get(self._key(parent, tokens, place, salt))
            if block_id is None:
                break
            ids.append(block_id)
            parent = self._nodes[block_id].number
        return ids

    def match_stored(
        self, tokens: Sequence[int], outside: int, salt: Salt | None = None
    ) -> list[int]:
        """Look up the longest chain of blocks that has its windows from block ``outside`` on."""
        ids = self.published_ids(tokens, salt)
        if self.windows:
            ids = ids[: outside + self.windows.count_stored(ids[outside:])]
        return self._hold(ids, outside)

    def names(self, tokens: Sequence[int], salt: Salt | None = None) -> list[bytes]:
        """Return the names that a text's whole blocks have in every process."""
        names, parent = [], EMPTY.name
        for place in range(len(tokens) // self.block):
            _, own_salt, own_tokens = self._key(ROOT, tokens, place, salt)
            names.append(parent := self.name_of(parent, own_salt, own_tokens))
        return names

    def nodes(self) -> Iterator[tuple[int, Node]]:
        """Yield each published block and its node: newest texts first, a parent before children."""
        newest = Counter[int]()  # by a node's number: the last one of a text that begins with it
        for node in sorted(self._nodes.values(), key=lambda node: -node.number):
            newest[node.number] = max(newest[node.number], node.number)
            newest[node.key[0]] = max(newest[node.key[0]], newest[node.number])
        yield from sorted(
            self._nodes.items(), key=lambda pair: (-newest[pair[1].number], pair[1].number)
        )

    def node(self, block_id: int) -> Node | None:
        """Return a published block's node; None for another block."""
        return self._nodes.get(block_id)

    def _hold(self, ids: list[int], outside: int) -> list[int]:
        for i in ids:
            self._retain_one(i)
        if self.windows:
            self.windows.begin(ids[outside:])
        return ids

    def publish(
        self, ids: Sequence[int], tokens: Sequence[int], first: int = 0, salt: Salt | None = None
    ) -> list[int]:
        """Put a text's whole blocks from ``first`` on into the tree; return the ids to use now.

        tokens  the text from its beginning, as far as its keys and values are computed
        first   how many of its blocks are published already

        Where another block has the same text, it replaces the caller's, which is released: equal
        texts have equal bits. RuntimeError if a block is not held, is missing, is published with
        another text, or if the block before ``first`` is not published.
        """
        published, whole = list(ids), len(tokens) // self.block
        if whole > len(ids):
            raise RuntimeError(f"{len(ids)} KV blocks cannot hold {len(tokens)} tokens")
        self._check_held(ids[first:whole])
        parent = self._node_before(ids, first)
        for place in range(first, whole):
            key = self._key(parent.number, tokens, place, salt)
            published[place] = block_id = self._publish_one(ids[place], key, parent)
            parent = self._nodes[block_id]
        return published

    def _check_held(self, ids: Sequence[int]) -> None:
        strange = [i for i, n in Counter(ids).items() if n > self._refcounts[i]]
        if strange:
            raise RuntimeError(f"KV blocks {strange} are not held")

    # -- one block ---------------------------------------------------------------------------

    def _key(self, parent: int, tokens: Sequence[int], place: int, salt: Salt | None) -> Key:
        begins = salt is not None and salt[0] // self.block == place
        block_tokens = tuple(tokens[place * self.block : (place + 1) * self.block])
        return parent, salt[1] if salt and begins else "", block_tokens

    def _node_before(self, ids: Sequence[int], first: int) -> Node:
        """The node of the text that ends where block ``first`` begins."""
        if first == 0:
            return EMPTY
        if ids[first - 1] not in self._nodes:
            raise RuntimeError(f"KV block {ids[first - 1]}, before the first, is not published")
        return self._nodes[ids[first - 1]]

    def _publish_one(self, block_id: int, key: Key, parent: Node) -> int:
        """Return the block that has this text from now on; the caller's hold moves to it."""
        if key not in self._index:
            if block_id in self._nodes:
                raise RuntimeError(
                    f"KV block {block_id} is published with another text: write a copy"
                )
            name = self.name_of(parent.name, *key[1:])
            node = Node(next(self._numbers), key, parent.place + 1, name)
            self._index[key], self._nodes[block_id] = block_id, node
        published_id = self._index[key]
        if published_id != block_id:
            if self.windows:
                self.windows.take_over(block_id, published_id)
            if self.states:
                self.states.take_over(block_id, published_id)
            self._retain_one(published_id)
            self._release_one(block_id)
        return published_id

    def _retain_one(self, block_id: int) -> None:
        self._cached.pop(block_id, None)
        self._refcounts[block_id] += 1

    def _release_one(self, block_id: int) -> None:
        self._refcounts[block_id] -= 1
        if self._refcounts[block_id]:
            return
        del self._refcounts[block_id]
        if block_id in self._nodes:
            self._cached[block_id] = None
        else:
            self._free.append(block_id)
            if self.states:
                self.states.forget(block_id)

    def _drop_oldest(self) -> int:
        """Take the least recently used cached block out of the tree; return its id."""
        block_id = next(iter(self._cached))
        self.on_loss(block_id)
        del self._cached[block_id]
        if self.windows:
            self.windows.forget(block_id)
        if self.states:
            self.states.forget(block_id)
        del self._index[self._nodes.pop(block_id).key]
        return block_id
