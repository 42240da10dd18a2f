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

    @overload
    def fill(self, pool: Pool, packed: Packed, source: FileBytes, first: int) -> None: ...

    @overload
    def fill(self, pool: Pool, packed: Packed, source: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], first: int) -> None: ...

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

KV_BLOCK: int = 32

def kv_block_bytes(kv_heads: int, head_dim: int, kv: str = 'f16', values: bool = True) -> int:
    """Of one layer's keys and values, or keys alone, of KV_BLOCK tokens."""

ELEMENTWISE: tuple = ...

GATES: tuple = ('silu_mul', 'gelu_mul', 'gelu_exact_mul')

class Places:
    """
    Where a tensor is: its floats, its quant blocks (a buffer's number), or both.
    """

    def __init__(self, floats: tuple[int, int] = (-1, 0), act: int = -1) -> None: ...

class Norm:
    """What a row is divided by; see ops.h."""

    def __init__(self, weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], eps: float, group: int) -> None: ...

class Rotation:
    """How pairs of a head's numbers are rotated; see plan.h."""

    def __init__(self, frequencies: Sequence[float], rotate_half: bool, attention_factor: float, growth: float = 0, period: int = 1, offset: int = 0) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

class ExpertsShape:
    """How experts are chosen and weighed; see compute/model/mixture.py."""

    def __init__(self, *, used: int, gating: str, normed: bool, scale: float, groups: int, used_groups: int, best_of_group: int, activation: str, limit: float, weighs_input: bool, tolerance: float, bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

class AttendShape:
    """The sizes of an attention; see ops.h."""

    def __init__(self, *, heads: int, kv_heads: int, head_dim: int, scale: float, softcap: float, window: int, reach: int, chunked: bool = False, layer: int = 0, reads: int = -1, value_first: int = 0, value_dim: int = 0) -> None: ...

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
    def length(self) -> int:
        """How many ops there are."""

    def buffer(self, width: int, quantised: bool) -> int: ...

    @property
    def context(self) -> int: ...

    def output(self, out: tuple[int, int]) -> None: ...

    def given(self, x: tuple[int, int]) -> None: ...

    def embed(self, table: Packed, out: tuple[int, int]) -> None: ...

    def embed_positions(self, table: Packed, out: tuple[int, int]) -> None: ...

    def embed_types(self, table: Packed, out: tuple[int, int]) -> None: ...

    @overload
    def embed_stored(self, format: str, table: FileBytes, cols: int, out: tuple[int, int]) -> None:
        """
        By token, of a matrix as the file has it, whose bytes are read when they are wanted; after embed.
        """

    @overload
    def embed_stored(self, format: str, table: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], cols: int, out: tuple[int, int]) -> None:
        """The same, of bytes that are in memory."""

    def gather(self, x: tuple[int, int], out: tuple[int, int], width: int) -> None: ...

    def reorder(self, logits: bool, x: tuple[int, int], order: Sequence[int], out: tuple[int, int]) -> None:
        """Number i of a row becomes its number order[i]."""

    def join(self, logits: bool, a: tuple[tuple[int, int], int], b: tuple[tuple[int, int], int], groups: int, out: tuple[int, int]) -> None:
        """a, b: where, and how many numbers of a group."""

    def normalise(self, logits: bool, x: tuple[int, int], width: int, norm: Norm | None, out: Places) -> None:
        """norm None: to quant blocks alone."""

    def map(self, logits: bool, kind: str, a: tuple[int, int], b: tuple[int, int], number: float, width: int, out: tuple[int, int], spread: bool = False) -> None:
        """spread: a has one number for all of a row."""

    def linear(self, logits: bool, x: Places, parts: Sequence[tuple[Packed, tuple[int, int], Sequence[float], int]], adds: bool = False, gate: str | None = None) -> None: ...

    def experts(self, logits: bool, x: Places, scores: tuple[int, int], mixture: ExpertsShape, experts: Sequence[tuple[Packed, Packed, Packed]], out: tuple[int, int], inner: tuple[int, int] = (-1, 0), biases: Sequence[Sequence[Sequence[float]]] = [[], [], []]) -> None:
        """
        inner: where to leave what each expert's down reads, by rank; biases: of gate, up and down.
        """

    def attend(self, q: tuple[int, int], k: tuple[int, int], v: tuple[int, int], out: tuple[int, int], shape: AttendShape, rotation: Rotation, sinks: Sequence[float], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], relative: tuple[tuple[int, int], tuple[int, int], int, Sequence[int]] | None = None) -> None:
        """
        relative: where queries and keys have their numbers by distance, how many a head, and which by distance.
        """

    def rotate(self, x: tuple[int, int], out: tuple[int, int], heads: int, head_dim: int, rotation: Rotation) -> None: ...

    def conv(self, x: tuple[int, int], out: tuple[int, int], weight: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], width: int, taps: int) -> None: ...

    def delta_net(self, qkv: tuple[int, int], a: tuple[int, int], b: tuple[int, int], out: tuple[int, int], shape: tuple[int, int, int, int, bool], scale: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], dt: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def mamba2(self, vkq: tuple[int, int], dt: tuple[int, int], out: tuple[int, int], shape: tuple[int, int, int, int], scale: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], dt_bias: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], skip: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def read(self, buffer: tuple[int, int], rows: int, width: int) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        What the last run left in a buffer that nothing has written over since: (rows, width).
        """

    def write(self, buffer: tuple[int, int], rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], numbers: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> None:
        """Write over rows of numbers between two pieces of a run."""

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

class Chain:
    def __init__(self, greedy: bool) -> None: ...

    def add(self, name: str, numbers: Sequence, bias: dict, ids: Sequence) -> None: ...

    def set_prompt(self, prompt: Sequence) -> None: ...

    @property
    def history(self) -> bool: ...

class Drawn:
    @property
    def status(self) -> int:
        """
        0: drawn, 1: not finite, 2: ask the twin, 3: the constraint left no token.
        """

    @property
    def token_id(self) -> int: ...

    @property
    def sampled_id(self) -> int: ...

    @property
    def survivors(self) -> int: ...

    @property
    def logprob(self) -> float: ...

    @property
    def logits_hash(self) -> int: ...

    @property
    def observed(self) -> object: ...

def sample_rows(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], rows: list, tier: str, pool: Pool | None = None) -> list:
    """A Drawn per row."""

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
