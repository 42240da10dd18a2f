"""Read a GGUF file into parts, change single parts, and write it again, without any check."""

import struct
from dataclasses import dataclass, field, replace
from math import prod
from random import Random
from typing import Any

from cutaway.files.weights.formats import FORMATS_BY_ID
from support.fuzz.mutation import a_few, odd_number

STRING, ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True))
_BITS = {"B": 8, "b": 8, "H": 16, "h": 16, "I": 32, "i": 32, "Q": 64, "q": 64}
_FLOATS = (
    b"\0\0\xc0\x7f",
    b"\0\0\x80\x7f",
    b"\xff\xff\x7f\x7f",
    b"\1\0\0\0",
    b"\0\x7e",
    b"\0\x7c",
    b"\xff",
    b"\0",
)
"""NaN, infinity, the largest, the smallest; NaN and infinity of halves."""


@dataclass
class Tensor:
    """dims: in the file's order, innermost first. shift: error of the tensor's offset, in bytes."""

    name: bytes
    dims: list[int]
    type_id: int
    data: bytes
    shift: int = 0


@dataclass
class Parts:
    """Metadata as (key, type, value), and tensors. The value of an array is (type, values)."""

    pairs: list[tuple[bytes, int, Any]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    @classmethod
    def read(cls, raw: bytes) -> "Parts":
        """Read the parts of a sound file."""
        at = 24
        tensors, pairs = struct.unpack_from("<QQ", raw, 8)

        def take(kind: str) -> Any:
            nonlocal at
            (value,) = struct.unpack_from(f"<{kind}", raw, at)
            at += struct.calcsize(f"<{kind}")
            return value

        def text() -> bytes:
            size = take("Q")
            return bytes(take(f"{size}s"))

        def value(type_id: int) -> Any:
            if type_id == ARRAY:
                inner, count = take("I"), take("Q")
                return inner, [value(inner) for _ in range(count)]
            return text() if type_id == STRING else take(_SCALARS[type_id])

        parts = cls([(text(), kind := take("I"), value(kind)) for _ in range(pairs)])
        heads = [
            (text(), [take("Q") for _ in range(take("I"))], take("I"), take("Q"))
            for _ in range(tensors)
        ]
        start = -(-at // 32) * 32
        for name, dims, type_id, offset in heads:
            nbytes = FORMATS_BY_ID[type_id].nbytes(prod(dims))
            data = raw[start + offset : start + offset + nbytes]
            parts.tensors.append(Tensor(name, dims, type_id, data))
        return parts

    def write(self) -> bytes:
        """Return the bytes of a file of version 3, with an alignment of 32."""
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.pairs))
        head += b"".join(
            _text(key) + struct.pack("<I", kind) + _value(kind, v) for key, kind, v in self.pairs
        )
        data = bytearray()
        for tensor in self.tensors:
            data += bytes(-len(data) % 32)
            dims = struct.pack(
                f"<I{len(tensor.dims)}Q", len(tensor.dims), *(d % 2**64 for d in tensor.dims)
            )
            offset = struct.pack("<Q", (len(data) + tensor.shift) % 2**64)
            head += _text(tensor.name) + dims + struct.pack("<I", tensor.type_id % 2**32) + offset
            data += tensor.data
        return head + bytes(-len(head) % 32) + bytes(data)


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value)
    if kind == ARRAY:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(
            _value(inner, item) for item in values
        )
    code = _SCALARS.get(kind, "I")
    if code in "fd":
        try:
            return struct.pack(f"<{code}", value)
        except OverflowError:
            return struct.pack(f"<{code}", float("inf"))
    if value != value or abs(value) == float("inf"):
        value = -1
    value = int(value) % 2 ** _BITS.get(code.upper(), 8)
    return struct.pack(f"<{code.upper() if code != '?' else 'B'}", value)


