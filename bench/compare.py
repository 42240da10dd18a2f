"""cutaway beside its peers: the same file, one run, in turns (A B A B), as ratios.

    python bench/compare.py -m MODEL.gguf [--also OTHER.gguf] [--peer-python PYTHON]
        [--rounds 5] [--seconds 1] [--threads N] [--only NAME,NAME] [--measure NAME,NAME]
        [--apart] [--write README.md [--table NAME]]
    python bench/compare.py -m MODEL.gguf --peer-python PYTHON --make-q4_0 OTHER.gguf

Peers are optional: llama-cpp-python, openvino-genai, transformers, whichever PYTHON has (this
interpreter where it is not given). Each engine loads once, in a process of its own, and sleeps
while another is measured. --apart is for a model of which memory holds one: the process of an
engine ends before the next engine is loaded. --also names the same model in llama.cpp's fastest
format, and gives the peers a second column: --make-q4_0 writes such a file (llama_model_quantize
to Q4_0 with allow_requantize, the embedding and the output matrix as Q8_0).

A measurement is repeated if other processes took more than a few percent of the processors.
--measure chooses the measurements, up to contexts and prompts of 7,000 tokens and 32 streams (a
long prompt may take a peer more than a minute: --rounds 1); make_model.py makes models of any size
without a download. The column "what reading allows" is the machine's rate of reading, measured in
the same turns, divided by the bytes that a step must read.

An AVX2 run on a processor with more: CUTAWAY_ISA=avx2, ONEDNN_MAX_CPU_ISA=AVX2 for OpenVINO, and a
llama-cpp-python built with CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON
-DGGML_F16C=ON -DGGML_BMI2=ON". The table says which instructions each engine computed with.

--write puts the table between <!-- compare:begin --> and <!-- compare:end -->, or the markers that
--table names. The last line is one JSON document, of which growth.py draws curves.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from peers.client import Cold, PeerError, Worker, cold, environment
from peers.goals import METRICS, USUAL, goals_of
from peers.guard import Guard
from peers.table import Column, Metric, markdown, verdict, verdicts
from script import check_page, parser_of, replace_between_markers, words

PEERS = Path(__file__).resolve().parent / "peers"
TEXT, NEW = "The sky is", "16"
NAMES = tuple(metric.name for metric in METRICS)
KINDS = {
    "limit": "what reading allows",
    "llama": "llama.cpp",
    "openvino": "OpenVINO GenAI",
    "transformers": "transformers",
}


Loads = tuple[str, Path]
"""An engine's kind, and the file that it loads."""


