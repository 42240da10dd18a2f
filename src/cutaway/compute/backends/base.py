"""What every backend takes and gives: a Batch of rows in, logits out, tokens from the logits.

A backend computes the ops of a graph, keeps keys and values in KV blocks and recurrent states in
slots, and samples the rows that it computed.
"""

from collections.abc import Callable, Container, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cutaway import sampling
from cutaway.compute.model import Graph
from cutaway.errors import InputError
from cutaway.files.weights import ModelFile
from cutaway.sampling import ReadRow, RowDraw, Sampled, read_rows

KV_BLOCK = 32
"""Tokens per KV block."""
STEP_ROWS = 512
"""The most rows of a step, where nothing else is said: bounds a long prompt's activations."""
DRAFT_STATES = 64
"""How many states there is room for beside those of KV blocks: after draft tokens."""
STATE_TOKENS = 512
"""A long text's state is kept after every so many tokens."""
_LEAST_STATES = 8

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Batch(NamedTuple):
    """The rows of one step. All arrays are int32, but for two.

    tokens, positions  (M,)    the token of each row and its absolute position
    sequences          (M,)    which row of ``block_tables`` holds the row's history; rows of
                               one sequence are neighbours, in the order of their positions
    block_tables       (S, B)  KV block ids by position // block_tokens; -1 where unused
    logit_rows         (L,)    the rows whose logits are wanted
    limits             (M,)    the last position that each row sees; None: its own (causal)
    hidden_from        (S, B * KV_BLOCK) float32: for each position, the first later one whose row
                               does not attend to it (infinity: none); None: knock_out hides nothing
    states             (K, 2)  rows in ascending order, and the slot in which the recurrent state
                               after each is stored; None: that after a sequence's last row, in the
                               slot of its KV block
    types              (M,)    which of two texts a row's token is in, 0 or 1, where the model has a
                               vector for each (BERT); None: all are in the first
    given              (M, width) float32: what a graph reads of each row beside its token, where it
                               begins with that (``Graph.given``); None elsewhere

    A row's limit may lie before its position or after it, as far as keys and values are stored
    by earlier runs and by this batch; the caller vouches for that. Where a layer has a window,
    the first position that a row sees is ``position - window + 1``, whatever its limit.

    A slot is named as a KV block is; ``DRAFT_STATES`` more come after those. A sequence goes on
    from the state in the slot of the KV block that has the position before its first row, which
    must be the state after that position; one that begins at 0 begins with zeros.
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


class Edit(NamedTuple):
    """A change of a tensor's numbers before other ops read them.

    tensor   its name in the graph; not a tensor after ``logit_rows``
    rows     (n,) int32: rows of the batch
    columns  of the tensor
    change   from float32 (n, columns) to the numbers in their place; a row depends on itself alone
    """

    tensor: str
    rows: Ints
    columns: slice
    change: Callable[[NDArray[np.float32]], NDArray[np.float32]]


class KVGroup(NamedTuple):
    """Layers whose keys and values are stored alike.

    layers           their numbers in the graph
    window           the most tokens that one of them sees, the row's own included; 0: all
    format           of one number: "F16", "F32", "Q8_0"; "Q8_0,Q4_0" of keys and of values
    bytes_per_token  of all these layers together
    """

    layers: tuple[int, ...]
    window: int
    format: str
    bytes_per_token: int

    @property
    def format_in_words(self) -> str:
        """ "F16", or "Q8_0 (keys) and Q4_0 (values)"."""
        keys, _, values = self.format.partition(",")
        return f"{keys} (keys) and {values} (values)" if values else keys


class StateGroup(NamedTuple):
    """Layers that keep a recurrent state of a text, of one size whatever its length.

    layers  their numbers in the graph
    format  of one number: "F32"
    nbytes  of the states of all these layers together
    """

    layers: tuple[int, ...]
    format: str
    nbytes: int


class KVLayout(NamedTuple):
    """What a backend keeps of a text: keys and values, and perhaps a recurrent state.

    Keys and values are in blocks of ``block_tokens`` tokens, group by group: the layers that see
    the whole text are one group, those with a window another.
    """

    block_tokens: int
    groups: tuple[KVGroup, ...]
    state: StateGroup | None = None

    @property
    def bytes_per_token(self) -> int:
        """Of one token in all layers."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def window(self) -> int:
        """The widest window of any layer, in tokens; 0 where no layer has one."""
        return max((group.window for group in self.groups), default=0)

    def bytes_read(self, tokens: int) -> int:
        """Bytes that a row reads where it sees this many tokens, its own included."""
        return sum(g.bytes_per_token * min(tokens, g.window or tokens) for g in self.groups)

    def window_blocks(self, rows: int = STEP_ROWS) -> int:
        """How many KV blocks of a text are kept in the layers with a window: two windows.

        One is for the text itself, the other for a later text that continues from its prefix.
        rows: the most of one step, since blocks are freed between steps only
        """
        return 2 * (-(-max(self.window, rows) // self.block_tokens) + 1)

    def kept_states(self, tokens: int) -> int:
        """How many states are kept for later texts where keys and values of so many tokens fit.

        Two for each ``STATE_TOKENS``, but not more memory than keys and values take, and 8 at
        least.
        """
        if self.state is None:
            return 0
        affordable = self.bytes_per_token * tokens // self.state.nbytes
        return max(_LEAST_STATES, min(2 * tokens // STATE_TOKENS, affordable))

    def bytes_stored(self, tokens: int) -> int:
        """The most bytes that a text of this many tokens takes, in whole blocks.

        With its own state, that at the last block's end, and those that are kept for later texts.
        """
        blocks = -(-tokens // self.block_tokens)
        windows = min(blocks, self.window_blocks())
        each = (g.bytes_per_token * (windows if g.window else blocks) for g in self.groups)
        return self.block_tokens * sum(each) + self.state_bytes(tokens)

    def state_bytes(self, tokens: int) -> int:
        """Of these, those of states."""
        return (2 + self.kept_states(tokens)) * self.state.nbytes if self.state else 0

    def __str__(self) -> str:
        """All of it in words."""
        groups = (
            f"layers {_ranges(g.layers)} in {g.format_in_words}, {g.bytes_per_token} bytes a token"
            + (f", of the last {g.window} tokens" if g.window else "")
            for g in self.groups
        )
        state = self.state and (
            f"a state of layers {_ranges(self.state.layers)} in {self.state.format}, "
            f"{self.state.nbytes} bytes"
        )
        return "; ".join(filter(None, (f"blocks of {self.block_tokens} tokens", *groups, state)))


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in ascending order as text: "0-3, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def kv_groups(
    graph: Graph, format: str, bytes_of: Callable[[int, int, int], int]
) -> tuple[KVGroup, ...]:
    """A graph's groups.

    bytes_of: (kv_heads, head_dim, 2; or 1 where keys alone are stored) -> bytes of a token in one
    layer
    """
    attends = [op.attrs for op in graph.stores]
    groups = []
    for mine in ([a for a in attends if not a["window"]], [a for a in attends if a["window"]]):
        if mine:
            layers, window = tuple(a["layer"] for a in mine), max(a["window"] for a in mine)
            nbytes = sum(
                bytes_of(a["kv_heads"], a["head_dim"], 1 if "values_from" in a else 2) for a in mine
            )
            groups.append(KVGroup(layers, window, format, nbytes))
    return tuple(groups)


def state_group(graph: Graph) -> StateGroup | None:
    """Of the layers that keep a state in float32; None where none does."""
    ops = [op.attrs for op in graph.ops if "state" in op.attrs]
    if not ops:
        return None
    layers = tuple(dict.fromkeys(attrs["layer"] for attrs in ops))
    return StateGroup(layers, "F32", sum(4 * prod(attrs["state"]) for attrs in ops))


class Computer(NamedTuple):
    """A backend's fields of these names, as traces and metrics show them."""

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
    """How many threads compute; 0 where a library decides."""

    def adapted(self, graph: Graph, file: ModelFile) -> Self:
        """The same model with an adapter.

        graph: made by ``model.adapted``; file: has the adapter's tensors
        Both backends share weights, threads, keys and values, so only one may run at a time.
        """
        ...

    def with_weights(self, file: ModelFile, names: Container[str]) -> Self:
        """The same model with the weights of these names from another file of equal shapes.

        Both backends share the other weights, threads, keys and values, so only one may run at a
        time.
        """
        ...

    def beside(self, graph: Graph, file: ModelFile) -> Self:
        """Another graph over the same KV blocks, such as a head that drafts for this model.

        It shares threads and the weights that both graphs read. Its keys and values are its own, in
        blocks of the same names. Only one of both may run at a time.
        """
        ...

    def run(self, batch: Batch) -> Logits:
        """Compute the rows, store their keys and values, return logits (L, vocab).

        A row attends to positions 0 … its limit in its sequence's blocks: those of earlier
        runs and those of this batch. Nothing else is read, so a block's old content is harmless.
        The result may be reused by the next call: copy what you keep.
        ValueError where a limit is negative, outside the block table, or before the row's window,
        or where a row sees a block that was freed, or a sequence goes on from a state that was.
        """
        ...

    def hidden(self, batch: Batch) -> NDArray[np.float32]:
        """As ``run`` but without the head: what it would read, (L, hidden).

        The result may be reused by the next ``hidden``.
        """
        ...

    def run_whole(
        self, batch: Batch, names: tuple[str, ...] = ()
    ) -> tuple[Logits, NDArray[np.float32]]:
        """``run``, and what the head reads of all rows, (M, hidden).

        names: tensors of all rows that are wanted instead, side by side
        The logits have the bits of ``run``, and may be reused by the next ``run_whole``.
        """
        ...

    def finish(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the graph has after pooling, of pooled rows (R, width): (R, n); else x itself.

        Each row is computed as if it were alone. The result may be reused by the next call.
        """
        ...

    def sample(self, logits: Logits, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
        """A token for each row of logits (rows, vocab); see ``sampling.sample``."""
        ...

    def read(
        self, logits: Logits, next_ids: Sequence[int | None], top: int
    ) -> list[ReadRow | Exception]:
        """How likely each row found a known next token; see ``sampling.read_rows``."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy the keys and values of whole KV blocks: (source, target) ids.

        ValueError where an id names no block, or a target is a source too or named twice.
        """
        ...

    def copy_windows(self, pairs: list[tuple[int, int]]) -> None:
        """As ``copy_blocks``, in the layers with a window only, pair after pair.

        The target -1 frees the source: other blocks may take its memory, and it must be written
        again before a row sees it. ValueError where an id names no block.
        """
        ...

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        """Copy states, pair after pair: (source, target) slots.

        The target -1 frees the source's memory. Where the source has no state, the target has none
        afterwards. ValueError where a number names no slot.
        """
        ...

    def state_memory(self, slot: int, *, new: bool = False) -> Bytes | None:
        """A state's memory, to be read or overwritten between two runs; None where there is none.

        new: make room for one. ValueError where the number names no slot.
        """
        ...

    def block_memory(self, block_id: int, *, windows: bool = False) -> list[Bytes]:
        """The memory of a whole KV block, in pieces, to be read or overwritten between two runs.

        Equal bytes mean the same in every backend of this name and layout. Pieces of the layers
        with a window come last. They are missing where the block was freed; ``windows`` gives it
        new ones, and then all pieces have ``kv.bytes_per_token * kv.block_tokens`` bytes together.
        ValueError where the id names no block.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A backend whose tensors can be read and edited."""

    def tap(
        self, batch: Batch, names: Sequence[str], edits: Sequence[Edit] = ()
    ) -> tuple[Logits, dict[str, NDArray[np.float32]]]:
        """``run``, and tensors of the graph by their names: (rows, width) each.

        By the name of a mixture's output and ".inner", what the last matrix of each row's experts
        reads, from the highest score to the lowest: (rows, used · inner).

        Without edits the logits have the bits of ``run``. An edit is made as soon as its tensor has
        been computed, in the order given. KeyError for a name that the graph lacks.
        """
        ...

    def run_edited(self, batch: Batch, edits: Sequence[Edit]) -> Logits:
        """The logits of ``tap``, of any number of rows: (L, vocab), valid until the next call."""
        ...

    def head(self, x: NDArray[np.float32]) -> Logits:
        """The ops after ``logit_rows``, on rows (R, hidden): logits (R, vocab).

        Each row is computed as if it were alone. The result may be reused by the next call.
        """
        ...

    def keys_values(
        self, layer: int, table: Sequence[int], first: int, last: int
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """A layer's keys and values of positions first … last - 1, (kv_heads, n, head_dim) each.

        Exactly the numbers in the KV blocks of ``table``. ValueError where a block was freed.
        """
        ...

    def weight(self, name: str, first: int = 0, last: int | None = None) -> NDArray[np.float32]:
        """Rows first … last - 1 of a matrix that an op reads, exactly; or numbers of a vector.

        The rows of experts follow each other. None: to the last.
        """
        ...

    def as_read(self, name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Activations (rows, width) as this matrix reads them: rounded to 8 bits, or unchanged."""
        ...


def inspectable(backend: Backend) -> Inspectable:
    """The same backend. InputError where its numbers can be neither read nor edited."""
    if isinstance(backend, Inspectable):
        return backend
    raise InputError(
        f"the backend {backend.name} computes logits alone: take another one to see or change what "
        "happens inside the model"
    )


def in_place(matrix: Logits, order: Logits | None) -> Logits:
    """A matrix with column i in the place that order[i] says; None: as it is."""
    if order is None:
        return matrix
    made = np.empty_like(matrix)
    made[:, order.astype(np.intp)] = matrix
    return made


class HostSampling:
    """Sampling in this process, on the calling thread."""

    def sample(self, logits: Logits, draws: Sequence[RowDraw]) -> list[Sampled | Exception]:
        """See ``Backend``."""
        return sampling.sample(logits, draws)

    def read(
        self, logits: Logits, next_ids: Sequence[int | None], top: int
    ) -> list[ReadRow | Exception]:
        """See ``Backend``."""
        return read_rows(logits, next_ids, top)
