"""The cores of a page, which compute in the browser: a wheel's own, or compiled here once.

A package that was built from a clone has no cores but their sources, beside the module that was
compiled of the same files. Knows the folders of both, and not what they compute.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from cutaway.base import _native, child
from cutaway.base.progress import Bar, say
from cutaway.errors import CutawayError, InputError
from cutaway.files.hub import cache_dir

PACKAGED = Path(str(files("cutaway.trace.web") / "cores"))
SOURCES = Path(_native.__file__).with_name("native")
_COMPILER = "ziglang"


def page_cores() -> Path:
    """Return the folder of the cores; compile them into the user's cache if there are none.

    InputError if this Python has no compiler for them.
    """
    if PACKAGED.is_dir():
        return PACKAGED
    folder = cache_dir() / "page-cores" / _digest(SOURCES)
    if not folder.is_dir():
        _check_compiler()
        say(f"compiling what a page runs, once, for {folder}: it takes minutes")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            _compile(SOURCES, Path(place))
            try:
                (Path(place) / "cores").replace(folder)
            except OSError:
                if not folder.is_dir():  # or another process was faster
                    raise
        for older in folder.parent.iterdir():  # of earlier versions
            if re.fullmatch(r"[0-9a-f]{16}", older.name) and older != folder:
                shutil.rmtree(older, ignore_errors=True)
    return folder


def _digest(sources: Path) -> str:
    """Return a name for these sources: other sources are other cores."""
    paths = sorted(path for path in sources.rglob("*") if path.is_file())
    if not paths:
        raise CutawayError(f"{sources} has no sources of a page's cores: install cutaway again")
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _check_compiler() -> None:
    if not find_spec(_COMPILER):
        raise InputError(
            "what a page runs must be compiled here, once, and its compiler is missing: "
            f"{quote(sys.executable)} -m pip install {_COMPILER}, then repeat this command"
        )
    if not shutil.which("sh"):
        raise InputError(
            "what a page runs is compiled by a script for sh, which this system has not: install "
            "a wheel of cutaway, which brings the cores"
        )


def _compile(sources: Path, place: Path) -> None:
    """Run native/web/build.sh; CutawayError with what the compiler said if it fails."""
    environment = {"ZIG_GLOBAL_CACHE_DIR": f"{place / 'zig'}"} | child.foreign_environment()
    with (
        (place / "errors").open("w+") as errors,
        subprocess.Popen(
            ["sh", sources / "web/build.sh", place / "cores"],
            env=environment | {"PYTHON": sys.executable},
            stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as script,
    ):  # fmt: skip
        assert script.stdout
        total = int(script.stdout.readline() or 0)
        with Bar("compiling", total, figures=_files_compiled) as bar:
            for done, _ in enumerate(script.stdout, 1):
                bar.update(done)
        if script.wait():
            errors.seek(0)
            raise CutawayError(f"the page's cores could not be compiled: {errors.read()}")


def _files_compiled(done: int, total: int, seconds: float) -> str:
    return f"{done} of {total} files, {seconds:.0f} s"
