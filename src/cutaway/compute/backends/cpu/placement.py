"""Assigns each tensor of a plan a buffer.

Knows lifetimes, and that a buffer must not be written before every thread has read it. Does not
know what the ops do.
"""

from collections.abc import Iterable

from cutaway.compute.backends.cpu.compile import Lowered


class Placement:
    """A linear scan over the lowered ops that reuses buffers once they are free, unless kept.

    where  by tensor: the number of its slot
    slots  of each slot: its width, and whether it holds quant blocks
    """

    def __init__(
        self, lowered: list[Lowered], output: str, *, kept: bool = False, also: Iterable[str] = ()
    ) -> None:
        """kept: no buffer is reused; also: tensors whose buffers are not, to be read afterwards."""
        self.where: dict[str, int] = {}
        self.slots: list[tuple[int, bool]] = []
        met = _meetings(lowered)
        last = {name: met[i] for i, op in enumerate(lowered) for name in op.reads}
        ends: dict[int, list[str]] = {}
        for name, i in last.items():
            ends.setdefault(i, []).append(name)
        taken_over = {op.in_place for op in lowered}
        outputs = _in_the_place_of(output, lowered)
        held = {
            *also,
            *(op.writes[0][0] for op in lowered if op.kind == "given"),
        }  # as wide as told
        free: list[int] = []
        for i, op in enumerate(lowered):
            for name, width, is_quantised in op.writes:
                if op.in_place is not None:
                    self.where[name] = self.where[op.in_place]
                elif name in outputs or name in held or (kept and not is_quantised):
                    self.where[name] = self._new(width, is_quantised)  # rows lie side by side
                else:
                    self.where[name] = self._reuse(free, width, is_quantised)
            over = (n for n in ends.get(i, ()) if n not in taken_over and n not in held)
            free += [self.where[n] for n in over]

    def _new(self, width: int, is_quantised: bool) -> int:
        self.slots.append((width, is_quantised))
        return len(self.slots) - 1

    def _reuse(self, free: list[int], width: int, is_quantised: bool) -> int:
        fitting = [slot for slot in free if self.slots[slot][1] == is_quantised]
        if not fitting:
            return self._new(width, is_quantised)
        slot = max(fitting, key=lambda s: self.slots[s][0])
        free.remove(slot)
        self.slots[slot] = (max(width, self.slots[slot][0]), is_quantised)
        return slot


def _meetings(lowered: list[Lowered]) -> list[int]:
    """By op: the first op, itself or later, at whose end all threads meet.

    They do not meet after an op that each thread does for itself.
    """
    met: list[int] = []
    for i in reversed(range(len(lowered))):
        met.append(met[-1] if lowered[i].is_alone and met else i)
    return met[::-1]


def _in_the_place_of(output: str, lowered: list[Lowered]) -> set[str]:
    """The tensors whose buffer becomes the output's."""
    found = {output}
    for op in reversed(lowered):
        if op.in_place is not None and op.writes[0][0] in found:
            found.add(op.in_place)
    return found
