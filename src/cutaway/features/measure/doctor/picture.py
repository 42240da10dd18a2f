"""A map of what each tensor costs: layers across, kinds of tensors down, as SVG without scripts."""

import re
from collections.abc import Sequence

from cutaway.base.progress import megabytes
from cutaway.features.measure.doctor.findings import TensorCost
from cutaway.trace.html import Markup, heat, tag

_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.weight)?")
_CELL, _LEFT, _TOP, _ROW, _RIGHT = 18, 170, 44, 20, 90  # pixels


def place_of(tensor: str) -> tuple[str, int | None]:
    """A tensor's kind and its layer: ("attn_q", 3); None where it belongs to no layer."""
    found = _LAYER.fullmatch(tensor)
    return (found[2], int(found[1])) if found else (tensor.removesuffix(".weight"), None)


def map_of_tensors(costs: Sequence[TensorCost], title: str) -> Markup:
    """The mean KL of each tensor: the darker, the more; a row's sum on its right.

    A row has the tensors of one kind and one format.
    """
    places = [(f"{kind} {cost.format}", layer, cost) for kind, layer, cost in _placed(costs)]
    kinds = [*dict.fromkeys(kind for kind, _, _ in places)]
    layers = 1 + max((layer or 0 for _, layer, _ in places), default=0)
    most = max((cost.damage.kl.mean for cost in costs), default=0.0) or 1.0
    width, height = _LEFT + layers * _CELL + _RIGHT, _TOP + len(kinds) * _ROW + 24
    parts = [tag("text", title, x=8, y=18, font_weight="bold")]
    parts += [
        tag("text", str(layer), x=_LEFT + layer * _CELL + 3, y=_TOP - 8, font_size=10)
        for layer in range(0, layers, 5)
    ]
    for row, kind in enumerate(kinds):
        mine = [(layer, cost) for name, layer, cost in places if name == kind]
        y = _TOP + row * _ROW
        total = sum(cost.damage.kl.mean for _, cost in mine)
        parts.append(tag("text", kind, x=8, y=y + 13))
        parts += [_cell(layer or 0, y, cost, most) for layer, cost in mine]
        parts.append(tag("text", f"{total:.2e}", x=_LEFT + layers * _CELL + 8, y=y + 13))
    note = "layers across; each cell: KL in nats of this tensor alone, on the right their sum"
    parts.append(tag("text", note, x=8, y=height - 8, font_size=11))
    return tag(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}",
        width=width, height=height, role="img", aria_label=title, font_family="sans-serif",
        font_size=12, fill="currentColor", style="max-width:100%;background:Canvas;color:CanvasText"
    )  # fmt: skip


def _placed(costs: Sequence[TensorCost]) -> list[tuple[str, int | None, TensorCost]]:
    return [(*place_of(cost.tensor), cost) for cost in costs]


def _cell(layer: int, y: int, cost: TensorCost, most: float) -> Markup:
    kl = cost.damage.kl
    said = (
        f"{cost.tensor}: {cost.base_format} to {cost.format}, saves {megabytes(cost.saved)}; KL "
        f"{kl.mean:.2e} [{kl.low:.2e}, {kl.high:.2e}] nats"
    )
    return tag(
        "rect", tag("title", said), x=_LEFT + layer * _CELL, y=y, width=_CELL - 2, height=_ROW - 3,
        fill=heat((max(kl.mean, 0.0) / most) ** 0.5), stroke="#8888",
    )  # fmt: skip
