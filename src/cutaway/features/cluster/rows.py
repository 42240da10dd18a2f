"""A dataset's rows: their requests, the columns of their results, the folder of finished rows.

An error affects its own row only.

The folder has Parquet files; after a killed run, the next run adds the missing rows. Every run has
its own subfolder, named ``….open`` while the run may write there. The next run renames the
subfolder, so that leftover workers of a killed run can no longer write. A file appears whole or not
at all. Its name is a hash of its rows' ids, so rows that are written again replace the same file.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cutaway.api.llm import LLM
from cutaway.api.text_writer import Result
from cutaway.base.checks import shown
from cutaway.base.whole_files import whole_file
from cutaway.errors import CutawayError, InputError
from cutaway.requests.completion import Completion

if TYPE_CHECKING:
    import pyarrow


COLUMNS = ("text", "finish_reason", "fingerprint", "system_fingerprint", "seed", "error")
"""The columns that each row gets, besides ``token_ids`` if asked for."""

Columns = dict[str, Any]


@dataclass(frozen=True)
class BulkJob:
    """The settings common to all rows. Can be pickled.

    model, load   as for ``LLM``
    prompt, id    names of the columns with the prompt and the row's id
    before        prefix of the names of added columns
    options       as for ``LLM.generate``
    """

    model: str | None
    prompt: str = "prompt"
    id: str = "id"
    token_ids: bool = False
    before: str = ""
    load: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def added_columns(self) -> dict[str, str]:
        """Map each added value's name to the name of its column."""
        names = (*COLUMNS, "token_ids") if self.token_ids else COLUMNS
        return {name: self.before + name for name in names}

    def check_load(self) -> None:
        """Raise InputError for a keyword that cannot be in ``load``."""
        keywords = signature(LLM).parameters.keys() - {"self", "model", "progress", "threads"}
        if unknown := sorted(self.load.keys() - keywords):
            raise InputError("load", f": {unknown[0]} is none of {', '.join(sorted(keywords))}")

    def open(self) -> LLM:
        """Open the model."""
        return LLM(self.model, progress=False, **self.load)

    def write(self, llm: LLM, rows: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, Columns]]:
        """Yield (index of the row, its columns) in the order in which the rows' texts end.

        rows: (id, prompt) of each row
        """
        seeds: list[int | None] = []

        def requests() -> Iterator[Any]:
            for name, prompt in rows:
                seeds.append(None)
                try:
                    seed = seeds[-1] = self.seed(name)
                    yield _prompt(llm, prompt), {"seed": seed}
                except CutawayError as error:
                    yield error

        computed_by = llm.model.with_adapter(self.options.get("adapter") or "").system_fingerprint
        common = {name: value for name, value in self.options.items() if name != "seed"}
        with llm.generate_each(requests(), **common) as results:
            for place, result in results:
                columns = _columns(result) | {
                    "system_fingerprint": computed_by,
                    "seed": seeds[place],
                }
                yield place, {name: columns.get(name) for name in self.added_columns}

    def seed(self, name: Any) -> int:
        """Derive a row's seed from the row's id and the option ``seed`` (0 if it is not given).

        The seed is below 2**53, so that programs that read numbers as floats read the seed exactly.
        """
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise InputError(f"{self.id} must be a text or a whole number, not {shown(name)}")
        base = self.options.get("seed")
        source = json.dumps([0 if base is None else base, name])
        return int.from_bytes(sha256(source.encode()).digest()[:8], "big") >> 11


def digest(prompt: Any) -> bytes:
    """Return 16 bytes of a hash of the prompt."""
    return sha256(json.dumps(_plain(prompt)).encode()).digest()[:16]


def _plain(prompt: Any) -> Any:
    """Drop None fields, which Arrow adds to a message where another row's message has the field."""
    if isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    if isinstance(prompt, Mapping):
        return {name: _plain(value) for name, value in prompt.items() if value is not None}
    return [_plain(part) for part in prompt] if isinstance(prompt, list) else prompt


def _prompt(llm: LLM, prompt: Any) -> Any:
    """Return a text or token ids unchanged; return the token ids of a list of messages."""
    if isinstance(prompt, list) and prompt and all(isinstance(part, Mapping) for part in prompt):
        return llm.chat_prompt(_plain(prompt))
    return prompt


def _columns(result: Result) -> Columns:
    if isinstance(result, CutawayError):
        return {"error": str(result)}
    assert isinstance(result, Completion)  # n is 1
    return {
        "text": result.text, "finish_reason": result.finish_reason, "error": result.error,
        "fingerprint": result.fingerprint, "token_ids": list(result.token_ids),
    }  # fmt: skip


# -- the folder of finished rows -------------------------------------------------------------------


_ABOUT, _OPEN = "_about.json", ".open"


class Checkpoint:
    """The folder of finished rows. InputError if it has other files, or rows of another job."""

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        """about: everything besides a row's own columns that determines its text."""
        self.path = Path(path).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check(json.loads(json.dumps(about)))
            self.close()
        except OSError as error:
            raise InputError("checkpoint", f": {self.path}: {error.strerror}") from error

    def _check(self, about: Any) -> None:
        about_file = self.path / _ABOUT
        if not about_file.exists():
            if any(self.path.iterdir()):
                raise InputError(
                    "checkpoint", f": {self.path} holds other files: name a new folder"
                )
            with whole_file(about_file) as out:
                out.write(json.dumps(about, indent=1).encode() + b"\n")
        try:
            before = json.loads(about_file.read_bytes())
        except ValueError:
            before = {}
        if not isinstance(before, dict) or before.keys() != about.keys():
            raise InputError(
                "checkpoint", f": {about_file} is not one that cutaway wrote: name a new folder"
            )
        for name, value in about.items():
            if before[name] != value:
                raise InputError(
                    "checkpoint",
                    f": the rows in {self.path} were written with {name}="
                    f"{json.dumps(before[name])}, not {json.dumps(value)}: name a new folder",
                )

    def close(self) -> None:
        """End all open runs of this folder; their workers can no longer write."""
        for run in self.path.glob(f"run-*{_OPEN}"):
            closed = run.rename(run.with_suffix(""))
            for part in closed.glob(".*"):
                part.unlink()

    def files(self) -> list[str]:
        """Return the paths of all finished files."""
        return sorted(map(str, self.path.glob("run-*/*.parquet")))

    def open(self) -> Path:
        """Make a folder for this run."""
        numbers = (int(run.name[4:].removesuffix(_OPEN)) for run in self.path.glob("run-*"))
        run = self.path / f"run-{max(numbers, default=0) + 1}{_OPEN}"
        try:
            run.mkdir()
        except FileExistsError:
            raise InputError("checkpoint", f": another run has just begun in {self.path}") from None
        return run


def part_name(ids: list[Any]) -> str:
    """The name of the file with these rows."""
    return f"{sha256(json.dumps(ids).encode()).hexdigest()[:32]}.parquet"


def write_part(run: Path, table: "pyarrow.Table", name: str) -> None:
    """Write a file into a run's folder, whole or not at all; CutawayError if the run is over."""
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
        reason = error.strerror if run.is_dir() else "another run has taken over"
        raise CutawayError(f"{run} cannot be written: {reason}") from error
