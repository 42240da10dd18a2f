"""A bounds-checked walk through the header of a GGUF file, which is read piece by piece.

Knows how numbers, strings, arrays and typed metadata values are written. It checks every count of a
file against the bytes that remain, so that memory and time stay proportional to the file's size.

Source: docs/gguf.md of ggml.
"""

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError

if TYPE_CHECKING:
    from cutaway.base._native import FileBytes

_LENGTH_BYTES = 8  # of a string
STRING, ARRAY = 8, 9
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_BOOL = NUMBERS[7]
_MAX_DEPTH = 8  # arrays in arrays: real files have one level, and recursion must end
_MIN_ARRAY = 4 + 8  # the bytes of an empty array: element type and count
_AT_ONCE = 1 << 20  # bytes to read of the file at once, if so many are left


def quote(name: str) -> str:
    """Return a name from a file, made safe and short enough for a message."""
    text = repr(name[:80])
    return text if len(text) <= 80 else text[:76] + "...'"


class Cursor:
    """A position in the bytes of one file; every read checks, then advances.

    `reading` names what is being read, for messages. All methods raise `FormatError` if the bytes
    are invalid.
    """

    def __init__(self, data: "FileBytes", path: object) -> None:
        self._data = data
        self._path = path
        self._size = data.nbytes
        self._ahead, self._begin = b"", 0  # the bytes read last, and where they begin
        self.position = 0
        self.reading = "the header"

    def fail(self, problem: str) -> NoReturn:
        """Raise a `FormatError` that names the file."""
        raise FormatError(f"{self._path}: {problem}")

    def check_room(self, count: int, least: int, items: str) -> None:
        """Fail unless `count` items of at least `least` bytes each fit into what remains."""
        remain = self._size - self.position
        if count * least > remain:
            self.fail(
                f"{self.reading} needs {count} {items}, but the file ends {remain} bytes further "
                "on; it is truncated or damaged, download it again"
            )

    def take(self, nbytes: int) -> bytes:
        """Copy the next `nbytes` bytes."""
        self.check_room(nbytes, 1, "bytes")
        start = self._read(nbytes)
        self.position += nbytes
        return self._ahead[start : start + nbytes]

    def _read(self, nbytes: int) -> int:
        """Buffer the next bytes, or all that are left; return where they begin in the buffer."""
        if self.position + nbytes > self._begin + len(self._ahead):
            self._begin = self.position
            self._ahead = self._data[self._begin : self._begin + max(nbytes, _AT_ONCE)].tobytes()
        return self.position - self._begin

    def numbers(self, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        """Read a packed array, (count,): read-only."""
        raw = self.take(count * dtype.itemsize)
        if dtype == _BOOL and raw.strip(b"\x00\x01"):
            self.fail(f"{self.reading} holds a truth value that is neither 0 nor 1")
        return np.frombuffer(raw, dtype)

    def u32(self) -> int:
        """Read a uint32."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """Read a uint64."""
        return int.from_bytes(self.take(8), "little")

    def u64s(self, count: int) -> list[int]:
        """Read `count` uint64."""
        return [self.u64() for _ in range(count)]

    def string(self) -> str:
        """Read a string; see `strings`."""
        length = self.u64()
        if length > self._size - self.position:
            self._fail_past_end()
        return self.take(length).decode("utf-8", "surrogateescape")

    def strings(self, count: int) -> list[str]:
        """Read `count` strings: UTF-8, each after its length in bytes (uint64).

        Bytes that are not UTF-8 become lone surrogates, so that nothing is lost:
        `s.encode("utf-8", "surrogateescape")` returns exactly the file's bytes.
        """
        from cutaway.base import _native  # listing models needs no kernels

        self.check_room(count, _LENGTH_BYTES, "strings of at least 8 bytes")
        strings: list[str] = []
        nbytes = _LENGTH_BYTES
        while len(strings) < count:
            start = self._read(nbytes)
            data = np.frombuffer(self._ahead, np.uint8)
            more, end = _native.strings(data, start, count - len(strings))
            strings += more
            self.position = self._begin + end
            if len(strings) < count and self._begin + len(data) >= self._size:
                self._fail_past_end()
            nbytes = 2 * len(data)  # the next string is longer than what is left of these
        return strings

    def _fail_past_end(self) -> NoReturn:
        self.fail(
            f"{self.reading} has a string that runs past the end of the file; it is truncated or "
            "damaged, download it again"
        )

    def value(self, type_id: int) -> Any:
        """Read a metadata value of a type: str, int, float, bool or an array."""
        if type_id == STRING:
            return self.string()
        if type_id == ARRAY:
            return self._array(depth=1)
        return self.numbers(self._dtype(type_id), 1)[0].item()

    def _array(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            self.fail(f"{self.reading} nests arrays more than {_MAX_DEPTH} deep")
        type_id, count = self.u32(), self.u64()
        if type_id == STRING:
            return self.strings(count)
        if type_id == ARRAY:
            self.check_room(count, _MIN_ARRAY, f"arrays of at least {_MIN_ARRAY} bytes")
            return [self._array(depth + 1) for _ in range(count)]
        return self.numbers(self._dtype(type_id), count)

    def _dtype(self, type_id: int) -> np.dtype[Any]:
        if type_id not in NUMBERS:
            self.fail(f"{self.reading} has value type {type_id}, and GGUF defines only 0 to 12")
        return NUMBERS[type_id]
