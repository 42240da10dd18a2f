"""What followed a mistake, as a table by distance from it, and what its columns mean."""

from typing import TYPE_CHECKING

from cutaway.cli.terminal.drawing import Style, table

if TYPE_CHECKING:
    from cutaway.rerun import Curve

_BAR = 16  # cells of the longest bar

EXPLAINED = """
  after    tokens since the mistake
  forced   KL divergence in bits between the distributions of the next token, with the
           mistake and without it, where the original's tokens follow it (teacher forcing)
  cost     how many bits more the original's token costs after the mistake
  free     the same KL divergence, where the text goes on with its own tokens
""".strip("\n")
PARTED = "  parted   share of the texts whose token here is not the original's"


def lines(
    style: Style, forced: "Curve", cost: "Curve", free: "Curve", parted: "Curve | None" = None
) -> list[str]:
    """Means by distance, then what the columns mean; a curve may end before the others do."""
    from cutaway.rerun import bands, span

    parts = bands(max(len(forced), len(free)))
    columns = [
        _bars(style, forced, free, parts),
        [f"{part.mean():+6.2f}" if len(part) else "     -" for part in (cost[p] for p in parts)],
        _bars(style, free, forced, parts),
    ]
    head, notes = ["after", "forced", "  cost", "free"], ["", *EXPLAINED.splitlines()]
    if parted is not None:
        head.append("parted")
        columns.append([f"{parted[part].mean():6.0%}" for part in parts])
        notes.append(PARTED)
    return [*table([head, *zip(map(span, parts), *columns, strict=True)]), *notes]


def _bars(style: Style, curve: "Curve", other: "Curve", parts: list[slice]) -> list[str]:
    """Of the one curve, on a scale for both."""
    every = [both[part].mean() for both in (curve, other) for part in parts if len(both[part])]
    high = max(every, default=0.0) or 1.0
    means = [curve[part].mean() if len(curve[part]) else None for part in parts]
    return ["    -" if m is None else f"{m:5.2f} {style.bar(m / high, _BAR)}" for m in means]
