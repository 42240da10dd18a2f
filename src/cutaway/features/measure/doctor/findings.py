"""The damage of a quantisation on a text: its figures, their intervals, and a map of tensors.

All divergences are in nats, as in the field (llama-perplexity --kl-divergence). Intervals are 95 %:
* for means and quantiles over positions, by a circular block bootstrap (Politis and Romano 1992):
  2,000 texts made of runs of 16 positions, since neighbours read almost the same text;
* for shares of flips and of drawn texts, by Wilson's formula (1927), which also holds at 0 and 1.
The intervals hold for this kind of text, since the positions are a sample of it. They do not hold
for other kinds of text.

A token is argmax(logit + noise of (seed, position, token)), so two models that agree draw the same
text. Where a pair of texts with the same luck differs, the change moved a draw. Each pair continues
another place of the user's text, with a seed of its own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import exp
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base.checks import check_choice
from cutaway.base.progress import megabytes
from cutaway.compute.backends import check_kv
from cutaway.errors import CutawayError, InputError
from cutaway.files.weights.mixes import MIXES
from cutaway.requests.completion import Completion
from cutaway.rerun.request import UNSTOPPED
from cutaway.rerun.statistics import Estimate, rate
from cutaway.trace.html import Markup, heat, tag

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Turns m samples, (m, n), into a figure for each sample, (m,)."""

RUN = 16  # positions in a block of the bootstrap
_DRAWS, _AT_ONCE, _SEED = 2000, 100, 0


