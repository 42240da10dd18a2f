"""GGUF files written byte by byte, invalid ones included."""

import struct

U8, U32, F32, BOOL, STRING, ARRAY = 0, 4, 6, 7, 8, 9  # metadata value types


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def string(text):
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def pair(key, type_id, payload):
    return string(key) + u32(type_id) + payload


def array(type_id, count, payload):
    return u32(type_id) + u64(count) + payload


def tensor(name, dims, type_id=0, offset=0):
    """`dims` in the order of the file: innermost first."""
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def header(tensors, pairs, version=3):
    return b"GGUF" + u32(version) + u64(tensors) + u64(pairs)


def gguf(pairs=(), tensors=(), data=b"", version=3, alignment=32):
    head = header(len(tensors), len(pairs), version) + b"".join([*pairs, *tensors])
    return head + b"\0" * (-len(head) % alignment) + data if tensors else head


def small(alignment=64):
    """Return a sound file with every part that a reader reads, and no byte after the last part."""
    pairs = [
        pair("general.architecture", STRING, string("llama")),
        pair("general.alignment", U32, u32(alignment)),
        pair("flag", BOOL, b"\1"),
        pair("tokens", ARRAY, array(STRING, 3, string("a") + string("") + string("Ġthe"))),
        pair("types", ARRAY, array(U32, 3, u32(1) * 3)),
        pair("nested", ARRAY, array(ARRAY, 2, array(U8, 2, b"\1\2") + array(U8, 0, b""))),
    ]
    tensors = [tensor("norm", [4]), tensor("matrix", [32, 2], type_id=8, offset=64)]
    data = struct.pack("<4f", 1, 2, 3, 4).ljust(64, b"\0") + b"\0\x3c".ljust(34, b"\1") * 2
    return gguf(pairs, tensors, data, alignment=alignment)
