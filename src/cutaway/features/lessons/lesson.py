"""A lesson as an object, and as files: its sentences as JSON, each run's trace, and its insides.

Knows where the package keeps lessons: each is an archive of these files, compressed as one stream,
since the runs of a lesson are much alike.
"""

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from io import BytesIO
from typing import Any

from cutaway.base.checks import check_choice
from cutaway.features.lessons import LESSONS
from cutaway.trace import Point, ShownRun, Trace

_DATA = files("cutaway.features.lessons") / "data"


@dataclass(frozen=True, slots=True)
class Lesson:
    """A page and its card in the index.

    figure   HTML, on the card; caption: what it shows, for those who cannot see it
    drawing  HTML, on the page above the runs; "": none
    """

    name: str
    title: str
    question: str
    points: Sequence[Point]
    answer: str
    runs: Sequence[ShownRun]
    figure: str
    caption: str
    drawing: str = ""


def read(name: str) -> Lesson:
    """Return a lesson of the package. InputError if there is none of this name."""
    check_choice("lesson", name, LESSONS)
    return from_archive(_DATA.joinpath(f"{name}.tar.xz").read_bytes())


def read_card(name: str) -> Lesson:
    """Return a lesson of the package without its runs, which take time to parse."""
    contents = files_in(_DATA.joinpath(f"{name}.tar.xz").read_bytes())
    return Lesson(**_fields(contents) | {"runs": ()})


def from_archive(archive: bytes) -> Lesson:
    """Return the lesson that an archive contains."""
    contents = files_in(archive)
    fields = _fields(contents)
    fields["runs"] = [
        ShownRun(Trace.parse(contents[f"{n}.jsonl"]), name, _looks(contents, n))
        for n, name in enumerate(fields["runs"], 1)
    ]
    return Lesson(**fields)


def _fields(contents: Mapping[str, bytes]) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(contents["lesson.json"])
    fields["points"] = [Point(**point) for point in fields["points"]]
    return fields


def _looks(contents: Mapping[str, bytes], run: int) -> dict[int, bytes]:
    prefix, suffix = f"{run}-", ".inside"
    return {
        int(name.removeprefix(prefix).removesuffix(suffix)): content
        for name, content in contents.items()
        if name.startswith(prefix) and name.endswith(suffix)
    }


def files_in(archive: bytes) -> dict[str, bytes]:
    """Return the files of an archive by name."""
    with tarfile.open(fileobj=BytesIO(archive), mode="r:xz") as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def to_files(lesson: Lesson, traces: Sequence[bytes]) -> dict[str, bytes]:
    """Return a lesson's files by name. traces: the file of each of its runs."""
    fields = {
        "name": lesson.name,
        "title": lesson.title,
        "question": lesson.question,
        "points": [asdict(point) for point in lesson.points],
        "answer": lesson.answer,
        "runs": [run.name for run in lesson.runs],
        "figure": lesson.figure,
        "caption": lesson.caption,
    }
    if lesson.drawing:
        fields["drawing"] = lesson.drawing
    contents = {"lesson.json": json.dumps(fields, ensure_ascii=False, indent=1).encode()}
    for n, (run, trace) in enumerate(zip(lesson.runs, traces, strict=True), 1):
        contents[f"{n}.jsonl"] = trace
        contents |= {f"{n}-{step}.inside": look for step, look in run.looks.items()}
    return contents


def to_archive(contents: Mapping[str, bytes]) -> bytes:
    """Return a compressed tar archive of files; its entries have no time."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9) as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, BytesIO(content))
    return buffer.getvalue()
