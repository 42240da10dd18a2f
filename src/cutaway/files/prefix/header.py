"""What stands before the blocks of a saved prefix, and what follows from it.

    offset  bytes  what
    0       8      "cutaway\\x0c"
    8       4      version of the format: 1
    12      4      tokens of a block
    16      8      number of blocks, n
    24      8      bytes of all blocks
    32      8      bytes of the JSON, j
    40      32     SHA-256 of bytes 0 to 39 and of all from 72 to the first block
    72      j      JSON: {"model", "computed_by", "text", "special"}
            4 n t  token ids, int32: t of them in each block
            8 n    bytes of each block
            32 n   SHA-256 of each block
            …      the blocks, one after the other, to the end of the file

All numbers are little-endian. Every byte is under a hash, so that no change goes unnoticed. Blocks
differ in size where layers that see a window no longer store it.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, Self

import numpy as np

from cutaway.base import strict_json
from cutaway.errors import FormatError, InputError

MAGIC, VERSION, HASH = b"cutaway\x0c", 1, 32
_FIXED = struct.Struct("<8sIIQQQ")
START = _FIXED.size + HASH
_TOKEN, _SIZE = np.dtype("<i4"), np.dtype("<u8")


class Sizes(NamedTuple):
    """The first 40 bytes, and what they say of the rest."""

    magic: bytes
    version: int
    block_tokens: int
    blocks: int
    blocks_bytes: int
    json_bytes: int

    @classmethod
    def read(cls, data: bytes) -> Self:
        """FormatError, which goes on after the file's name, where the bytes are not such."""
        if data[: len(MAGIC)] != MAGIC:
            raise FormatError("is no saved prefix; 'cutaway cache save' writes one")
        if len(data) < START:
            raise FormatError("is cut: save it again")
        sizes = cls(*_FIXED.unpack_from(data))
        if sizes.version != VERSION:
            raise FormatError(
                f"is a saved prefix of version {sizes.version}, and this cutaway reads version "
                f"{VERSION}: save it again"
            )
        if not sizes.block_tokens:
            raise _strange()
        return sizes

    @property
    def head(self) -> int:
        """Bytes before the first block."""
        each = self.block_tokens * _TOKEN.itemsize + _SIZE.itemsize + HASH
        return START + self.json_bytes + self.blocks * each

    @property
    def file(self) -> int:
        """Bytes of the whole file."""
        return self.head + self.blocks_bytes


@dataclass(frozen=True, kw_only=True)
class PrefixHeader:
    """What a file says of its blocks.

    model        the name of the model that computed them
    computed_by  what its bits depend on beside the tokens, by what to call it
    block_tokens of each block
    token_ids    of all blocks, one after the other
    block_bytes, digests  of each block; the latter are SHA-256
    text         the text that was saved, which may go on behind the last whole block; None: it was
                 token ids
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
        """How many there are."""
        return len(self.token_ids) // self.block_tokens

    @property
    def sizes(self) -> Sizes:
        """Of the file."""
        total = sum(self.block_bytes)
        return Sizes(MAGIC, VERSION, self.block_tokens, self.blocks, total, len(self._json))

    @property
    def _json(self) -> bytes:
        said = {
            "model": self.model, "computed_by": {**self.computed_by}, "text": self.text,
            "special": self.special,
        }  # fmt: skip
        return json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogateescape")

    def to_bytes(self) -> bytes:
        """As they stand before the blocks."""
        fixed = _FIXED.pack(*self.sizes)
        ids = np.array(self.token_ids, _TOKEN).tobytes()
        each = np.array(self.block_bytes, _SIZE).tobytes()
        rest = self._json + ids + each + b"".join(self.digests)
        return fixed + sha256(fixed + rest).digest() + rest

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """From all bytes before the blocks; FormatError, which goes on after the file's name."""
        sizes = Sizes.read(data)
        fixed, found = data[: _FIXED.size], data[_FIXED.size : START]
        rest = memoryview(data)[START:]
        digest = sha256(fixed)
        digest.update(rest)
        if digest.digest() != found:
            raise FormatError("is damaged in what it says of its blocks: save it again")
        ids_at = sizes.json_bytes
        each_at = ids_at + sizes.blocks * sizes.block_tokens * _TOKEN.itemsize
        digests_at = each_at + sizes.blocks * _SIZE.itemsize
        ids = np.frombuffer(rest[ids_at:each_at], _TOKEN).tolist()
        each = np.frombuffer(rest[each_at:digests_at], _SIZE).tolist()
        if sum(each) != sizes.blocks_bytes:
            raise _strange()
        digests = (rest[at : at + HASH].tobytes() for at in range(digests_at, len(rest), HASH))
        return cls(
            **_said(bytes(rest[:ids_at])), block_tokens=sizes.block_tokens, token_ids=tuple(ids),
            block_bytes=tuple(each), digests=tuple(digests),
        )  # fmt: skip


def _strange() -> FormatError:
    return FormatError("says of itself what no cutaway has written: save it again")


def _said(data: bytes) -> dict[str, Any]:
    """The JSON, each key of its kind."""
    try:
        said = strict_json.parse(data)
        by = said["computed_by"]
        right = (
            said.keys() == {"model", "computed_by", "text", "special"}
            and isinstance(said["model"], str)
            and isinstance(said["text"], str | None)
            and isinstance(said["special"], bool)
            and all(isinstance(value, str) for value in by.values())
        )
    except (InputError, AttributeError, KeyError, TypeError):
        right = False
    if not right:
        raise _strange()
    checked: dict[str, Any] = said
    return checked
