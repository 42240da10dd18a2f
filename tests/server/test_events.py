"""What is sent is one line, for every client that reads line by line."""

import json
import sys

from cutaway.server.events import dumps, event

LINE_ENDS = [c for c in map(chr, range(sys.maxunicode + 1)) if len(f"a{c}b".splitlines()) > 1]


def test_no_character_of_a_text_ends_the_line():
    """Unlike JSON, str.splitlines, and with it httpx's iter_lines, ends lines at U+2028, too."""
    document = {"text": f"é{''.join(LINE_ENDS)}é"}
    assert {"\n", "\x85", "\u2028"} <= {*LINE_ENDS}
    (line,) = dumps(document).decode().splitlines()
    assert json.loads(line) == document
    sent, empty = event(document).decode().splitlines()
    assert json.loads(sent.removeprefix("data: ")) == document
    assert empty == ""
