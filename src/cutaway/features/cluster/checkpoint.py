"""A folder of finished rows, in Parquet; the run after one that was killed adds the rest.

Every run has its own subfolder, named ``….open`` while it may write there. The next run renames it,
so that leftover workers of a killed run can write no more. A file appears whole or not at all, and
its name is a hash of its rows' ids, so rows that are written again replace the same file.
"""

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutaway.base.whole_files import whole_file
from cutaway.errors import CutawayError, InputError

if TYPE_CHECKING:
    import pyarrow

_ABOUT, _OPEN = "_about.json", ".open"


class Checkpoint:
    """The folder. InputError where it holds anything else, or rows of another job."""

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        """about: all that determines the rows' texts besides their own columns."""
        self.path = Path(path).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check(json.loads(json.dumps(about)))
            self.close()
        except OSError as error:
            raise InputError(f"checkpoint: {self.path}: {error.strerror}") from error

    def _check(self, about: Any) -> None:
        about_file = self.path / _ABOUT
        if not about_file.exists():
            if any(self.path.iterdir()):
                raise InputError(f"checkpoint: {self.path} holds other files: name a new folder")
            with whole_file(about_file) as out:
                out.write(json.dumps(about, indent=1).encode() + b"\n")
        try:
            before = json.loads(about_file.read_bytes())
        except ValueError:
            before = {}
        if not isinstance(before, dict) or before.keys() != about.keys():
            raise InputError(
                f"checkpoint: {about_file} is not one that cutaway wrote: name a new folder"
            )
        for name, value in about.items():
            if before[name] != value:
                raise InputError(
                    f"checkpoint: the rows in {self.path} were written with {name}="
                    f"{json.dumps(before[name])}, not {json.dumps(value)}: name a new folder"
                )

    def close(self) -> None:
        """End all runs that are open here; their workers can write nothing more."""
        for run in self.path.glob(f"run-*{_OPEN}"):
            closed = run.rename(run.with_suffix(""))
            for part in closed.glob(".*"):
                part.unlink()

    def files(self) -> list[str]:
        """All finished files."""
        return sorted(map(str, self.path.glob("run-*/*.parquet")))

    def open(self) -> Path:
        """A folder for this run."""
        numbers = (int(run.name[4:].removesuffix(_OPEN)) for run in self.path.glob("run-*"))
        run = self.path / f"run-{max(numbers, default=0) + 1}{_OPEN}"
        try:
            run.mkdir()
        except FileExistsError:
            raise InputError(f"checkpoint: another run has just begun in {self.path}") from None
        return run


def part_name(ids: list[Any]) -> str:
    """The name of the file with these rows."""
    return f"{sha256(json.dumps(ids).encode()).hexdigest()[:32]}.parquet"


def write_part(run: Path, table: "pyarrow.Table", name: str) -> None:
    """A file in a run's folder, whole or not at all; CutawayError where the run is over."""
    from pyarrow import parquet

    part = run / f".{name}-{os.urandom(8).hex()}"
    try:
        with part.open("xb") as out:
            parquet.write_table(table, out)
            out.flush()
            os.fsync(out.fileno())
        part.replace(run / name)
    except OSError as error:
        part.unlink(missing_ok=True)
        why = error.strerror if run.is_dir() else "another run has taken over"
        raise CutawayError(f"{run} cannot be written: {why}") from error
