"""The header of a saved prefix: everything before its blocks.

    offset  bytes  what
    0       8      "cutaway\\x0c"
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
size, since layers with a sliding window do not store what they can no longer see. Errors here are
predicates: whoever raises them to the user puts the file's name in front.
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
    """The first 40 bytes, and the sizes that follow from them."""

    magic: bytes
    version: int
    block_tokens: int
    blocks: int
    blocks_bytes: int
    json_bytes: int

    @classmethod
    def read(cls, data: bytes) -> Self:
        """From a file's first bytes; FormatError where they are no header."""
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
        """Bytes before the first block."""
        each = self.block_tokens * _TOKEN.itemsize + _SIZE.itemsize + HASH
        return START + self.json_bytes + self.blocks * each

    @property
    def file(self) -> int:
        """Bytes of the whole file."""
        return self.head + self.blocks_bytes


@dataclass(frozen=True, kw_only=True)
class PrefixHeader:
    """The header as data.

    model        the name of the model that computed them
    computed_by  what the blocks' bits depend on besides the tokens: name -> value
    block_tokens how many tokens each block has
    token_ids    of all blocks, concatenated
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
        said = {
            "model": self.model, "computed_by": {**self.computed_by}, "text": self.text,
            "special": self.special,
        }  # fmt: skip
        return json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogateescape")

    def to_bytes(self) -> bytes:
        """The header's bytes."""
        fixed = _FIXED.pack(*self.sizes)
        ids = np.array(self.token_ids, _TOKEN).tobytes()
        each = np.array(self.block_bytes, _SIZE).tobytes()
        rest = self._json + ids + each + b"".join(self.digests)
        return fixed + sha256(fixed + rest).digest() + rest

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """From all bytes before the blocks; FormatError where they are damaged or invalid."""
        sizes = Sizes.read(data)
        fixed, found = data[: _FIXED.size], data[_FIXED.size : START]
        rest = memoryview(data)[START:]
        digest = sha256(fixed)
        digest.update(rest)
        if digest.digest() != found:
            raise FormatError("has a damaged header: save it again")
        ids_at = sizes.json_bytes
        each_at = ids_at + sizes.blocks * sizes.block_tokens * _TOKEN.itemsize
        digests_at = each_at + sizes.blocks * _SIZE.itemsize
        ids = np.frombuffer(rest[ids_at:each_at], _TOKEN).tolist()
        each = np.frombuffer(rest[each_at:digests_at], _SIZE).tolist()
        if sum(each) != sizes.blocks_bytes:
            raise _invalid()
        digests = (rest[at : at + HASH].tobytes() for at in range(digests_at, len(rest), HASH))
        return cls(
            **_said(bytes(rest[:ids_at])), block_tokens=sizes.block_tokens, token_ids=tuple(ids),
            block_bytes=tuple(each), digests=tuple(digests),
        )  # fmt: skip


def _invalid() -> FormatError:
    return FormatError("has a header that cutaway does not write: save it again")


def _said(data: bytes) -> dict[str, Any]:
    """The JSON, with the type of each value checked."""
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
        raise _invalid()
    checked: dict[str, Any] = said
    return checked
