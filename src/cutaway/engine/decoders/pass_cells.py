"""The cells of a pass: the figures by which a rule decides, their records, and a block's last draw.

The figures come from what the sampler noted of the cells' rows.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cutaway.base.counting import count_from_1
from cutaway.compute.backends import Logits
from cutaway.engine.canvas import Canvas, Figures, Revealed
from cutaway.engine.events import PassCell
from cutaway.errors import InputError
from cutaway.sampling import CompiledChain, RowDraw, Sampled, sample
from cutaway.sampling.fixed_math import exp

CANDIDATES = 3
"""How many of each row's likeliest tokens are needed: two besides the mask token."""
_BLENDED = 32
"""How many rows are blended at a time, which bounds memory."""


def figures_of(
    positions: Items[int],
    sampled: Items[Sampled],
    mask_id: int | None,
    after_chain: NDArray[np.float64] | None = None,
) -> Figures:
    """Return the figures of cells by which a rule decides.

    after_chain: the cells' entropies after the sampling stages; the other figures then describe the
    distribution after the stages, too. None: all figures describe the model's own distribution
    """
    best, logprobs, entropies, best_ids = [], [], [], []
    for cell_draw in sampled:
        seen = cell_draw.observed
        assert seen is not None
        likely, drawn_logprob = _likely(cell_draw, mask_id), cell_draw.logprob
        if after_chain is not None:
            likely = tuple(seen.after_chain[:2])
            drawn_logprob = -np.inf if seen.final_logprob is None else seen.final_logprob
        best_ids += [likely_id for likely_id, _ in seen.after_chain[:1]]
        best.append([*(logprob for _, logprob in likely), -np.inf, -np.inf][:2])
        logprobs.append(drawn_logprob)
        entropies.append(seen.entropy)
    first, second = np.array(best).T
    return Figures(
        np.array(positions, np.int64), exp(np.array(logprobs)), exp(first), exp(second),
        np.array(entropies) if after_chain is None else after_chain,
        np.array(best_ids, np.int64) if best_ids else None,
    )  # fmt: skip


def _likely(sampled: Sampled, mask_id: int | None) -> tuple[tuple[int, float], ...]:
    """Return the two likeliest tokens except the mask, with their log-probabilities."""
    seen = sampled.observed
    assert seen is not None
    tokens = [c for c in seen.candidates[:CANDIDATES] if c.id != mask_id][:2]
    return tuple((c.id, c.logit - seen.log_sum_exp) for c in tokens)


def blend_rows(blend: Callable[[Logits], Logits], chances: Logits) -> Logits:
    """Return the blends of rows of probabilities (rows, vocab), made for a few rows at a time."""
    starts = range(0, len(chances), _BLENDED)
    return np.concatenate([blend(chances[n : n + _BLENDED]).copy() for n in starts])


def cells_of(
    figures: Figures,
    revealed: Revealed,
    sampled: Items[Sampled],
    tokens: Items[tuple[int | None, int | None, int | None]],
    mask_id: int | None,
) -> tuple[PassCell, ...]:
    """Return the record of each cell.

    tokens: each cell's token before and after the pass, and the one that the pass read where it can
    be noise
    """
    positions, order_figures, entropies = figures.positions, revealed.figures, figures.entropy
    columns = zip(
        positions.tolist(), sampled, entropies.tolist(), order_figures.tolist(), tokens, strict=True
    )
    return tuple(
        PassCell(
            position, draw.token_id, draw.logprob, nats, value, was, now, draw.logits_hash,
            _likely(draw, mask_id), draw.observed, read,
        )
        for position, draw, nats, value, (was, now, read) in columns
    )  # fmt: skip


def finish_block(canvas: Canvas, draws: Items[RowDraw], logits: Logits) -> Exception | None:
    """Give each cell of a finished block its likeliest token after the same stages, without luck.

    Return the error of a row that cannot be drawn.
    """
    compiled, prompt = draws[0].compiled, draws[0].history.prompt_token_ids
    greedy = CompiledChain(compiled.chain, replace(compiled.params, temperature=0), prompt)
    outcomes = sample(logits, [draw._replace(compiled=greedy) for draw in draws])
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            return outcome
    canvas.finish([outcome for outcome in outcomes if isinstance(outcome, Sampled)])
    return None


def unreachable_cell_error(canvas: Canvas) -> InputError | None:
    """Return the error for a cell that is forced in a pass over another block."""
    start, end = canvas.span
    for cell in canvas.forced_tokens.get(canvas.index, {}):
        if not start <= cell < end:
            return InputError(
                "forced_cells",
                f": pass {count_from_1(canvas.index)} reveals cells {count_from_1(start)} to "
                f"{end}, and not cell {count_from_1(cell)}: give another",
            )
    return None
