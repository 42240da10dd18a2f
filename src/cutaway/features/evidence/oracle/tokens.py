"""A token that is not the one the engine wrote: found where what was told parts from the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.features.evidence.oracle.fit import Fit
from cutaway.features.evidence.oracle.reading import Kind, TokenReading, read, rows_of
from cutaway.features.evidence.oracle.told import Told
from cutaway.sampling import SamplingParams

_OUTLIER = 12.0  # times the median |delta| of the answer up to it
_LEAST = 0.5  # nats: no smaller one is an outlier
_TRIED = 6  # tokens whose log-probability is nearest to what was told
_LATER = 4  # tokens after it that must fit better, if there are so many
_LIKELY = -3.0  # a token at the end, which nothing later confirms, must have been told above this

Row = NDArray[Any]
Restored = tuple[tuple[Told, ...], str, Mapping[str, Any]]


def restored(
    llm: LLM, fit: Fit, rows: Sequence[Logits], params: SamplingParams
) -> Iterator[Restored]:
    """The answers with changed tokens put back, in words, and the figures; nothing if none is."""
    answers, words, evidence = [*fit.answers], list[str](), list[dict[str, Any]]()
    for n, (told, reading) in enumerate(zip(fit.answers, fit.readings, strict=True)):
        one = Fit((told,), (reading,))
        if (at := _first_outlier(one, fit.kind)) is None:
            continue
        nearest = _log_probs(rows[n][at], params, reading[at], fit.kind)
        if found := _put_back(llm, one, at, nearest, params=params, kind=fit.kind):
            answers[n], figures = found
            was, now = (llm.tokenizer.token_name(i) for i in (told.token_ids[at], figures["id"]))
            words.append(f"answer {n}, token {at}: {now!r} was written, {was!r} stands there")
            evidence.append({"answer": n, "token": at, **figures})
    if words:
        yield tuple(answers), "; ".join(words[:3]), {"tokens": evidence}


def _first_outlier(one: Fit, kind: Kind) -> int | None:
    """Where |delta| of an answer is first far above what it was before."""
    if None in one.answers[0].logprobs:
        return None  # positions of sizes are those of tokens where all are told
    sizes = one.sizes(kind)
    for at, size in enumerate(sizes):
        before = sizes[:at] if at >= 4 else sizes
        if size > max(_LEAST, _OUTLIER * median(before)):
            return at
    return None


def _put_back(
    llm: LLM, one: Fit, at: int, row: Row, *, params: SamplingParams, kind: Kind
) -> tuple[Told, dict[str, Any]] | None:
    [told] = one.answers
    said, old = told.logprobs[at], one.sizes(kind)
    assert said is not None
    nearest = islice(np.argsort(np.abs(row - said), kind="stable").tolist(), _TRIED)
    found: list[tuple[float, Told, dict[str, Any]]] = []
    for token_id in {*nearest, int(row.argmax())} - {told.token_ids[at]}:
        ids = (*told.token_ids[:at], token_id, *told.token_ids[at + 1 :])
        other = replace(told, token_ids=ids)
        new = Fit((other,), (tuple(read(rows_of(llm, other), other, params)),)).sizes(kind)
        if _explains(old, new, at, said):
            figures = {
                "id": token_id, "told": said, "of_it": float(row[token_id]),
                "of_what_stands_there": float(row[told.token_ids[at]]),
                "later_mean_abs_as_said": _mean(old[at + 1 :]),
                "later_mean_abs_so": _mean(new[at + 1 :]),
            }  # fmt: skip
            found.append((sum(new), other, figures))
    best = min(found, key=lambda each: each[0], default=None)
    return best and best[1:]


def _explains(old: list[float], new: list[float], at: int, said: float) -> bool:
    if new[at] > old[at] / 4:
        return False
    before, after = old[at + 1 :], new[at + 1 :]
    if len(after) >= _LATER:
        return sum(after) < 0.6 * sum(before)
    return said > _LIKELY


def _mean(sizes: Sequence[float]) -> float | None:
    return sum(sizes) / len(sizes) if sizes else None


def _log_probs(row: Row, params: SamplingParams, read: TokenReading, kind: Kind) -> Row:
    """What each token would have had told there: (vocab,); penalties are left out."""
    wide: Row = row.astype(np.float64)
    if kind != "raw":
        wide = wide / (params.temperature or 1.0)
    wide = wide - wide.max()
    wide -= np.log(np.exp(wide).sum())
    if kind == "final":
        wide -= np.log(max(read.mass, 1e-9))
    return wide