class Comparison:
    """The engines that could be started, cutaway first, and the rounds that measure them."""

    def __init__(self, args: Namespace) -> None:
        self.args, self.guard = args, Guard(limit=args.others, tries=args.tries)
        self.columns: list[Column] = []
        self.running: list[tuple[Column, Worker]] = []
        self.left_out: list[str] = []
        self.metrics = [metric for metric in METRICS if metric.name in args.measure]
        self.info: dict[str, Any] = {}  # cutaway's own figures
        self.instructions: dict[str, str] = {}  # an engine -> those that it computes with

    def measure(self, together: list[Loads]) -> None:
        """Load these engines, and measure them in turns; then measure cold processes.

        The first round is not counted: it warms every engine up.
        """
        try:
            for kind, file in together:
                self._start(kind, file)
            columns = [column for column, _ in self.running]
            for i in range(self.args.rounds + 1):
                print(f"round {i} of {self.args.rounds} …", file=sys.stderr, flush=True)
                for metric in self.metrics:
                    if metric.command is not None:
                        self._each(partial(self._warm, metric, count=i > 0))
        finally:
            self.close()
        if {"cold", "memory"} & set(self.args.measure):
            for i in range(self.args.rounds):
                print(f"cold process {i + 1} of {self.args.rounds} …", file=sys.stderr, flush=True)
                for column in [column for column in columns if column in self.columns]:
                    self._peer_may_fail(column, partial(self._cold, column))

    def _start(self, kind: str, file: Path) -> None:
        other = file is self.args.also
        name = KINDS.get(kind, kind) + (f", {file.stem.rpartition('-')[2]}" if other else "")
        print(f"starting {name} …", file=sys.stderr, flush=True)
        python = sys.executable if kind in ("cutaway", "limit") else self.args.peer_python
        try:
            worker = Worker(python, kind, file, self.args.threads)
        except PeerError as error:
            if kind == "cutaway":
                raise
            print(f"{name} is not measured: {error}", file=sys.stderr, flush=True)
            return
        self.info = self.info or worker.info
        versioned = f"{KINDS.get(kind, kind)} {worker.info['version']}".strip()
        if instructions := worker.info.get("instructions"):
            self.instructions[versioned] = instructions
        title = name.replace(KINDS.get(kind, kind), versioned, 1)
        self.columns.append(Column(title, kind, other))
        self.running.append((self.columns[-1], worker))

    def _each(self, measure: Callable[[Column, Worker], None]) -> None:
        for column, worker in [*self.running]:
            self._peer_may_fail(column, partial(measure, column, worker))

    def _peer_may_fail(self, column: Column, measure: Callable[[], None]) -> None:
        """Measure; if a peer crashes, leave it out of the table, which says why."""
        try:
            measure()
        except PeerError as error:
            if column.kind == "cutaway":
                raise
            self.left_out.append(f"{column.title} ({str(error).splitlines()[0]})")
            self.columns.remove(column)
            for _, worker in [pair for pair in self.running if pair[0] is column]:
                worker.close()
            self.running = [pair for pair in self.running if pair[0] is not column]

    def _warm(self, metric: Metric, column: Column, worker: Worker, *, count: bool) -> None:
        command = {**(metric.command or {}), "seconds": self.args.seconds if count else 0.1}
        if not count:
            worker.ask(**command)
            return
        before = worker.cpu_seconds()

        def own(_: list[float]) -> float:
            nonlocal before
            before, last = worker.cpu_seconds(), before
            return before - last

        seconds = self.guard.run(lambda: worker.ask(**command), own)
        if seconds:
            column.figures.setdefault(metric.name, []).append(metric.figure(seconds))

    def _cold(self, column: Column) -> None:
        command = cold_command(column, self.args)
        if command is None:
            return
        if not self.args.apart:  # with --apart, the page cache cannot hold the file
            cold(command)  # so that the disk is warm: only the process is cold
        once = self.guard.run(lambda: cold(command), lambda result: result.cpu_s)
        self._note(column, once)

    @staticmethod
    def _note(column: Column, once: Cold) -> None:
        column.figures.setdefault("cold", []).append(once.first_byte_s)
        column.figures.setdefault("memory", []).append(float(once.peak_bytes))

    def close(self) -> None:
        """End every worker."""
        for _, worker in self.running:
            worker.close()
        self.running.clear()

    def memory(self) -> dict[str, Any]:
        """The peak memory of a generate process, compared with its file and KV cache."""
        file = self.args.model.stat().st_size
        kv = self.info["kv_block_bytes"]  # the text of TEXT and NEW fits into a block
        ratio = median(self.columns[0].figures["memory"]) / (file + kv)
        goal = goals_of(self.info["parameters"]).memory
        return {
            "metric": "peak memory by the file and the keys and values in use", "peer": "the file",
            "ratio": ratio, "lowest": ratio, "highest": ratio, "target": goal,
            "verdict": verdict(goal, ratio, lower_is_better=True),
        }  # fmt: skip


def cold_command(column: Column, args: Namespace) -> list[str] | None:
    """The command of a process that writes a short text; None for engines without this test."""
    file = str(args.also if column.other_format else args.model)
    threads = str(args.threads)
    if column.kind == "cutaway":
        return [sys.executable, "-m", "cutaway", "generate", "-m", file, "--threads", threads,
                "--temperature", "0", "--max-tokens", NEW, "-q", TEXT]  # fmt: skip
    if column.kind == "llama":
        return [args.peer_python, str(PEERS / "llama_cold.py"), file, threads, TEXT, NEW]
    return None


