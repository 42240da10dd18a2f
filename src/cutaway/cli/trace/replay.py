"""``cutaway trace replay``: run the recorded request again; every bit must be equal."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.base.counting import count_from_1
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report
from cutaway.trace import Trace

if TYPE_CHECKING:
    from cutaway.rerun import Replayed

EPILOG = """
examples:
  cutaway trace replay run.jsonl
  cutaway trace replay run.jsonl -m model.gguf --threads 1
  cutaway trace replay run.jsonl.gz --speculate ngram --json

Each step's token, the token drawn, the hash of its logits and the chained fingerprint are compared
with the record, of a canvas also what each pass looked at, then the end of the text; the replay
stops at the first difference. Threads, instruction set (CUTAWAY_ISA), caches and speculative
decoding change no bit. If the record names the model NAME+q8_0, give --quantize q8_0; for
NAME+kv-q8_0, --kv q8_0. Exit code 0: the same; 1: something differs.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace replay``."""
    arguments.add_trace(parser)
    arguments.add_model_arguments(parser)
    parser.add_argument(
        "--anyway", action="store_true", help="replay even if the model, the backend or the "
        "sampling chain is not the recorded one",
    )  # fmt: skip
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Replay, print, and return 0, or 1 if something differs."""
    trace, options = Trace.read(args.file), namespace.request_options(args)
    llm = console.load(args)
    from cutaway.rerun import replay

    with console.progress(show=not args.quiet) as progress:
        done = replay(llm, trace, anyway=args.anyway, progress=progress, **options)
    print_report(args, done.to_dict, lambda: _report(done))
    return 0 if done.same else 1


def _report(done: "Replayed") -> list[str]:
    lines = [str(disagreement) for disagreement in done.disagreements]
    if done.mismatch is None:
        whole = f"{done.steps} steps" if done.steps != 1 else "1 step"
        if done.passes:
            whole = f"{done.passes} passes, {whole}"
        return [*lines, f"{whole}, no bit differs; fingerprint {done.fingerprint}"]
    at = f"step {count_from_1(done.mismatch.step)} of {done.recorded}"
    if done.mismatch.passed is not None:
        at = f"pass {count_from_1(done.mismatch.passed)}"
    lines.append(f"{at} differs:")
    pairs = done.mismatch.what.items()
    return [*lines, *(f"  {name:<12} {old} on record, {new} now" for name, (old, new) in pairs)]
