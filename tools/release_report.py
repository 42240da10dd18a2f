"""The results of a release check: a line as each check ends, a table of all, and the same as JSON.

A check is ok, failed, or not made, with the reason. Knows no check.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

LAST_LINES = 25
WRONG = "FAILED"
NOT_MADE = "not made"


@dataclass(frozen=True)
class Row:
    """One check: its subject, its name, its outcome, and its result in words.

    seconds    of wall-clock time
    processor  processor seconds of its commands on all cores: the same on a busy machine
    """

    subject: str
    check: str
    outcome: str
    found: str
    seconds: float = 0.0
    processor: float = 0.0


class CheckError(Exception):
    """A command failed, or its output has a fault."""


class Report:
    """Makes checks, keeps a row of each, and writes the output of their commands to ``log``."""

    def __init__(self, log: Path) -> None:
        self.rows: list[Row] = []
        self.log = log
        log.write_text("")

    def check(self, subject: str, name: str, work: Callable[[], Found]) -> Found | None:
        """Return the result of ``work``, which the row also shows; None if the check failed."""
        began, computed = time.perf_counter(), computed_by_commands()
        found: Found | None = None
        outcome, said = "ok", ""
        try:
            found = work()
            said = str(found)
        except (CheckError, OSError, ValueError) as error:
            outcome, said = WRONG, str(error)
        seconds, processor = time.perf_counter() - began, computed_by_commands() - computed
        self._add(Row(subject, name, outcome, said, round(seconds, 2), round(processor, 2)))
        return found

    def not_made(self, subject: str, name: str, why: str) -> None:
        """Note a check that this machine, or these options, do not allow."""
        self._add(Row(subject, name, NOT_MADE, why))

    def run(self, *command: object, cwd: Path | None = None, **environment: str) -> str:
        """Run a command; return its output.

        Raises:
            CheckError: with the last lines of output, if the command fails.
        """
        words = [str(word) for word in command]
        done = subprocess.run(
            words, env=os.environ | environment, cwd=cwd, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with self.log.open("a") as log:
            log.write(f"+ {' '.join(words)}\n{done.stdout}\n")
        if done.returncode:
            last = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
            raise CheckError(f"{' '.join(words)} ended with {done.returncode}:\n{last}")
        return done.stdout

    def venv(self, python: object, folder: Path, *, new: bool = True) -> Path:
        """Make a virtual environment, or keep an earlier run's; return its folder of programs."""
        self.run(python, "-m", "venv", *(["--clear"] if new else []), folder)
        return folder / "bin"

    def end(self, file: Path | None) -> int:
        """Print the table, write the rows as JSON; return the exit code: 1 if a check failed."""
        subject = ""
        for row in self.rows:
            if row.subject != subject:
                subject = row.subject
                print(f"\n{subject}")
            found = row.found.partition("\n")[0]
            times = f"{row.seconds:5.0f} s, {row.processor:4.0f} s of processors"
            print(f"  {row.check:<28} {row.outcome:<9} {times}  {found}")
        counts = {name: sum(r.outcome == name for r in self.rows) for name in (WRONG, NOT_MADE)}
        print(f"\n{len(self.rows)} checks, {counts[WRONG]} failed, {counts[NOT_MADE]} not made")
        if file:
            file.write_text(json.dumps([asdict(row) for row in self.rows], indent=1) + "\n")
        return 1 if counts[WRONG] else 0

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(f"{row.subject}: {row.check}: {row.outcome}: {row.found}", flush=True)


def computed_by_commands() -> float:
    """Seconds of processor time of all commands that have ended."""
    times = os.times()
    return times.children_user + times.children_system
