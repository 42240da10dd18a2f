"""``cutaway`` whose engine makes so many steps, so that a text is surely unfinished after these.

``python held_steps.py STEPS WORD...`` holds each further step until nobody reads standard output or
a signal comes.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cutaway.cli.main import main
from cutaway.engine import Engine, Event


def command(steps: int) -> list[str]:
    """Return the command's first words."""
    return [sys.executable, "-P", __file__, str(steps)]  # no module here hides another


@contextmanager
def run(steps: int, *words: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command with these words, and kill it if the test fails meanwhile."""
    with subprocess.Popen([*command(steps), *map(str, words)], **options) as process:
        try:
            yield process
        except BaseException:
            process.kill()  # no step of it may ever come
            raise


def _hold_after(steps: int) -> None:
    step, output = Engine.step, select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors alone: its reader has gone
    # A handler that returns does not end poll, which goes on by itself; a byte on this pipe does.
    signalled, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    output.register(signalled, select.POLLIN)

    def step_or_hold(engine: Engine) -> list[Event]:
        if engine.steps >= steps:
            output.poll()
        return step(engine)

    Engine.step = step_or_hold  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    _hold_after(int(sys.argv.pop(1)))
    sys.exit(main())
