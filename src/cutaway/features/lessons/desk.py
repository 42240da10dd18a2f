"""Where recipes write their runs: the models, and a folder.

A run is recorded without times, and without the instruction set and the number of threads, which
change no bit: so a recipe writes the same bytes on every machine.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import cached_property
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cutaway import LLM
from cutaway.cli.main import main as cutaway
from cutaway.features.inside import summary
from cutaway.features.inside.look import Look, inside
from cutaway.features.lessons import recipe
from cutaway.features.lessons.lesson import to_files
from cutaway.rerun import branch
from cutaway.trace import ShownRun, Trace


class Desk:
    """The models, each loaded when a recipe first needs it, and a folder for the runs.

    threads  None: as many as usual
    """

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        self.folder, self.threads = folder, threads
        self._runs = 0

    @cached_property
    def smollm2(self) -> LLM:
        """SmolLM2 135M as it is published, Q4_1."""
        return self._load("smollm2")

    @cached_property
    def toy_writer(self) -> LLM:
        """The package's model that writes from left to right."""
        return self._load("toy-writer")

    @cached_property
    def toy_canvas(self) -> LLM:
        """The package's diffusion model of masks."""
        return self._load("toy-canvas")

    @cached_property
    def toy_noise(self) -> LLM:
        """The package's diffusion model of noise."""
        return self._load("toy-noise")

    def quantise(self, quantisation: str) -> LLM:
        """Return SmolLM2 with its weights rounded to another format."""
        plain = self.folder / "SmolLM2-135M-Instruct.gguf"
        if not plain.exists():
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                assert cutaway(["quantize", "smollm2", str(plain), "--to", "f16"]) == 0
        return self._load(str(plain), quantize=quantisation)

    def _load(self, model: str, **options: Any) -> LLM:
        # Without the prefix cache: its hits depend on the runs before, and are on record.
        return LLM(model, threads=self.threads, prefix_cache=False, progress=False, **options)

    def write(self, generate: Callable[..., Any], *arguments: Any, **keywords: Any) -> Trace:
        """Call a model's method, and return the record of its run."""
        self._runs += 1
        path = self.folder / f"{self._runs}.jsonl"
        generate(*arguments, trace=path, **keywords)
        path.write_bytes(_without_times(path.read_bytes()))
        return Trace.read(path)

    def branch(self, llm: LLM, trace: Trace, at: int, token: str | None, **options: Any) -> Trace:
        """Run a trace again with another token, or a changed activation, from a step on."""
        return self.write(branch, llm, trace, at, token, **options)


def _without_times(trace: bytes) -> bytes:
    lines = []
    for line in trace.splitlines():
        record = json.loads(line)
        if record["kind"] == "head":
            record |= {"tier": "any", "threads": 1}
        if "ms" in record:
            record["ms"] = dict.fromkeys(record["ms"], 0.0)
        lines.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(lines).encode()


def record(name: str, threads: int | None = None) -> dict[str, bytes]:
    """Write a lesson's runs anew by its recipe; return the lesson's files.

    InputError if there is no such lesson, AssertionError if its claim no longer holds.
    """
    write = recipe(name)
    with TemporaryDirectory() as folder:
        lesson = write(Desk(Path(folder), threads))
        assert lesson.name == name
        traces = [run.trace.path for run in lesson.runs]
        return to_files(lesson, [path.read_bytes() for path in traces if path])


def show_run(
    trace: Trace, name: str, llm: LLM | None = None, steps: Iterable[int] = ()
) -> ShownRun:
    """Return a run of a page, with the inside of some steps, which the model computes."""
    looks = {step: _look_bytes(llm, trace, step) for step in steps} if llm else {}
    return ShownRun(trace, name, looks)


def _look_bytes(llm: LLM, trace: Trace, step: int) -> bytes:
    look: Look = inside(llm, trace, step)
    parts = look, look.logit_attribution(), look.lens(1)
    name = llm.tokenizer.token_name
    header = summary.page_header(*parts, name, trace=trace.sha256, model=llm.name)
    return summary.to_bytes(*parts, header)
