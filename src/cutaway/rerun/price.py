"""Price: what it costs to reveal the cells of a pass together, compared with one at a time.

The cells of one pass are drawn independently. Here the tokens of each pass are put into the same
canvas one after the other, in the order of the rule, and each is scored again given the tokens
before it. The price is what the tokens lose in probability.

The bound of a pass is the sum of its cells' entropies minus the largest one. It bounds a mean, the
total correlation of tokens drawn one at a time, and not the price of one draw.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from cutaway.api.llm import LLM
from cutaway.base.progress import Progress, silent
from cutaway.engine import Pass
from cutaway.errors import InputError
from cutaway.methods.rows import logprob_of
from cutaway.rerun.request import check_vocabulary
from cutaway.trace import Trace
from cutaway.trace.canvas import check_canvas, sort_by_figure
from cutaway.trace.figures import bits, to_bits


@dataclass(frozen=True, slots=True)
class PassPrice:
    """The tokens that one pass revealed, in bits.

    together  their surprise as they were drawn
    apart     their surprise one after the other
    bound     the largest average cost of drawing them together
    """

    index: int
    cells: int
    together: float
    apart: float
    bound: float

    @property
    def price(self) -> float:
        """The price of the pass: ``apart`` - ``together``."""
        return self.apart - self.together


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of all passes of a canvas."""

    passes: tuple[PassPrice, ...]

    @property
    def price(self) -> float:
        """The sum of the passes' prices, in bits."""
        return sum(pass_price.price for pass_price in self.passes)

    @property
    def bound(self) -> float:
        """The sum of the passes' bounds."""
        return sum(pass_price.bound for pass_price in self.passes)

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        passes = [asdict(pass_price) | {"price": pass_price.price} for pass_price in self.passes]
        return {"price": self.price, "bound": self.bound, "passes": passes}


def price(
    llm: LLM,
    prompt_token_ids: Sequence[int],
    passes: Sequence[Pass],
    *,
    suffix_ids: Sequence[int] = (),
    progress: Progress = silent,
) -> Price:
    """Return the price of a canvas after this prompt.

    passes: those of a ``Completion``, or of a trace
    suffix_ids: tokens after the canvas; progress: called with ("reading", passes done, all passes)

    Raises InputError if there are no passes, the canvas is one of noise, a cell has another token
    than the drawn one, or the model has no mask.
    """
    if not passes:
        raise InputError("there are no passes to price: reveal a canvas, with denoise")
    if any(cell.read is not None for canvas_pass in passes for cell in canvas_pass.cells):
        raise InputError(
            "a canvas of noise has no parallel loss: its cells hold random tokens until they are "
            "revealed, and the loss is measured with masks"
        )
    cells = (cell for canvas_pass in passes for cell in canvas_pass.cells)
    if any(cell.now not in (None, cell.was, cell.token_id) for cell in cells):
        raise InputError(
            "a canvas of remask 'unchosen' has no parallel loss: its last pass gives each cell its "
            "likeliest token, and the loss is of drawn ones"
        )
    mask = llm.tokenizer.mask_id
    if mask is None:
        raise InputError("this model names no mask token, so it has no canvas to reveal")
    prices = []
    prompt, attention = list(prompt_token_ids), llm.config.attention
    for canvas_pass, text in _states(passes, prompt, mask, list(suffix_ids), attention):
        prices.append(_price(llm, canvas_pass, text))
        progress("reading", len(prices), len(passes))
    return Price(tuple(prices))


def price_of_trace(llm: LLM, trace: Trace, *, progress: Progress = silent) -> Price:
    """Return the price of a recorded canvas.

    Raises InputError if the trace is not of a canvas, or of another vocabulary, or the run had
    interventions.
    """
    head = trace.head
    check_canvas(trace)
    assert head.decoder is not None
    check_vocabulary(llm, trace)
    if head.interventions:
        raise InputError("the run had interventions: a price is of the plain model")
    if head.decoder.attention != llm.config.attention:
        raise InputError(
            f"attention of the model on record is {head.decoder.attention!r}, and of {llm.name} "
            f"{llm.config.attention!r}: use the same model"
        )
    return price(
        llm,
        head.prompt_token_ids,
        trace.passes,
        suffix_ids=head.decoder.suffix_ids,
        progress=progress,
    )


def _states(
    passes: Sequence[Pass], prompt: list[int], mask: int, suffix: list[int], attention: str | int
) -> Iterator[tuple[Pass, list[int]]]:
    """Yield each pass, and the token ids that it was computed from."""
    # With bidirectional attention the first pass computes all blocks, also those never revealed.
    whole = attention == "bidirectional"
    end = (
        passes[0].rows - len(suffix)
        if whole
        else max(canvas_pass.block[1] for canvas_pass in passes)
    )
    text = [*prompt, *[mask] * (end - len(prompt))]
    for canvas_pass in passes:
        yield canvas_pass, [*text, *suffix] if whole else text[: canvas_pass.block[1]]
        for position, token_id in canvas_pass.tokens_after.items():
            text[position] = mask if token_id is None else token_id


def _price(llm: LLM, canvas_pass: Pass, text: list[int]) -> PassPrice:
    cells = sort_by_figure(canvas_pass.revealed)
    together = sum(bits(cell.logprob) for cell in cells)
    texts, canvas = [], list(text)
    for before, cell in pairwise(cells):
        canvas[before.position] = before.token_id
        texts.append((tuple(canvas), (cell.position,)))
    rows = llm.logits_at(texts)
    apart = sum(
        bits(logprob_of(row[0], cell.token_id)) for row, cell in zip(rows, cells[1:], strict=True)
    )
    first = bits(cells[0].logprob) if cells else 0.0
    return PassPrice(
        canvas_pass.index, len(cells), together, first + apart, to_bits(canvas_pass.bound)
    )
