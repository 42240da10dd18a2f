"""A model larger than memory: cutaway with --offload-folder beside llama.cpp, whose file is mapped.

    python bench/offload.py -m MODEL.gguf --folder FOLDER --memory 8 [--peer-python PYTHON]
        [--seconds 30] [--only cutaway|llama] [--threads N]

It needs Linux and root: each engine runs alone in a control group with --memory GB, in which the
pages of its files count, too. Both write random tokens, so that in a mixture with random weights
all experts are equally likely. A trained model chooses some experts more often, so an engine that
keeps these in memory would gain. The first --seconds fill the memory and do not count. FOLDER must
have room for the packed weights, about the size of the file.

The table has tokens a second, bytes read from the disk for a token, and the rate of reading. The
last line is one JSON document.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from cutaway.features.measure.bench import STEPS, WARM
from peers.client import PeerError, Worker
from script import grid, parser_of

CONTEXT = 4  # tokens of a prompt: each token chooses its own experts
ENGINES = {"cutaway": "offload", "llama": "mapped"}
_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


@contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """Limit the memory of processes started in this block, pages of files included."""
    parent, limit = (_V1, "memory.limit_in_bytes") if _V1.is_dir() else (_V2, "memory.max")
    group = parent / f"cutaway-bench-{os.getpid()}"
    group.mkdir()
    before = parent / own_group(parent).lstrip("/")
    (group / limit).write_text(str(nbytes))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def own_group(parent: Path) -> str:
    """The path of the control group that this process is in."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") if parent == _V1 else not controllers:
            return path
    raise SystemExit("offload: this system has no control groups for memory")


def measure(name: str, args: Any) -> dict[str, Any]:
    """Measure an engine. PeerError if it cannot run."""
    python = sys.executable if name == "cutaway" else args.peer_python
    command = {"do": "decode", "context": CONTEXT, "batch": 1, "seconds": args.seconds}
    with limited(int(args.memory * 1e9)):
        started = perf_counter()
        worker = Worker(python, ENGINES[name], args.model, args.threads)
        try:
            loaded = perf_counter() - started
            print(f"{name}: loaded in {loaded:.0f} s", file=sys.stderr, flush=True)
            worker.ask(**command)
            print(f"{name}: measured now …", file=sys.stderr, flush=True)
            before = worker.bytes_read()
            seconds = worker.ask(**command)
            read = worker.bytes_read() - before
        finally:
            worker.close()
    rate, runs = 1 / median(seconds), len(seconds) // (STEPS - WARM)
    each = read / (runs * (STEPS + CONTEXT))
    return {
        "engine": name, "version": worker.info["version"], "loaded_s": loaded,
        "tokens": len(seconds), "tokens_per_s": rate, "bytes_per_token": each,
    }  # fmt: skip


def cells(row: dict[str, Any]) -> list[str]:
    """The cells of a row of the table."""
    rate, each = row["tokens_per_s"], row["bytes_per_token"] / 1e6
    named = f"{row['engine']} {row['version']}"
    return [named, f"{rate:.2f}", f"{each:,.0f} MB", f"{each * rate:,.0f} MB/s"]


def main() -> None:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for cutaway's weights")
    parser.add_argument("--memory", type=float, required=True, help="GB")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=ENGINES)
    args = parser.parse_args()
    os.environ["OFFLOAD_FOLDER"] = str(args.folder.resolve())
    rows = []
    for name in [args.only] if args.only else ENGINES:
        try:
            rows.append(measure(name, args))
        except (PeerError, OSError) as error:
            raise SystemExit(f"offload: {name}: {error}") from error
    head = ["", "tokens a second", "read for a token", "rate of reading"]
    print(grid(head, map(cells, rows)))
    print(json.dumps({
        "benchmark": "offload", "model": args.model.stem, "memory_gb": args.memory, "rows": rows,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
