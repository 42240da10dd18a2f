"""The exercises, in the order in which they are asked, with their tables.

Every figure comes from an ``Outcome`` of the engine's own sampler.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import sqrt
from typing import Any

from cutaway.errors import InputError
from cutaway.features.practice import (
    BITS,
    SHARE,
    Answer,
    Numbers,
    TokenAnswer,
    Unit,
)
from cutaway.features.practice.start import COLD, HOT, WAYS, K, Outcome, P, Start, draws, outcome

NONE = "–"  # in place of the figure of a token that was removed

Figures = Mapping[int, float]
"""Maps each row to its figure; a row without a figure was removed."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under a header.

    bars   a bar's length for each row, 0 to 1
    spans  for each bar, the range (from, to) in which chance puts its end
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bars: tuple[float, ...] = ()
    spans: tuple[tuple[float, float], ...] = ()


Block = str | Table
"""A paragraph or a table."""


def number(figure: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Write a figure with a true minus sign; "–" for None, and never a negative zero."""
    if figure is None:
        return NONE
    rounded = round(figure, digits) + 0.0
    return f"{rounded:{'+' if sign else ''}.{digits}f}".replace("-", "−")


def column(start: Start, figures: Figures, digits: int = 2, *, sign: bool = False) -> list[str]:
    """Write a cell for each row."""
    return [number(figures.get(row), digits, sign=sign) for row in range(len(start.names))]


def shares(start: Start, figures: Figures) -> list[str]:
    """Write probabilities, with three digits."""
    return column(start, figures, 3)


def table(
    start: Start,
    columns: Mapping[str, Sequence[str]],
    *,
    rows: Iterable[int] | None = None,
    bars: Figures | None = None,
    total: Sequence[str] = (),
) -> Table:
    """Make a row per token, in the order of ``rows``; ``total`` is one more row, at the end."""
    order = list(range(len(start.names)) if rows is None else rows)
    lines = [
        (str(row + 1), start.names[row], *(cells[row] for cells in columns.values()))
        for row in order
    ]
    lines += [("", "sum", *total)] if total else []
    lengths = () if bars is None else tuple(bars.get(row, 0.0) for row in order)
    return Table(("#", "token", *columns), tuple(lines), lengths)


def number_rows(names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Table:
    """Make a row for each name, with its cell of each column."""
    rows = zip(names, *columns.values(), strict=True)
    return Table(
        ("#", "token", *columns), tuple((str(n), *cells) for n, cells in enumerate(rows, 1))
    )


def given_table(start: Start, *, luck: bool = False) -> Table:
    """Show the given figures: logits, and luck where it matters."""
    columns = {"z": column(start, dict(enumerate(start.logits)))}
    if luck:
        columns["luck"] = column(start, start.luck, sign=True)
    return table(start, columns)


def softmax(start: Start, result: Outcome, name: str = "z") -> Table:
    """Show step by step how logits become probabilities, over the tokens that stay."""
    top = max(result.logits.values())
    columns = {
        name: column(start, result.logits),
        "−largest": column(start, {row: logit - top for row, logit in result.logits.items()}),
        "exp": shares(start, result.weights),
        "p": shares(start, result.shares),
    }
    total = ("", "", number(result.total, 3), number(1.0, 3))
    return table(start, columns, bars=result.shares, total=total)


def drawing(start: Start, result: Outcome, name: str = "z") -> Table:
    """Show which token wins the draw: the highest sum of logit and luck."""
    fates = ["" if row in result.scores else "removed" for row in range(len(start.names))]
    fates[result.pick] = "drawn"
    columns = {
        name: column(start, result.logits),
        "luck": column(start, start.luck, sign=True),
        f"{name} + luck": column(start, result.scores),
        "": fates,
    }
    return table(start, columns)


# -- the exercises ---------------------------------------------------------------------------------


TIMES = 1000


@dataclass(frozen=True)
class Exercise:
    """One question on a start.

    topic        the name by which a person chooses it; a topic has one exercise or several
    question     the question; given_table: the figures to work from
    answer       judges a person's answer
    hint         a sentence for a second try
    arithmetic   the way to the answer
    """

    topic: str
    question: str
    given_table: Table
    answer: Answer
    hint: str
    arithmetic: tuple[Block, ...]


def exercises(start: Start, topics: Sequence[str] = ()) -> tuple[Exercise, ...]:
    """Make the exercises of topics, in the order in which they build on each other.

    () stands for all topics. InputError if a topic does not exist.
    """
    for topic in topics:
        if topic not in _TOPICS:
            raise InputError("topic", f" must be one of {', '.join(TOPICS)}, not {topic!r}")
    return tuple(
        make(start) for topic in _TOPICS if not topics or topic in topics for make in _TOPICS[topic]
    )


def comparison(start: Start) -> Table:
    """Compare the tokens that methods draw from the start; the token of the run comes last."""
    rows = [(way, start.names[outcome(start, **rule).pick]) for way, rule in WAYS.items()]
    rows += [(f"your run, all tokens: {start.run.chain}", start.run.drawn)] if start.run else []
    return Table(("same logits, same luck", "token"), tuple(rows))


# -- figures to fill in ----------------------------------------------------------------------


def _softmax(start: Start) -> Exercise:
    pure = outcome(start)
    return Exercise(
        "softmax",
        f"How probable is each token? Write {len(start.names)} numbers, in this order; two "
        "decimals are enough.",
        given_table(start),
        _shares(start, pure, range(len(start.names))),
        "subtract the largest z from each, take exp, and divide by the sum of them all.",
        (
            "p = exp(z − largest z) / sum. Subtracting the largest changes no p; it keeps the "
            "numbers small.",
            softmax(start, pure),
        ),
    )


def _entropy(start: Start) -> Exercise:
    pure = outcome(start)
    parts = {row: p * pure.bits[row] for row, p in pure.shares.items()}
    columns = {"p": shares(start, pure.shares)}
    worked = {"bits": column(start, pure.bits), "p × bits": shares(start, parts)}
    return Exercise(
        "entropy",
        "How uncertain is this step? Write its entropy in bits.",
        table(start, columns),
        Numbers((pure.entropy,), ("entropy",), BITS),
        "a token of probability p is a surprise of −log2 p bits. Which surprise is to be expected?",
        (
            "Entropy is the sum of p × bits, where bits = −log2 p.",
            table(start, columns | worked, total=("", "", number(pure.entropy, 3))),
            f"It is the uncertainty of a fair choice among {2**pure.entropy:.1f} tokens.",
        ),
    )


def _top_k(start: Start) -> Exercise:
    cut = outcome(start, top_k=K)
    return Exercise(
        "top-k",
        f"Top-k {K} keeps the {K} likeliest. How probable are they now? Write {len(cut.shares)} "
        "numbers, the likeliest first.",
        table(start, {"exp": shares(start, outcome(start).weights)}),
        _shares(start, cut, cut.shares),
        "divide by the sum of those that stay.",
        (
            softmax(start, cut),
            f"The others had {number(cut.removed_mass, 3)} together. It goes to those that stay, "
            "in proportion to what each has.",
        ),
    )


def _top_p(start: Start) -> Exercise:
    pure, cut = outcome(start), outcome(start, top_p=P)
    sums = dict(zip(pure.shares, accumulate(pure.shares.values()), strict=True))
    last = list(cut.shares)[-1]
    fates = ["stays" if row in cut.shares else "removed" for row in range(len(start.names))]
    fates[last] = "crosses, stays"
    columns = {"p": shares(start, pure.shares)}
    return Exercise(
        "top-p",
        f"Top-p {P:g} adds up the probabilities from the likeliest down until they make {P:g} or "
        "more, and removes the others. Which token is the last to stay?",
        table(start, columns),
        TokenAnswer(start.names, last),
        f"the sum before it is below {P:g}; with it, it is not.",
        (
            table(start, columns | {"sum": shares(start, sums), "": fates}, rows=pure.shares),
            f"The token that crosses {P:g} stays. The others had {number(cut.removed_mass, 3)} "
            "together.",
        ),
    )


def _temperature(start: Start) -> Exercise:
    cold = outcome(start, temperature=COLD)
    best = next(iter(cold.shares))
    return Exercise(
        "temperature",
        f"Temperature {COLD:g} divides each z by {COLD:g} before softmax. How probable is "
        f"{start.names[best]} now?",
        given_table(start),
        _shares(start, cold, [best]),
        f"each difference between two z becomes {1 / COLD:g} times as large. Then softmax.",
        (
            softmax(start, cold, "z / T"),
            "Below 1 the likely become likelier; above 1 all come closer together.",
        ),
    )


def _shares(start: Start, result: Outcome, rows: Any) -> Numbers:
    values = tuple(result.shares[row] for row in rows)
    return Numbers(values, tuple(start.names[row] for row in rows), SHARE)


# -- tokens to predict -----------------------------------------------------------------------


def _greedy(start: Start) -> Exercise:
    pick = outcome(start, **WAYS["greedy"]).pick
    return Exercise(
        "greedy",
        "Greedy, which is temperature 0: which token comes next?",
        given_table(start),
        TokenAnswer(start.names, pick),
        "there is no luck in it.",
        (f"The largest z wins: {start.names[pick]}.",),
    )


def _sampling(start: Start) -> Exercise:
    result = outcome(start)
    return Exercise(
        "sampling",
        "Pure sampling: each token has its luck, and the largest z + luck wins. Which token comes "
        "next?",
        given_table(start, luck=True),
        TokenAnswer(start.names, result.pick),
        "add the two columns.",
        (
            drawing(start, result),
            "Luck is −ln(−ln u), where u is a random number from 0 to 1, made of seed, position "
            "and token alone. With such luck a token wins with exactly the probability that "
            "softmax gives it.",
            "From here on the luck stays as it is: what changes, changes because of the settings.",
        ),
    )


def _again(topic: str, way: str) -> Callable[[Start], Exercise]:
    """Make the exercise on the same luck under other settings."""
    name = "z / T" if topic == "temperature" else "z"

    def make(start: Start) -> Exercise:
        result = outcome(start, **WAYS[way])
        return Exercise(
            topic,
            f"{way.capitalize()} and the same luck: which token comes next?",
            given_table(start, luck=True),
            TokenAnswer(start.names, result.pick),
            "divide z by the temperature, then add luck, which is not divided."
            if topic == "temperature"
            else "the largest z + luck among those that stay.",
            (drawing(start, result, name), _what_changed(start, result)),
        )

    return make


def _what_changed(start: Start, result: Outcome) -> str:
    pure = outcome(start).pick
    was, now = start.names[pure], start.names[result.pick]
    if pure == result.pick:
        return f"Pure sampling drew {was} too."
    if pure not in result.scores:
        return f"Pure sampling drew {was}, which is removed. {now} is the best of those that stay."
    return f"Pure sampling drew {was}. The luck is the same, but {now} has overtaken it."


# -- probabilities beside counts of draws ----------------------------------------------------


def _thousand(start: Start) -> Exercise:
    pure, counts = outcome(start), draws(start, TIMES)
    best, spread = next(iter(pure.shares)), {r: _spread(p) for r, p in pure.shares.items()}
    rows = range(len(start.names))
    worked = {
        "theory": [f"{TIMES * pure.shares[row]:.0f} ± {spread[row]:.0f}" for row in rows],
        "drawn": [str(count) for count in counts],
    }
    spans = tuple(
        (pure.shares[r] - spread[r] / TIMES, pure.shares[r] + spread[r] / TIMES) for r in rows
    )
    counts_table = table(start, worked, bars={row: counts[row] / TIMES for row in rows})
    inside = sum(abs(counts[row] - TIMES * pure.shares[row]) <= spread[row] for row in rows)
    give = max(spread[best], 0.5)
    unit = Unit("450", 0, give, percent=TIMES / 100)
    return Exercise(
        "thousand",
        f"Draw {TIMES:,} times, each time with other luck. About how often does "
        f"{start.names[best]} come?",
        table(start, {"p": shares(start, pure.shares)}),
        Numbers((TIMES * pure.shares[best],), (start.names[best],), unit),
        f"{TIMES:,} × p; any count that chance may give is right.",
        (
            replace(counts_table, spans=spans),
            f"± is 2 × √(n p (1 − p)): chance keeps 19 counts in 20 within it. Here it keeps "
            f"{inside} of {len(rows)}.",
        ),
    )


def _spread(p: float) -> float:
    """Two standard errors of the count of a token with probability p, in TIMES draws."""
    return 2 * sqrt(TIMES * p * max(1 - p, 0.0))


_TOPICS: Mapping[str, tuple[Callable[[Start], Exercise], ...]] = {
    "softmax": (_softmax,),
    "entropy": (_entropy,),
    "greedy": (_greedy,),
    "sampling": (_sampling,),
    "top-k": (_top_k, _again("top-k", f"top-k {K}")),
    "top-p": (_top_p, _again("top-p", f"top-p {P:g}")),
    "temperature": (
        _temperature,
        _again("temperature", f"temperature {COLD:g}"),
        _again("temperature", f"temperature {HOT:g}"),
    ),
    "thousand": (_thousand,),
}

TOPICS = tuple(_TOPICS)
"""The names of all topics, in order."""
