"""``cutaway`` whose engine makes so many steps, so that a text is surely unfinished after these.

``python held_steps.py STEPS WORD...`` holds each further step until nobody reads standard output or
a signal comes.
"""

import select
import sys

from cutaway.cli.main import main
from cutaway.engine import Engine, Event


def command(steps: int) -> list[str]:
    """Return the command's first words."""
    return [sys.executable, "-P", __file__, str(steps)]  # no module here hides another


def _hold_after(steps: int) -> None:
    step, output = Engine.step, select.poll()
    output.register(sys.stdout.fileno(), 0)  # errors alone: its reader has gone

    def step_or_hold(engine: Engine) -> list[Event]:
        if engine.steps >= steps:
            output.poll()
        return step(engine)

    Engine.step = step_or_hold  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    _hold_after(int(sys.argv.pop(1)))
    sys.exit(main())
