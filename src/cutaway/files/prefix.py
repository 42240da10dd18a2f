"""Saved prefixes: the keys and values of a text's whole KV blocks in a file.

    offset  bytes  what
    0       8      "cutaway"
    8       4      version of the format: 1
    12      4      tokens of a block
    16      8      number of blocks, n
    24      8      bytes of all blocks
    32      8      bytes of the JSON, j
    40      32     SHA-256 of bytes 0 to 39 and of bytes 72 to the first block
    72      j      JSON: {"model", "computed_by", "text", "special"}
            4 n t  token ids, int32: t of them in each block
            8 n    bytes of each block
            32 n   SHA-256 of each block
            …      the blocks, one after the other, to the end of the file

Numbers are little-endian. Every byte is hashed, so that no change goes unnoticed. Blocks differ in
size, since layers with a sliding window do not store what they can no longer see. Messages of
errors begin with a verb: `PrefixReader` puts the file's name in front. Knows no model.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cutaway.base import strict_json
from cutaway.base.whole_files import whole_file
from cutaway.errors import FormatError, InputError

# -- the header: everything before the blocks ------------------------------------------------------


MAGIC, VERSION, HASH = b"cutaway\x0c", 1, 32
_FIXED = struct.Struct("<8sIIQQQ")
START = _FIXED.size + HASH
_TOKEN, _SIZE = np.dtype("<i4"), np.dtype("<u8")


class Sizes(NamedTuple):
    """The first 40 bytes, and the sizes that follow from them."""

    magic: bytes
    version: int
    block_tokens: int
    blocks: int
    blocks_bytes: int
    json_bytes: int

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read a file's first bytes; FormatError if they are no header."""
        if data[: len(MAGIC)] != MAGIC:
            raise FormatError("is no saved prefix; 'cutaway cache save' writes one")
        if len(data) < START:
            raise FormatError("is truncated: save it again")
        sizes = cls(*_FIXED.unpack_from(data))
        if sizes.version != VERSION:
            raise FormatError(
                f"is a saved prefix of version {sizes.version}, and this cutaway reads version "
                f"{VERSION}: save it again"
            )
        if not sizes.block_tokens:
            raise _invalid()
        return sizes

    @property
    def head(self) -> int:
        """The number of bytes before the first block."""
        per_block = self.block_tokens * _TOKEN.itemsize + _SIZE.itemsize + HASH
        return START + self.json_bytes + self.blocks * per_block

    @property
    def file(self) -> int:
        """Size of the whole file in bytes."""
        return self.head + self.blocks_bytes


