"""Tries inputs, in this process or in one that may die, and counts the outcomes."""

import faulthandler
import json
import os
import resource
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from random import Random
from subprocess import PIPE
from tempfile import TemporaryFile
from typing import Any, Literal

from cutaway.errors import CutawayError
from support.fuzz.format import Format, check_sentence

Outcome = Literal["whole", "refused", "failed"]
MOST_S, MOST_BYTES = 120, 1 << 30
"""The limits of one input, in seconds and bytes: a longer one hangs, a larger one has failed."""
SANITIZER = ("ERROR: AddressSanitizer", "runtime error:")


def input_of(format: Format, seed: int) -> bytes:
    """Return the input of a seed."""
    return format.draw(Random(f"{format.name} {seed}"))


def attempt(format: Format, data: bytes) -> tuple[Outcome, str]:
    """Return the outcome of an input, and the text of its refusal or failure."""
    before = _peak()
    try:
        format.use(data)
        outcome: tuple[Outcome, str] = "whole", ""
    except CutawayError as error:
        try:
            check_sentence(error)
            outcome = "refused", str(error)
        except AssertionError:
            outcome = "failed", traceback.format_exc()
    except KeyboardInterrupt:
        raise
    except BaseException:  # a panic of Rust is no Exception
        outcome = "failed", traceback.format_exc()
    if (nbytes := _peak() - before) > MOST_BYTES:
        outcome = "failed", f"it took {nbytes >> 20} MB of memory"
    return outcome


def _peak() -> int:
    """Return the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# -- many, in a process of their own -------------------------------------------------------------


def work(format: Format, first: int, seconds: float) -> None:
    """Print a line before each input, and one after it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        print(json.dumps({"seed": first}), flush=True)
        faulthandler.dump_traceback_later(MOST_S, exit=True)
        data, began = input_of(format, first), time.process_time()
        outcome, reason = attempt(format, data)
        answer = {"outcome": outcome, "why": reason, "seconds": time.process_time() - began}
        print(json.dumps(answer), flush=True)
        first += 1
    faulthandler.cancel_dump_traceback_later()
    format.close()


@dataclass
class Report:
    """The outcomes of a format's inputs, on one instruction set.

    slowest  (seed, seconds) of the input that took the most processor time
    kinds    kind of failure (last line and place) -> the first seed with it
    """

    format: str
    tier: str
    inputs: int = 0
    whole: int = 0
    refused: int = 0
    failed: int = 0
    crashed: int = 0
    sanitizer: int = 0
    hung: int = 0
    seconds: float = 0
    slowest: tuple[int, float] = (0, 0.0)
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether every input worked or was refused."""
        return self.inputs == self.whole + self.refused

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return asdict(self)


def run(
    format: Format, command: Sequence[str], *, tier: str, first: int, seconds: float,
    findings: Path, environment: Mapping[str, str],
) -> Report:  # fmt: skip
    """Try inputs for ``seconds``, in processes that ``command`` starts, one after the other.

    findings: a folder for the first input of each kind of failure
    """
    report, began = Report(format.name, tier), time.monotonic()
    findings.mkdir(parents=True, exist_ok=True)
    env, seed = {**os.environ, **environment}, first
    while (left := began + seconds - time.monotonic()) > 0:
        arguments = [*command, format.name, str(seed), str(left)]
        with TemporaryFile() as errors:
            with subprocess.Popen(arguments, stdout=PIPE, stderr=errors, env=env) as child:
                last = _count(report, format, child.stdout, findings)
            if child.returncode == 0:  # its time is over
                break
            errors.seek(0)
            log = errors.read().decode("utf-8", "replace")
        if last is None:
            raise RuntimeError(f"{' '.join(arguments)} does not start: {log[-3000:]}")
        _count_end(report, log)
        _keep(report, format, last, f"exit {child.returncode}\n{log[-20000:]}", findings)
        seed = last + 1
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _count(report: Report, format: Format, lines: Any, findings: Path) -> int | None:
    """Count the outcomes that a process prints; return the last seed that it tried."""
    seed = None
    for seed, outcome, reason, took in _answers(lines):
        report.inputs += 1
        report.slowest = max(report.slowest, (seed, round(took, 2)), key=itemgetter(1))
        if outcome:
            setattr(report, outcome, getattr(report, outcome) + 1)
        if outcome == "failed":
            _keep(report, format, seed, reason, findings)
    return seed


def _answers(lines: Any) -> Iterator[tuple[int, str, str, float]]:
    """Yield (seed, outcome, reason, seconds); outcome "": the process ended during the input."""
    seed = None
    for line in lines:
        answer = json.loads(line)
        if "seed" in answer:
            seed = answer["seed"]
        elif seed is not None:
            yield seed, answer["outcome"], answer["why"], answer["seconds"]
            seed = None
    if seed is not None:
        yield seed, "", "", 0.0


def _count_end(report: Report, log: str) -> None:
    if any(words in log for words in SANITIZER):
        report.sanitizer += 1
    elif "Timeout (" in log:
        report.hung += 1
    else:
        report.crashed += 1


def _keep(report: Report, format: Format, seed: int, reason: str, findings: Path) -> None:
    """Write an input and its failure, if the failure is the first of its kind."""
    kind = kind_of(reason)
    if kind in report.kinds:
        return
    report.kinds[kind] = seed
    name = findings / f"{format.name}-{seed}"
    name.with_suffix(".input").write_bytes(input_of(format, seed))
    name.with_suffix(".txt").write_text(
        f"{format.name} {seed} on {report.tier or 'any tier'}\n{reason}"
    )
    print(f"{format.name} {seed}: {kind}", file=sys.stderr, flush=True)


def kind_of(reason: str) -> str:
    """Return the error and its place, by which failures of one kind are recognised."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    for line in lines:
        if any(words in line for words in SANITIZER):
            return line[-200:]
    places = [line for line in lines if line.startswith('File "') and "/cutaway/" in line]
    place = places[-1].split("/cutaway/")[-1].replace('"', "") if places else ""
    last = lines[-1] if lines else ""
    return f"{last.split(':')[0]} {last.partition(':')[2][:80]} at {place}"


def main(table: Mapping[str, type[Format]], folder: Path, arguments: Sequence[str]) -> None:
    """Run the other process, with the arguments FORMAT FIRST SECONDS."""
    faulthandler.enable()
    warnings.simplefilter("error")
    name, first, seconds = arguments
    work(table[name](folder), int(first), float(seconds))
