"""The interface of every backend: a Batch of rows in, logits out, tokens from the logits.

A backend computes the ops of a graph, keeps keys and values in KV blocks and recurrent states in
slots, and samples the rows that it computed.
"""

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cutaway import sampling
from cutaway.compute.backends.layout import KVLayout
from cutaway.compute.model import Graph
from cutaway.errors import InputError
from cutaway.files.weights import ModelFile
from cutaway.sampling import Distributions, ReadRow, RowDraw, Sampled, read_rows

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Batch(NamedTuple):
    """The rows of one step. All arrays are int32 unless another type is named.

    tokens, positions  (M,)    the token of each row and its absolute position
    sequences          (M,)    the row of ``block_tables`` for each row's sequence; rows of one
                               sequence are neighbours, in the order of their positions
    block_tables       (S, B)  KV block ids by position // block_tokens; -1 where unused
    logit_rows         (L,)    the rows whose logits are wanted
    limits             (M,)    the last position that each row sees; None: its own (causal)
    hidden_from        (S, B * KV_BLOCK) float32: for each position, the first later position whose
                               row does not attend to it (infinity: there is none); None: knock_out
                               hides nothing
    states             (K, 2)  rows in ascending order, and for each the slot in which the recurrent
                               state after the row is stored; None: the state after each sequence's
                               last row is stored, in the slot of that row's KV block
    types              (M,)    whether a row's token is in the first text, 0, or the second, 1, for
                               models with a vector for each (BERT); None: all are in the first
    window_ends        (M,)    the position back from which each row's windows count; None: its own
    given              (M, width) float32: the input that a graph reads for each row beside its
                               token (``Graph.given_rows``); None if it reads none

    A row's limit may lie before or after its position. The caller ensures that the keys and values
    up to the limit were stored by earlier runs or are stored by this batch. Where a layer has a
    window, the first position that a row sees is ``window_end - window + 1``, for any limit.

    Each KV block has a slot of the same number; ``DRAFT_STATES`` more slots follow. A sequence
    continues from the state after the position before its first row. That state must be in the slot
    of the KV block that holds the position. A sequence that begins at 0 begins with zeros.
    """

    tokens: Ints
    positions: Ints
    sequences: Ints
    block_tables: Ints
    logit_rows: Ints
    limits: Ints | None = None
    hidden_from: NDArray[np.float32] | None = None
    states: Ints | None = None
    types: Ints | None = None
    given: NDArray[np.float32] | None = None
    window_ends: Ints | None = None


class Edit(NamedTuple):
    """A change of a tensor's numbers before other ops read them.

    tensor   its name in the graph; not a tensor after ``logit_rows``
    rows     (n,) int32: the rows of the batch to change
    columns  the tensor's columns to change
    change   takes these numbers, float32 (n, columns), and returns the numbers to put in their
             place; each row that it returns depends only on the same row that it takes
    """

    tensor: str
    rows: Ints
    columns: slice
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]]


class Computer(NamedTuple):
    """The fields of a backend that traces and metrics show."""

    name: str
    tier: str
    threads: int


