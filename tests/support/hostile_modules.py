"""Modules that a stranger puts into a folder, so that a program may import them by mistake."""

import os
from collections.abc import Iterable
from pathlib import Path


def write_hostile_modules(folder: Path, ran: Path, names: Iterable[str]) -> None:
    """Write modules with these names; each creates the file ``ran`` when it runs."""
    for name in names:
        module = folder / name
        module.parent.mkdir(parents=True, exist_ok=True)
        # By posix, which exists before Python can open files: that needs encodings.
        module.write_text(f"import posix\nposix.close(posix.open({str(ran)!r}, {os.O_CREAT}))\n")
