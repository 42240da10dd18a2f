"""The cells that a pass looked at, in figures: confidences for the rule, and each cell's record.

All of it is what the sampler noted of a row.
"""

from collections.abc import Sequence as Items

import numpy as np

from cutaway.engine.canvas import Figures, Revealed
from cutaway.engine.events import PassCell
from cutaway.sampling import RowDraw, Sampled
from cutaway.sampling.candidates import Context, LogitsRow
from cutaway.sampling.chain import run_stages
from cutaway.sampling.fixed_math import entropy, exp

CANDIDATES = 3
"""How many of each row's likeliest tokens are needed: two, and the mask, which is left out."""


def figures_of(
    positions: Items[int],
    drawn: Items[Sampled],
    mask_id: int | None,
    after_chain: Items[float] | None = None,
) -> Figures:
    """What a rule looks at.

    after_chain: entropies after the sampling stages; the other figures are then of the distribution
    after the stages, too. None: all are of the model's own distribution
    """
    best, own, entropies = [], [], []
    for one in drawn:
        seen = one.observed
        assert seen is not None
        likely, mine = _likely(one, mask_id), one.logprob
        if after_chain is not None:
            likely = seen.after_chain
            mine = -np.inf if seen.final_logprob is None else seen.final_logprob
        best.append([*(logprob for _, logprob in likely), -np.inf, -np.inf][:2])
        own.append(mine)
        entropies.append(seen.entropy)
    first, second = np.array(best).T
    return Figures(
        np.array(positions, np.int64), exp(np.array(own)), exp(first), exp(second),
        np.array(entropies if after_chain is None else after_chain),
    )  # fmt: skip


def _likely(one: Sampled, mask_id: int | None) -> tuple[tuple[int, float], ...]:
    """The two likeliest tokens except the mask, with their log-probabilities."""
    seen = one.observed
    assert seen is not None
    tokens = [c for c in seen.candidates[:CANDIDATES] if c.id != mask_id][:2]
    return tuple((c.id, c.logit - seen.log_sum_exp) for c in tokens)


def entropy_after_chain(draw: RowDraw, row: LogitsRow) -> float:
    """The entropy of what the sampling stages leave of a row (vocab,), in nats."""
    context = Context(draw.history, draw.mask, draw.seed, draw.place)
    return entropy(run_stages(draw.compiled.chain, row, context)[-1].logits.astype(np.float64))


def cells_of(
    of: Figures,
    revealed: Revealed,
    drawn: Items[Sampled],
    tokens: Items[tuple[int | None, int | None]],
    mask_id: int | None,
) -> tuple[PassCell, ...]:
    """The record of each cell. tokens: its token before and after the pass."""
    positions, figures, entropies = of.positions, revealed.figures, of.entropy
    each = zip(positions.tolist(), drawn, entropies.tolist(), figures.tolist(), tokens, strict=True)
    return tuple(
        PassCell(
            position, one.token_id, one.logprob, nats, value, was, now, one.logits_hash,
            _likely(one, mask_id), one.observed,
        )
        for position, one, nats, value, (was, now) in each
    )  # fmt: skip
