"""Decode bytes that arrive in pieces, and escape text of any origin so that it is safe to show.

Knows UTF-8, and the characters that control a terminal or change how a page shows a line.
"""

from codecs import utf_8_decode


class TextStream:
    """Incremental UTF-8: all pushes and the flush, joined, equal decoding the bytes at once.

    An unfinished character is held back until its last byte comes. Bytes that can no longer
    become a character turn into U+FFFD. No method raises.
    """

    def __init__(self) -> None:
        self._unfinished = b""

    def push(self, data: bytes) -> str:
        """Return the text that these bytes complete; "" if they complete none."""
        data = self._unfinished + data
        text, used = utf_8_decode(data, "replace")
        self._unfinished = data[used:]
        return text

    def flush(self) -> str:
        """Return the unfinished rest as U+FFFD; the stream can then be used again."""
        rest, self._unfinished = self._unfinished, b""
        return rest.decode("utf-8", "replace")


def printable(text: str) -> str:
    """Escape characters that are invisible, control a terminal or reverse the line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_bytes(data: bytes) -> str:
    """Decode UTF-8, and write <0xXX> for each byte that is no part of a printable character."""
    text = data.decode("utf-8", "surrogateescape")
    return "".join(char if char.isprintable() else _hex(char) for char in text)


def _hex(char: str) -> str:
    return "".join(f"<0x{byte:02X}>" for byte in char.encode("utf-8", "surrogateescape"))
