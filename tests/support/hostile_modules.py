"""Modules that a stranger puts into a folder, in the hope that a program takes them for others."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_hostile_modules(folder: Path, ran: Path, names: Iterable[str]) -> None:
    """Files of these names, of which each that is run makes the file ``ran``."""
    for name in names:
        module = folder / name
        module.parent.mkdir(parents=True, exist_ok=True)
        # By what is there before Python can open files, since encodings is needed for that.
        module.write_text(f"import posix\nposix.close(posix.open({str(ran)!r}, {os.O_CREAT}))\n")
