"""
Kernels, packed weights and the plan executor. Not for direct use: see cutaway.backends.cpu.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

def tiers() -> str:
    """Instruction-set tiers of this machine, best first, comma-separated."""

class Pool:
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class Packed:
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def is_float(self) -> bool: ...
    def decode_row(self, arg: int, /) -> list[float]: ...

class Arena:
    def __init__(self, bytes: int) -> None: ...
    def pack(
        self,
        pool: Pool,
        format: str,
        source: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        rows: int,
        cols: int,
    ) -> Packed: ...

def packed_bytes(arg0: str, arg1: int, arg2: int, /) -> int: ...

class Plan:
    def __init__(self, pool: Pool, tier: str, kv_blocks: int, context: int) -> None: ...
    @property
    def tier(self) -> str: ...
    def buffer(self, width: int, quantised: bool) -> int: ...
    def embed(self, arg0: Packed, arg1: tuple[int, int], /) -> None: ...
    def gather(self, arg0: tuple[int, int], arg1: tuple[int, int], arg2: int, /) -> None: ...
    def normalise(
        self,
        arg0: bool,
        arg1: tuple[int, int],
        arg2: int,
        arg3: Annotated[
            NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        arg4: float,
        arg5: tuple[int, int],
        arg6: int,
        /,
    ) -> None: ...
    def linear(
        self,
        arg0: bool,
        arg1: tuple[int, int],
        arg2: int,
        arg3: str,
        arg4: Sequence[tuple[Packed, tuple[int, int], Sequence[float]]],
        /,
    ) -> None: ...
    def attend(
        self,
        q: tuple[int, int],
        k: tuple[int, int],
        v: tuple[int, int],
        out: tuple[int, int],
        heads: int,
        kv_heads: int,
        head_dim: int,
        rope_dim: int,
        rope_base: float,
        scale: float,
        softcap: float,
        window: int,
    ) -> None: ...
    def output(self, arg: tuple[int, int], /) -> None: ...
    def copy_blocks(
        self,
        sources: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        targets: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> None: ...
    def run(
        self,
        tokens: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        positions: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        sequences: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        block_tables: Annotated[
            NDArray[numpy.int32], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        logit_rows: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]: ...

class Chain:
    def __init__(self, greedy: bool) -> None: ...
    def logit_bias(self, arg: dict, /) -> None: ...
    def penalties(
        self, repetition: float, presence: float, frequency: float, prompt: Sequence
    ) -> None: ...
    def temperature(self, arg: float, /) -> None: ...
    def top_k(self, arg: float, /) -> None: ...
    def top_p(self, arg: float, /) -> None: ...
    def min_p(self, arg: float, /) -> None: ...
    @property
    def wants_output(self) -> bool: ...

def sample_rows(
    logits: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    rows: list,
    tier: str,
    pool: Pool | None = None,
) -> list:
    """
    (status, token id, survivors, logprob, row hash, ledger, log-probabilities or None) per row;
    status 1: not finite, 2: ask the twin.
    """

def read_rows(
    logits: Annotated[
        NDArray[numpy.float32], dict(shape=(None, None), order="C", device="cpu", writable=False)
    ],
    next_ids: Annotated[
        NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    top: int,
    tier: str,
    pool: Pool | None = None,
) -> list:
    """
    (finite, logprob of the next id, its rank, the likeliest) per row; a next id below 0 is none.
    """

class ReadProbe:
    def __init__(self, pool: Pool, bytes: int) -> None: ...
    def run(self, pool: Pool, streams: int) -> float: ...

def tile_rate(pool: Pool, tier: str, weight: Packed) -> float: ...
def instruction_rate(pool: Pool, tier: str) -> float: ...