class Backend(Protocol):
    """A loaded model, ready to run."""

    name: str
    kv_blocks: int
    """How many KV blocks the backend has room for; ids are 0 … kv_blocks - 1."""
    kv: KVLayout
    tier: str
    """The instruction set that computes."""
    threads: int
    """How many threads compute; 0 if a library decides."""

    def with_adapter(self, graph: Graph, file: ModelFile) -> Self:
        """Return a backend of the same model with an adapter.

        graph: made by ``lora.add_adapter``; file: has the adapter's tensors
        Both backends share weights, threads, keys and values, so only one may run at a time.
        """
        ...

    def with_weights(self, file: ModelFile, names: Container[str]) -> Self:
        """Return a backend with the weights of these names from another file of equal shapes.

        Both backends share the other weights, threads, keys and values, so only one may run at a
        time.
        """
        ...

    def with_graph(self, graph: Graph, file: ModelFile) -> Self:
        """Return a backend of another graph, such as a head that drafts for this model.

        Both backends share threads and the weights that both graphs read. The new one has keys and
        values of its own, in blocks of the same ids. Only one of both may run at a time.
        """
        ...

    def run(self, batch: Batch) -> Logits:
        """Compute the rows, store their keys and values, return logits (L, vocab).

        A row attends to positions 0 … its limit in its sequence's blocks, stored by earlier runs
        or by this batch. Nothing else is read, so a block's old content is harmless.
        The next call may overwrite the result: copy what you keep.
        ValueError if a limit is negative, outside the block table, or before the row's window, if
        a row sees a block that was freed, or if a sequence continues from a state that was freed.
        """
        ...

    def hidden(self, batch: Batch) -> NDArray[np.float32]:
        """Run without the head; return the head's input, (L, hidden).

        The next ``hidden`` may overwrite the result.
        """
        ...

    def run_whole(
        self, batch: Batch, names: tuple[str, ...] = ()
    ) -> tuple[Logits, NDArray[np.float32]]:
        """Return the logits of ``run``, and the head's input for all rows, (M, hidden).

        names: tensors to return side by side in place of the head's input, (M, sum of widths)
        The logits have the same bits as those of ``run``. The next ``run_whole`` may overwrite both
        results.
        """
        ...

    def finish(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the ops after pooling on pooled rows (R, width): (R, n); without ops, return x.

        Each row is computed as if it were alone. The next call may overwrite the result.
        """
        ...

    def sample(self, logits: Logits, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
        """Sample a token for each row of logits (rows, vocab); see ``sampling.sample``."""
        ...

    def read_distributions(
        self, logits: Logits, draws: Sequence[RowDraw], *, with_chances: bool
    ) -> Distributions:
        """Return what tokens were drawn from; see ``sampling.read_distributions``."""
        ...

    def read(
        self, logits: Logits, next_ids: Sequence[int | None], top: int
    ) -> list[ReadRow | Exception]:
        """Return how likely the known next token was in each row; see ``sampling.read_rows``."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy the keys and values of whole KV blocks: (source, target) ids.

        ValueError if an id names no block, or a target is also a source or named twice.
        """
        ...

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """Copy as ``copy_blocks`` does, but only in the layers with a window, pair after pair.

        The target -1 frees the source: other blocks may take its memory, and it must be written
        again before a row sees it. ValueError if an id names no block.
        """
        ...

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """Copy states, pair after pair: (source, target) slots.

        The target -1 frees the source's memory. If the source has no state, the target has none
        afterwards. ValueError if a number names no slot.
        """
        ...

    def read_state(self, slot: int) -> Bytes | None:
        """Return the bytes of a slot's state, valid until the next run; None if there is no state.

        ValueError if the number names no slot.
        """
        ...

    def write_state(self, slot: int, state: Bytes) -> None:
        """Overwrite or create a slot's state between two runs; it has ``kv.state.nbytes`` bytes."""
        ...

    def read_block(self, block_id: int) -> list[Bytes]:
        """Return the bytes of a whole KV block, in pieces that are valid until the next run.

        Equal bytes mean the same in every backend of this layout. The bytes of layers with a window
        come last. If the block was freed in these layers, they are missing; else the pieces have
        ``kv.bytes_per_token * kv.block_tokens`` bytes together. ValueError if the id names no
        block.
        """
        ...

    def write_block(self, block_id: int, pieces: Sequence[Bytes]) -> None:
        """Overwrite a whole KV block between two runs with pieces as ``read_block`` returns them.

        If the pieces include the bytes of layers with a window, the block is no longer freed there.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A backend whose tensors can be read and edited."""

    def tap(
        self, batch: Batch, names: Sequence[str], edits: Sequence[Edit] = ()
    ) -> tuple[Logits, dict[str, NDArray[np.float32]]]:
        """Return the logits of ``run``, and tensors of the graph by name: (rows, width) each.

        The name of a mixture's output with ".inner" stands for the inputs of down matrices: each
        row has those of the experts that it chose, the highest score first: (rows, used · inner).

        Without edits the logits have the bits of ``run``. An edit is made as soon as its tensor has
        been computed; edits of one tensor are made in the order given. KeyError for a name that the
        graph lacks.
        """
        ...

    def run_edited(self, batch: Batch, edits: Sequence[Edit]) -> Logits:
        """Return the logits of ``tap``, (L, vocab), for any number of rows, until the next call."""
        ...

    def head(self, x: NDArray[np.float32]) -> Logits:
        """Compute the ops after ``logit_rows`` on rows (R, hidden): logits (R, vocab).

        Each row is computed as if it were alone. The next call may overwrite the result.
        """
        ...

    def keys_values(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return a layer's keys and values at positions first … last - 1: (kv_heads, n, head_dim).

        They are exactly the numbers in the KV blocks of ``table``. ValueError if a block was freed.
        """
        ...

    def weight(self, name: str, first: int = 0, last: int | None = None) -> NDArray[np.float32]:
        """Return the exact rows first … last - 1 of a matrix, or numbers of a vector, of an op.

        Where a matrix has a part for each expert, the parts' rows are counted one after another.
        last: None is the end
        """
        ...

    def as_read(self, name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return activations (rows, width) as this matrix reads them: rounded to 8 bits, or not."""
        ...


def inspectable(backend: Backend) -> Inspectable:
    """Return the same backend. InputError if its tensors cannot be read and edited."""
    if isinstance(backend, Inspectable):
        return backend
    raise InputError(
        f"the backend {backend.name} computes logits alone: take another one to see or change what "
        "happens inside the model"
    )


def put(pieces: Sequence[Bytes], places: Sequence[Bytes]) -> None:
    """Copy the bytes of the pieces into the places, in order; the two may be cut differently."""
    whole, at = np.concatenate([np.empty(0, np.uint8), *pieces]), 0
    for place in places:
        place[:] = whole[at : at + len(place)]
        at += len(place)


def reorder_columns(matrix: Logits, order: Logits | None) -> Logits:
    """Return a matrix whose column order[i] is column i of this matrix; without order, this one."""
    if order is None:
        return matrix
    out = np.empty_like(matrix)
    out[:, order.astype(np.intp)] = matrix
    return out


class HostSampling:
    """Sampling in this process, on the calling thread."""

    def sample(self, logits: Logits, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
        """See ``Backend``."""
        return sampling.sample(logits, draws)

    def read_distributions(
        self, logits: Logits, draws: Sequence[RowDraw], *, with_chances: bool
    ) -> Distributions:
        """See ``Backend``."""
        return sampling.read_distributions(logits, draws, with_chances=with_chances)

    def read(
        self, logits: Logits, next_ids: Sequence[int | None], top: int
    ) -> list[ReadRow | Exception]:
        """See ``Backend``."""
        return read_rows(logits, next_ids, top)
