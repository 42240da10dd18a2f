"""Identifies a model in a file or folder, by a hash of all its bytes and a hash of its tokenizer.

Hashing reads the whole model, so the user's cache keeps the result as long as the model's path, and
each file's inode, size and times, are unchanged. Knows files and the names of a tokenizer's fields.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import Any

import numpy as np

from cutaway.base.progress import Bar
from cutaway.base.whole_files import whole_file
from cutaway.compute.loading.open import files_of, open_model, stamp, stat_model
from cutaway.errors import CutawayError, InputError
from cutaway.files.hub import cache_dir

_TOKENIZER = tuple(
    f"tokenizer.ggml.{name}"
    for name in ("model", "pre", "tokens", "token_type", "scores", "merges")
)
_PIECE = 1 << 20  # how many bytes are read at once
_SETTLED_NS = 2 * 10**9
"""A file that changed more recently may change again within one tick of the file system's clock."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Two SHA-256 in hex: one of the model's file, one of the vocabulary and merges in it.

    For a folder, or a model in parts, ``weights`` is the hash of the names and hashes of all files.
    """

    weights: str
    tokenizer: str

    def loaded_as(self, quantize: str | None, kv: str) -> "Identity":
        """Return the identity of the file loaded with these settings of ``Setup``."""
        settings = {"quantize": quantize, "kv": None if kv == "f16" else kv}
        weights = self.weights
        for name, value in settings.items():
            if value is not None:
                weights = sha256(f"{weights} {name}={value}".encode()).hexdigest()
        return replace(self, weights=weights)

    def with_adapter(self, adapter: str) -> "Identity":
        """Return the identity of the model with an adapter of this hash."""
        return replace(self, weights=sha256(f"{self.weights} lora={adapter}".encode()).hexdigest())


def identify(path: Path, loaded: Sequence[os.stat_result], *, show: bool = False) -> Identity:
    """Return the identity of a model; loaded: what ``stat_model`` returned when it was loaded.

    show: whether to show a progress bar on the terminal after a second
    Raises InputError if a file has changed since the model was loaded, or is gone.
    """
    whole, then = path.resolve(), stamp(loaded)  # a link's own name may name a part
    if (cached := _recall(whole, then)) is not None:
        return cached
    try:
        size = sum(status.st_size for status in loaded)
        with Bar("hashing the model, once", size, show=show, after=1) as bar:
            identity = Identity(_weights_hash(path, bar), _tokenizer_hash(path))
        now = stamp(stat_model(path))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read to tell which model it is: {error.strerror}"
        ) from error
    if now != then:
        raise InputError(f"{path} has changed since it was loaded: load the model again")
    _remember(whole, then, identity)
    return identity


def _weights_hash(path: Path, bar: Bar) -> str:
    files, digests, done = files_of(path), [], 0
    for file in files:
        digests.append(_digest(file, lambda read: bar.update(done + read)))  # noqa: B023
        done += file.stat().st_size
    if files == [path]:
        return digests[0]
    # The lines are as sha256sum writes them.
    lines = (f"{digest}  {file.name}\n" for digest, file in zip(digests, files, strict=True))
    return sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _digest(path: Path, on_progress: Callable[[int], object]) -> str:
    digest, done, piece = sha256(), 0, memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(piece):
            digest.update(piece[:got])
            on_progress(done := done + got)
    return digest.hexdigest()


def _tokenizer_hash(path: Path) -> str:
    """Hash the fields that define the tokens and how text is cut into them."""
    digest = sha256()
    with open_model(path) as file:
        for name in _TOKENIZER:
            for part in _parts(file.metadata.get(name)):
                digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the count of a field's values, then each, so that different values hash differently."""
    if isinstance(value, np.ndarray):
        value = [value.tobytes()]
    values = [] if value is None else [value] if isinstance(value, str) else value
    yield str(len(values)).encode()
    for element in values:
        yield (
            element
            if isinstance(element, bytes)
            else str(element).encode("utf-8", "surrogateescape")
        )


# -- the cache -----------------------------------------------------------------------------------


def _note(path: Path) -> Path:
    return cache_dir() / "identities" / f"{sha256(os.fsencode(path)).hexdigest()}.json"


def _recall(path: Path, stamp: list[list[int]]) -> Identity | None:
    try:
        note = json.loads(_note(path).read_bytes())
        return Identity(**note["identity"]) if note["stamp"] == stamp else None
    except (OSError, ValueError, TypeError, KeyError):  # missing or damaged: hash again
        return None


def _remember(path: Path, stamp: list[list[int]], identity: Identity) -> None:
    if time_ns() - max(max(numbers[-2:]) for numbers in stamp) < _SETTLED_NS:
        return
    note, text = _note(path), json.dumps({"stamp": stamp, "identity": asdict(identity)})
    # A cache that cannot be written costs the next run a second.
    with suppress(OSError, CutawayError):
        note.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(note) as out:
            out.write(text.encode())
