"""What every backend takes and gives: a Batch of rows in, logits out.

A backend computes the ops of a graph. It knows tensors, weights and where a KV block
lies in memory; it refuses to know sequences, requests and sampling: rows are rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cutaway.model import Graph

if TYPE_CHECKING:
    from cutaway._native import Pool

KV_BLOCK = 32
"""Tokens per KV block."""

LANES = 16
"""Rows of a panel of ``cpu``, and the halves that the rows of its values are padded to."""
_HALF = 2  # bytes

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]
Watch = Callable[[str, NDArray[Any]], None]
"""Sees every op's output by name while the reference interpreter runs."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step. All arrays are int32.

    tokens, positions  (M,)    the token of each row and its absolute position
    sequences          (M,)    which row of ``block_tables`` holds the row's history; rows of
                               one sequence are neighbours, in the order of their positions
    block_tables       (S, B)  KV block ids by position // KV_BLOCK; -1 where unused
    logit_rows         (L,)    the rows whose logits are wanted
    """

    tokens: Ints
    positions: Ints
    sequences: Ints
    block_tables: Ints
    logit_rows: Ints


def kv_bytes(graph: Graph) -> int:
    """What ``cpu`` keeps of one token's keys and values, in all layers."""
    attends = [op.attrs for op in graph.ops if op.kind == "attend"]
    widths = [(a["kv_heads"], a["head_dim"]) for a in attends]
    return sum(heads * (dim + -(-dim // LANES) * LANES) * _HALF for heads, dim in widths)


class Backend(Protocol):
    """A loaded model, ready to run."""

    name: str
    kv_blocks: int
    """How many KV blocks the backend has room for; ids are 0 … kv_blocks - 1."""
    kv_block: int
    """Tokens per KV block."""
    kv_bytes: int
    """What the keys and values of one token take, in all layers."""
    tier: str
    """The instruction set that computes."""
    threads: int
    """How many compute; 0 where somebody else decides."""

    @property
    def pool(self) -> "Pool | None":
        """Threads that others may use between two runs; None where there are none to lend."""
        ...

    def run(self, batch: Batch) -> Logits:
        """Compute the rows, store their keys and values, return logits (L, vocab).

        A row attends to positions 0 … its own in its sequence's blocks: those of earlier
        runs and those of this batch. Nothing else is read, so a block's old content is harmless.
        The result may be reused by the next call: copy what you keep.
        """
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy the keys and values of whole KV blocks: (source, target) ids.

        ValueError where an id names no block, or a target is a source too or named twice.
        """
        ...
