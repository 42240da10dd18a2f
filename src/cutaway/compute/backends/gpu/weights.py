"""Packed matrices on a GPU: the panels of the cpu backend, in as few buffers as can hold them.

Knows where each matrix lies, not which op reads it. Matrices are packed and copied one by one, so
that the host never has the whole packed model in memory.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cutaway.base import _native
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.shaders import is_float
from cutaway.compute.calls import Floats
from cutaway.compute.lowering.packing import LANES, Shapes, pack, packed_sizes
from cutaway.compute.model.op import Slice
from cutaway.files.weights import ModelFile


class PanelRange(NamedTuple):
    """Successive panels of a matrix that lie in one buffer.

    buffer  the buffer's index
    word    the word of the buffer at which the panels begin
    first   the index of the first panel; count: how many panels there are
    """

    buffer: int
    word: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name


class PackedMatrix(NamedTuple):
    """A packed matrix and where it lies; format: the first of all formats that have its layout."""

    format: str
    rows: int
    cols: int
    factor: float
    panel_words: int
    pieces: tuple[PanelRange, ...]

    @property
    def is_float(self) -> bool:
        """Whether the matrix reads activations unrounded."""
        return is_float(self.format)


class DeviceWeights:
    """A model's packed matrices; a key is a tensor, and the rows of the tensor that an op reads.

    on_cpu  matrices that were read back, for what the CPU computes again
    """

    def __init__(self, device: Device) -> None:
        self.device, self.buffers = device, list[Any]()
        self.matrices: dict[Slice, PackedMatrix] = {}
        self.on_cpu: dict[Slice, _native.Packed] = {}
        self._used = 0  # how many words of the last buffer are used

    def share(self, matrices: Mapping[Slice, PackedMatrix]) -> "DeviceWeights":
        """Return weights over the same buffers that have only these matrices."""
        twin = DeviceWeights(self.device)
        twin.buffers, twin.matrices = self.buffers, dict(matrices)
        twin.on_cpu = {part: m for part, m in self.on_cpu.items() if part in matrices}
        twin._used = self.buffers[-1].size // 4 if self.buffers else 0  # the last buffer is shared
        return twin

    def decode(self, m: PackedMatrix, first: int, last: int) -> Floats:
        """Return rows first … last - 1 of a matrix, exactly."""
        pieces = [
            self.device.read(self.buffers[p.buffer], 4 * p.word, 4 * p.count * m.panel_words)
            for p in m.pieces
        ]
        panels = np.concatenate(pieces)
        return _native.decode_panels(m.format, panels, first, last, m.cols, m.factor)

    def read_all(self) -> Mapping[Slice, _native.Packed]:
        """Return all matrices on the CPU, in order; those that are not there yet are read back."""
        lacking = {part: m for part, m in self.matrices.items() if part not in self.on_cpu}
        sizes = [_native.packed_bytes(m.format, m.rows, m.cols) for m in lacking.values()]
        arena = _native.Arena(sum(sizes))
        for part, m in lacking.items():
            packed = arena.reserve(m.format, m.rows, m.cols, m.factor)
            for piece in m.pieces:
                nbytes = 4 * piece.count * m.panel_words
                panels = self.device.read(self.buffers[piece.buffer], 4 * piece.word, nbytes)
                _native.fill_panels(packed, 4 * piece.first * m.panel_words, panels)
            self.on_cpu[part] = packed
        return {part: self.on_cpu[part] for part in self.matrices}

    def add(
        self,
        shapes: Shapes,
        file: ModelFile,
        pool: _native.Pool,
        on_progress: Callable[[int], None] = lambda _done: None,
    ) -> None:
        """Pack matrices one by one, and copy each to the device."""
        self.put(pack(shapes, file, pool, on_progress), packed_sizes(shapes, file.tensors), file)

    def put(
        self, matrices: Iterable[tuple[Slice, _native.Packed]], sizes: list[int], file: ModelFile
    ) -> None:
        """Copy packed matrices to the device, one by one; sizes: of each, in bytes."""
        left = sum(sizes) // 4
        self.device.check_room(4 * left)
        for size, (part, packed) in zip(sizes, matrices, strict=True):
            self.matrices[part] = self._put(packed, file.tensors[part[0]].format, left)
            left -= size // 4

    def _put(self, packed: _native.Packed, format: str, left: int) -> PackedMatrix:
        """Copy a packed matrix to the device; left: its words and those of all matrices to come."""
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
