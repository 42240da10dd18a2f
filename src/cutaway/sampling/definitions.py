"""Definitions of the stages of the chain (temperature, top-k, top-p, …), a function for each.

Candidates are ids and their processed logits, on the way from a row of logits to a token. This
NumPy code is the definition; native/sampler_stages.cpp gives the same bits. docs/sampling.md has
the sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError, InputError
from cutaway.sampling.fixed_math import exp, ordered_sum, scalar_log
from cutaway.sampling.luck import coin

LogitsRow = NDArray[np.float32]


class NothingAllowedError(CutawayError):
    """A constraint allows none of the tokens that are left."""


class History(NamedTuple):
    """The tokens that penalties read."""

    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()

    @property
    def token_ids(self) -> list[int]:
        """The prompt's tokens and the output's, in the order of the text."""
        return [*self.prompt_token_ids, *self.output_token_ids]


class Context(NamedTuple):
    """The inputs of a stage besides the logits.

    mask            a bit per token id, in words of 32 (ceil(vocab / 32),), set where the token is
                    allowed; None allows all
    seed, place     of the draw; its luck is a function of them
    """

    history: History
    mask: NDArray[np.uint32] | None = None
    seed: int = 0
    place: int = 0


@dataclass(slots=True)
class Candidates:
    """Token ids, ascending, (n,), and their processed logits, (n,)."""

    ids: NDArray[np.int64]
    logits: LogitsRow

    @classmethod
    def all_of(cls, logits: LogitsRow) -> Self:
        """Return every token of a row (vocab,)."""
        return cls(np.arange(len(logits), dtype=np.int64), logits)

    def best_first(self) -> NDArray[np.int64]:
        """Return indices from the highest logit down; ties go to the lowest id."""
        return np.argsort(-self.logits, kind="stable")

    def find(self, token_id: int) -> int | None:
        """Return the index of the candidate with this id; None if there is none."""
        at = int(np.searchsorted(self.ids, token_id))
        return at if at < len(self.ids) and self.ids[at] == token_id else None

    def depths(self) -> NDArray[np.float64]:
        """How far each logit is below the highest, (n,)."""
        wide = self.logits.astype(np.float64)
        depths: NDArray[np.float64] = wide.max() - wide
        return depths

    def weights(self) -> NDArray[np.float64]:
        """exp(logit - max), (n,): probabilities before they are divided by their sum."""
        return exp(-self.depths())

    def keep(self, selection: NDArray[Any]) -> "Candidates":
        """Select candidates by ascending indices, or by a mask (n,)."""
        return Candidates(self.ids[selection], self.logits[selection])


# -- the stages ------------------------------------------------------------------------------------

Rule = Mapping[str, Any]

MAX_REPEAT = 1e30
"""The most that DRY subtracts, before its multiplier: it outweighs any logit, and fits float32."""


def logit_bias(c: Candidates, rule: Rule, _: Context) -> Candidates:
    """Add to the logits of some tokens."""
    logits = c.logits.copy()
    for token_id, bias in rule["bias"].items():
        logits[c.ids == token_id] += np.float32(bias)
    return Candidates(c.ids, logits)


def penalties(c: Candidates, rule: Rule, context: Context) -> Candidates:
    """Make tokens of the prompt and the output less likely."""
    logits, history = c.logits.copy(), context.history
    seen = np.isin(c.ids, history.token_ids)
    factor = np.float32(rule["repetition"])
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    output, counts = np.unique(np.array(history.output_token_ids, np.int64), return_counts=True)
    is_candidate = np.isin(output, c.ids)
    indices = np.searchsorted(c.ids, output[is_candidate])
    logits[indices] -= np.float32(rule["presence"])
    logits[indices] -= np.float32(rule["frequency"]) * counts[is_candidate].astype(np.float32)
    return Candidates(c.ids, logits)


def dry(c: Candidates, rule: Rule, context: Context) -> Candidates:
    """Make tokens less likely that would continue a repetition (DRY)."""
    logits = c.logits.copy()
    recent = context.history.token_ids
    if rule["last_n"] >= 0:
        recent = recent[max(len(recent) - rule["last_n"], 0) :]
    breakers = frozenset(rule["breakers"])
    for token_id, length in repeats(recent, breakers).items():
        at = c.find(token_id)
        if at is not None and length >= rule["allowed_length"]:
            strength = repeat_strength(rule["base"], length - rule["allowed_length"])
            logits[at] -= np.float32(rule["multiplier"] * strength)
    return Candidates(c.ids, logits)


def repeats(tokens: Sequence[int], breakers: frozenset[int]) -> dict[int, int]:
    """Return, for each token after an earlier copy of the text's ending, that ending's length.

    The longest ending counts. It does not reach back over a breaker. Breakers are left out.
    """
    end = len(tokens)
    lengths: dict[int, int] = {}
    limit = next((n for n, t in enumerate(reversed(tokens)) if t in breakers), end)
    for follower in range(1, end):
        length = 0
        while (
            length < min(limit, follower)
            and tokens[follower - 1 - length] == tokens[end - 1 - length]
        ):
            length += 1
        token_id = tokens[follower]
        if length and token_id not in breakers:
            lengths[token_id] = max(lengths.get(token_id, 0), length)
    return lengths


def repeat_strength(base: float, beyond: int) -> float:
    """Return base ** beyond by repeated multiplication, at most ``MAX_REPEAT``."""
    strength = 1.0
    for _ in range(beyond):
        if strength * base > MAX_REPEAT or strength * base == strength:
            break
        strength *= base
    return strength


def processors(c: Candidates, rule: Rule, context: Context) -> Candidates:
    """Let the user's own functions change the logits; minus infinity removes a token."""
    tokens, logits = context.history.token_ids, c.logits
    for processor in rule["processors"]:  # each gets copies, which it may change
        logits = _as_row(processor(list(tokens), logits.copy()), c.logits.shape)
    if np.isneginf(logits).all():
        raise InputError("processors", " must leave at least one token above minus infinity")
    return Candidates(c.ids, logits).keep(~np.isneginf(logits))


