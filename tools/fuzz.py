"""Throw damaged files and odd requests at cutaway, and count the outcomes.

    python tools/fuzz.py --minutes 60
    python tools/fuzz.py gguf quantise --minutes 20 --isa avx2,avx512
    python tools/fuzz.py --minutes 60 --native build/sanitize/_native.abi3.so
    python tools/fuzz.py gguf --input build/fuzz/findings/gguf-1234.input

Each format has an equal share of the time; a format that runs kernels divides its share among
instruction sets. Inputs are numbered, and equal numbers are equal inputs. An input that neither
succeeds nor is refused with a sentence is written to build/fuzz/findings/. --native runs another
build of the native module, such as the one for sanitizers, which `make fuzz` makes. The exit code
is 1 if there are findings.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build/fuzz"
_PRELOADED = ("libasan", "libubsan", "libstdc++")
_ASAN = (
    "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:hard_rss_limit_mb=6000:"
    "detect_stack_use_after_return=0"
)  # fmt: skip


def main() -> int:
    """Run what the arguments say; return 1 if there are findings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("formats", nargs="*", help="which of them; default: all")
    parser.add_argument("--minutes", type=float, default=1, help="of all together; default 1")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first input")
    parser.add_argument("--isa", help="instruction sets, as in avx2,avx512; default: see below")
    parser.add_argument("--native", type=Path, help="a build of the native module")
    parser.add_argument("--json", type=Path, help="write the table there, too")
    parser.add_argument("--input", type=Path, help="try this one input, and show what happens")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        use_native(args.native)
        return work(args.work)
    if args.input:
        return replay(args)
    return run_all(args)


def use_native(path: Path | None) -> None:
    """Import another build of the native module in place of the installed one."""
    if path is not None:
        name = "cutaway.base._native"
        spec = spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.modules[name] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


def work(arguments: Sequence[str]) -> int:
    """Try inputs, in a process of its own."""
    from support.fuzz import FORMATS
    from support.fuzz.harness import main

    main(FORMATS, OUT / "seeds", arguments)
    return 0


def replay(args: argparse.Namespace) -> int:
    """Try one input in this process, and show the exception that it raises."""
    use_native(args.native)
    from support.fuzz import FORMATS
    from support.fuzz.harness import attempt

    format = FORMATS[args.formats[0]](OUT / "seeds")
    format.write_seeds()
    data = args.input.read_bytes()
    outcome, why = attempt(format, gzip.decompress(data) if args.input.suffix == ".gz" else data)
    print(outcome, why)
    return outcome == "failed"


def run_all(args: argparse.Namespace) -> int:
    """Run each format in turn, on each instruction set; print the table."""
    from support.fuzz import FORMATS
    from support.fuzz.harness import Report, run

    if unknown := {*args.formats} - {*FORMATS}:
        raise SystemExit(f"there is no format {', '.join(unknown)}: {', '.join(FORMATS)}")
    formats = [FORMATS[name](OUT / "seeds") for name in args.formats or FORMATS]
    environment = sanitized(args.native) if args.native else {}
    command = [sys.executable, __file__]
    command += ["--native", str(args.native)] if args.native else []
    reports: list[Report] = []
    for format in formats:
        format.write_seeds()
        tiers = tiers_of(args) if format.kernels else [""]
        for tier in tiers:
            seconds = args.minutes * 60 / len(formats) / len(tiers)
            reports.append(run(
                format, [*command, "--work"], tier=tier, first=args.seed, seconds=seconds,
                findings=OUT / "findings", environment={**environment, "CUTAWAY_ISA": tier},
            ))  # fmt: skip
            print(line(reports[-1].to_dict()), flush=True)
    print(table([report.to_dict() for report in reports]))
    if args.json:
        args.json.write_text(json.dumps([report.to_dict() for report in reports], indent=1))
    return not all(report.clean for report in reports)


def tiers_of(args: argparse.Namespace) -> list[str]:
    """The instruction sets to run: those of --isa; else the best, or all for a sanitizer build."""
    from cutaway.compute.backends.cpu import tiers

    if args.isa:
        return [*args.isa.split(",")]
    return [*tiers()] if args.native else [tiers()[0]]


def sanitized(native: Path) -> Mapping[str, str]:
    """The environment for a sanitizer build, whose libraries must be loaded first."""
    linked = subprocess.run(["ldd", native], capture_output=True, text=True, check=True).stdout
    paths = [row.split()[2] for row in linked.splitlines() if row.strip().startswith(_PRELOADED)]
    return {
        "LD_PRELOAD": " ".join(paths), "ASAN_OPTIONS": _ASAN, "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }  # fmt: skip


COLUMNS = (
    "format",
    "tier",
    "inputs",
    "whole",
    "refused",
    "failed",
    "crashed",
    "sanitizer",
    "hung",
    "seconds",
    "slowest",
)


def line(report: Mapping[str, Any]) -> str:
    """A row of the table."""
    cells = {**report, "slowest": f"{report['slowest'][1]:.2f}"}
    return " ".join(f"{cells[name]!s:>9}" for name in COLUMNS)


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """The counts, and below them the failures."""
    head = " ".join(f"{name:>9}" for name in COLUMNS)
    kinds = [
        f"{report['format']} {seed} {report['tier']}: {kind}"
        for report in reports
        for kind, seed in report["kinds"].items()
    ]
    return "\n".join(["", head, *map(line, reports), *kinds])


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
