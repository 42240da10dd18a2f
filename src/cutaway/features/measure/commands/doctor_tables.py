"""What a doctor found, as lines for a terminal."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from cutaway.base.progress import megabytes
from cutaway.cli.terminal.drawing import Style, table

if TYPE_CHECKING:
    from cutaway.features.measure.doctor import (
        Diagnosis,
        Doctor,
        Parted,
        ProposedMix,
        TensorCost,
    )
    from cutaway.rerun import Estimate

_WORST, _BAR = 12, 16
"""Tensors that are listed; cells of the longest bar."""


def head(doctor: "Doctor") -> list[str]:
    """What is examined."""
    return [
        f"BASE {doctor.base}: {megabytes(doctor.nbytes)} of tensors, {doctor.kv_bytes:,} bytes of "
        f"keys and values a token",
        f"{doctor.positions} positions of the text, in windows of {doctor.window} tokens; in "
        "brackets: what holds 95 %",
    ]


def diagnosis(found: "Diagnosis", doctor: "Doctor") -> Iterator[str]:
    """One change."""
    damage, share = found.damage, found.nbytes / doctor.nbytes
    size = f"{megabytes(found.nbytes)} of tensors, {share:.0%} of BASE's"
    if found.kv_bytes != doctor.kv_bytes:
        size = f"{found.kv_bytes:,} bytes a token, {found.kv_bytes / doctor.kv_bytes:.0%} of BASE's"
    yield from ("", f"{found.change}   {size}")
    yield (
        f"  KL          {_nats(damage.kl)} nats; 99th percentile {_nats(damage.kl_p99)}; largest "
        f"{damage.kl_most:.2g}"
    )
    yield f"  flips       {_percent(damage.flips)} of the likeliest tokens"
    ratio = damage.perplexity_ratio
    yield f"  perplexity  × {ratio.mean:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
    yield f"  top {damage.top:<7} {_percent(damage.overlap)} of them stay"
    if found.drawn is not None:
        yield f"  drawn       {_drawn(found.drawn)}"


def _drawn(drawn: "Parted") -> str:
    places = [place for place in drawn.parted_at if place is not None]
    said = f"{len(places)} of {drawn.texts} texts of {drawn.tokens} tokens differ"
    interval = f"[{drawn.differ.low:.0%}, {drawn.differ.high:.0%}]"
    where = f"; equal before: {median(places):g} tokens, the median" if places else ""
    return f"{said} {interval}{where}"


def tensors(style: Style, costs: "Sequence[TensorCost]") -> Iterator[str]:
    """The worst tensors, then sums by kind and by layer, of each format."""
    from cutaway.features.measure.doctor.picture import place_of

    worst = sorted(costs, key=lambda cost: -cost.damage.kl.mean)[:_WORST]
    most = max((cost.damage.kl.mean for cost in worst), default=0.0) or 1.0
    yield ""
    yield f"One tensor at a time, the rest as in BASE; the worst {len(worst)} of {len(costs)}:"
    rows = [("TENSOR", "FORMAT", "SAVES", "KL, nats", "", "FLIPS")]
    for cost in worst:
        kl = cost.damage.kl
        rows.append((
            cost.tensor, cost.format, megabytes(cost.saved), _nats(kl),
            style.bar(max(kl.mean, 0.0) / most, _BAR), f"{cost.damage.flips.mean:.1%}",
        ))  # fmt: skip
    yield from table(rows)
    for format in dict.fromkeys(cost.format for cost in costs):
        mine = [cost for cost in costs if cost.format == format]
        yield from ("", f"{format}: KL of each alone, added up by kind; the line shows its layers")
        yield from _kinds(style, mine, [place_of(cost.tensor) for cost in mine])


def _kinds(
    style: Style, costs: "Sequence[TensorCost]", places: Sequence[tuple[str, int | None]]
) -> Iterator[str]:
    saved, each = Counter[str](), dict[str, list[float]]()
    for (kind, _), cost in zip(places, costs, strict=True):
        saved[kind] += cost.saved
        each.setdefault(kind, []).append(max(cost.damage.kl.mean, 0.0))
    most = max(map(max, each.values())) or 1.0
    sums = {kind: sum(each[kind]) for kind in sorted(each, key=lambda kind: -sum(each[kind]))}
    highest = max(sums.values()) or 1.0
    yield from table([
        (
            kind, f"saves {megabytes(saved[kind])}", f"{total:.2e}",
            style.bar(total / highest, _BAR), style.spark(kl / most for kl in each[kind]),
        )
        for kind, total in sums.items()
    ])  # fmt: skip


def mix(made: "ProposedMix", costs: "Sequence[TensorCost]", doctor: "Doctor") -> Iterator[str]:
    """What is proposed."""
    counts = Counter(made.formats.values())
    stay = len({cost.tensor for cost in costs}) - len(made.formats)
    parts = [f"{count} in {format}" for format, count in counts.most_common()]
    parts += [f"{stay} as in BASE"] if stay else []
    yield ""
    size = f"{megabytes(made.nbytes)} of tensors, {made.nbytes / doctor.nbytes:.0%} of BASE's"
    yield f"Proposed: {size}: {', '.join(parts)}"
    yield f"The KL of each of them alone adds up to {made.kl:.3g} nats"


def _nats(kl: "Estimate") -> str:
    return (
        f"{kl.mean:.2e} [{kl.low:.2e}, {kl.high:.2e}]"
        if kl.high < 1e-3
        else (f"{kl.mean:.4f} [{kl.low:.4f}, {kl.high:.4f}]")
    )


def _percent(share: "Estimate") -> str:
    return f"{share.mean:.1%} [{share.low:.1%}, {share.high:.1%}]"
