"""The gallery: ten lessons of a minute, each a page of recorded runs with their inside.

``python docs/site/gallery.py OUT [LESSON …]`` writes them, and an index of them; ``make docs``
writes them into the site. They have the same bytes each time, since a trace is written without
times, and without the instruction set and the number of threads, which change no bit.

Knows how runs become files and pages, and how sentences name what is on record. What is taught is
in ``gallery_choice``, ``gallery_form`` and ``gallery_model``, the index in ``gallery_figures``.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from io import StringIO
from math import exp
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from cutaway import LLM
from cutaway.cli.main import main as cutaway
from cutaway.engine.events import Step
from cutaway.features.inside import summary
from cutaway.features.inside.look import Look, inside
from cutaway.rerun import branch
from cutaway.sampling import Candidate
from cutaway.trace import Guide, Point, ShownRun, Trace, runs_to_html

MOST = 3_000_000
"""Bytes of a page."""


class Lesson(NamedTuple):
    """A page and its card in the index.

    figure  HTML; words: what it shows, for those who cannot see it
    """

    name: str
    title: str
    question: str
    points: Sequence[Point]
    answer: str
    runs: Sequence[ShownRun]
    figure: str
    words: str


class Desk:
    """Where runs are written: the models, each loaded when it is first asked for, and a folder.

    threads  None: as many as usual
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        self.folder, self.threads = folder, threads
        self._written = 0

    @cached_property
    def smollm2(self) -> LLM:
        """SmolLM2 135M as it is published, Q4_1."""
        return self._load("smollm2")

    @cached_property
    def toy_canvas(self) -> LLM:
        """The diffusion model of the package."""
        return self._load("toy-canvas")

    def rounded(self, form: str) -> LLM:
        """SmolLM2 with its weights rounded to another format."""
        plain = self.folder / "SmolLM2-135M-Instruct.gguf"
        if not plain.exists():
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                assert cutaway(["quantize", "smollm2", str(plain), "--to", "f16"]) == 0
        return self._load(str(plain), quantize=form)

    def _load(self, model: str, **more: Any) -> LLM:
        # Without the prefix cache: what it finds depends on the runs before, and is on record.
        return LLM(model, threads=self.threads, prefix_cache=False, progress=False, **more)

    def write(self, generate: Callable[..., Any], *given: Any, **keywords: Any) -> Trace:
        """What a method of a model writes, on record."""
        self._written += 1
        path = self.folder / f"{self._written}.jsonl"
        generate(*given, trace=path, **keywords)
        path.write_bytes(_without_times(path.read_bytes()))
        return Trace.read(path)

    def branch(self, llm: LLM, trace: Trace, at: int, token: str | None, **more: Any) -> Trace:
        """The run with another token, or another model inside, from a step on."""
        return self.write(branch, llm, trace, at, token, **more)


def _without_times(lines: bytes) -> bytes:
    made = []
    for line in lines.splitlines():
        record = json.loads(line)
        if record["kind"] == "head":
            record |= {"tier": "any", "threads": 1}
        if "ms" in record:
            record["ms"] = dict.fromkeys(record["ms"], 0.0)
        made.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(made).encode()


# -- what lessons are made of --------------------------------------------------------------------


def shown(trace: Trace, name: str, llm: LLM | None = None, steps: Iterable[int] = ()) -> ShownRun:
    """A run of a page, with the inside of some steps, which the model computes."""
    return ShownRun(
        trace, name, {step: _look(llm, trace, step)[1] for step in steps} if llm else {}
    )


def look(llm: LLM, trace: Trace, step: int) -> Look:
    """The inside of a step."""
    return _look(llm, trace, step)[0]


def _look(llm: LLM, trace: Trace, step: int) -> tuple[Look, bytes]:
    seen = inside(llm, trace, step)
    found = seen, seen.logit_attribution(), seen.lens(1)
    name = llm.tokenizer.token_name
    header = summary.page_header(*found, name, trace=trace.sha256, model=llm.name)
    return seen, summary.to_bytes(*found, header)