@dataclass(frozen=True, kw_only=True)
class PrefixHeader:
    """The header as data.

    model        the name of the model that computed the blocks
    computed_by  all that the blocks' bits depend on besides the tokens: name -> value
    block_tokens how many tokens each block has
    token_ids    the token ids of all blocks, concatenated
    block_bytes, digests  size and SHA-256 of each block
    text         the saved text, which may be longer than its whole blocks; None if token ids were
                 saved
    special      whether special tokens were parsed in the text
    """

    model: str
    computed_by: Mapping[str, str]
    block_tokens: int
    token_ids: tuple[int, ...]
    text: str | None = None
    special: bool = False
    block_bytes: tuple[int, ...] = ()
    digests: tuple[bytes, ...] = ()

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.token_ids) // self.block_tokens

    @property
    def sizes(self) -> Sizes:
        """The sizes of the file."""
        total = sum(self.block_bytes)
        return Sizes(MAGIC, VERSION, self.block_tokens, self.blocks, total, len(self._json))

    @property
    def _json(self) -> bytes:
        fields = {
            "model": self.model, "computed_by": {**self.computed_by}, "text": self.text,
            "special": self.special,
        }  # fmt: skip
        return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogateescape")

    def to_bytes(self) -> bytes:
        """The header's bytes."""
        fixed = _FIXED.pack(*self.sizes)
        ids = np.array(self.token_ids, _TOKEN).tobytes()
        block_sizes = np.array(self.block_bytes, _SIZE).tobytes()
        rest = self._json + ids + block_sizes + b"".join(self.digests)
        return fixed + sha256(fixed + rest).digest() + rest

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read all bytes before the blocks; FormatError if they are damaged or invalid."""
        sizes = Sizes.read(data)
        fixed, stored_digest = data[: _FIXED.size], data[_FIXED.size : START]
        rest = memoryview(data)[START:]
        digest = sha256(fixed)
        digest.update(rest)
        if digest.digest() != stored_digest:
            raise FormatError("has a damaged header: save it again")
        ids_at = sizes.json_bytes
        sizes_at = ids_at + sizes.blocks * sizes.block_tokens * _TOKEN.itemsize
        digests_at = sizes_at + sizes.blocks * _SIZE.itemsize
        ids = np.frombuffer(rest[ids_at:sizes_at], _TOKEN).tolist()
        block_sizes = np.frombuffer(rest[sizes_at:digests_at], _SIZE).tolist()
        if sum(block_sizes) != sizes.blocks_bytes:
            raise _invalid()
        digests = (rest[at : at + HASH].tobytes() for at in range(digests_at, len(rest), HASH))
        return cls(
            **_parse_json(bytes(rest[:ids_at])), block_tokens=sizes.block_tokens,
            token_ids=tuple(ids),
            block_bytes=tuple(block_sizes), digests=tuple(digests),
        )  # fmt: skip


def _invalid() -> FormatError:
    return FormatError("has a header that cutaway does not write: save it again")


def _parse_json(data: bytes) -> dict[str, Any]:
    """Return the JSON object, with the type of each value checked."""
    try:
        fields = strict_json.parse(data)
        by = fields["computed_by"]
        right = (
            fields.keys() == {"model", "computed_by", "text", "special"}
            and isinstance(fields["model"], str)
            and isinstance(fields["text"], str | None)
            and isinstance(fields["special"], bool)
            and all(isinstance(value, str) for value in by.values())
        )
    except (InputError, AttributeError, KeyError, TypeError):
        right = False
    if not right:
        raise _invalid()
    checked: dict[str, Any] = fields
    return checked


# -- reading: the header, then block by block into given memory ------------------------------------


Memory = Sequence[NDArray[np.uint8]]


class PrefixReader:
    """A saved prefix, opened. InputError if it cannot be read, FormatError if it is damaged.

    head    its header
    nbytes  the size of the file
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explain_errors():
            if not path.is_file():
                raise InputError(f"{path} is no file; 'cutaway cache save' writes one")
            self._file = path.open("rb", buffering=0)
        try:
            with self._explain_errors():
                self.head, first = self._read_head()
        except BaseException:
            self._file.close()
            raise
        self._starts = [*accumulate(self.head.block_bytes, initial=first)]
        self.nbytes = self._starts[-1]

    def _read_head(self) -> tuple[PrefixHeader, int]:
        nbytes = self._file.seek(0, 2)
        start = np.empty(min(nbytes, START), np.uint8)
        self._read_at(0, start)
        sizes = Sizes.read(start.tobytes())
        if nbytes != sizes.file:
            problem = "is truncated" if nbytes < sizes.file else "is too long"
            raise FormatError(f"{problem} ({nbytes} bytes instead of {sizes.file}): save it again")
        head = np.empty(sizes.head, np.uint8)
        self._read_at(0, head)
        return PrefixHeader.from_bytes(head.tobytes()), sizes.head

    def read(self, place: int, memory: Memory) -> None:
        """Read a block into memory of its size. FormatError if its bytes were changed."""
        at, digest = self._starts[place], sha256()
        with self._explain_errors():
            if sum(piece.nbytes for piece in memory) != self.head.block_bytes[place]:
                raise FormatError("has blocks of another size than its model: save it again")
            for piece in memory:
                self._read_at(at, piece)
                digest.update(piece.data)
                at += piece.nbytes
            if digest.digest() != self.head.digests[place]:
                raise FormatError(f"is damaged in block {place}: save it again")

    def has(self, place: int, memory: Memory) -> bool:
        """Whether a block's hash is that of the first bytes of this memory.

        Later bytes belong to windows and states, which the file has only at the text's end.
        """
        left, digest = self.head.block_bytes[place], sha256()
        for piece in memory:
            digest.update(piece.data[:left])
            left -= min(left, piece.nbytes)
        return left == 0 and digest.digest() == self.head.digests[place]

    def check(self, on_progress: Callable[[int], object] = lambda _done: None) -> None:
        """Read and check all blocks. on_progress: called with the bytes read so far"""
        done, memory = 0, np.empty(max(self.head.block_bytes, default=0), np.uint8)
        for place, nbytes in enumerate(self.head.block_bytes):
            self.read(place, [memory[:nbytes]])
            on_progress(done := done + nbytes)

    def _read_at(self, at: int, into: NDArray[np.uint8]) -> None:
        self._file.seek(at)
        left = into.data
        while len(left):
            got = self._file.readinto(left)
            if not got:
                raise FormatError("was truncated while it was read: save it again")
            left = left[got:]

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Put the file's name in front of errors."""
        try:
            yield
        except FormatError as error:
            raise FormatError(f"{self.path} {error}") from None
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- writing, whole or not at all ------------------------------------------------------------------


class PrefixWriter:
    """Writes the blocks of a file, then its header. nbytes: the size so far."""

    def __init__(self, out: BinaryIO, head: PrefixHeader) -> None:
        self._out, self._head = out, head
        self.nbytes = out.seek(head.sizes.head)
        self._sizes: list[int] = []
        self._digests: list[bytes] = []

    def add(self, place: int, memory: Sequence[NDArray[np.uint8]]) -> None:
        """Write the text's next block, given in one piece or several."""
        assert place == len(self._digests)
        digest = sha256()
        for piece in memory:
            digest.update(piece.data)
            self._out.write(piece.data)
        self._digests.append(digest.digest())
        self._sizes.append(sum(piece.nbytes for piece in memory))
        self.nbytes += self._sizes[-1]

    def finish(self) -> None:
        """Write the header, once all blocks are there."""
        assert len(self._digests) == self._head.blocks
        digests, sizes = tuple(self._digests), tuple(self._sizes)
        self._out.seek(0)
        self._out.write(replace(self._head, digests=digests, block_bytes=sizes).to_bytes())


@contextmanager
def write_prefix(path: Path, head: PrefixHeader) -> Iterator[PrefixWriter]:
    """Yield a writer of the header's blocks; the file exists once the `with` block has ended.

    Raises CutawayError if it cannot be written; after any error no file is left.
    """
    with whole_file(path) as out:
        writer = PrefixWriter(out, head)
        yield writer
        writer.finish()


__all__ = ["PrefixHeader", "PrefixReader", "write_prefix"]
