"""What a model, a file or a server says, on a terminal: its controls are shown, and not obeyed."""

import re
from typing import TextIO

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What steers a terminal or turns a line around. Line feeds and tabs only lay a text out."""


def inert(text: str, stream: TextIO) -> str:
    """The text as this stream is to have it: with escapes on a terminal, raw in files and pipes."""
    if not stream.isatty():
        return text
    return STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
