"""From measurements in turns to ratios, verdicts and a table. Knows no engine and no clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from script import grid


@dataclass(frozen=True)
class Metric:
    """What is measured. ``command``: what a worker is asked; None for a cold process."""

    name: str
    title: str
    unit: str
    command: Mapping[str, Any] | None = None
    lower_is_better: bool = False
    scale: float = 1.0  # from the unit of the figures to the one that is shown
    digits: int = 0

    def figure(self, seconds: Sequence[float]) -> float:
        """Tokens per second from what a worker says: the median of its steps or prompts."""
        assert self.command is not None
        tokens = self.command.get("tokens") or self.command["batch"]
        return float(tokens) / median(seconds)

    def shown(self, figure: float) -> str:
        """With its unit."""
        return f"{figure * self.scale:,.{self.digits}f} {self.unit}"


@dataclass(frozen=True)
class Target:
    """A ratio that must be reached against every engine of a kind: at least, or at most."""

    metric: str
    kind: str
    ratio: float
    other_format: bool = False  # against the file of --also


@dataclass
class Column:
    """An engine on a file, and its figures: a list per metric, one value a round."""

    title: str
    kind: str
    other_format: bool = False
    figures: dict[str, list[float]] = field(default_factory=dict)


def ratios(ours: Column, peer: Column, metric: Metric) -> list[float]:
    """Ours by theirs, round by round: what disturbs a round disturbs both."""
    pairs = zip(ours.figures.get(metric.name, []), peer.figures.get(metric.name, []), strict=False)
    return [a / b for a, b in pairs]


def verdict(target: float, ratio: float, *, lower_is_better: bool) -> str:
    """Reached, or by how much not."""
    sign, far = ("≤", ratio / target - 1) if lower_is_better else ("≥", 1 - ratio / target)
    reached = ratio <= target if lower_is_better else ratio >= target
    return f"{sign} {target:.2f}×: " + ("reached" if reached else f"missed by {far:.0%}")


def verdicts(
    columns: Sequence[Column], metrics: Sequence[Metric], targets: Iterable[Target]
) -> list[dict[str, Any]]:
    """One entry for each target and engine that it applies to; those not measured are left out."""
    by_name = {metric.name: metric for metric in metrics}
    found = []
    for target in targets:
        metric = by_name.get(target.metric)
        for peer in columns[1:]:
            applies = (peer.kind, peer.other_format) == (target.kind, target.other_format)
            values = ratios(columns[0], peer, metric) if metric and applies else []
            if metric is None or not values:
                continue
            middle = median(values)
            found.append({
                "metric": metric.title, "peer": peer.title, "ratio": middle,
                "lowest": min(values), "highest": max(values), "target": target.ratio,
                "verdict": verdict(target.ratio, middle, lower_is_better=metric.lower_is_better),
            })  # fmt: skip
    return found


def markdown(columns: Sequence[Column], metrics: Sequence[Metric], notes: Sequence[str]) -> str:
    """The table that the README shows: figures, and beside each peer's ours by theirs."""
    head = ["", *(f"**{c.title}**" if i == 0 else c.title for i, c in enumerate(columns))]
    rows = (
        [metric.title, *(_cell(columns[0], column, metric) for column in columns)]
        for metric in metrics
        if metric.name in columns[0].figures
    )
    return "\n".join([grid(head, rows), "", *notes])


def _cell(ours: Column, column: Column, metric: Metric) -> str:
    figures = column.figures.get(metric.name)
    if not figures:
        return "–"
    shown = metric.shown(median(figures))
    if column is ours:
        return f"**{shown}**"
    return f"{shown} (**{median(ratios(ours, column, metric)):.2f}×**)"