def _as_row(processed: Any, shape: tuple[int, ...]) -> LogitsRow:
    try:
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity
            row: LogitsRow = np.asarray(processed, np.float32)
    except (TypeError, ValueError, OverflowError):
        row = np.empty(0, np.float32)
    if row.shape != shape or np.isnan(row).any() or np.isposinf(row).any():
        raise InputError(
            "processors", " must return one logit per token, none of them NaN or plus infinity"
        )
    return row


def constraint(c: Candidates, _: Rule, context: Context) -> Candidates:
    """Keep the tokens whose bits are set in the mask."""
    if context.mask is None:
        return c
    word, bit = np.divmod(c.ids, 32)
    allowed = context.mask[word] >> bit.astype(np.uint32) & np.uint32(1)
    if not allowed.any():
        raise NothingAllowedError
    return c.keep(allowed == 1)


def temperature(c: Candidates, rule: Rule, _: Context) -> Candidates:
    """Divide the logits by the temperature."""
    return Candidates(c.ids, c.logits / np.float32(rule["temperature"]))


def top_k(c: Candidates, rule: Rule, _: Context) -> Candidates:
    """Keep the k likeliest tokens."""
    return c.keep(np.sort(c.best_first()[: rule["k"]]))


def top_p(c: Candidates, rule: Rule, _: Context) -> Candidates:
    """Keep the fewest likeliest tokens whose probabilities together reach p."""
    return _reach(c, c.best_first(), rule["p"])


def typical(c: Candidates, rule: Rule, _: Context) -> Candidates:
    """Keep the fewest tokens that reach p, those whose surprise is nearest the entropy first."""
    weights, depths = c.weights(), c.depths()
    # -log p = depth + log Σ weights, and the entropy is their mean: the logarithm cancels.
    mean = ordered_sum(weights * depths) / ordered_sum(weights)
    return _reach(c, np.argsort(np.abs(depths - mean), kind="stable"), rule["p"])


def _reach(c: Candidates, order: NDArray[np.int64], p: float) -> Candidates:
    """Keep the first tokens in this order that together reach the mass p."""
    weights = c.weights()
    reached = np.cumsum(weights[order]) >= p * ordered_sum(weights)
    count = int(np.argmax(reached)) + 1 if reached.any() else len(order)
    return c.keep(np.sort(order[:count]))


def min_p(c: Candidates, rule: Rule, _: Context) -> Candidates:
    """Keep the tokens that are at least p times as likely as the likeliest token."""
    return c.keep(-c.depths() >= scalar_log(rule["p"]))


def top_n_sigma(c: Candidates, rule: Rule, _: Context) -> Candidates:
    """Keep tokens whose logits are within n standard deviations of the highest."""
    wide = c.logits.astype(np.float64)
    away = wide - ordered_sum(wide) / len(wide)
    sigma = float(np.sqrt(ordered_sum(away * away) / len(wide)))
    return c.keep(-c.depths() >= -(rule["n"] * sigma))


def xtc(c: Candidates, rule: Rule, context: Context) -> Candidates:
    """Remove, if a coin says so, all tokens that reach the threshold except the least likely."""
    if coin(context.seed, context.place) >= rule["probability"]:
        return c
    weights, order = c.weights(), c.best_first()
    count = int(np.count_nonzero(weights >= rule["threshold"] * ordered_sum(weights)))
    return c.keep(np.sort(order[max(count - 1, 0) :]))
