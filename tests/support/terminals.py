"""Commands on a terminal of their own, and the input and output of a person there."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios

CUTAWAY = [sys.executable, "-m", "cutaway"]


class Terminal:
    """A command whose input and outputs are a terminal.

    env: environment variables in addition to this process's
    """

    def __init__(self, *args, rows=30, columns=100, **env):
        self._person, self._terminal = pty.openpty()  # both open, so that its state can be read
        self.resize(rows, columns)
        self._before = termios.tcgetattr(self._person)
        self._seen = ""
        self.process = subprocess.Popen(
            [*CUTAWAY, *map(str, args)], start_new_session=True,
            stdin=self._terminal, stdout=self._terminal, stderr=self._terminal,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
            env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | env,
        )  # fmt: skip

    def resize(self, rows, columns):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._person, termios.TIOCSWINSZ, size)

    def type(self, keys):
        os.write(self._person, keys.encode())

    def wait_for(self, text):
        """Wait for a text; return the output before it, from the end of the last wait."""
        while text not in self._seen:
            assert select.select([self._person], [], [], 100)[0], (text, self._seen)
            self._seen += os.read(self._person, 65536).decode("utf-8", "replace")
        before, self._seen = self._seen.split(text, 1)
        return before

    def say(self, line, then):
        self.type(f"{line}\n")
        return self.wait_for(then)

    def end(self):
        """Return (exit code, remaining output); the terminal's settings must be as before."""
        while self.process.poll() is None or select.select([self._person], [], [], 0)[0]:
            if select.select([self._person], [], [], 0.05)[0]:
                self._seen += os.read(self._person, 65536).decode("utf-8", "replace")
        assert termios.tcgetattr(self._person) == self._before
        self.close()
        return self.process.returncode, self._seen

    def close(self):
        """Kill the command if it still runs, and close the terminal."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._terminal >= 0:
            os.close(self._person)
            os.close(self._terminal)
            self._terminal = -1
