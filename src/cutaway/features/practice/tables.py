"""The tables of an exercise: a row for each token of a start, with figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cutaway.features.practice.outcome import Outcome
from cutaway.features.practice.start import Start

NONE = "–"  # in place of a figure of a token that was removed

Figures = Mapping[int, float]
"""Row -> figure; a row that is not there was removed."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a head.

    bars   lengths in 0 … 1, one a row
    spans  of each bar, the range that chance leaves its end: (from, to)
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[float, ...] = ()
    spans: tuple[tuple[float, float], ...] = ()


Block = str | Table
"""A paragraph or a table."""


def number(figure: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """A figure with a true minus sign; "–" for None, and never a negative zero."""
    if figure is None:
        return NONE
    rounded = round(figure, digits) + 0.0
    return f"{rounded:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def column(start: Start, figures: Figures, digits: int = 2, *, sign: bool = False) -> list[str]:
    """A cell for each row."""
    return [number(figures.get(row), digits, sign=sign) for row in range(len(start.names))]


def shares(start: Start, figures: Figures) -> list[str]:
    """Probabilities, with three digits."""
    return column(start, figures, 3)


def table(
    start: Start,
    columns: Mapping[str, Sequence[str]],
    *,
    rows: Iterable[int] | None = None,
    bars: Figures | None = None,
    total: Sequence[str] = (),
) -> Table:
    """A row per token, in the order of ``rows``; ``total`` is one more, below them."""
    order = list(range(len(start.names)) if rows is None else rows)
    lines = [
        (str(row + 1), start.names[row], *(cells[row] for cells in columns.values()))
        for row in order
    ]
    lines += [("", "sum", *total)] if total else []
    lengths = () if bars is None else tuple(bars.get(row, 0.0) for row in order)
    return Table(("#", "token", *columns), tuple(lines), lengths)


def numbered(names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Table:
    """A row for each name, and its cell of each column."""
    rows = zip(names, *columns.values(), strict=True)
    return Table(
        ("#", "token", *columns), tuple((str(n), *cells) for n, cells in enumerate(rows, 1))
    )


def given(start: Start, *, luck: bool = False) -> Table:
    """What an exercise gives: logits, and luck where it matters."""
    columns = {"z": column(start, dict(enumerate(start.logits)))}
    if luck:
        columns["luck"] = column(start, start.luck, sign=True)
    return table(start, columns)


def softmax(start: Start, made: Outcome, name: str = "z") -> Table:
    """From logits to probabilities, step by step, over those that stay."""
    top = max(made.logits.values())
    columns = {
        name: column(start, made.logits),
        "−largest": column(start, {row: logit - top for row, logit in made.logits.items()}),
        "exp": shares(start, made.weights),
        "p": shares(start, made.shares),
    }
    total = ("", "", number(made.total, 3), number(1.0, 3))
    return table(start, columns, bars=made.shares, total=total)


def drawing(start: Start, made: Outcome, name: str = "z") -> Table:
    """Who wins the draw: logit and luck, added."""
    fates = ["" if row in made.scores else "removed" for row in range(len(start.names))]
    fates[made.pick] = "drawn"
    columns = {
        name: column(start, made.logits),
        "luck": column(start, start.luck, sign=True),
        f"{name} + luck": column(start, made.scores),
        "": fates,
    }
    return table(start, columns)
