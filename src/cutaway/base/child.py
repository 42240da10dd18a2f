"""Start another process of this Python.

The current folder may be a stranger's, such as a model's: no file in it may be imported. So ``-P``
keeps it out of the child's path, and PYTHONPATH has no empty or relative entry, which would mean
the current folder. Every Popen gets its command and environment from here.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

# Variables that the operating system and Python itself need.
_SYSTEM_VARIABLES = (
    *("PATH", "HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "SYSTEMROOT"),
    *("TMPDIR", "TEMP", "TMP", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "ASAN_OPTIONS"),
    *("DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
    *("PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE"),
)
_OUR_PREFIXES = ("CUTAWAY_", "PYTHON")  # of variables that may have keys or change Python


def command(*arguments: str) -> list[str]:
    """Return the command that starts this Python."""
    return [sys.executable, "-P", *arguments]


def own_environment() -> dict[str, str]:
    """Return an environment for this package's code: its modules, and no settings of a user."""
    variables = {name: value for name, value in os.environ.items() if name in _SYSTEM_VARIABLES}
    return {**variables, "PYTHONPATH": _path(sys.path)}


def foreign_environment() -> dict[str, str]:
    """Return an environment for another program: all variables but cutaway's own settings."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in _SYSTEM_VARIABLES or not name.startswith(_OUR_PREFIXES)
    }
    path = _path(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**variables, "PYTHONSAFEPATH": "1", **({"PYTHONPATH": path} if path else {})}


def _path(entries: Iterable[str]) -> str:
    """Return a PYTHONPATH without the current folder, unless that has this package."""
    package, here = str(Path(__file__).parents[2]), os.path.realpath(os.curdir)
    safe_entries = [
        entry
        for entry in entries
        if entry == package or (Path(entry).is_absolute() and os.path.realpath(entry) != here)
    ]
    return os.pathsep.join(safe_entries)
