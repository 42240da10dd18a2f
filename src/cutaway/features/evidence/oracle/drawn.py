"""Whether the tokens were drawn with these settings, where the figures do not tell: by likelihood.

An engine that tells its model's own log-probabilities tells nothing of temperature and truncation;
but the tokens themselves are likelier under the settings that they were drawn with.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import fsum

from cutaway.features.evidence.oracle.findings import Finding
from cutaway.features.evidence.oracle.hypotheses import State, searched

_CERTAIN = 7.7  # nats: a ratio of likelihoods whose square root has 4 as its z
_GAP = 0.1  # nats: at temperature 0 a token this far below the likeliest was no tie
_OFTEN = 0.02  # of the tokens: rounding removes single ones


def drawn_otherwise(state: State) -> Iterator[Finding]:
    """What the tokens say of the settings that they were drawn with."""
    readings = [one for each in state.fit.readings for one in each]
    said = state.params.temperature
    if said == 0:
        others = [one for one in readings if one.rank > 1]
        far = sum(gap > _GAP for gap in _gaps(state)) if others else 0
        if far:
            figures = {"tokens": len(readings), "not_the_likeliest": len(others), "far": far}
            yield Finding("temperature", f"{far} tokens are no greedy choice", figures)
        return
    removed = sum(one.final is None for one in readings)
    if removed > max(1, _OFTEN * len(readings)):
        figures = {"tokens": len(readings), "removed": removed}
        words = f"the chain removes {removed} of {len(readings)} tokens"
        yield Finding("truncation", words, figures)
    if removed == 0 and min(one.mass for one in readings) < 1:
        return  # a truncation that keeps them all makes likely tokens likelier at any temperature

    def surprise(temperature: float) -> float:
        """Minus the log-likelihood of all tokens, in nats."""
        fit = state.under(replace(state.params, temperature=temperature)).fit
        return -fsum(one.tempered for each in fit.readings for one in each)

    best = searched(surprise)
    gain = surprise(said) - surprise(best)
    if gain > _CERTAIN:
        words = f"the tokens are likeliest at {best:.2g}, not at {said:g}"
        so = {"temperature": best, "log_likelihood_ratio": gain}
        yield Finding("temperature", words, so)


def _gaps(state: State) -> Iterator[float]:
    """How far each token is below the likeliest in its place, in nats."""
    for told, rows in zip(state.answers, state.rows, strict=True):
        for row, token_id in zip(rows, told.token_ids, strict=True):
            yield float(row.max() - row[token_id])
