"""Late interaction (ColBERT): an embedding of each token of a text, and MaxSim to compare them.

The score of a query and a document is the sum, over the query's tokens, of the largest dot product
with a token of the document (Khattab and Zaharia, 2020). Products are added in one order, so that
scores are equal on every machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.arithmetic import plainly
from cutaway.base.checks import check_bool, check_choice
from cutaway.compute.model.pooling import TOKENS
from cutaway.engine import Embed, Request
from cutaway.errors import InputError, Name
from cutaway.methods.embedding import FramedTexts, VectorReader, check_dimensions, request_parts
from cutaway.requests.prefill import PrefillTask
from cutaway.text.late_interaction import LateInteraction

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

Array = NDArray[np.float32]
KINDS = ("query", "document")
_AT_ONCE = 1 << 22  # products in memory at once


@dataclass(frozen=True)
class TokenVectors:
    """Embeddings of tokens, a matrix for each text.

    vectors    float32 (tokens with a vector, dimensions) for each text
    token_ids  for each text, the token id of each row
    tokens     how many tokens of each text were read
    kind       "query" or "document"
    truncated  indices of the texts that were cut
    """

    vectors: tuple[Array, ...]
    token_ids: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...]
    kind: str
    truncated: tuple[int, ...] = ()

    @plainly
    def maxsim(self, documents: "TokenVectors") -> NDArray[np.float64]:
        """Return the scores of this object's texts as queries with documents: (queries, documents).

        A document without any vector has the score 0.
        """
        return np.array(
            [
                [
                    fsum(_products(query, document).max(axis=1).tolist()) if len(document) else 0.0
                    for document in documents.vectors
                ]
                for query in self.vectors
            ]
        )

    def only(self, text: int) -> "TokenVectors":
        """Return the vectors of one text."""
        selection = slice(text, text + 1)
        truncated = (0,) if text in self.truncated else ()
        return replace(
            self, vectors=self.vectors[selection], token_ids=self.token_ids[selection],
            tokens=self.tokens[selection], truncated=truncated,
        )  # fmt: skip

    @plainly
    def products(self, query: int, documents: "TokenVectors", document: int) -> NDArray[np.float64]:
        """Return the dot product of each row of a query and each of a document: (rows, rows)."""
        return _products(self.vectors[query], documents.vectors[document])

    def nearest(self, query: int, documents: "TokenVectors", document: int) -> list[int]:
        """Return, for each row of a query, a document's nearest row; [] for an empty document."""
        if not len(documents.vectors[document]):
            return []
        rows: list[int] = self.products(query, documents, document).argmax(axis=1).tolist()
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return {
            "kind": self.kind, "dimensions": self.vectors[0].shape[1], "tokens": [*self.tokens],
            "truncated": [*self.truncated], "token_ids": [[*row] for row in self.token_ids],
            "vectors": [row.tolist() for row in self.vectors],
        }  # fmt: skip


def embed_tokens(
    llm: "BaseLLM",
    texts: Any,
    kind: str = "document",
    dimensions: int | None = None,
    *,
    truncate: bool = False,
    adapter: str = "",
) -> PrefillTask[VectorReader, TokenVectors]:
    """An embedding of each token of each text, by a model for late interaction (ColBERT).

    texts: a text or token ids, or a list of either
    kind: "document" or "query"; some models fill up a query with mask tokens
    dimensions: how many numbers of a vector to keep, from the first on, before it is scaled to
    length 1; None keeps all
    truncate: cut a text that is too long for the model; otherwise it is an InputError
    adapter: the name of a loaded adapter, as for generate
    ``query.maxsim(documents)`` returns the scores. Raises InputError if the model makes one vector
    per text.
    """
    check_choice("kind", kind, KINDS)
    check_bool("truncate", truncate)
    late, own_adapter = _settings(llm), llm.adapter_hash(adapter)
    size = check_dimensions(dimensions, llm.model.pooling.dimensions)
    reader = _Reader(llm, late, kind, truncate=truncate)
    token_ids_read, truncated = reader.read_all(texts)
    filled_ids = [reader.fill_query(ids) for ids in token_ids_read]
    seen = [reader.num_seen(ids) for ids in token_ids_read]
    _check_unseen(llm, filled_ids, seen)

    def answer(readers: Sequence[VectorReader]) -> TokenVectors:
        places = [reader.find_rows(ids) for ids in filled_ids]
        vectors = tuple(
            _units(text.vector()[rows, :size]) for text, rows in zip(readers, places, strict=True)
        )
        token_ids = tuple(
            tuple(ids[i] for i in rows) for ids, rows in zip(filled_ids, places, strict=True)
        )
        return TokenVectors(vectors, token_ids, tuple(map(len, filled_ids)), kind, truncated)

    return PrefillTask(_requests(filled_ids, seen, own_adapter), VectorReader, answer)


