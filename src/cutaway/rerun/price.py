"""Price: what revealing the cells of a pass together costs, compared with one at a time.

The cells of one pass are drawn independently. Here the tokens of each pass are put into the same
canvas one after the other, in the order of the rule, and each is scored again given those before
it. What the tokens lose in probability is the price.

The bound of a pass is the sum of its cells' entropies less the largest. It bounds the total
correlation of tokens drawn one at a time, a mean, and not the price of one draw.
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
    bound     the most that drawing them together can cost on average
    """

    index: int
    cells: int
    together: float
    apart: float
    bound: float

    @property
    def price(self) -> float:
        """``apart`` - ``together``."""
        return self.apart - self.together


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of all passes of a canvas."""

    passes: tuple[PassPrice, ...]

    @property
    def price(self) -> float:
        """The sum over all passes, in bits."""
        return sum(one.price for one in self.passes)

    @property
    def bound(self) -> float:
        """The sum of their bounds."""
        return sum(one.bound for one in self.passes)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        each = [asdict(one) | {"price": one.price} for one in self.passes]
        return {"price": self.price, "bound": self.bound, "passes": each}


def price(
    llm: LLM,
    prompt_token_ids: Sequence[int],
    passes: Sequence[Pass],
    *,
    suffix_ids: Sequence[int] = (),
    progress: Progress = silent,
) -> Price:
    """The price of a canvas after this prompt: of ``Completion.passes``, or those of a trace.

    suffix_ids: tokens after the canvas; progress: called with ("reading", passes done, of how many)

    Raises InputError where there are no passes, or the model names no mask.
    """
    if not passes:
        raise InputError("there are no passes to price: reveal a canvas, with denoise")
    mask = llm.tokenizer.mask_id
    if mask is None:
        raise InputError("this model names no mask token, so it has no canvas to reveal")
    found = []
    prompt, attention = list(prompt_token_ids), llm.config.attention
    for made, text in _states(passes, prompt, mask, list(suffix_ids), attention):
        found.append(_price(llm, made, text))
        progress("reading", len(found), len(passes))
    return Price(tuple(found))


def price_of_trace(llm: LLM, trace: Trace, *, progress: Progress = silent) -> Price:
    """The price of a recorded canvas.

    Raises InputError where the trace is not of a canvas, or of another vocabulary, or the run had
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
    """Each pass, and the token ids that it was computed from."""
    # With bidirectional attention the first pass computes all blocks, also those never revealed.
    whole = attention == "bidirectional"
    end = passes[0].rows - len(suffix) if whole else max(one.block[1] for one in passes)
    text = [*prompt, *[mask] * (end - len(prompt))]
    for one in passes:
        yield one, [*text, *suffix] if whole else text[: one.block[1]]
        for position, token_id in one.tokens_after.items():
            text[position] = mask if token_id is None else token_id


def _price(llm: LLM, made: Pass, text: list[int]) -> PassPrice:
    cells = sort_by_figure(made.revealed)
    together = sum(bits(cell.logprob) for cell in cells)
    texts, filled = [], list(text)
    for before, cell in pairwise(cells):
        filled[before.position] = before.token_id
        texts.append((tuple(filled), (cell.position,)))
    rows = llm.logits_at(texts)
    apart = sum(
        bits(logprob_of(row[0], cell.token_id)) for row, cell in zip(rows, cells[1:], strict=True)
    )
    first = bits(cells[0].logprob) if cells else 0.0
    return PassPrice(made.index, len(cells), together, first + apart, to_bits(made.bound))
