"""What a change of numbers costs on a text: the figures, and how sure they are.

All divergences are in nats, as in the field (llama-perplexity --kl-divergence). An interval holds
95 %:
* of means and quantiles over positions by a circular block bootstrap (Politis and Romano 1992):
  2,000 texts made of runs of 16 positions, since neighbours read almost the same text;
* of shares of flips and of drawn texts by Wilson's formula (1927), which also holds at 0 and 1.
They speak of this text, of which the positions are a sample, and not of other kinds of text.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import exp
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.rerun.statistics import Estimate, rate

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Of samples (m, n), one figure each: (m,)."""

RUN = 16  # positions that are drawn together
_DRAWS, _AT_ONCE, _SEED = 2000, 100, 0


class Positions(NamedTuple):
    """What a changed model says at each position of a text, beside BASE; (n,) each.

    kl       KL(BASE ‖ changed) over the vocabulary, in nats
    flipped  whether the likeliest token is another
    loss     how much less log-probability the text's next token has, in nats
    overlap  the share of BASE's top k tokens that are the changed model's, too
    """

    kl: Floats
    flipped: NDArray[np.bool_]
    loss: Floats
    overlap: Floats


@dataclass(frozen=True, slots=True)
class Damage:
    """Of a changed model on a text, beside BASE.

    positions   of the text, each with a next token
    kl          mean KL(BASE ‖ changed) in nats; kl_p99: its 99th percentile; kl_most: the largest
    flips       the share of positions whose likeliest token is another
    perplexity_ratio  the changed model's perplexity of the text by BASE's: P(text) to the power of
                -1 / positions
    overlap     mean share of BASE's ``top`` likeliest tokens that are the changed model's, too
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
    def of(cls, found: Positions, top: int) -> Self:
        """Of one text's positions."""
        count, loss = len(found.kl), bootstrap(found.loss, _mean)
        ratio = Estimate(exp(loss.mean), exp(loss.low), exp(loss.high))
        return cls(
            count, bootstrap(found.kl, _mean), bootstrap(found.kl, _p99), float(found.kl.max()),
            rate(int(found.flipped.sum()), count), ratio, bootstrap(found.overlap, _mean), top,
        )  # fmt: skip

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Self:
        """What ``to_dict`` gave."""
        read: dict[str, Any] = {
            key: Estimate(**each) if isinstance(each, dict) else each for key, each in found.items()
        }
        return cls(**read)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def bootstrap(values: Floats, statistic: Statistic) -> Estimate:
    """A statistic of a series (n,), and its interval by the circular block bootstrap."""
    rng, n = np.random.default_rng(_SEED), len(values)
    found, run = [], min(RUN, n)
    for _ in range(_DRAWS // _AT_ONCE):
        begins = rng.integers(0, n, (_AT_ONCE, -(-n // run), 1))
        places = (begins + np.arange(run)).reshape(_AT_ONCE, -1)[:, :n] % n
        found.append(statistic(values[places]))
    low, high = np.quantile(np.concatenate(found), (0.025, 0.975))
    return Estimate(float(statistic(values[None])[0]), float(low), float(high))


def _mean(samples: Floats) -> Floats:
    mean: Floats = samples.mean(axis=1)
    return mean


def _p99(samples: Floats) -> Floats:
    return np.quantile(samples, 0.99, axis=1)