class Mutation:
    """A few changes of a file's parts, some of them to parts of another file."""

    def __init__(self, rng: Random, parts: Parts, other: Parts) -> None:
        self.rng, self.parts, self.other = rng, parts, other

    def run(self) -> bytes:
        """Change the parts, and return the bytes of the file."""
        changes = (
            *[self.value] * 4, self.pair, self.array, self.text, self.kind, self.dims,
            *[self.shape] * 2, self.format, self.place, self.tensor, *[self.weights] * 2,
        )  # fmt: skip
        for _ in range(a_few(self.rng)):
            self.rng.choice(changes)()
        return self.parts.write()

    def _pair(self, *kinds: int) -> int | None:
        """Return the index of a random pair of one of these kinds; None if no pair has one."""
        among = [i for i, (_, kind, _) in enumerate(self.parts.pairs) if not kinds or kind in kinds]
        return self.rng.choice(among) if among else None

    def value(self) -> None:
        """Change a number."""
        if (at := self._pair(*_SCALARS)) is not None:
            key, kind, value = self.parts.pairs[at]
            self.parts.pairs[at] = key, kind, odd_number(self.rng, value)

    def pair(self) -> None:
        """Remove or repeat a pair, or take the other file's."""
        pairs = self.parts.pairs
        if not pairs:
            return
        at = self.rng.randrange(len(pairs))
        change = self.rng.randrange(3)
        if change == 0:
            del pairs[at]
        elif change == 1:
            pairs.append(pairs[at])
        elif self.other.pairs:
            pair = self.rng.choice(self.other.pairs)
            pairs[:] = [other for other in pairs if other[0] != pair[0]] + [pair]

    def array(self) -> None:
        """Shorten or lengthen an array, or change an element."""
        if (at := self._pair(ARRAY)) is None:
            return
        key, kind, (inner, values) = self.parts.pairs[at]
        values, rng = list(values), self.rng
        if values and rng.random() < 0.6:
            place = rng.randrange(len(values))
            if isinstance(values[place], int | float):
                values[place] = odd_number(rng, values[place])
            else:
                values[place] = rng.choice(
                    (*values, *((b"", b"\xff", b"<0x41>") if inner == STRING else ()))
                )
        else:
            values = rng.choice(
                (values[:-1], values[1:], values * 2, [], values[:1], values + values[:1])
            )
        self.parts.pairs[at] = key, kind, (inner, values)

    def text(self) -> None:
        """Change a text or a name."""
        texts = [v for _, kind, v in (*self.parts.pairs, *self.other.pairs) if kind == STRING]
        texts += [
            b"",
            b"\xff\n",
            b"a" * 300,
            b"{{ 1/0 }}",
            b"{% for i in range(10**9) %}a{% endfor %}",
        ]
        if (at := self._pair(STRING)) is not None:
            key, kind, _ = self.parts.pairs[at]
            self.parts.pairs[at] = key, kind, self.rng.choice(texts)

    def kind(self) -> None:
        """Change the type of a number, or of an array's numbers."""
        if (at := self._pair(*_SCALARS)) is not None:
            key, _, value = self.parts.pairs[at]
            other = self.rng.choice((*_SCALARS, STRING, ARRAY, 77))
            if other == STRING:
                value = str(value).encode()
            elif other == ARRAY:
                value = (
                    5,
                    [int(value) if value == value and abs(value) < 2**31 else 1]
                    * self.rng.randrange(4),
                )
            self.parts.pairs[at] = key, other, value

    def _tensor(self) -> Tensor | None:
        return self.rng.choice(self.parts.tensors) if self.parts.tensors else None

    def dims(self) -> None:
        """Change a tensor's shape, but not its bytes."""
        if (tensor := self._tensor()) is not None:
            self._another_shape(tensor)

    def shape(self) -> None:
        """Change a tensor's shape, and its number of bytes likewise."""
        if (tensor := self._tensor()) is not None:
            self._another_shape(tensor)
            self._refit(tensor)

    def _another_shape(self, tensor: Tensor) -> None:
        rng, dims = self.rng, tensor.dims
        change, at = rng.randrange(6), rng.randrange(len(dims)) if dims else 0
        if not dims or change == 0:
            dims.append(rng.choice((1, 2)))
        elif change == 1:
            del dims[at]
        elif change == 2:
            rng.shuffle(dims)
        else:
            size = rng.choice(
                (
                    dims[at] + 1,
                    dims[at] - 1,
                    dims[at] * 2,
                    dims[at] // 2,
                    dims[at] + 32,
                    dims[at] + 256,
                )
            )
            dims[at] = odd_number(rng) if change == 3 else size
            dims[at] = int(dims[at]) if abs(dims[at]) < 2**64 else 1

    def _refit(self, tensor: Tensor) -> None:
        """Give a tensor the number of bytes that its shape and format need."""
        format, count = FORMATS_BY_ID.get(tensor.type_id), prod(tensor.dims)
        if format is not None and 0 < count < 1 << 18:
            nbytes = format.nbytes(count)
            tensor.data = (tensor.data * (nbytes // max(len(tensor.data), 1) + 1))[:nbytes]

    def format(self) -> None:
        """Change a tensor's format, and mostly its number of bytes likewise."""
        if (tensor := self._tensor()) is not None:
            tensor.type_id = self.rng.choice((*FORMATS_BY_ID, 4, 15, 36, 99))
            if self.rng.random() < 0.8:
                self._refit(tensor)

    def place(self) -> None:
        """Move a tensor, or give it another's name or bytes."""
        if (tensor := self._tensor()) is None:
            return
        other = self.rng.choice(self.parts.tensors)
        change = self.rng.randrange(3)
        if change == 0:
            tensor.shift = self.rng.choice((32, -32, 1, 2**63, 64, 1 << 20))
        elif change == 1:
            tensor.name, other.name = other.name, tensor.name
        else:
            tensor.name = self.rng.choice(
                (other.name, b"", b"\xff\x1b", tensor.name + b"x", b"rope_freqs.weight")
            )

    def tensor(self) -> None:
        """Remove or repeat a tensor, or add one of the other file."""
        tensors = self.parts.tensors
        if tensors and self.rng.random() < 0.5:
            del tensors[self.rng.randrange(len(tensors))]
        else:
            among = self.other.tensors or tensors
            tensors.extend(replace(tensor) for tensor in self.rng.sample(among, min(1, len(among))))

    def weights(self) -> None:
        """Change some bytes of a tensor to anything, NaN or infinities."""
        if (tensor := self._tensor()) is None or not tensor.data:
            return
        rng, data = self.rng, bytearray(tensor.data)
        if rng.random() < 0.2:
            pattern = rng.choice(_FLOATS)
            data = bytearray((pattern * (len(data) // len(pattern) + 1))[: len(data)])
        for _ in range(rng.choice((1, 4, 30))):
            at = rng.randrange(len(data))
            piece = rng.choice((*_FLOATS, rng.randbytes(4)))
            data[at : at + len(piece)] = piece[: len(data) - at]
        tensor.data = bytes(data)
