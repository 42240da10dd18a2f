"""Runs every block of README and docs as a newcomer would, and writes outputs into the pages.

    python tools/walk_docs.py [PAGE ...] [--write] [--times]

Each page has a folder of its own, with only links to this checkout's tests, bench and docs, and an
empty HOME; CUTAWAY_HOME names the folder of models, by default the user's cache. bash runs the
blocks of a shell, this process the blocks of Python, in the order of the page. Every command of a
console's block is run, and its output is compared with the page's: standard output, then standard
error. A line … stands for the rest of an output; times, speeds and chosen seeds may differ. --write
puts the new output into the page, if anything else differs; with --times, also where nothing else
does.

Marks in a page: <!-- not run: WHY --> or <!-- not run (COMMAND): WHY --> before a block, where
COMMAND is what the command begins with; <!-- not run on this page: WHY -->; and
<!-- server: OPTIONS --> where blocks need a server.
The exit code is 1 where a block failed, or an output is not as shown.
"""

import gc
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen
from warnings import catch_warnings, simplefilter

from doc_blocks import Block, blocks_of, commands

ROOT = Path(__file__).parents[1]
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if path.parent.name != "notebooks"
]
ADDRESS = "http://127.0.0.1:8000"
"""The address of ``cutaway serve``, in all pages."""
LIMIT_S = 900
LINES = 12
"""The most lines of a new output that are written; other outputs keep the page's number."""
_SERVER = re.compile(r"<!-- server: (.*?) ?-->")
_VARIES = re.compile(r"[\d.,]+ (?=(?:ms|s|tokens/s|rows/s)\b)")
_SEED = re.compile(r"seed \d+")
_FAIL = 'curl() { command curl --fail-with-body "$@"; }\npip() { false; }\n'
"""A shell's beginning: what a page asks of a server must be answered, and nothing is installed."""


class Outcome(NamedTuple):
    """The outcome of a block, or of one of its commands."""

    where: str
    kind: str
    state: str
    """ "ran", "as shown", "differs", "failed" or "not run"."""
    said: str = ""

    @property
    def good(self) -> bool:
        """Whether the outcome is one that a newcomer expects."""
        return self.state not in ("differs", "failed")


# -- a page ----------------------------------------------------------------------------------------


