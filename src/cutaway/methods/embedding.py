"""Embeddings of texts: the last layer's rows, pooled, cut to size and normalized."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_bool, check_choice, check_int, shown
from cutaway.compute.model import POOLINGS
from cutaway.compute.model.pooling import TOKENS
from cutaway.engine import Embed, Embedded, Event, Request
from cutaway.errors import InputError, Name, TooLongError
from cutaway.requests.base import check_prompt, limits_of, one_or_many
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask
from cutaway.sampling import SamplingParams
from cutaway.sampling.fixed_math import cosine

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

Array = NDArray[np.float32]
_ROWS = 32  # rows whose cosines with all others are made at once, in a processor's cache


_MOST_DISPLAYED = 12
"""How many texts a notebook shows."""


@dataclass(frozen=True)
class Embeddings:
    """Embeddings of texts, and how they were made.

    vectors     float32 (texts, dimensions)
    tokens      number of tokens of each text, after truncation
    pooling     how the rows of a text were pooled: "mean", "cls" (the first), "last" or "weighted"
    normalized  whether each vector has length 1
    says        the source of ``pooling`` and ``normalized``: "files", "default" or "asked"
    truncated   indices of the texts that were cut
    prompt      the name of the prompt that was put in front of each text; "" for none
    task        the task whose adapter was used; "" for none
    """

    vectors: Array
    tokens: tuple[int, ...]
    pooling: str
    normalized: bool
    says: tuple[str, str]
    truncated: tuple[int, ...] = ()
    prompt: str = ""
    task: str = ""

    @plainly
    def similarities(self) -> NDArray[np.float64]:
        """The cosine of each pair: (texts, texts)."""
        rows = self.vectors
        parts = [cosine(rows[i : i + _ROWS, None], rows) for i in range(0, len(rows), _ROWS)]
        return np.concatenate(parts)

    def __repr__(self) -> str:
        """Return how many vectors there are and how they were made, without their numbers."""
        texts, dimensions = self.vectors.shape
        length = "normalized" if self.normalized else "not normalized"
        return f"Embeddings({texts} texts, {dimensions} dimensions, {self.pooling}, {length})"

    def _repr_html_(self) -> str:
        """Return the cosines of the first texts with each other, tinted, for a notebook."""
        from cutaway.trace.html import heat, join, tag

        first = replace(self, vectors=self.vectors[:_MOST_DISPLAYED])
        head = tag(
            "tr", tag("th", "cosine"), *(tag("th", f"{i}") for i in range(len(first.vectors)))
        )
        rows = [
            tag("tr", tag("th", f"{i}"), *(
                tag("td", f"{value:.2f}", style=f"background:{heat(value)}") for value in row
            ))
            for i, row in enumerate(first.similarities())
        ]  # fmt: skip
        return join([tag("p", repr(self)), tag("table", head, *rows)])

    def how(self) -> dict[str, Any]:
        """Return all fields but the vectors, ready for JSON."""
        return {
            "dimensions": self.vectors.shape[1], "pooling": self.pooling,
            "pooling_from": self.says[0], "normalized": self.normalized,
            "normalized_from": self.says[1], "truncated": [*self.truncated],
            "prompt": self.prompt, "task": self.task,
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return self.how() | {"tokens": [*self.tokens], "vectors": self.vectors.tolist()}


@contextmanager
def naming(place: Callable[[int], str]) -> Iterator[None]:
    """Rename a text in errors, such as texts[3], to the caller's own name of the text.

    place: returns the name for a text's index; the first part of a name stands for all texts
    """
    try:
        yield
    except InputError as error:
        if error.field != "texts":
            raise
        path = Name(place(error.index or 0)).path
        raise error.with_name(*(path if error.index is not None else path[:1])) from error


@lru_cache
def request_parts(decoder: Embed) -> dict[str, Any]:
    """Return the fields of a request, which are checked once for all texts."""
    sampling = SamplingParams(temperature=0, seed=0)
    template = Request(prompt_token_ids=(), decoder=decoder, sampling=sampling)
    return {field.name: getattr(template, field.name) for field in fields(template)}


class VectorReader(EndListener):
    """Receives the embedding of one text."""

    _vector: NDArray[np.float64] | None = None

    def take(self, event: Event) -> None:
        """See ``EndListener``."""
        if isinstance(event, Embedded):
            self._vector = event.vector

    def vector(self) -> NDArray[np.float64]:
        """The embedding, once the text has ended; raises the text's error."""
        self.check("vectors")
        assert self._vector is not None
        return self._vector


