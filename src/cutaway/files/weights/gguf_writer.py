"""A model written as a GGUF file, version 3: tensor by tensor, whole or not at all.

Knows how the header, metadata and the tensor table are written. Source: docs/gguf.md of ggml.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from cutaway.base.whole_files import resumable_file, whole_file
from cutaway.errors import InputError
from cutaway.files.weights.cursor import ARRAY, NUMBERS, STRING, quote
from cutaway.files.weights.file import ModelFile, TensorInfo, pieces
from cutaway.files.weights.formats import FORMATS

_ALIGNMENT = 32  # GGUF's default, which needs no metadata key
_TYPES = {dtype: type_id for type_id, dtype in NUMBERS.items()}
_U32, _I32, _F32, _BOOL, _U64, _I64 = 4, 5, 6, 7, 10, 11


def write_gguf(
    path: Path, file: ModelFile, on_progress: Callable[[int], None] = lambda _done: None
) -> None:
    """Write a model into a file, which takes its name when it is complete.

    A file that had the name before is replaced. Raises CutawayError if it cannot be written; after
    any error no file is left.
    on_progress: called after each tensor with the bytes of tensors that are written
    """
    with whole_file(path) as out:
        for piece in _pieces(file, 0, on_progress):
            for part in piece:
                out.write(part)


def write_resumable_gguf(
    path: Path, file: ModelFile, made_of: str,
    on_progress: Callable[[int], None] = lambda _done: None,
    on_kept: Callable[[int], None] = lambda _size: None,
) -> None:  # fmt: skip
    """Write as `write_gguf` does; after Ctrl-C or SystemExit the next call continues the file.

    made_of: identifies the source of the tensors' bytes; a file of another source is not continued
    on_kept: called with the bytes of tensors already written, which on_progress does not count
    """
    key = sha256(_head(file) + made_of.encode()).hexdigest()[:16]
    with resumable_file(path, key) as out:
        skip = max(out.num_kept - 1, 0)  # the first piece is the head
        if skip:
            on_kept(sum(info.nbytes for info in islice(file.tensors.values(), skip)))
        for piece in islice(_pieces(file, skip, on_progress), int(out.num_kept > 0), None):
            out.write(piece)


def _pieces(
    file: ModelFile, skip: int, on_progress: Callable[[int], None]
) -> Iterator[Iterable[bytes | memoryview]]:
    """Yield the head, then each tensor except the first ``skip``."""
    yield (_head(file),)
    done = 0
    for name, info in islice(file.tensors.items(), skip, None):
        parts = (part.data for part in pieces(file.raw(name)))
        yield chain(parts, [_padding(info.nbytes)])  # after the last, too: some programs require it
        on_progress(done := done + info.nbytes)


def _head(file: ModelFile) -> bytes:
    pairs = {key: value for key, value in file.metadata.items() if key != "general.alignment"}
    parts = [b"GGUF" + struct.pack("<IQQ", 3, len(file.tensors), len(pairs))]
    for key, value in pairs.items():
        type_id, data = _value(value, file.value_types.get(key))
        parts.append(_string(key) + _u32(type_id) + data)
    head = b"".join((*parts, _table(file.tensors.values())))
    return head + _padding(len(head))


def _padding(size: int) -> bytes:
    return bytes(-size % _ALIGNMENT)


def _table(tensors: Iterable[TensorInfo]) -> bytes:
    entries, offset = [], 0
    for info in tensors:
        shape = struct.pack(f"<I{len(info.shape)}Q", len(info.shape), *reversed(info.shape))
        place = struct.pack("<IQ", _type_id(info), offset)
        entries.append(_string(info.name) + shape + place)
        offset += info.nbytes + -info.nbytes % _ALIGNMENT
    return b"".join(entries)


def _type_id(info: TensorInfo) -> int:
    type_id = FORMATS[info.format].type_id
    if info.name.endswith(".order"):
        raise InputError(
            f"{quote(info.name.removesuffix('.order'))} has its columns in another order than its "
            "input (act-order, desc_act), for which GGUF has no word: use the folder as it is"
        )
    if type_id is None:
        raise InputError(
            f"GGUF has no word for {info.format}, as which {quote(info.name)} is stored: use the "
            "folder as it is"
        )
    return type_id


def _value(value: Any, type_id: int | None) -> tuple[int, bytes]:
    """Return a metadata value's type and bytes; type_id: the type in the file it comes from."""
    if isinstance(value, str):
        return STRING, _string(value)
    if isinstance(value, (list, np.ndarray)):
        return ARRAY, _array(value)
    type_id = _type_of(value) if type_id is None else type_id
    return type_id, np.array(value, NUMBERS[type_id]).tobytes()


def _type_of(value: bool | int | float) -> int:
    """Return the type that other programs expect of a value: the shortest of 4 bytes or more."""
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, float):
        return _F32
    if value < 0:
        return _I32 if value >= -(2**31) else _I64
    return _U32 if value < 2**32 else _U64


def _array(values: Any) -> bytes:
    if isinstance(values, np.ndarray):
        return _u32(_TYPES[values.dtype]) + _u64(len(values)) + values.tobytes()
    if all(isinstance(value, str) for value in values):
        return _u32(STRING) + _u64(len(values)) + b"".join(map(_string, values))
    return _u32(ARRAY) + _u64(len(values)) + b"".join(map(_array, values))


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return _u64(len(data)) + data


def _u32(number: int) -> bytes:
    return struct.pack("<I", number)


def _u64(number: int) -> bytes:
    return struct.pack("<Q", number)