def _requests(
    filled_ids: list[tuple[int, ...]], seen: list[int], adapter: str
) -> Iterator[Request]:
    parts = {num_seen: request_parts(Embed("rows", seen=num_seen)) for num_seen in {*seen}}
    for ids, num_seen in zip(filled_ids, seen, strict=True):
        yield Request(**{**parts[num_seen], "prompt_token_ids": ids, "adapter": adapter})


def _check_unseen(llm: "BaseLLM", filled_ids: list[tuple[int, ...]], seen: list[int]) -> None:
    """Raise InputError if hidden filler tokens would change the results of other tokens."""
    graph = llm.model.graph
    spans = [op.mask.reach or op.mask.window - 1 for op in graph.stores]
    for i, num_seen in enumerate(seen):
        fillers = len(filled_ids[i]) - num_seen if num_seen else 0
        if fillers and graph.states:
            raise InputError(
                Name("texts", i),
                ": the model's files fill queries with tokens that are not attended to, which "
                "is not supported for layers with a recurrent state",
            )
        if any(0 < span < fillers for span in spans):
            raise InputError(
                Name("texts", i),
                f": the query is filled with {fillers} tokens, and a layer's window reaches "
                f"{min(span for span in spans if span > 0)}: ask with more words",
            )


def _settings(llm: "BaseLLM") -> LateInteraction:
    """Return how queries and documents are read; InputError if the file does not say."""
    pooling = llm.model.pooling
    if pooling.late is not None:
        return pooling.late
    if pooling.kind == TOKENS:
        raise InputError(
            "the model makes a vector for each token, and its file does not say how queries and "
            "documents are marked, which llama.cpp's converter leaves out: take the model's "
            "folder, or a file that cutaway quantize wrote of it"
        )
    raise InputError(
        "the model was not made for late interaction (ColBERT): its texts have one vector, which "
        "embed makes"
    )


class _Reader(FramedTexts):
    """Texts as token ids, with the tokens that mark them as queries or documents."""

    def __init__(self, llm: "BaseLLM", late: LateInteraction, kind: str, *, truncate: bool) -> None:
        super().__init__(llm, kind if kind in llm.model.pooling.prompts else "", truncate=truncate)
        is_query = kind == "query"
        length = late.query_length if is_query else late.document_length
        self._marker = late.query_id if is_query else late.document_id
        self._room = min(length, self.longest)
        self.max_tokens = self._room - (self._marker is not None)
        self._filled_to = min(late.filled_to, self.longest) if is_query else 0
        self._filler, self._fillers_are_seen = late.filler, late.fillers_are_seen
        self._skipped = frozenset(() if is_query else late.skipped)

    def read(self, text: Any, name: str) -> tuple[tuple[int, ...], bool]:
        """See ``FramedTexts``; the marker follows the first token."""
        ids, is_cut = super().read(text, name)
        return ids if self._marker is None else (ids[0], self._marker, *ids[1:]), is_cut

    def fill_query(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Add the tokens that fill up a query."""
        return ids + (self._filler,) * (self._filled_to - len(ids))

    def num_seen(self, ids: tuple[int, ...]) -> int:
        """Return how many tokens of the filled text are attended to; 0: all of them."""
        return 0 if self._fillers_are_seen or len(ids) >= self._filled_to else len(ids)

    def find_rows(self, ids: tuple[int, ...]) -> list[int]:
        """Return the indices of the tokens that get a vector."""
        return [i for i, token in enumerate(ids) if token not in self._skipped]


def _units(rows: NDArray[np.float64]) -> Array:
    """Scale each row to length 1; squares are added in the order of the columns."""
    columns = np.ascontiguousarray(rows.T)
    lengths = np.sqrt(np.add.reduce(columns * columns, axis=0))
    return (rows / np.where(lengths > 0, lengths, 1)[:, None]).astype(np.float32)


def _products(query: Array, document: Array) -> NDArray[np.float64]:
    """Return the dot products, (query rows, document rows), added column by column."""
    a, b = query.astype(np.float64), document.astype(np.float64)
    step = max(1, _AT_ONCE // (len(a) * a.shape[1]))
    parts = [
        np.add.reduce(a.T[:, :, None] * b[i : i + step].T[:, None, :], axis=0)
        for i in range(0, max(len(b), 1), step)
    ]
    return np.concatenate(parts, axis=1)
