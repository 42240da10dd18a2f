"""Bytes that arrive in any pieces, to text that never breaks a character.

Knows UTF-8.
"""

import codecs


class TextStream:
    """Incremental UTF-8: all pushes and the flush, joined, equal decoding the bytes at once.

    An unfinished character is held back until its last byte comes; bytes that can
    no longer become one turn into U+FFFD. Nothing raises.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """The text that is certain after these bytes, perhaps ""."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """The unfinished rest as U+FFFD; the stream can then be used anew."""
        return self._decoder.decode(b"", final=True)
