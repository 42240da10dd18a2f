"""The loop of every BPE: merge the best of all adjacent pairs, until none can be merged.

Knows the order (the cheapest first, the leftmost among equals).
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

LONGEST_REMEMBERED = 64  # characters; longer words are rare and would only fill a memory of them


def merge(text: str, cost: Callable[[str, str], float | None]) -> list[str]:
    """Split ``text`` into parts, beginning with its characters.

    cost: of merging two neighbours, None where they cannot be. Takes O(n log n) for n characters.
    """
    parts, end = list(text), len(text)
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    queue: list[tuple[float, int, int, int]] = []  # (cost, left, right, characters)

    def pair(left: int, right: int) -> list[tuple[float, int, int, int]]:
        if left < 0 or right >= end:
            return []
        price = cost(parts[left], parts[right])
        size = len(parts[left]) + len(parts[right])
        return [] if price is None else [(price, left, right, size)]

    for left in range(end - 1):
        queue += pair(left, left + 1)
    heapify(queue)
    while queue:
        _, left, right, size = heappop(queue)
        # A part that was merged away is empty and one that grew is longer: the entry is stale.
        if not parts[left] or not parts[right] or len(parts[left]) + len(parts[right]) != size:
            continue
        parts[left] += parts[right]
        parts[right] = ""
        after[left] = after[right]
        if after[left] < end:
            before[after[left]] = left
        for entry in pair(before[left], left) + pair(left, after[left]):
            heappush(queue, entry)
    return [part for part in parts if part]
