"""What is sent is one line, for every client that reads line by line."""

import asyncio
import json
import sys

import pytest

from cutaway.engine import Arrival
from cutaway.engine.events import Emission, Speculation
from cutaway.server import event_stream
from cutaway.server.event_stream import Events, EventStream, dumps, dumps_by_parts, event

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


def nested(depth):
    return {"é\u2028": nested(depth - 1), "list": [nested(depth - 2), None]} if depth > 0 else {}


@pytest.mark.parametrize(
    "document",
    [
        {}, [], None, 1.5, "a\u2028é", {"a": []}, {"a": {}, "b": [{}]}, {5: 1, "b": None},
        [*range(16)], [*range(17)], [{"a": i} for i in range(128)], [{"a": i} for i in range(300)],
        {"choices": [{"top": [None, {"a": -1.5}] * 20, "text": "b"}, {"top": [], "text": ""}]},
        nested(9), [[1, 2], [3]], [{}, 1, "a"],
    ],
)  # fmt: skip
def test_a_large_document_is_the_same_by_parts(document):
    assert dumps_by_parts(document) == dumps(document)


def test_parts_that_were_written_before_are_taken_as_they_are():
    choices = [{"index": i, "text": "\u2028"} for i in range(300)]
    written = {"choices": [*map(dumps, choices)], "usage": 1}
    assert dumps_by_parts(written) == dumps({"choices": choices, "usage": 1})


def test_a_large_document_is_written_some_at_a_time(monkeypatch):
    """Whoever else runs in the process waits for one part."""
    sizes, write = [], dumps

    def counted(value):
        sizes.append(len(data := write(value)))
        return data

    monkeypatch.setattr(event_stream, "dumps", counted)
    token = {"token": "a", "top_logprobs": [{"token": "b", "logprob": -1.0}] * 20}
    whole = dumps_by_parts({"choices": [{"logprobs": {"content": [token] * 1000}}] * 2})
    assert len(whole) > 1_000_000 and max(sizes) < 20_000


class Job:
    """Two turns of a text."""

    def __init__(self, *turns):
        self._turns = [*turns, []]

    async def read(self):
        return self._turns.pop(0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Slow(Events):
    """Whose first event takes long; notes whether it was written beside the event loop."""

    def __init__(self):
        self.beside = []

    def begin(self):
        return ()

    def progress(self, index, event):
        self.beside.append(asyncio._get_running_loop() is None)
        for _ in range(event):
            pass
        return (b"a",)

    def end(self):
        self.beside.append(asyncio._get_running_loop() is None)
        return ()


def test_what_takes_long_is_written_beside_the_event_loop():
    """And what is known to be short on it, which is sooner."""
    turns = [
        [Arrival(0, Emission(event, 0.0, Speculation()))] * count
        for event, count in ((1_000_000, 1), (1, 1), (1, 1), (1, 100_000))
    ]
    slow = Slow()

    async def main():
        stream = EventStream(Job(*turns), slow, keep_alive=20)
        return [part async for part in stream._parts()]

    assert len(asyncio.run(main())[3]) == 100_000
    assert slow.beside == [True, True, False, *[True] * 100_000, True]
