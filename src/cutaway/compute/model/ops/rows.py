"""Ops that begin a graph, with embeddings or given numbers of each row; ops that choose rows."""

from typing import ClassVar

import numpy as np

from cutaway.compute.calls import EmbedRows, EmbedStoredCall, Gather, OpCall
from cutaway.compute.model.op import Array, Ints, Lowering, Op, Run, Site, Tensor
from cutaway.compute.model.ops.linear import Adaptable
from cutaway.compute.model.wiring import Wiring
from cutaway.errors import FormatError


class GivenRows(Op, kind="given"):
    """Rows that the caller gives to the graph: no op computes them."""


def _rows_of(op: Op, to: Lowering, at: Site, by: str) -> EmbedRows:
    [matrix] = to.matrices(op)
    return EmbedRows(matrix.number, at.out, by)


class LookUp(Adaptable):
    """Looks up rows of a matrix by ids of the batch; each adapter adds s · B (row of A)."""

    matrix_roles = ("weight",)
    by: ClassVar[str]

    def _compute(self, run: Run) -> Array:
        ids = self._ids(run)
        y: Array = run.weight(self.weights["weight"])[ids]
        for lora in self.loras:
            inner: Array = run.weight(lora.a)[ids] * lora.factor
            y = y + inner @ run.weight(lora.b).T  # (M, rank) (rank, hidden)
        return y

    def _ids(self, run: Run) -> Ints:
        return run.tokens

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        return _rows_of(self, to, at, self.by)


class EmbedTokens(LookUp, kind="embed"):
    """Looks up rows of a matrix by the tokens."""

    by = "token"


class EmbedTypes(LookUp, kind="embed_types"):
    """Looks up rows of a matrix by the tokens' types."""

    by = "type"

    def _ids(self, run: Run) -> Ints:
        return run.types


class EmbedPositions(Op, kind="embed_positions"):
    """Looks up rows of a matrix by the positions."""

    matrix_roles = ("weight",)

    def _compute(self, run: Run) -> Array:
        return run.weight(self.weights["weight"])[run.positions]

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        return _rows_of(self, to, at, "position")


class EmbedStored(Op, kind="embed_stored"):
    """Looks up rows by the tokens, in a matrix that stays in the file.

    A token beyond the last row has the first: in Gemma 3n those of pictures and sounds.
    """

    vectors: ClassVar[list[str]] = []

    def _compute(self, run: Run) -> Array:
        table = run.weight(self.weights["weight"])
        return table[np.where(run.tokens < len(table), run.tokens, 0)]

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        return EmbedStoredCall(to.table(self.weights["weight"]), self.out.width, at.out)


class LogitRows(Op, kind="logit_rows"):
    """Chooses the rows whose logits are wanted."""

    def _compute(self, run: Run, x: Array) -> Array:
        return x[run.logit_rows]

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        return Gather(at.reads[0], at.out, self.out.width)


class PooledRows(Op, kind="pooled"):
    """Stands for pooling a text's rows to one. It is never computed: the graph's caller pools."""


class RowMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def given_rows(self, width: int) -> Tensor:
        """Read each row's ``Batch.given``: -> (M, width). This must be the first op."""
        return self._add(GivenRows, width)

    def embed(self, weight: str) -> Tensor:
        """Look up rows of the embedding matrix for the batch's tokens: -> (M, hidden)."""
        self._shape(f"{weight}.weight", 2)  # a vector is not the row of one token
        return self._look_up(EmbedTokens, weight)

    def embed_stored(self, weight: str) -> Tensor:
        """Look up rows as ``embed`` does, in a matrix so large that it stays in the file."""
        self._shape(f"{weight}.weight", 2)
        return self._look_up(EmbedStored, weight)

    def embed_positions(self, weight: str, context: int) -> Tensor:
        """Look up rows of a matrix for the batch's positions, 0 … context - 1: -> (M, hidden)."""
        if (rows := self.matrix(weight)[0]) < context:
            raise FormatError(f"tensor {weight}.weight has {rows} rows for {context} positions")
        return self._look_up(EmbedPositions, weight)

    def embed_types(self, weight: str) -> Tensor:
        """Look up rows of a matrix for the types of the batch's tokens (BERT): -> (M, hidden)."""
        return self._look_up(EmbedTypes, weight)

    def _look_up(self, op: type[Op], weight: str) -> Tensor:
        weights = {"weight": f"{weight}.weight"}
        return self._add(op, self.matrix(weight)[1], name=weight, weights=weights)

    def logit_rows(self, x: Tensor) -> Tensor:
        """Choose the rows whose logits the batch asks for: (M, n) -> (L, n)."""
        return self._add(LogitRows, x.width, x)

    def pooled_rows(self, x: Tensor) -> Tensor:
        """Pool a text's rows to one row, which the ops after this op read: (L, n) -> (L, n)."""
        return self._add(PooledRows, x.width, x)
