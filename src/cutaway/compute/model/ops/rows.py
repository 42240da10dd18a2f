"""Ops that begin a graph with each row's embedding or given numbers, and ops that choose rows."""

from typing import ClassVar

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
    """Rows of a matrix by the batch's ids; each adapter adds s · B (row of A)."""

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
    """Rows of a matrix by the tokens."""

    by = "token"


class EmbedTypes(LookUp, kind="embed_types"):
    """Rows of a matrix by the tokens' types."""

    by = "type"

    def _ids(self, run: Run) -> Ints:
        return run.types


class EmbedPositions(Op, kind="embed_positions"):
    """Rows of a matrix by the positions."""

    matrix_roles = ("weight",)

    def _compute(self, run: Run) -> Array:
        return run.weight(self.weights["weight"])[run.positions]

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        return _rows_of(self, to, at, "position")


class EmbedStored(Op, kind="embed_stored"):
    """Rows, by the tokens, of a matrix that stays in the file."""

    vectors: ClassVar[list[str]] = []

    def _compute(self, run: Run) -> Array:
        return run.weight(self.weights["weight"])[run.tokens]

    def _lower(self, to: Lowering, at: Site) -> OpCall:
        return EmbedStoredCall(to.table(self.weights["weight"]), self.out.width, at.out)


class LogitRows(Op, kind="logit_rows"):
    """The rows whose logits are wanted."""

    def _compute(self, run: Run, x: Array) -> Array:
        return x[run.logit_rows]

    def _lower(self, _: Lowering, at: Site) -> OpCall:
        return Gather(at.reads[0], at.out, self.out.width)


class PooledRows(Op, kind="pooled"):
    """A text's rows pooled to one. The caller of the graph pools: the op is never computed."""


class RowMethods(Wiring):
    """The part of ``Graph`` with these ops."""

    def given_rows(self, width: int) -> Tensor:
        """Each row's ``Batch.given``, (M, width). It must be the first op."""
        return self._add(GivenRows, width)

    def embed(self, weight: str) -> Tensor:
        """Rows of the embedding matrix for the batch's tokens: -> (M, hidden)."""
        self._shape(f"{weight}.weight", 2)  # a vector is not the row of one token
        return self._look_up(EmbedTokens, weight)

    def embed_stored(self, weight: str) -> Tensor:
        """``embed`` for a matrix so large that it stays in the file: rows are read by token."""
        self._shape(f"{weight}.weight", 2)
        return self._look_up(EmbedStored, weight)

    def embed_positions(self, weight: str, context: int) -> Tensor:
        """Rows of a matrix for the batch's positions, 0 … context - 1: -> (M, hidden)."""
        if (rows := self.matrix(weight)[0]) < context:
            raise FormatError(f"tensor {weight}.weight has {rows} rows for {context} positions")
        return self._look_up(EmbedPositions, weight)

    def embed_types(self, weight: str) -> Tensor:
        """Rows of a matrix for the types of the batch's tokens, as BERT has it: -> (M, hidden)."""
        return self._look_up(EmbedTypes, weight)

    def _look_up(self, op: type[Op], weight: str) -> Tensor:
        weights = {"weight": f"{weight}.weight"}
        return self._add(op, self.matrix(weight)[1], name=weight, weights=weights)

    def logit_rows(self, x: Tensor) -> Tensor:
        """Only the rows whose logits the batch asks for: (M, n) -> (L, n)."""
        return self._add(LogitRows, x.width, x)

    def pooled_rows(self, x: Tensor) -> Tensor:
        """Pool a text's rows to one, which the ops after this one read: (L, n) -> (L, n)."""
        return self._add(PooledRows, x.width, x)
