"""The tokens whose embeddings have the largest cosine with one token's."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.compute.backends import inspectable

_AT_ONCE = 1 << 24  # numbers of the table decoded in one piece
_TINY = 1e-30


@dataclass(frozen=True)
class Nearest:
    """The nearest first, the token itself left out.

    ids     (top,)
    cosine  (top,): of the angle between the two embeddings, 1 where they point the same way
    """

    ids: NDArray[np.int64]
    cosine: NDArray[np.float64]


def nearest(llm: LLM, token: int, top: int = 8) -> Nearest:
    """The tokens whose embeddings are nearest to a token's, by cosine; of equals the lower id.

    Reads the whole table. A row of zeros, which points nowhere, has the cosine 0. InputError for
    no such token.
    """
    vocab = llm.tokenizer.vocab_size
    token = check_int("token", token, 0, vocab - 1)
    top = check_int("top", top, 1, vocab - 1)
    table = next(op for op in llm.graph.ops if op.kind == "embed").weights["weight"]
    weight = inspectable(llm.backend).weight
    mine = weight(table, token, token + 1)[0]
    step = max(_AT_ONCE // len(mine), 1)
    cosine = np.empty(vocab)
    for first in range(0, vocab, step):
        rows = weight(table, first, min(first + step, vocab))
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        cosine[first : first + len(rows)] = (rows @ mine) / np.maximum(norms, _TINY)
    cosine /= max(float(np.linalg.norm(mine)), _TINY)
    cosine[token] = -np.inf
    ids = np.argsort(-cosine, kind="stable")[:top]
    return Nearest(ids, cosine[ids])
