"""A format for each tensor, so that all together fit into a size: least divergence per byte saved.

The divergences of tensors changed one at a time are added up, which holds while each is small;
what a mix really costs is measured afterwards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cutaway.errors import InputError


@dataclass(frozen=True, slots=True)
class TensorChoice:
    """A tensor in a format: its bytes, and the mean KL in nats that it alone costs."""

    tensor: str
    format: str
    nbytes: int
    kl: float


@dataclass(frozen=True, slots=True)
class ProposedMix:
    """Formats of tensors, and what they are expected to cost.

    formats  by tensor, of those that change
    nbytes   of all tensors of the file
    kl       the sum of what each costs alone, in nats
    """

    formats: dict[str, str]
    nbytes: int
    kl: float


def propose(choices: Iterable[TensorChoice], fixed: int, under: int) -> ProposedMix:
    """The mix of at most ``under`` bytes of tensors that greed finds.

    choices: of each tensor all its formats, that of BASE with a kl of 0
    fixed: bytes of the tensors that have no choice
    InputError where even the smallest formats do not fit.
    """
    menus: dict[str, list[TensorChoice]] = {}
    for choice in choices:
        menus.setdefault(choice.tensor, []).append(choice)
    chosen = {tensor: max(menu, key=lambda c: (c.nbytes, -c.kl)) for tensor, menu in menus.items()}
    size = fixed + sum(choice.nbytes for choice in chosen.values())
    for step in sorted(
        (step for menu in menus.values() for step in _steps(menu)), key=lambda step: step[0]
    ):
        if size <= under:
            break
        _, choice = step
        size += choice.nbytes - chosen[choice.tensor].nbytes
        chosen[choice.tensor] = choice
    check_under(size, under)
    base = {tensor: menu[0].format for tensor, menu in menus.items()}
    formats = {t: c.format for t, c in chosen.items() if c.format != base[t]}
    return ProposedMix(formats, size, sum(choice.kl for choice in chosen.values()))


def check_under(smallest: int, under: int) -> None:
    """InputError where the smallest mix does not fit."""
    if smallest > under:
        raise InputError(
            f"under: the smallest mix of these formats takes {smallest:,} bytes: allow that many, "
            "or name a smaller format"
        )


def _steps(menu: Sequence[TensorChoice]) -> list[tuple[float, TensorChoice]]:
    """(KL per byte saved, the smaller format), from the largest format on, each step dearer.

    What lies above the lower convex hull is never taken: a smaller format costs less there.
    """
    hull: list[TensorChoice] = []
    for choice in sorted(menu, key=lambda c: (-c.nbytes, c.kl)):
        if hull and choice.nbytes == hull[-1].nbytes:
            continue
        while len(hull) > 1 and _slope(hull[-2], choice) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return [(_slope(a, b), b) for a, b in pairwise(hull)]


def _slope(larger: TensorChoice, smaller: TensorChoice) -> float:
    return (smaller.kl - larger.kl) / (larger.nbytes - smaller.nbytes)
