"""The keys that sign receipts, and those that check the signatures.

Keys are Ed25519, in PEM files as ``openssl genpkey -algorithm ed25519`` writes them. The library
``cryptography`` signs and verifies; it is imported when a key is first used.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from cutaway.base.whole_files import read_bounded
from cutaway.errors import CutawayError, FormatError, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


_MOST_OF_A_KEY = 1 << 20  # bytes of a key's file


@dataclass(frozen=True)
class PublicKey:
    """The key that checks signatures. hex: its 32 bytes."""

    hex: str

    @classmethod
    def from_hex(cls, text: Any) -> Self:
        """Read a key of 64 hex digits; FormatError for anything else."""
        if not _is_hex(text, 32):
            raise FormatError("public_key must be 64 hex digits, of an Ed25519 key")
        return cls(text)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """Read a PEM file, or a file of 64 hex digits. InputError for any other file."""
        data = _read(path)
        try:
            return cls.from_hex(data.decode().strip())
        except (FormatError, UnicodeDecodeError):
            pass
        key = _load(path, data, "load_pem_public_key", "Ed25519PublicKey")
        return cls(key.public_bytes_raw().hex())

    def check(self, signature: Any, message: bytes) -> None:
        """Raise FormatError unless these 128 hex digits are this key's signature of the message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        wrong = FormatError(f"the signature is not one of the key {self.hex[:16]}…")
        if not _is_hex(signature, 64):  # one form alone: fromhex ignores spaces
            raise wrong
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.hex)).verify(
                bytes.fromhex(signature), message
            )
        except (InvalidSignature, ValueError):
            raise wrong from None


@dataclass(frozen=True)
class PrivateKey:
    """The key that signs."""

    _key: "Ed25519PrivateKey"

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """Read a PEM file without a password. InputError where it has no key."""
        return cls(_load(path, _read(path), "load_pem_private_key", "Ed25519PrivateKey", None))

    @classmethod
    def create(cls, path: str | PathLike[str]) -> Self:
        """Write a new key to a file of mode 600. InputError where the file exists."""
        serialization, ed25519 = _library()
        key = ed25519.Ed25519PrivateKey.generate()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )  # fmt: skip
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise InputError(f"{path}: the key cannot be written: {error.strerror}") from error
        with os.fdopen(file, "wb") as out:
            out.write(pem)
        return cls(key)

    @cached_property
    def public(self) -> PublicKey:
        """The public key, with which others check this key's signatures."""
        return PublicKey(self._key.public_key().public_bytes_raw().hex())

    def sign(self, message: bytes) -> str:
        """Return the signature of a message, 128 hex digits."""
        return self._key.sign(message).hex()


def _is_hex(text: Any, size: int) -> bool:
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text) is not None


def _read(path: str | PathLike[str]) -> bytes:
    try:
        return read_bounded(path, _MOST_OF_A_KEY)
    except OSError as error:
        raise InputError(f"{path}: the key cannot be read: {error.strerror}") from error


def _load(path: Any, data: bytes, loader: str, kind: str, *more: Any) -> Any:
    serialization, ed25519 = _library()
    try:
        key = getattr(serialization, loader)(data, *more)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: this is no key in PEM without a password: {error}") from None
    if not isinstance(key, getattr(ed25519, kind)):
        raise InputError(f"{path}: this is no Ed25519 key; 'cutaway receipt key FILE' makes one")
    return key


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise CutawayError("receipts need cryptography: pip install 'cutaway[receipt]'") from error
    return serialization, ed25519
