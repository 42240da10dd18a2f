"""The Merkle tree of RFC 9162 (Certificate Transparency), section 2.1, over SHA-256."""

from collections.abc import Sequence
from hashlib import sha256


def leaf_hash(data: bytes) -> bytes:
    """Hash one entry."""
    return sha256(b"\0" + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def _split(size: int) -> int:
    """The largest power of two below ``size``."""
    return 1 << (size - 1).bit_length() - 1


class Tree:
    """A Merkle tree over all entries so far.

    Appending an entry takes about log2(n) hashes, and so does computing the root.
    """

    def __init__(self) -> None:
        self.leaves: list[bytes] = []
        self._complete: list[tuple[int, bytes]] = []  # (leaves, root) of subtrees, largest first

    def append(self, data: bytes) -> int:
        """Add an entry and return its index."""
        size, node = 1, leaf_hash(data)
        self.leaves.append(node)
        while self._complete and self._complete[-1][0] == size:
            _, left = self._complete.pop()
            size, node = 2 * size, _node(left, node)
        self._complete.append((size, node))
        return len(self.leaves) - 1

    @property
    def root(self) -> bytes:
        """The root over all entries; if there are no entries, SHA-256 of no bytes."""
        if not self._complete:
            return sha256().digest()
        *before, (_, node) = self._complete
        for _, left in reversed(before):
            node = _node(left, node)
        return node

    def inclusion(self, index: int) -> list[bytes]:
        """The proof of inclusion of entry ``index``: sibling hashes, from the leaf upwards."""
        return _path(index, self.leaves)


def _root(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256().digest()
    k = _split(len(leaves))
    return _node(_root(leaves[:k]), _root(leaves[k:]))


def _path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = _split(len(leaves))
    if index < k:
        return [*_path(index, leaves[:k]), _root(leaves[k:])]
    return [*_path(index - k, leaves[k:]), _root(leaves[:k])]


def root_by_proof(data: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """Compute the root from entry ``index`` of ``size`` and its proof of inclusion; None where the
    index or the length of the path is wrong. RFC 9162, 2.1.3.2."""
    if not 0 <= index < size:
        return None
    node, at, last = leaf_hash(data), index, size - 1
    for sibling in path:
        if last == 0:
            return None
        if at & 1 or at == last:
            node = _node(sibling, node)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            node = _node(node, sibling)
        at, last = at >> 1, last >> 1
    return node if last == 0 else None