def embed(
    llm: "BaseLLM",
    texts: Any,
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    *,
    prompt: str | None = None,
    task: str | None = None,
    truncate: bool = False,
    adapter: str = "",
) -> PrefillTask[VectorReader, Embeddings]:
    """The embedding of each text: the last layer's rows, pooled into one vector.

    texts: a text or token ids, or a list of either
    pooling: "mean", "cls" (the first row), "last" or "weighted" (the mean by 1, 2, 3 …). None
    takes the pooling of the model's files, else "mean" for a bidirectional model and "last" for a
    causal one
    prompt: the name of a prompt in the model's files, put in front of each text ("query",
    "document"); "" for none, None for the files' own default
    task: a task for which the model's folder has an adapter (jina v3: "retrieval.query", …). The
    adapter is used, and the task's instruction is the prompt if none is given. None for no task
    normalize: scale vectors to length 1; None takes the setting of the files, else True
    dimensions: how many numbers of a vector to keep, from the first on; None keeps all
    truncate: cut a text that is too long for the model; otherwise it is an InputError
    adapter: the name of a loaded adapter, as for generate
    """
    own_adapter, file_settings = _adapter(llm, adapter, task), llm.model.pooling
    for name, flag in (("normalize", normalize), ("truncate", truncate)):
        if flag is not None:
            check_bool(name, flag)
    kind, kind_from = _pooling(llm, pooling)
    normalized, normalized_from = _normalization(llm, normalize)
    finishes = file_settings.kind not in ("rank", TOKENS)
    size = check_dimensions(dimensions, file_settings.dimensions if finishes else llm.config.hidden)
    reader = FramedTexts(llm, prompt, task, truncate=truncate)
    token_ids, truncated = reader.read_all(texts)
    first = 0 if file_settings.whole else reader.prompt_length
    parts = {**request_parts(Embed(kind, first, finishes=finishes)), "adapter": own_adapter}

    def answer(readers: Sequence[VectorReader]) -> Embeddings:
        vectors = [reader.vector()[:size] for reader in readers]
        matrix = np.array([_unit(v) if normalized else v for v in vectors], np.float32)
        says, lengths = (kind_from, normalized_from), tuple(map(len, token_ids))
        return Embeddings(
            matrix, lengths, kind, normalized, says, truncated, reader.name, task or ""
        )

    requests = (Request(**{**parts, "prompt_token_ids": ids}) for ids in token_ids)
    return PrefillTask(requests, VectorReader, answer)


def _adapter(llm: "BaseLLM", adapter: str, task: str | None) -> str:
    """Return the hash of the adapter, or of the task's adapter."""
    if task is None:
        return llm.adapter_hash(adapter)
    if adapter:
        raise InputError("task", ": its adapter is the model's own: leave out adapter or task")
    return llm.model.with_task(task).request_adapter


def check_dimensions(dimensions: int | None, width: int) -> int:
    """Return how many numbers of a vector are kept; None keeps all."""
    return check_int("dimensions", width if dimensions is None else dimensions, 1, width)


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    length = sqrt(fsum((vector * vector).tolist()))  # exact, so the same on every machine
    return vector / (length or 1.0)


def _pooling(llm: "BaseLLM", pooling: str | None) -> tuple[str, str]:
    """Return the pooling and its source, as ``Embeddings.says`` names it."""
    file_settings, sees_more = llm.model.pooling, not llm.config.is_causal
    if pooling is not None:
        check_choice("pooling", pooling, POOLINGS)
        if pooling == "cls" and not sees_more:
            raise InputError(
                "pooling", ": the first token of this model sees nothing else; take mean or last"
            )
        return pooling, "asked"
    if file_settings.kind == "rank":
        raise InputError(
            "the model has a head that scores pairs of texts, for rerank: set pooling to have "
            "vectors of its body"
        )
    if file_settings.kind == TOKENS:
        raise InputError(
            "the model makes a vector for each token, for late interaction: ask for embed_tokens "
            "or rerank, or set pooling to have one vector of its body"
        )
    if file_settings.unsupported:
        raise InputError(
            f"the model's files ask for {file_settings.unsupported}, which is not supported: set "
            "pooling to have vectors without it"
        )
    return (
        (file_settings.kind, "files")
        if file_settings.kind
        else ("mean" if sees_more else "last", "default")
    )