def notes(comparison: Comparison) -> list[str]:
    """Notes for readers of the table."""
    args = comparison.args
    said = [
        f"{args.model.stem} on {args.threads} threads of a machine with {os.cpu_count()} processors"
        f" ({processor()}). One run of {args.rounds} rounds in turns; medians; in brackets the "
        "median of cutaway by the peer, round by round.",
        f"{comparison.guard}.",
    ]
    if comparison.instructions:
        pairs = (f"{engine} {names}" for engine, names in comparison.instructions.items())
        said.append(f"Instructions: {', '.join(pairs)}.")
    if comparison.left_out:
        said.append(f"Left out: {', '.join(comparison.left_out)}.")
    return said


def processor() -> str:
    """The processor's name, as the operating system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def report(comparison: Comparison) -> None:
    """Print the table, the verdicts, and one JSON document; write the table where asked."""
    args, goals = comparison.args, goals_of(comparison.info["parameters"])
    table = markdown(comparison.columns, comparison.metrics, notes(comparison))
    found = verdicts(comparison.columns, comparison.metrics, goals.targets)
    if "memory" in args.measure:
        found.append(comparison.memory())
    print(table, end="\n\n")
    for v in found:
        print(f"{v['metric']}, by {v['peer']}: {v['ratio']:.2f}× "
              f"({v['lowest']:.2f}–{v['highest']:.2f}), {v['verdict']}")  # fmt: skip
    if args.write:
        args.write.write_text(replace_between_markers(args.write.read_text(), args.table, table))
    document = {
        "benchmark": "compare", "model": args.model.stem, "machine": processor(),
        "parameters": comparison.info["parameters"], "threads": args.threads,
        "engines": [asdict(column) for column in comparison.columns], "targets": found,
        "guard": asdict(comparison.guard),
    }  # fmt: skip
    print(json.dumps(document))


def groups(args: Namespace) -> list[list[Loads]]:
    """Groups of engines that are in memory together: all; with --apart, each engine alone.

    The rate of reading is measured beside cutaway, and takes as much memory as a token reads.
    """
    kinds = [kind for kind in KINDS if not args.only or kind in args.only]
    own = [("cutaway", args.model), *(("limit", args.model) for _ in {"limit"} & set(kinds))]
    files = [file for file in (args.model, args.also) if file]
    peers = [(kind, file) for kind in kinds if kind != "limit" for file in files]
    return [own, *([peer] for peer in peers)] if args.apart else [own + peers]


def names(text: str) -> tuple[str, ...]:
    """The names of measurements in --measure."""
    found = NAMES if text == "all" else tuple(text.split(","))
    if unknown := set(found) - set(NAMES):
        raise ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}")
    return found


def parse() -> Namespace:
    parser = parser_of(__doc__, model=False, write="README.md")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--also", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--others", type=float, default=0.05, help="share that others may take")
    parser.add_argument("--tries", type=int, default=4, help="of a disturbed measurement")
    parser.add_argument("--apart", action="store_true", help="one engine in memory at a time")
    parser.add_argument("--only", type=words, help=", ".join(KINDS))
    parser.add_argument("--measure", type=names, default=USUAL, help="all, or: " + ", ".join(NAMES))
    parser.add_argument("--table", default="compare", help="the markers to write between")
    parser.add_argument("--make-q4_0", type=Path, dest="make", metavar="OTHER.gguf")
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.make:
        command = [args.peer_python, str(PEERS / "llama_quantize.py"), args.model, args.make,
                   "q4_0", "q8_0"]  # fmt: skip
        sys.exit(subprocess.call(command, env=environment()))
    check_page(args.write, args.table)
    try:
        comparison = Comparison(args)
        for together in groups(args):
            comparison.measure(together)
    except PeerError as error:
        sys.exit(f"compare: {error}")
    report(comparison)


if __name__ == "__main__":
    main()
