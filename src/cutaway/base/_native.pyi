"""
Kernels, packed weights and the plan executor. Not for direct use: see cutaway.compute.backends.cpu.
"""

from collections.abc import Sequence
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray


def tiers() -> str:
    """Instruction-set tiers of this machine, best first, comma-separated."""

def amx_refusal() -> str:
    """
    Why matrix units that this processor has are not used; empty where they are.
    """

class PlainArithmetic:
    """
    In its block numbers are rounded as usual, whatever the thread's own rounding is.
    """

    def __init__(self) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object | None, error: object | None, traceback: object | None) -> None: ...

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
    def factor(self) -> float: ...

    @property
    def is_float(self) -> bool: ...

    def decode(self, first: int, last: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """These rows as floats, exactly: (last - first, cols)."""

class Arena:
    def __init__(self, bytes: int, file: int | None = None) -> None:
        """
        file: the descriptor of a file of this size; the arena has one of its own.
        """

    def pack(self, pool: Pool, format: str, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], rows: int, cols: int) -> Packed: ...

    def reserve(self, format: str, rows: int, cols: int, factor: float = 1.0) -> Packed:
        """
        factor: what products with the matrix are multiplied by, and its decoded rows.
        """

    def fill(self, pool: Pool, pieces: list) -> None:
        """
        pieces: (matrix, FileBytes or uint8 (bytes,), first row) of each piece, which is whole panels.
        """

def packed_bytes(format: str, rows: int, cols: int) -> int: ...

def patterns(name: str) -> list[int]:
    """What IQ1, IQ2_XXS … IQ3_S name by a number: digits of 2 or 3 bits."""

class FileBytes:
    """Bytes of a file, which are read when they are sliced, into new memory."""

    def __init__(self, file: int, name: str) -> None:
        """All of a file; name: for errors."""

    def part(self, first: int, end: int) -> FileBytes:
        """Some of them, which are not read yet."""

    def expect(self) -> None:
        """Tell the system that they will be read soon: the disk can begin."""

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, where: slice) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
        """
        uint8 (bytes,), read-only. FileChangedError where the file has changed since it was opened.
        """

def strings(data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], position: int, count: int) -> tuple[list, int]:
    """
    Strings from this byte on, each behind its length (uint64), and the byte after them: fewer than `count` where one would not end in `data`. Bytes that are not UTF-8 become lone surrogates.
    """

class RankedMerges:
    """Byte-pair encoding by ranks: it makes tokens of a word."""

    def __init__(self, tokens: list, hidden: Sequence[int], merges: list) -> None:
        """
        tokens: texts by id. hidden: ids of tokens that no text spells. merges: "LEFT RIGHT", the lowest rank first.
        """

    @property
    def misfit(self) -> int:
        """
        The first merge that does not join two tokens to a third; -1: there is none.
        """

    def id_of(self, text: str) -> int:
        """The token with this text, the last of several; -1: there is none."""

    def merge(self, word: str) -> list[int]:
        """The ids of a word, whose characters are tokens."""

KV_BLOCK: int = 32

def kv_block_bytes(kv_heads: int, key_dim: int, value_dim: int, kv: str = 'f16') -> int:
    """
    Of one layer's keys and values of KV_BLOCK tokens; value_dim 0: of keys alone.
    """

def read_kv(memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], kv: str, values: bool, kv_heads: int, head_dim: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """
    A layer's keys, or its values, at the beginning of some of a KV block's memory: (kv_heads * KV_BLOCK, head_dim).
    """

