"""A terminal as a screen with keys: the alternate screen, raw keys, and the terminal's size.

Knows escape sequences and signals. However the ``with`` block is left (a return, an error, Ctrl-C,
a hangup), the terminal is restored.
"""

import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from cutaway.base import system
from cutaway.cli.terminal import console

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the alternate screen, no cursor, no wrapping
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_ESCAPE_S = 0.05  # an escape sequence ends within this time; else Escape was pressed

_KEYS = {
    "[D": "left", "OD": "left", "[C": "right", "OC": "right",
    "[A": "up", "OA": "up", "[B": "down", "OB": "down",
    "[1;2D": "shift-left", "[1;2C": "shift-right", "[d": "shift-left", "[c": "shift-right",
    "[H": "home", "OH": "home", "[1~": "home", "[7~": "home",
    "[F": "end", "OF": "end", "[4~": "end", "[8~": "end",
    "[5~": "page-up", "[6~": "page-down", "": "escape",
}  # fmt: skip
_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|O[ -~]|)|([^\x1b])", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(\[[0-?]*[ -/]*|O)?\Z")


def keys_of(typed: str) -> list[str]:
    """Name the typed keys; a printable key is its own name."""
    names = [
        plain or _KEYS.get(sequence, "unknown") for sequence, plain in _SEQUENCE.findall(typed)
    ]
    return [name for name in names if name != "unknown"]


class Screen:
    """The terminal while it is ours: ``draw`` lines, wait for keys (``wait_for_keys``)."""

    def __init__(self, wake: int) -> None:
        self._wake = wake  # a descriptor, readable after a signal: the size may have changed

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        return columns or 80, rows or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top, and nothing else; each must fit."""
        # A line is erased before it is written: after a full line the cursor is on its last cell.
        rows = "".join(f"\x1b[K{line}\r\n" for line in lines[:-1])
        sys.stdout.write(f"\x1b[H{rows}\x1b[J{lines[-1]}")
        sys.stdout.flush()

    def wait_for_keys(self, timeout_s: float | None = None) -> list[str]:
        """Wait for keys and name them; no names if the size changed or the time is over.

        Raises EOFError at the end of the input.
        """
        stdin = sys.stdin.fileno()
        ready, _, _ = select.select([stdin, self._wake], [], [], timeout_s)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if stdin not in ready:
            return []
        typed = self._read_input(stdin)
        while _UNFINISHED.search(typed) and select.select([stdin], [], [], _ESCAPE_S)[0]:
            typed += self._read_input(stdin)
        return keys_of(typed)

    def _read_input(self, stdin: int) -> str:
        try:
            data = os.read(stdin, 1024)
        except OSError as error:  # the terminal is gone
            raise EOFError from error
        if not data:
            raise EOFError
        return data.decode("utf-8", "replace")


@contextmanager
def screen() -> Iterator[Screen]:
    """Show the alternate screen with raw keys, on standard input and output, in this block.

    Ctrl-C raises KeyboardInterrupt, a hangup or a kill SystemExit; Ctrl-Z restores the terminal
    until the program continues.
    """
    give_back = system.take_keys()
    with _woken_by_signals() as wake, console.handling(_handlers(give_back)):
        try:
            _write(_ENTER)
            yield Screen(wake)
        finally:
            with suppress(OSError):
                sys.stdout.flush()  # output that an error left unwritten belongs to this screen
            _leave(give_back)


def _leave(give_back: Callable[[], None]) -> None:
    with suppress(OSError):  # after a hangup there is no terminal to restore
        give_back()
        _write(_LEAVE)


def _write(text: str) -> None:
    """Write at once, past the buffer: a signal may come while ``draw`` writes to the buffer."""
    os.write(sys.stdout.fileno(), text.encode())


def _handlers(give_back: Callable[[], None]) -> dict[signal.Signals, console.Handler]:
    def pause(number: int, _: FrameType | None) -> None:
        _leave(give_back)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # the process is suspended here
        signal.signal(number, pause)
        system.take_keys()
        _write(_ENTER)

    return {
        **dict.fromkeys(system.ENDING, console.leave),
        **dict.fromkeys(system.PAUSING, pause),
        **dict.fromkeys(system.RESIZING, lambda *_: None),  # only ends the wait for keys
    }


@contextmanager
def _woken_by_signals() -> Iterator[int]:
    """A descriptor that becomes readable at every signal, so that waiting for keys ends."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader.fileno()
        finally:
            signal.set_wakeup_fd(previous)
