"""Check that a BlockManager's counts agree with each other and with its callers' blocks."""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import repeat

from cutaway.engine.memory.block_manager import ROOT, BlockManager
from cutaway.engine.memory.states import States
from cutaway.engine.memory.windows import Windows


def check_blocks(
    blocks: BlockManager, tables: Iterable[Sequence[int]], outside: Iterable[int] = repeat(0)
) -> None:
    """Raise RuntimeError unless the reference counts agree with ``held``, all callers' id lists.

    outside: number of first blocks of each list that are out of the window
    """
    lists, nodes = list(tables), blocks._nodes
    if blocks.windows:
        read = [ids[n:] for ids, n in zip(lists, outside, strict=False)]
        _check_windows(blocks.windows, read, nodes)
    readers, counts = Counter(i for ids in lists for i in ids), blocks._refcounts
    wrong = sorted(i for i in readers | counts if readers[i] != counts[i])
    _insist(not wrong, f"KV blocks {wrong} are held more or less often than was counted")
    places = sorted([*blocks._free, *blocks._cached, *counts])
    _insist(places == list(range(blocks.count)), "a KV block is lost, or in two places at once")
    unheld = nodes.keys() - counts.keys()
    _insist(blocks._cached.keys() == unheld, "what is cached is not what is published and unheld")
    published = {(node.key, i) for i, node in nodes.items()}
    _insist(blocks._index.items() == published, "the index and the published KV blocks differ")
    for ids in lists:
        _insist(_is_chain(blocks, ids), f"KV blocks {ids} do not follow each other in the tree")


def _is_chain(blocks: BlockManager, ids: Sequence[int]) -> bool:
    """Return whether published blocks come first, each the child of the block before."""
    parent: int | None = ROOT
    for node in map(blocks._nodes.get, ids):
        if node and node.key[0] != parent:
            return False
        parent = node.number if node else None
    return True


def _check_windows(
    windows: Windows, read: Iterable[Sequence[int]], published: Container[int]
) -> None:
    counts, readers = Counter(i for ids in read for i in ids), windows._readers
    wrong = sorted(i for i in counts | readers if counts[i] != readers[i])
    _insist(not wrong, f"the windows of KV blocks {wrong} have more readers, or fewer")
    strange = [i for i in windows._unread if i in readers or i not in published]
    _insist(not strange, f"the windows of KV blocks {strange} are kept for nobody")


def check_states(states: States, read: Iterable[int], referenced: Container[int]) -> None:
    """Raise RuntimeError unless the counts agree with ``read``, the block of each held state.

    referenced: blocks that are published or held
    """
    counts, readers = Counter(read), states._readers
    wrong = sorted(i for i in counts | readers if counts[i] != readers[i])
    _insist(not wrong, f"the states of KV blocks {wrong} have more readers, or fewer")
    missing = [i for i in (*states._whole, *readers) if i not in states._stored]
    _insist(not missing, f"KV blocks {missing} have no state")
    strange = [i for i in states._stored if i not in referenced]
    _insist(not strange, f"KV blocks {strange} have a state of nobody's text")


def _insist(right: bool, sentence: str) -> None:
    if not right:
        raise RuntimeError(sentence)
