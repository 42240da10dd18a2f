"""Reading the lines of a trace file, gzipped or not.

Lengths are bounded, since 8 MB of gzip can expand to 8 GB of text. Knows nothing of records.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO

MIB = 1 << 20

MOST_BYTES = 1024 * MIB
"""The most text in one file: 128k steps of 20 candidates are 300 MB."""

LONGEST_LINE = 16 * MIB
"""A head with a bias for each of 262k tokens has 8 MB, a step of 1000 candidates 100 kB."""

PIECE = MIB
"""Bytes read, and inflated, at a time."""

_GZIP = b"\x1f\x8b"


def whole_lines(file: BinaryIO, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """Each complete line, without its line feed; ``see`` gets the file's bytes as they are read.

    A gzipped file may lack its end, as that of an aborted run does. Raises ValueError, with a
    sentence, where the stream is damaged or too long.
    """
    total, rest = 0, b""
    for piece in _text(file, see):
        total += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > LONGEST_LINE:
            raise ValueError(f"it is longer than {LONGEST_LINE // MIB} MiB: this is no trace")
        if total > MOST_BYTES:
            raise ValueError(f"the file holds more than {MOST_BYTES // MIB} MiB of text")


def _text(file: BinaryIO, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """The file's text in pieces of any length."""
    start = file.read(len(_GZIP))
    pieces = _seen(chain([start], iter(partial(file.read, PIECE), b"")), see)
    return _inflated(pieces) if start == _GZIP else pieces


def _seen(pieces: Iterable[bytes], see: Callable[[bytes], object]) -> Iterator[bytes]:
    for piece in pieces:
        see(piece)
        yield piece


def _inflated(pieces: Iterator[bytes]) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    try:
        for piece in pieces:
            data = stream.decompress(piece, PIECE)
            while data or stream.unconsumed_tail:
                yield data
                data = stream.decompress(stream.unconsumed_tail, PIECE)
            if stream.unused_data:
                raise ValueError("the gzip stream is damaged: something follows its end")
    except zlib.error as error:
        raise ValueError(f"the gzip stream is damaged: {error}") from None
