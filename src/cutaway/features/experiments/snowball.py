"""Snowball: how one mistake grows in the text after it. ``forks`` defines the measures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.base.progress import Progress, silent
from cutaway.compute.backends import Logits
from cutaway.errors import InputError
from cutaway.requests.completion import Completion
from cutaway.rerun.forks import Fork, Original
from cutaway.rerun.request import UNSTOPPED, bound_to, run_together
from cutaway.rerun.statistics import Curve, Estimate, bands, estimate

CURVES = ("forced", "cost", "free")

_ERRORS = 8


@dataclass(frozen=True, slots=True)
class Snowball:
    """The original text, and its forks in the order of their mistakes."""

    original: Completion
    forks: tuple[Fork, ...]

    @property
    def horizon(self) -> int:
        """How many tokens after a mistake are measured."""
        return len(self.forks[0].forced)

    def mean(self, name: str) -> Curve:
        """The curve "forced", "cost" or "free", averaged over the forks. (horizon,)"""
        curves: Curve = np.array([getattr(fork, name) for fork in self.forks])
        return np.asarray(curves.mean(axis=0))

    def average_bands(self, name: str) -> list[Estimate]:
        """Average a curve in each of ``statistics.bands``, with its interval."""
        curves: Curve = np.array([getattr(fork, name) for fork in self.forks])
        return [estimate(curves[:, band].mean(axis=1)) for band in bands(self.horizon)]

    @property
    def parted(self) -> Curve:
        """The share of forks whose token differs from the original's, at each step. (horizon,)"""
        fork_ids = np.array([fork.token_ids for fork in self.forks])
        original_ids = [self.original.token_ids[f.at + 1 :][: self.horizon] for f in self.forks]
        return np.asarray((fork_ids != np.array(original_ids)).mean(axis=0))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: the original's document, each fork, and the mean curves."""
        means = {name: self.mean(name).tolist() for name in CURVES}
        return {
            "original": self.original.to_dict(),
            "forks": [fork.to_dict() for fork in self.forks],
            "mean": means | {"parted": self.parted.tolist()},
        }


def snowball(
    llm: LLM,
    prompt: str | Sequence[int],
    *,
    errors: int | None = None,
    at: Sequence[int] | None = None,
    max_tokens: int = 64,
    rank: int = 1,
    progress: Progress = silent,
    **options: Any,
) -> Snowball:
    """Generate a text, make a mistake at each of several steps, and measure what follows.

    errors      number of mistakes, each in a fork of its own, spread evenly over the first half;
                by default 8, or as many as fit
    at          the steps of the mistakes, instead of ``errors``
    max_tokens  the tokens of the text, which no stop condition ends. Every fork is measured for as
                many tokens as follow the last mistake
    rank        1: the mistake is the likeliest other token; n: the n-th likeliest. The mistake
                is never an end token
    progress    called with ("writing" or "measuring", tokens done, tokens in all)
    options     of LLM.generate, such as temperature and seed

    Raises InputError for a value out of range.
    """
    places = _places(check_int("max_tokens", max_tokens, 4), errors, at)
    rank, horizon = check_int("rank", rank, 1, 100), max_tokens - 1 - max(places)
    ids = llm.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
    options |= {"max_tokens": max_tokens, **UNSTOPPED}
    total = max_tokens + sum(place + 1 + horizon for place in places)
    (text,) = run_together(llm, [(ids, options)], lambda done: progress("writing", done, total))
    if len(text.token_ids) < max_tokens:
        raise InputError("max_tokens", f": the context has room for {len(text.token_ids)} only")
    bound = bound_to(llm, llm.parse_options(options).interventions, len(ids))
    original, avoid = Original(llm, ids, text.token_ids, bound), [*llm.tokenizer.end_ids]
    beginnings = [_with_mistake(original, place, rank, avoid) for place in places]
    requests = [
        (
            ids,
            options
            | {"seed": text.seed, "forced": beginning, "max_tokens": len(beginning) + horizon},
        )
        for beginning in beginnings
    ]
    texts = run_together(llm, requests, lambda done: progress("writing", max_tokens + done, total))
    forks: list[Fork] = []
    for place, fork in zip(places, texts, strict=True):
        forks.append(original.fork(place, fork.token_ids, horizon))
        progress("measuring", horizon * len(forks), horizon * len(places))
    return Snowball(text, tuple(forks))


def _places(max_tokens: int, errors: int | None, at: Sequence[int] | None) -> list[int]:
    """The steps of the mistakes; at least one token follows each."""
    if at is None:
        half = max_tokens // 2
        errors = min(_ERRORS, half) if errors is None else check_int("errors", errors, 1, half)
        return [half * i // errors for i in range(errors)]
    if errors is not None:
        raise InputError(
            "errors", " says how many mistakes, at where they are: give one of the two"
        )
    if not at:
        raise InputError("at", " must name at least one step")
    return sorted({check_int("at", place, 0, max_tokens - 2) for place in at})


def _with_mistake(original: Original, at: int, rank: int, avoid: list[int]) -> tuple[int, ...]:
    """The text's tokens before a step, then the mistake: the rank-th likeliest other token."""
    row: Logits = original.logits[at].copy()
    row[[original.token_ids[at], *avoid]] = -np.inf
    wrong = int(np.argsort(-row, kind="stable")[rank - 1])
    return (*original.token_ids[:at], wrong)
