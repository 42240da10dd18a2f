"""The memory of a text in a backend: keys and values in KV blocks, recurrent states in slots.

Knows how many blocks and states there are, their bytes, and the definitions of the formats of keys
and values. Does not know how a backend lays them out, nor who computes them.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import shown
from cutaway.compute.model import Graph
from cutaway.errors import InputError

KV_BLOCK = 32
"""How many tokens a KV block has."""
STEP_ROWS = 512
"""The most rows of a step by default; this bounds the memory of a long prompt's activations."""
DRAFT_STATES = 64
"""How many more slots there are than KV blocks, for states after draft tokens."""
STATE_TOKENS = 512
"""A long text's state is kept each time that this many more tokens were read."""
_LEAST_STATES = 8


class KVGroup(NamedTuple):
    """Layers whose keys and values are stored alike.

    layers           the layers' numbers in the graph
    window           the most tokens that a row sees in one of the layers, its own included; 0: all
    format           the format of numbers: "F16", "F32", "Q8_0"; "Q8_0,Q4_0": of keys, of values
    bytes_per_token  the bytes of a token in all these layers together
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
    """Layers that keep a recurrent state of a text; its size does not depend on the text's length.

    layers  the layers' numbers in the graph
    format  the format of numbers: "F32"
    nbytes  the bytes of a text's states in all these layers together
    """

    layers: tuple[int, ...]
    format: str
    nbytes: int


class KVLayout(NamedTuple):
    """How a backend keeps a text: keys and values, and perhaps a recurrent state.

    Keys and values are in blocks of ``block_tokens`` tokens, group by group. The layers that see
    the whole text are one group; the layers with a window are another.
    """

    block_tokens: int
    groups: tuple[KVGroup, ...]
    state: StateGroup | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all layers."""
        return sum(group.bytes_per_token for group in self.groups)

    @property
    def window(self) -> int:
        """The widest window of any layer, in tokens; 0 where no layer has one."""
        return max((group.window for group in self.groups), default=0)

    def bytes_read(self, tokens: int) -> int:
        """Return the bytes of keys and values that a row reads if it sees this many tokens."""
        return sum(g.bytes_per_token * min(tokens, g.window or tokens) for g in self.groups)

    def window_blocks(self, rows: int = STEP_ROWS) -> int:
        """Return how many KV blocks of a text layers with a window keep: enough for two windows.

        One window is for the text itself, the other for a later text that continues its prefix.
        rows: the most rows of one step, since blocks are freed only between steps
        """
        return 2 * (-(-max(self.window, rows) // self.block_tokens) + 1)

    def kept_states(self, tokens: int) -> int:
        """Return how many states are kept for later texts, if keys and values of these tokens fit.

        There are two for each ``STATE_TOKENS`` tokens, or fewer, so that they take no more memory
        than the keys and values, but at least 8.
        """
        if self.state is None:
            return 0
        affordable = self.bytes_per_token * tokens // self.state.nbytes
        return max(_LEAST_STATES, min(2 * tokens // STATE_TOKENS, affordable))

    def bytes_stored(self, tokens: int) -> int:
        """Return the most bytes that a text of this many tokens takes, in whole blocks.

        They include the text's own state, the state at the last block's end, and the states that
        are kept for later texts.
        """
        blocks = -(-tokens // self.block_tokens)
        windows = min(blocks, self.window_blocks())
        sizes = (g.bytes_per_token * (windows if g.window else blocks) for g in self.groups)
        return self.block_tokens * sum(sizes) + self.state_bytes(tokens)

    def state_bytes(self, tokens: int) -> int:
        """Return the part of ``bytes_stored`` that recurrent states take."""
        return (2 + self.kept_states(tokens)) * self.state.nbytes if self.state else 0

    def __str__(self) -> str:
        """Return the layout as text: blocks, groups and state."""
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
    """Return ascending numbers as text, such as "0-3, 5"."""
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
    """Return a graph's groups: first of layers that see the whole text, then with a window.

    bytes_of: (kv_heads, numbers of a key, numbers of a value) -> bytes of a token in one layer; a
        value that is a part of its key has none of its own
    """
    groups = []
    for is_windowed in (False, True):
        if group_ops := [op for op in graph.stores if (op.mask.window > 0) is is_windowed]:
            layers, window = (
                tuple(op.layer for op in group_ops),
                max(op.mask.window for op in group_ops),
            )
            nbytes = sum(
                bytes_of(op.heads.kv, op.heads.dim, op.value_dim if op.values_from is None else 0)
                for op in group_ops
            )
            groups.append(KVGroup(layers, window, format, nbytes))
    return tuple(groups)


def state_group(graph: Graph) -> StateGroup | None:
    """Return the group of layers that keep a state, in float32; None if no layer does."""
    if not graph.states:
        return None
    layers = tuple(dict.fromkeys(op.layer for op in graph.states))
    return StateGroup(layers, "F32", 4 * state_layout(graph)[1])


# -- where each op's state lies in that of a text: one array of float32, op after op ---------------


_STEP = 16  # each op's part begins at a multiple of it, since kernels read registers of 16 numbers


def state_layout(graph: Graph) -> tuple[dict[str, slice], int]:
    """Return the place of each op's state, by the name of its tensor, and the length of all."""
    places, end = dict[str, slice](), 0
    for op in graph.states:
        size = prod(op.state)
        places[op.out.name] = slice(end, end + size)
        end += -(-size // _STEP) * _STEP
    return places, end


# -- the formats in which keys and values are stored -----------------------------------------------


KV_FORMATS = ("f16", "q8_0", "q5_1", "q4_0")
"""The formats that ``kv=`` names. With f16 the reference backend stores float32, others float16."""
PER_SCALE = 32
_LARGEST_HALF = np.float32(65504)  # the largest finite float16

Floats = NDArray[np.float32]


def check_kv(kv: Any) -> str:
    """Return the name of one of KV_FORMATS, or KEYS,VALUES if two differ. InputError for others."""
    formats = kv.split(",") if isinstance(kv, str) else []
    if not 1 <= len(formats) <= 2 or not {*formats} <= {*KV_FORMATS}:
        raise InputError(
            "kv", f" must be one of {', '.join(KV_FORMATS)}, or two as KEYS,VALUES, not {shown(kv)}"
        )
    return ",".join(dict.fromkeys(formats))


def keys_and_values(kv: str) -> tuple[str, str]:
    """Split what ``check_kv`` returned into the format of keys and the format of values."""
    keys, _, values = kv.partition(",")
    return keys, values or keys


class Coded(NamedTuple):
    """Numbers (…, head_dim) as codes of the same shape, with a scale and a minimum for every 32.

    scales, minima: (…, ceil(head_dim / 32)). A number is code · scale + minimum, rounded once; the
    rounding changes nothing if the minimum is 0 or, as in q4_0, -8 · scale. If one of 32 numbers is
    NaN, their scale is NaN, since no code stands for NaN.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float16]
    minima: NDArray[np.float32]

    def numbers(self) -> Floats:
        """Decode the numbers to float32 from float64, in which those of every format are exact."""
        dim = self.codes.shape[-1]
        scales, minima = (
            np.repeat(per_block.astype(np.float64), PER_SCALE, axis=-1)[..., :dim]
            for per_block in (self.scales, self.minima)
        )
        return (self.codes * scales + minima).astype(np.float32)


def q8_0(x: Floats) -> Coded:
    """Code numbers: a scale is the float16 next to max|x| / 127, and a code is -127 … 127."""
    blocks = _blocks(x)
    scales = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
    return Coded(_codes(x, blocks, scales, -127, 127), scales, np.zeros(scales.shape, np.float32))


def q5_1(x: Floats) -> Coded:
    """Code numbers: a minimum is the float16 next to the least number.

    A scale is the float16 next to (most - least) / 31, and a code is 0 … 31.
    """
    blocks = _blocks(x)
    least = blocks.min(-1) + np.float32(0)  # this turns -0 into 0
    scales = ((blocks.max(-1) - least) / np.float32(31)).astype(np.float16)
    minima = least.astype(np.float16).astype(np.float32)
    return Coded(_codes(x, blocks - minima[..., None], scales, 0, 31), scales, minima)


def q4_0(x: Floats) -> Coded:
    """Code numbers: a scale is the float16 next to -x / 8, for the number x farthest from 0.

    If two numbers are equally far, x is the positive one. A code is 0 … 15, and stands for a
    multiple of the scale that is eight less.
    """
    blocks = _blocks(x)
    largest, smallest = blocks.max(-1), blocks.min(-1)
    farthest = np.where(largest >= -smallest, largest, smallest)
    scales = (np.float32(0) - farthest / np.float32(8)).astype(np.float16)
    codes = _codes(x, blocks, scales, -8, 7) + np.int8(8)
    return Coded(codes, scales, scales.astype(np.float32) * np.float32(-8))


def _keeping_nan(coder: Callable[[Floats], Coded]) -> Callable[[Floats], Coded]:
    """Return a coder that makes a scale NaN if one of its 32 numbers is NaN."""

    def code_with_nan(x: Floats) -> Coded:
        codes, scales, minima = coder(x)
        lacking = np.isnan(_pad(x)).any(-1)
        return Coded(codes, np.where(lacking, np.float16(np.nan), scales), minima)

    return code_with_nan


CODERS: dict[str, Callable[[Floats], Coded]] = {
    "q8_0": _keeping_nan(q8_0), "q5_1": _keeping_nan(q5_1), "q4_0": _keeping_nan(q4_0),
}  # fmt: skip
"""Format -> coder; f16 has no codes."""


def as_stored(format: str, x: Floats) -> Floats:
    """Return the numbers that a format stores for ``x``; f16 leaves ``x`` unchanged."""
    return x if format == "f16" else CODERS[format](x).numbers()


def _blocks(x: Floats) -> Floats:
    """Return blocks, (…, ceil(head_dim / 32), 32), clipped to the range of float16."""
    return _pad(
        np.maximum(np.where(x < _LARGEST_HALF, x, _LARGEST_HALF), -_LARGEST_HALF)
    )  # NaN becomes the largest number


def _pad(x: Floats) -> Floats:
    """Return blocks, (…, ceil(head_dim / 32), 32), the last one filled up with the last number."""
    pad = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % PER_SCALE)]
    return np.pad(x, pad, mode="edge").reshape(*x.shape[:-1], -1, PER_SCALE)


def _codes(
    x: Floats, blocks: Floats, scales: NDArray[np.float16], low: int, high: int
) -> NDArray[np.int8]:
    """Return codes: the nearest multiples of the scales, ties to even; 0 where the scale is 0."""
    steps = scales.astype(np.float32)[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.where(steps != 0, blocks / steps, np.float32(0))
    whole = np.rint(np.clip(exact, low, high)).astype(np.int8)
    codes: NDArray[np.int8] = whole.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]]
    return codes