def round_activations(x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """
    Rows as quantised matrices read them: each 32 are whole multiples of a step.
    """

ELEMENTWISE: tuple = ...

GATES: tuple = ('silu_mul', 'gelu_mul', 'gelu_exact_mul')

class StoredTable:
    """A matrix as the file has it, whose rows are read when they are wanted."""

    @overload
    def __init__(self, format: str, table: FileBytes) -> None: ...

    @overload
    def __init__(self, format: str, table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """The same, of bytes that are in memory."""

class Plan:
    def __init__(self, pool: Pool, tier: str, kv_blocks: int, context: int, prefetch: str = '', kv: str = 'f16', draft_states: int = 0) -> None: ...

    def set_resident_budget(self, bytes: int, experts: float = 1.0) -> None:
        """See plan.h; to be set before ops are added."""

    @property
    def kept_experts(self) -> list[tuple[list[int], int, int]]:
        """
        Of each op whose experts are not all kept: how often each was chosen; how many were in memory, how many not.
        """

    def beside(self) -> Plan:
        """An empty plan on the same threads, tier, keys and values."""

    @property
    def prefetch(self) -> str: ...

    @property
    def tier(self) -> str: ...

    @property
    def window_blocks(self) -> int:
        """How many KV blocks have a place in the layers that see a window."""

    @property
    def context(self) -> int: ...

    def add(self, calls: object, matrices: Sequence[Packed], stored: Sequence[StoredTable] = []) -> None:
        """
        What calls say (compute/lowering/calls.py), which name matrices and stored tables by their numbers.
        """

    def read(self, buffer: tuple[int, int], rows: int, width: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        What the last run left in a buffer that nothing has written over since: (rows, width).
        """

    def write(self, buffer: tuple[int, int], numbers: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """Write over a buffer's first rows between two pieces of a run."""

    def copy_blocks(self, sources: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], targets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def copy_windows(self, sources: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], targets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def copy_states(self, sources: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], targets: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def state_memory(self, slot: int, new: bool) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))] | None: ...

    def block_memory(self, block: int, windows: bool) -> list[Annotated[NDArray[numpy.uint8], dict(shape=(None,))]]: ...

    def run_on(self, numbers: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]: ...

    def run(self, batch: object, first: int = 0, last: int | None = None) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Logits; with first and last, those ops alone, of a run that is made piece by piece.
        """

def layout(format: str) -> dict:
    """
    The layout of a format's panels (native/formats.h); empty for formats of floats.
    """

def panel_bytes(format: str, cols: int) -> int: ...

def kernel_format(format: str) -> str:
    """The first format that is laid out alike."""

def packed(matrix: Packed) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,), writable=False)]:
    """The bytes of a matrix's panels, one after the other, not copied."""

def fill_panels(matrix: Packed, at: int, panels: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """Panels of a reserved matrix, from byte `at` on."""

def decode_panels(format: str, panels: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], first: int, last: int, cols: int, factor: float = 1.0) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """Rows of a matrix as floats, exactly: (last - first, cols)."""

def stored_rows(table: StoredTable, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], cols: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """Tokens' rows of a stored table as floats: (tokens, cols)."""

ELEMENTWISE_EXPRESSIONS: tuple = ...

class Angles:
    """The cosines and sines of a rotation."""

    def __init__(self, frequencies: Sequence[float], rotate_half: bool = False, attention_factor: float = 1.0, growth: float = 0.0, period: int = 1, offset: int = 0, is_smooth: bool = False) -> None: ...

    def at(self, positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        The cosine and sine of every pair at each position: (positions, 2 * pairs).
        """

class Chain:
    def __init__(self, greedy: bool) -> None: ...

    def add(self, name: str, numbers: Sequence, bias: dict, ids: Sequence) -> None: ...

    def set_prompt(self, prompt: Sequence) -> None: ...

    @property
    def history(self) -> bool: ...

def sample_rows(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], rows: list, tier: str, pool: Pool | None = None) -> list:
    """
    (status, token, sampled token, survivors, logprob, hash of the logits, what is observed) per row; status 0: drawn, 1: not finite, 2: ask the twin, 3: the constraint left no token.
    """

def read_distributions(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], rows: list, entropies: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu')], chances: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')] | None, tier: str, pool: Pool | None = None) -> list:
    """
    Fill entropies and chances, which begin as zeros; the status per row, as of sample_rows.
    """

def read_rows(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], next_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], top: int, tier: str, pool: Pool | None = None) -> list:
    """
    (finite, logprob of the next id, its rank, the likeliest) per row; a next id below 0 is none.
    """

class ReadProbe:
    def __init__(self, pool: Pool, bytes: int) -> None: ...

    def run(self, pool: Pool, streams: int) -> float: ...

def tile_rate(pool: Pool, tier: str, weight: Packed) -> float: ...

def instruction_rate(pool: Pool, tier: str) -> float: ...

def quantise(pool: Pool, source_format: str, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], format: str, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], importance: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> int:
    """
    -1, or the first number of the first quant block that cannot be written. importance: of each column.
    """
