"""Vectors of texts: the last layer's rows, pooled, cut to size and normalized."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_bool, check_choice, check_int
from cutaway.compute.model import POOLINGS
from cutaway.engine import Embed, Embedded, Event, Request
from cutaway.errors import InputError, TooLongError
from cutaway.requests.base import limits_of
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask
from cutaway.requests.prompts import check_prompt, one_or_many
from cutaway.sampling import SamplingParams

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Embeddings:
    """Vectors of texts, and how they were made.

    vectors     float32 (texts, dimensions)
    tokens      number of tokens of each text, after truncation
    pooling     how the rows of a text became one: "mean", "cls" (the first) or "last"
    normalized  whether each vector has length 1
    says        where ``pooling`` and ``normalized`` come from: "files", "default" or "asked"
    truncated   indices of the texts that were cut
    """

    vectors: Array
    tokens: tuple[int, ...]
    pooling: str
    normalized: bool
    says: tuple[str, str]
    truncated: tuple[int, ...] = ()

    def similarities(self) -> NDArray[np.float64]:
        """The cosine of each pair: (texts, texts)."""
        exact = self.vectors.astype(np.float64)
        lengths = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
        each = exact / np.where(lengths > 0, lengths, 1)
        found: NDArray[np.float64] = each @ each.T
        return found

    def how(self) -> dict[str, Any]:
        """All but the vectors, ready for JSON."""
        return {
            "dimensions": self.vectors.shape[1], "pooling": self.pooling,
            "pooling_from": self.says[0], "normalized": self.normalized,
            "normalized_from": self.says[1], "truncated": [*self.truncated],
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self.how() | {"tokens": [*self.tokens], "vectors": self.vectors.tolist()}


@lru_cache
def _parts(pooling: str) -> dict[str, Any]:
    """The fields of a request, checked once for all texts."""
    sampling = SamplingParams(temperature=0, seed=0)
    template = Request(prompt_token_ids=(), decoder=Embed(pooling), sampling=sampling)
    return {field.name: getattr(template, field.name) for field in fields(template)}


class VectorReader(EndListener):
    """Receives the vector of one text."""

    _vector: NDArray[np.float64] | None = None

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Embedded):
            self._vector = event.vector

    def vector(self) -> NDArray[np.float64]:
        """The vector, once the text has ended; raises the text's error."""
        self.check("vectors")
        assert self._vector is not None
        return self._vector


def embedding(
    llm: "BaseLLM",
    texts: Any,
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    *,
    truncate: bool = False,
    adapter: str = "",
) -> PrefillTask[VectorReader, Embeddings]:
    """See ``LLM.embed``. InputError naming the argument."""
    own_adapter, said = llm.adapter_hash(adapter), llm.model.pooling
    for name, flag in (("normalize", normalize), ("truncate", truncate)):
        if flag is not None:
            check_bool(name, flag)
    kind, kind_from = _pooling(llm, pooling)
    silent = "default" if said.normalize is None else "files"
    normalize_from = silent if normalize is None else "asked"
    normalized = said.normalize is not False if normalize is None else normalize
    width = llm.config.hidden
    size = check_int("dimensions", width if dimensions is None else dimensions, 1, width)
    prompts, _ = one_or_many(texts)
    if not prompts or prompts == [[]]:
        raise InputError("texts is empty: give one text or more")
    truncated: list[int] = []
    each = [_ids(llm, i, text, truncated if truncate else None) for i, text in enumerate(prompts)]
    parts = {**_parts(kind), "adapter": own_adapter}

    def found(readers: Sequence[VectorReader]) -> Embeddings:
        vectors = [reader.vector()[:size] for reader in readers]
        made = np.array([_unit(v) if normalized else v for v in vectors], np.float32)
        says = kind_from, normalize_from
        return Embeddings(made, tuple(map(len, each)), kind, normalized, says, tuple(truncated))

    requests = (Request(**{**parts, "prompt_token_ids": ids}) for ids in each)
    return PrefillTask(requests, VectorReader, found)


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    length = sqrt(fsum((vector * vector).tolist()))  # exact, so the same on every machine
    return vector / (length or 1.0)


def _pooling(llm: "BaseLLM", asked: str | None) -> tuple[str, str]:
    """How rows become one, and where this comes from."""
    said, sees_more = llm.model.pooling, not llm.config.is_causal
    if asked is not None:
        check_choice("pooling", asked, POOLINGS)
        if asked == "cls" and not sees_more:
            raise InputError(
                "pooling: the first token of this model sees nothing else; take mean or last"
            )
        return asked, "asked"
    if said.refused:
        raise InputError(
            f"the model's files ask for {said.refused}, which is not supported: name pooling "
            "to have vectors without it"
        )
    return (said.kind, "files") if said.kind else ("mean" if sees_more else "last", "default")


def _ids(llm: "BaseLLM", index: int, text: Any, truncated: list[int] | None) -> tuple[int, ...]:
    """A text's tokens. truncated: to which the index of a text that is cut is added; None: cut
    none.
    """
    text = check_prompt(text, f"texts[{index}]")
    limits = limits_of(llm.model)
    if isinstance(text, str):
        ids = llm.tokenize(text)
    else:
        ids = [*text]
        limits.check_ids(f"texts[{index}]", ids)
    if not ids:
        raise InputError(f"texts[{index}] has no tokens: give one that is not empty")
    most = min(llm.model.pooling.max_tokens or limits.context_length, limits.context_length)
    if len(ids) <= most:
        return tuple(ids)
    if truncated is None:
        raise TooLongError(
            f"texts[{index}] has {len(ids)} tokens, and the model reads {most}: shorten it; "
            "where texts are embedded, truncate cuts it"
        )
    truncated.append(index)
    framed = isinstance(text, str) and llm.tokenizer.sep_id is not None
    after = ids[-1:] if framed else []
    return (*ids[: most - len(after)], *after)