def point(text: str, step: int | None = None, *, run: int = 1, **shows: Any) -> Point:
    """A sentence, and the place that it opens."""
    return Point(text, run, ({} if step is None else {"step": step}) | shows)


def quoted(token: str) -> str:
    """A token within a sentence, without the space at its beginning, which most have."""
    return f"“{token.replace(chr(10), '↵').removeprefix(' ')}”"


def drawn(trace: Trace, step: int) -> str:
    """The token of a step."""
    return trace.name_of(trace.steps[step].token_id)


def candidate(trace: Trace, step: int, token: str) -> Candidate:
    """A recorded candidate of a step. StopIteration where it has none of this name."""
    seen = trace.steps[step].observed
    assert seen is not None
    return next(one for one in seen.candidates if trace.name_of(one.id) == token)


def chance(trace: Trace, step: int, token: str) -> str:
    """The probability of a candidate after the chain, in words."""
    found = candidate(trace, step, token).final_logprob
    return "no chance" if found is None else percent(exp(found))


def own_chance(step: Step) -> str:
    """The probability that the model itself gave to the token of a step."""
    return percent(exp(step.logprob))


def percent(p: float) -> str:
    """In words: 12%, 0.4%."""
    return f"{100 * p:.0f}%" if p >= 0.0995 else f"{100 * p:.1f}%" if p >= 0.001 else "<0.1%"


def tokens(trace: Trace, mark: int = -1, most: int = 14) -> list[tuple[str, str]]:
    """The tokens of a text from the first on, one of them marked, for a figure."""
    return [
        (drawn(trace, step.index), "hot" if step.index == mark else "")
        for step in trace.steps[:most]
    ]


def parting(one: Trace, other: Trace) -> int:
    """The first step at which two texts differ."""
    pairs = zip(one.output_token_ids, other.output_token_ids, strict=False)
    return next(i for i, (a, b) in enumerate(pairs) if a != b)


# -- pages ---------------------------------------------------------------------------------------


def make(names: Sequence[str] | None = None, threads: int | None = None) -> list[Lesson]:
    """The lessons, all or those that are named, in the order of the index."""
    from gallery_lessons import LESSONS  # it takes all of the above from here

    if unknown := {*(names or ())} - {*LESSONS}:
        raise SystemExit(f"there is no lesson {min(unknown)!r}; they are {', '.join(LESSONS)}")
    with TemporaryDirectory() as folder:
        desk = Desk(Path(folder), threads)
        return [made(desk) for name, made in LESSONS.items() if not names or name in names]


def write(lessons: Sequence[Lesson], folder: Path, home: str = "index.html") -> dict[str, int]:
    """Write a page for each lesson. home: address of the index. Returns the bytes of each."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for number, lesson in enumerate(lessons):
        page = runs_to_html(lesson.runs, f"{lesson.title} · cutaway", _guide(lessons, number, home))
        data = page.encode()
        assert len(data) < MOST, f"{lesson.name}: {len(data)} bytes are too many"
        folder.joinpath(f"{lesson.name}.html").write_bytes(data)
        sizes[lesson.name] = len(data)
    return sizes


def _guide(lessons: Sequence[Lesson], number: int, home: str) -> Guide:
    lesson = lessons[number]
    links = {"All lessons": home}
    if number + 1 < len(lessons):
        links[f"Next: {lessons[number + 1].title} →"] = f"{lessons[number + 1].name}.html"
    return Guide(lesson.title, lesson.question, tuple(lesson.points), lesson.answer, links)


def main(arguments: Sequence[str]) -> int:
    """Write lessons and an index of them into a folder."""
    from gallery_figures import index

    if not arguments or arguments[0].startswith("-"):
        print("usage: python docs/site/gallery.py OUT [LESSON …]", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    lessons = make(arguments[1:])
    sizes: Mapping[str, int] = write(lessons, folder)
    folder.joinpath("index.html").write_text(index(lessons), "utf-8")
    for name, size in sizes.items():
        print(f"{name:12} {size / 1e6:5.2f} MB")
    return 0


if __name__ == "__main__":
    sys.modules["gallery"] = sys.modules["__main__"]  # the lessons import it by this name
    sys.exit(main(sys.argv[1:]))
