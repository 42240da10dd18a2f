"""The free list of KV block ids."""

from collections import Counter


class BlockPool:
    """Hands out ids 0 … count - 1, lowest first after a fresh start, and takes them back."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        """How many blocks can be taken now."""
        return len(self._free)

    def take(self, n: int) -> list[int]:
        """n block ids; the caller has checked that ``free`` is enough."""
        if n > len(self._free):
            raise RuntimeError(f"{n} KV blocks wanted, {len(self._free)} free")
        ids = [self._free.pop() for _ in range(n)]
        self._taken.update(ids)
        return ids

    def give_back(self, ids: list[int]) -> None:
        """Return blocks; an id that was not taken is a bug and raises."""
        strange = [i for i, n in Counter(ids).items() if n > 1 or i not in self._taken]
        if strange:
            raise RuntimeError(f"KV blocks {strange} were not taken")
        self._taken.difference_update(ids)
        self._free.extend(reversed(ids))
