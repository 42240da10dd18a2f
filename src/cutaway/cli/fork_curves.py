"""What a mistake led to, as a table by distance from it.

Knows columns and bars. Refuses to know how the curves were measured.
"""

from typing import TYPE_CHECKING

from cutaway.cli.terminal.drawing import Style, table

if TYPE_CHECKING:
    from cutaway.rerun import Curve

_BAR = 16  # cells of the longest bar

EXPLAINED = """
  said again   how far the next token's distribution is from the original's (KL, in bits), where
               the original's own words follow the mistake
  cost         how many bits more each of those words costs than it did
  own words    the same distance, where each text goes on as it likes
""".strip("\n")


def lines(
    style: Style, forced: "Curve", cost: "Curve", free: "Curve", parted: "Curve | None" = None
) -> list[str]:
    """Means by distance; a curve may end before the others do."""
    from cutaway.rerun import bands, span

    parts = bands(max(len(forced), len(free)))
    columns = [
        _bars(style, forced, free, parts),
        [f"{part.mean():+6.2f}" if len(part) else "     -" for part in (cost[p] for p in parts)],
        _bars(style, free, forced, parts),
    ]
    head = ["after", "said again", "  cost", "own words"]
    if parted is not None:
        head.append("parted")
        columns.append([f"{parted[part].mean():6.0%}" for part in parts])
    return table([head, *zip(map(span, parts), *columns, strict=True)])


def _bars(style: Style, curve: "Curve", other: "Curve", parts: list[slice]) -> list[str]:
    """Of the one curve, on a scale for both."""
    every = [both[part].mean() for both in (curve, other) for part in parts if len(both[part])]
    high = max(every, default=0.0) or 1.0
    means = [curve[part].mean() if len(curve[part]) else None for part in parts]
    return ["    -" if m is None else f"{m:5.2f} {style.bar(m / high, _BAR)}" for m in means]
