"""The other screen: what a signal's handler writes while the program itself is writing."""

import io
import os
import sys

from cutaway.features.players import screen


def test_a_signal_may_come_while_the_screen_is_drawn(monkeypatch):
    """Ctrl-Z leaves the other screen at once; Python's buffer refuses who comes in between."""
    reader, writer = os.pipe()

    class Terminal(io.RawIOBase):
        def writable(self):
            return True

        def fileno(self):
            return writer

        def write(self, data):
            screen._leave(lambda: None)  # the handler
            return len(data)

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Terminal())))
    screen.Screen(0).draw(["a line"])
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        assert said.read().endswith(b"\x1b[?1049l")