class Positions(NamedTuple):
    """A changed model, compared with BASE at each of the n positions of a text; each field is (n,).

    kl       KL(BASE ‖ changed) over the vocabulary, in nats
    flipped  whether the two models have different likeliest tokens
    loss     the drop of the next token's log-probability, in nats
    overlap  the share of BASE's top k tokens that are also the changed model's
    """

    kl: Floats
    flipped: NDArray[np.bool_]
    loss: Floats
    overlap: Floats


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage of a change, measured on a text against BASE.

    positions   how many positions of the text have a next token
    kl          mean KL(BASE ‖ changed) in nats; kl_p99: its 99th percentile; kl_most: the largest
    flips       the share of positions at which the two models have different likeliest tokens
    perplexity_ratio  the changed model's perplexity of the text divided by BASE's; a perplexity is
                P(text) to the power of -1 / positions
    overlap     mean share of BASE's ``top`` likeliest tokens that are also the changed model's
    """

    positions: int
    kl: Estimate
    kl_p99: Estimate
    kl_most: float
    flips: Estimate
    perplexity_ratio: Estimate
    overlap: Estimate
    top: int

    @classmethod
    def from_positions(cls, positions: Positions, top: int) -> Self:
        """Compute the figures from a text's positions."""
        count, loss = len(positions.kl), bootstrap(positions.loss, _mean)
        ratio = Estimate(exp(loss.mean), exp(loss.low), exp(loss.high))
        return cls(
            count, bootstrap(positions.kl, _mean), bootstrap(positions.kl, _p99),
            float(positions.kl.max()), rate(int(positions.flipped.sum()), count), ratio,
            bootstrap(positions.overlap, _mean), top,
        )  # fmt: skip

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """Read a document that ``to_dict`` made."""
        read: dict[str, Any] = {
            key: Estimate(**entry) if isinstance(entry, dict) else entry
            for key, entry in document.items()
        }
        return cls(**read)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def bootstrap(values: Floats, statistic: Statistic) -> Estimate:
    """Estimate a statistic of a series (n,), with its interval by circular block bootstrap."""
    rng, n = np.random.default_rng(_SEED), len(values)
    figures, run = [], min(RUN, n)
    for _ in range(_DRAWS // _AT_ONCE):
        begins = rng.integers(0, n, (_AT_ONCE, -(-n // run), 1))
        places = (begins + np.arange(run)).reshape(_AT_ONCE, -1)[:, :n] % n
        figures.append(statistic(values[places]))
    low, high = np.quantile(np.concatenate(figures), (0.025, 0.975))
    return Estimate(float(statistic(values[None])[0]), float(low), float(high))


def _mean(samples: Floats) -> Floats:
    mean: Floats = samples.mean(axis=1)
    return mean


def _p99(samples: Floats) -> Floats:
    return np.quantile(samples, 0.99, axis=1)


# -- pairs of texts drawn with the same luck: do they part, and where ------------------------------


Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parted:
    """Pairs of texts; BASE and the changed model drew each pair with the same luck.

    texts, tokens  how many pairs there are, and how many tokens each text has
    differ     the share of pairs whose two texts differ
    parted_at  for each pair, how many tokens are equal before the first difference; None where the
               texts are equal
    """

    texts: int
    tokens: int
    differ: Estimate
    parted_at: tuple[int | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def prompt_length(window: int) -> int:
    """The most tokens of the user's text in the prompt of a draw, for windows of this size."""
    return min(64, window // 2)


def prompts(texts: Sequence[Ids], count: int, length: int) -> list[Ids]:
    """Take ``count`` prompts of at most ``length`` tokens, evenly spread over the user's text."""
    places = [
        (w, end)
        for w, ids in enumerate(texts)
        for end in range(min(length, len(ids)), len(ids) + 1)
    ]
    spread = [places[i * len(places) // count] for i in range(count)]
    return [texts[w][max(end - length, 0) : end] for w, end in spread]


def draw(
    llm: LLM,
    begins: Sequence[Ids],
    tokens: int,
    temperature: float,
    tell: Callable[[int], object] = int,
) -> list[Ids]:
    """Draw a text of ``tokens`` tokens after each prompt; a prompt's index is its seed."""
    texts: list[Ids] = [()] * len(begins)
    requests = (([*ids], {"seed": seed}) for seed, ids in enumerate(begins))
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": temperature, **UNSTOPPED}
    for done, (index, text) in enumerate(llm.generate_each(requests, **options), 1):
        if isinstance(text, CutawayError):
            raise text
        assert isinstance(text, Completion)  # each request asks for one text
        texts[index] = text.token_ids
        tell(done)
    return texts


def compare_texts(of_base: Sequence[Ids], changed: Sequence[Ids], tokens: int) -> Parted:
    """Find the first difference of each pair of texts."""
    places = [_first_difference(a, b) for a, b in zip(of_base, changed, strict=True)]
    differ = rate(sum(place is not None for place in places), len(places))
    return Parted(len(places), tokens, differ, tuple(places))


def _first_difference(first: Ids, second: Ids) -> int | None:
    equal = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if equal is None and len(first) != len(second):
        return min(len(first), len(second))
    return equal


# -- changes of a model, and the results of each ---------------------------------------------------


ModelPath = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A change of BASE: another file of weights, or another format of its weights or KV cache.

    quant     a file or name of the same model with other weights
    quantize  a format of ``cutaway quantize`` for BASE's matrices
    kv        the format of keys and values, as for ``LLM``
    """

    quant: ModelPath | None = None
    quantize: str | None = None
    kv: str = "f16"

    def __post_init__(self) -> None:
        if self.quantize is not None:
            check_choice("formats", self.quantize, tuple(MIXES))
        object.__setattr__(self, "kv", check_kv(self.kv))
        if self.quant is not None and self.quantize is not None:
            raise InputError(
                "formats", ": they are of BASE's own weights: leave QUANT or formats out"
            )

    @property
    def name(self) -> str:
        """The change's name in a table: "q4_1", "model-q4_1.gguf", "kv q8_0"."""
        parts = [] if self.quant is None else [Path(self.quant).name]
        parts += [] if self.quantize is None else [self.quantize]
        return " ".join([*parts, *([] if self.kv == "f16" and parts else [f"kv {self.kv}"])])


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A whole change's damage.

    nbytes    the bytes of all tensors
    kv_bytes  the bytes of a token's keys and values
    """

    change: str
    nbytes: int
    kv_bytes: int
    damage: Damage
    drawn: Parted | None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TensorCost:
    """One tensor in another format, while all other tensors are as in BASE.

    base_*: the tensor's format and bytes in BASE
    """

    tensor: str
    format: str
    base_format: str
    nbytes: int
    base_nbytes: int
    damage: Damage

    @property
    def saved(self) -> int:
        """Bytes that the format saves."""
        return self.base_nbytes - self.nbytes

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {"saved": self.saved}


# -- a map: layers across, kinds of tensors down, as SVG without scripts ---------------------------


_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.weight)?")
_CELL, _LEFT, _TOP, _ROW, _RIGHT = 18, 170, 44, 20, 90  # pixels


def place_of(tensor: str) -> tuple[str, int | None]:
    """A tensor's kind and layer, such as ("attn_q", 3); the layer is None outside of layers."""
    match = _LAYER.fullmatch(tensor)
    return (match[2], int(match[1])) if match else (tensor.removesuffix(".weight"), None)


def map_of_tensors(costs: Sequence[TensorCost], title: str) -> Markup:
    """Draw a map of each tensor's mean KL: darker is larger. A row's sum is on its right.

    A row has the tensors of one kind and one format, a column those of one layer.
    """
    places = [(f"{kind} {cost.format}", layer, cost) for kind, layer, cost in _place_tensors(costs)]
    kinds = [*dict.fromkeys(kind for kind, _, _ in places)]
    layers = 1 + max((layer or 0 for _, layer, _ in places), default=0)
    largest = max((cost.damage.kl.mean for cost in costs), default=0.0) or 1.0
    width, height = _LEFT + layers * _CELL + _RIGHT, _TOP + len(kinds) * _ROW + 24
    parts = [tag("text", title, x=8, y=18, font_weight="bold")]
    parts += [
        tag("text", str(layer), x=_LEFT + layer * _CELL + 3, y=_TOP - 8, font_size=10)
        for layer in range(0, layers, 5)
    ]
    for row, kind in enumerate(kinds):
        row_costs = [(layer, cost) for name, layer, cost in places if name == kind]
        y = _TOP + row * _ROW
        total = sum(cost.damage.kl.mean for _, cost in row_costs)
        parts.append(tag("text", kind, x=8, y=y + 13))
        parts += [_cell(layer or 0, y, cost, largest) for layer, cost in row_costs]
        parts.append(tag("text", f"{total:.2e}", x=_LEFT + layers * _CELL + 8, y=y + 13))
    note = "layers across; each cell: KL in nats of this tensor alone, on the right their sum"
    parts.append(tag("text", note, x=8, y=height - 8, font_size=11))
    return tag(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}",
        width=width, height=height, role="img", aria_label=title, font_family="sans-serif",
        font_size=12, fill="currentColor", style="max-width:100%;background:Canvas;color:CanvasText"
    )  # fmt: skip


def _place_tensors(costs: Sequence[TensorCost]) -> list[tuple[str, int | None, TensorCost]]:
    return [(*place_of(cost.tensor), cost) for cost in costs]


def _cell(layer: int, y: int, cost: TensorCost, largest: float) -> Markup:
    kl = cost.damage.kl
    label = (
        f"{cost.tensor}: {cost.base_format} to {cost.format}, saves {megabytes(cost.saved)}; KL "
        f"{kl.mean:.2e} [{kl.low:.2e}, {kl.high:.2e}] nats"
    )
    return tag(
        "rect", tag("title", label), x=_LEFT + layer * _CELL, y=y, width=_CELL - 2, height=_ROW - 3,
        fill=heat((max(kl.mean, 0.0) / largest) ** 0.5), stroke="#8888",
    )  # fmt: skip