class Walk:
    """A page's blocks, run one after the other in the state that earlier blocks left."""

    def __init__(self, page: str, environment: dict[str, str], *, times: bool = False):
        """Blocks run in the current folder; times: an output as shown still gets its new times."""
        self.text = (ROOT / page).read_text("utf-8")
        self.blocks = list(blocks_of(self.text, page))
        self._environment, self._times = environment, times
        self._known: dict[str, Any] = {"__name__": "__main__"}
        self._address = ADDRESS

    def run(self) -> Iterator[Outcome]:
        """Yield each block's outcome, a console's by command; `text` gets the new outputs."""
        with ExitStack() as stack:
            if options := _SERVER.search(self.text):
                self._address = stack.enter_context(server(options[1], self._environment))
            for block in self.blocks:
                if block.kind == "console":
                    yield from self._console(block)
                elif block.kind == "sh":
                    yield from self._shell(block)
                elif block.kind == "python":
                    yield self._python(block)

    def _console(self, block: Block) -> Iterator[Outcome]:
        written = []
        for command, output in block.shown():
            outcome, out = self._command(block, command, output)
            written.append("\n".join(filter(None, [f"$ {command}", out])))
            yield outcome
        self.text = self.text.replace(block.code, "\n\n".join(written) + "\n")

    def _command(self, block: Block, command: str, output: str) -> tuple[Outcome, str]:
        """Run a command; return its outcome, and the output that the page should show."""
        if why := block.why_not(command):
            return Outcome(_where(block), "console", "not run", f"{_short(command)}: {why}"), output
        done = self._bash(command)
        said = "\n".join(filter(None, (done.stdout.strip("\n"), done.stderr.strip("\n"))))
        said = said.replace(self._environment["CUTAWAY_HOME"], "~/.cache/cutaway")
        new = cut(said, output)
        if done.returncode:
            return Outcome(_where(block), "console", "failed", f"{command}\n{said}"), output
        if steady(new, command) == steady(output, command):
            shown = new if self._times else output
            return Outcome(_where(block), "console", "as shown", _short(command)), shown
        return Outcome(_where(block), "console", "differs", f"{command}\n{new}"), new

    def _shell(self, block: Block) -> Iterator[Outcome]:
        run = []
        for command in commands(block.script):
            if why := block.why_not(command):
                yield Outcome(_where(block), "sh", "not run", f"{_short(command)}: {why}")
            else:
                run.append(command)
        if run:
            done = self._bash("\n".join(run), "-v")
            state = "failed" if done.returncode else "ran"
            said = done.stderr[-2000:] if done.returncode else _short(run[0])
            yield Outcome(_where(block), "sh", state, said)

    def _bash(self, script: str, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", *options, "-e", "-o", "pipefail", "-c", _FAIL + self._here(script)],
            env=self._environment, stdin=subprocess.DEVNULL, text=True, capture_output=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def _python(self, block: Block) -> Outcome:
        if why := block.why_not(block.code):
            return Outcome(_where(block), "python", "not run", why)
        try:
            with redirect_stdout(StringIO()):
                exec(compile(self._here(block.code), _where(block), "exec"), self._known)
        except BaseException:
            return Outcome(_where(block), "python", "failed", traceback.format_exc()[-2000:])
        return Outcome(_where(block), "python", "ran")

    def end(self) -> None:
        """Drop the objects of the page's Python, such as open clients, as its end would."""
        self._known.clear()
        with catch_warnings():
            simplefilter("ignore", ResourceWarning)
            gc.collect()

    def _here(self, code: str) -> str:
        return code.replace(ADDRESS, self._address)


def cut(said: str, shown: str) -> str:
    """Cut an output to the length that the page shows."""
    lines = [line.rstrip() for line in said.splitlines()]
    if shown.endswith("…"):
        keep = len(shown.splitlines()) - 1
    else:
        keep = LINES if not shown else len(lines)
    return "\n".join([*lines[:keep], "…"] if len(lines) > keep + (shown != "…") else lines)


def steady(output: str, command: str) -> str:
    """Remove the parts of an output that differ in each run."""
    output = _VARIES.sub("", output)
    return output if "--seed" in command else _SEED.sub("", output)


def _where(block: Block) -> str:
    return f"{block.page}:{block.line}"


def _short(command: str) -> str:
    return command.splitlines()[0][:70]


# -- where it runs ---------------------------------------------------------------------------------


@contextmanager
def newcomer() -> Iterator[dict[str, str]]:
    """Set an empty current folder and an empty HOME, in this process; yield the environment."""
    models = os.environ.get("CUTAWAY_HOME") or str(Path.home() / ".cache" / "cutaway")
    kept = dict(os.environ)
    with tempfile.TemporaryDirectory() as place:
        here, home, programs = (Path(place) / name for name in ("here", "home", "bin"))
        for folder in (here, home, programs):
            folder.mkdir()
        for name in ("tests", "bench", "docs"):
            (here / name).symlink_to(ROOT / name)
        program = programs / "cutaway"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cutaway "$@"\n')
        program.chmod(0o755)
        path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        os.environ |= {"HOME": str(home), "CUTAWAY_HOME": models, "PATH": os.pathsep.join(path)}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, str(ROOT / "src")]))
        try:
            with chdir(here):
                yield dict(os.environ)
        finally:
            os.environ.clear()
            os.environ |= kept


@contextmanager
def server(options: str, environment: dict[str, str]) -> Iterator[str]:
    """Run ``cutaway serve OPTIONS`` until the block ends; yield its address."""
    from socket import socket

    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["cutaway", "serve", *shlex.split(options), "--port", str(port), "--log", "off"]
    process = subprocess.Popen(command, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        until = monotonic() + 120
        while not _ready(address):
            if process.poll() is not None or monotonic() > until:
                raise RuntimeError(f"{shlex.join(command)} does not answer")
            sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(60)


def _ready(address: str) -> bool:
    try:
        with urlopen(f"{address}/ready") as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def walk(page: str, *, write: bool = False, times: bool = False) -> list[Outcome]:
    """Run a page's blocks; write: put new outputs into it; times: new times too."""
    with newcomer() as environment:
        walked = Walk(page, environment, times=times)
        found = []
        for outcome in walked.run():
            print(
                f"{outcome.where:28} {outcome.kind:8}{outcome.state:10}{outcome.said}", flush=True
            )
            found.append(outcome)
        walked.end()
    if write:
        (ROOT / page).write_text(walked.text, "utf-8")
    return found


def main() -> int:
    """Walk through pages; return 1 if a block is not good."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", default=PAGES)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--times", action="store_true")
    args = parser.parse_args()
    found = [
        outcome for page in args.pages for outcome in walk(page, write=args.write, times=args.times)
    ]
    states = [outcome.state for outcome in found]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return 0 if all(outcome.good for outcome in found) else 1


if __name__ == "__main__":
    sys.exit(main())