def _normalization(llm: "BaseLLM", normalize: bool | None) -> tuple[bool, str]:
    """Return whether vectors are scaled to length 1, and the source of that setting."""
    if normalize is not None:
        return normalize, "asked"
    in_files = llm.model.pooling.normalize
    return in_files is not False, "default" if in_files is None else "files"


def prompts_of(llm: "BaseLLM") -> tuple[str | None, str | None]:
    """Return the names of the prompts for a query and a document; None if the files have none."""
    prompts = llm.model.pooling.prompts
    document = next((name for name in ("document", "passage") if name in prompts), None)
    return "query" if "query" in prompts else None, document


class FramedTexts:
    """Texts as token ids, with the tokens that the model's files put around each.

    name: the name of the prompt in front of the texts; "" for none
    max_tokens: how many tokens of a text are read; longest: how many the model itself can read
    """

    def __init__(
        self,
        llm: "BaseLLM",
        prompt: str | None = None,
        task: str | None = None,
        *,
        truncate: bool,
    ) -> None:
        """Take the prompt and the task by their names; InputError for unknown names.

        prompt: None takes the task's own prompt or the files' own; task: a task of the model
        """
        self._llm, self._limits, self._truncate = llm, limits_of(llm.model), truncate
        self._settings = settings = llm.model.pooling
        prompts = {**settings.prompts, **llm.model.tasks}
        self.name = (task or settings.default) if prompt is None else prompt
        if self.name and self.name not in prompts:
            names = ", ".join(map(repr, prompts)) or "none"
            raise InputError(
                "prompt", f": the model's files have none named {shown(prompt)}: {names}"
            )
        self._prompt = prompts.get(self.name, "")
        self.name = self.name if self._prompt else ""  # a task may have no instruction
        self.longest = self._limits.context_length
        self.max_tokens = min(settings.max_tokens or self.longest, self.longest)

    @property
    def prompt_length(self) -> int:
        """The number of tokens of the prompt, with those that begin every text."""
        if not self._prompt:
            return 0
        ids = self._llm.tokenize(self._prompt)
        return len(ids) - (self._llm.tokenizer.sep_id is not None)

    def read_all(self, texts: Any) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
        """Return the tokens of each text, and the indices of the texts that were cut."""
        prompts, _ = one_or_many(texts)
        if not prompts or prompts == [[]]:
            raise InputError("texts", " is empty: give one text or more")
        read_texts = [self.read(text, Name("texts", i)) for i, text in enumerate(prompts)]
        cut = tuple(i for i, (_, is_cut) in enumerate(read_texts) if is_cut)
        return [ids for ids, _ in read_texts], cut

    def read(self, text: Any, name: str) -> tuple[tuple[int, ...], bool]:
        """Return a text's tokens, and whether it was cut; TooLongError if it may not be cut."""
        text = check_prompt(text, name)
        if isinstance(text, str):
            most = self.max_tokens + 1 if self._truncate else None
            text = self._prompt + self._lower(text)
            ids, after = self._with_end(self._llm.tokenizer.encode(text, most=most))
        else:
            ids, after = [*text], []
            self._limits.check_ids(name, ids)
        if not ids:
            raise InputError(name, " has no tokens: give one that is not empty")
        if len(ids) <= self.max_tokens:
            return tuple(ids), False
        if not self._truncate:
            raise TooLongError(
                name,
                f" has {len(ids)} tokens, and the model reads {self.max_tokens}: shorten it; "
                "where texts are embedded, truncate cuts it",
            )
        return (*ids[: self.max_tokens - len(after)], *after), True

    def _lower(self, text: str) -> str:
        return text.lower() if self._settings.lower else text

    def _with_end(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """Add the end token that the files want; return also the tokens that no cut removes."""
        if self._llm.tokenizer.sep_id is not None:
            return ids, ids[-1:]
        end = self._settings.end_id
        if end is None:
            return ids, []
        return (ids if ids[-1:] == [end] else [*ids, end]), [end]
