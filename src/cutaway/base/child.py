"""How a process of this Python is started beside this one.

The current folder may be a stranger's, such as a model's: none of its files may be taken for a
module. So ``-P`` keeps it out of the child's path, and PYTHONPATH, where an empty or relative
entry means the current folder, has neither. Every Popen has its command and environment from here.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

# What the system and Python itself need.
_NEEDED = (
    *("PATH", "HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "SYSTEMROOT"),
    *("TMPDIR", "TEMP", "TMP", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD", "ASAN_OPTIONS"),
    *("DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
    *("PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE"),
)
_OURS = ("CUTAWAY_", "PYTHON")  # keys among them


def command(*arguments: str) -> list[str]:
    """The command that starts this Python."""
    return [sys.executable, "-P", *arguments]


def own_environment() -> dict[str, str]:
    """For code of this package: this process's modules, and nothing that a user set for others."""
    needed = {name: value for name, value in os.environ.items() if name in _NEEDED}
    return {**needed, "PYTHONPATH": _path(sys.path)}


def foreign_environment() -> dict[str, str]:
    """For another's program, which may need anything that is set but cutaway's own settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _NEEDED or not name.startswith(_OURS)
    }
    path = _path(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**kept, "PYTHONSAFEPATH": "1", **({"PYTHONPATH": path} if path else {})}


def _path(entries: Iterable[str]) -> str:
    """As PYTHONPATH, without the current folder unless this package itself is in it."""
    package, here = str(Path(__file__).parents[2]), os.path.realpath(os.curdir)
    kept = [
        entry
        for entry in entries
        if entry == package or (Path(entry).is_absolute() and os.path.realpath(entry) != here)
    ]
    return os.pathsep.join(kept)
