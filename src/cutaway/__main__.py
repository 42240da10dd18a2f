"""The program ``cutaway``, which ``python -m cutaway`` runs, too."""

import gc
import sys
from typing import NoReturn


def program() -> NoReturn:
    """Run the command that was typed, and end the process.

    Imports and vocabularies make many objects and hardly any garbage, so garbage is seldom looked
    for. At the end it is not looked for at all: memory goes back with the process, and whatever was
    written has been closed before.
    """
    gc.set_threshold(100_000)
    from cutaway.cli.main import main  # makes thousands of objects

    code = main()
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    program()
