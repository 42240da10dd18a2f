"""Packed matrices on a GPU: the panels of the cpu backend, in as few buffers as fit them.

Knows where each matrix lies, not which op reads it. Matrices are packed and copied one by one, so
that the host never has the whole packed model in memory.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from cutaway.base import _native
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.shaders import is_float
from cutaway.compute.calls import Floats
from cutaway.compute.lowering import WeightTable, matrix_shapes
from cutaway.compute.model import Graph
from cutaway.compute.model.op import Matrix, Slice
from cutaway.files.weights import ModelFile

LANES = 16  # rows of a panel
_AT_ONCE = 1 << 18  # bytes of a matrix that are packed in one piece, for each row of a panel


class PanelRange(NamedTuple):
    """Successive panels of a matrix that lie in one buffer.

    buffer  the buffer's index
    word    the word of the buffer at which they begin
    first   the index of the first panel; count: how many panels
    """

    buffer: int
    word: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name


class PackedMatrix(NamedTuple):
    """A packed matrix and where it lies; format: the first of the formats with its layout."""

    format: str
    rows: int
    cols: int
    factor: float
    panel_words: int
    pieces: tuple[PanelRange, ...]


class DeviceWeights:
    """A model's packed matrices, by the tensor and the rows of it that an op reads."""

    def __init__(self, device: Device) -> None:
        self.device, self.buffers = device, list[Any]()
        self.matrices: dict[Slice, PackedMatrix] = {}
        self._used = 0  # words of the last buffer

    def share(self, is_new: Callable[[str], bool] | None) -> "DeviceWeights":
        """Return weights over the same buffers, without the matrices of new tensors."""
        twin = DeviceWeights(self.device)
        twin.buffers = self.buffers
        twin.matrices = {
            part: m for part, m in self.matrices.items() if is_new is None or not is_new(part[0])
        }
        twin._used = self.buffers[-1].size // 4 if self.buffers else 0  # the last is not its own
        return twin

    def is_float(self, name: str) -> bool:
        """Whether a matrix reads activations unrounded."""
        return next(is_float(m.format) for part, m in self.matrices.items() if part[0] == name)

    def rows(self, name: str, first: int, last: int | None) -> Floats:
        """Decode rows first … last - 1 of a tensor, exactly; its matrices follow each other.

        last: None is the end
        """
        parts = sorted(part for part in self.matrices if part[0] == name)
        last = parts[-1][2] if last is None else last
        decoded = [
            self._decode(self.matrices[name, a, b], max(first, a) - a, min(last, b) - a)
            for _, a, b in parts
            if a < last and first < b
        ]
        return np.concatenate(decoded)

    def _decode(self, m: PackedMatrix, first: int, last: int) -> Floats:
        pieces = [
            self.device.read(self.buffers[p.buffer], 4 * p.word, 4 * p.count * m.panel_words)
            for p in m.pieces
        ]
        panels = np.concatenate(pieces)
        return _native.decode_panels(m.format, panels, first, last, m.cols, m.factor)

    def table(self, vectors: Mapping[str, Floats], stored: list[str]) -> WeightTable:
        """Return the table of weights whose numbers a plan's calls contain."""
        matrices = {
            part: Matrix(i, m.rows, m.cols, is_float(m.format))
            for i, (part, m) in enumerate(self.matrices.items())
        }
        return WeightTable(matrices, vectors, stored)

    def add(
        self,
        graph: Graph,
        file: ModelFile,
        pool: _native.Pool,
        on_progress: Callable[[int], None] = lambda _done: None,
    ) -> None:
        """Pack the matrices that a graph's ops read, except those that were packed before."""
        shapes = {p: s for p, s in matrix_shapes(graph).items() if p not in self.matrices}
        sizes = [
            _native.packed_bytes(file.tensors[part[0]].format, *shape) // 4
            for part, shape in shapes.items()
        ]
        left, done = sum(sizes), 0
        self.device.check_room(4 * left)
        for (part, shape), size in zip(shapes.items(), sizes, strict=True):
            packed = _pack(part, shape, file, pool)
            self.matrices[part] = self._put(packed, file.tensors[part[0]].format, left)
            left -= size
            done += (
                file.tensors[part[0]].nbytes
                * (part[2] - part[1])
                // prod(file.tensors[part[0]].shape[:-1])
            )
            on_progress(done)

    def _put(self, packed: _native.Packed, format: str, left: int) -> PackedMatrix:
        """Copy a packed matrix to the device; left: words of it and of all matrices to come."""
        capacity = self.device.binding // 4
        panel = _native.panel_bytes(format, packed.cols) // 4
        panels, data = -(-packed.rows // LANES), _native.packed(packed)
        pieces, done = list[PanelRange](), 0
        while done < panels:
            room = self.buffers[-1].size // 4 - self._used if self.buffers else 0
            if room < min(panels - done, max(capacity // panel, 1)) * panel:
                rest = left - done * panel
                self.buffers.append(self.device.storage(max(min(rest, capacity), panel)))
                self._used, room = 0, self.buffers[-1].size // 4
            count = min(panels - done, room // panel)
            piece = PanelRange(len(self.buffers) - 1, self._used, done, count)
            at = done * panel * 4
            self.device.write(self.buffers[-1], 4 * self._used, data[at : at + count * panel * 4])
            pieces.append(piece)
            self._used += count * panel
            done += count
        kind = _native.kernel_format(format)
        return PackedMatrix(kind, packed.rows, packed.cols, packed.factor, panel, tuple(pieces))


def _pack(
    part: Slice, shape: tuple[int, int], file: ModelFile, pool: _native.Pool
) -> _native.Packed:
    name, first, last = part
    format, raw, factors = file.tensors[name].format, file.raw(name), file.factors(name)
    row = raw.nbytes // prod(file.tensors[name].shape[:-1])
    factor = 1.0 if factors is None else float(factors[first // shape[0] % len(factors)])
    arena = _native.Arena(_native.packed_bytes(format, *shape))
    packed = arena.reserve(format, *shape, factor)
    step = max(_AT_ONCE // row, 1) * LANES
    for at in range(first, last, step):
        begin, end = at * row, min(at + step, last) * row
        if isinstance(raw, _native.FileBytes):
            arena.fill(pool, packed, raw.part(begin, end), at - first)
        else:
            arena.fill(pool, packed, raw[begin:end], at - first)
    return packed
