"""``cutaway verify``: whether a model's logits are bit-identical however they are computed."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator
from shutil import get_terminal_size
from time import perf_counter
from typing import TYPE_CHECKING

from cutaway.base.progress import say
from cutaway.cli.options import arguments
from cutaway.cli.terminal.drawing import clip, print_report, table
from cutaway.errors import InputError
from cutaway.features.measure.verify import (
    CUTS,
    ROWS_PER_CALL,
    THREADS,
    BitsCheck,
    checks,
    instruction_set,
)

if TYPE_CHECKING:
    from cutaway.compute.backends import Backend
    from cutaway.text import Tokenizer

EPILOG = """
examples:
  cutaway verify
  cutaway verify -m model.gguf --threads 1,2,8
  cutaway verify -m 70b.gguf --offload-folder /data
  cutaway verify --backend gpu                       which GPU there is, and what it computes
  cutaway verify --json

The logits of one text of 300 tokens are computed in about 30 ways: with the prompt cut into
different chunks, beside other sequences in the batch, in other KV blocks, with other numbers of
threads, and on every instruction set of this machine. They must be equal to the last bit. One more
check, the control, changes the first token, and must differ. It takes half a minute to a few
minutes. Exit code 1 if a check fails.
"""

_SAMPLE = (
    "It was a bright cold day in April, and the clocks of the harbour were striking. What does a "
    "machine see when it reads this? 3.14159 * 2 = 6.28318; def f(x): return x ** 2 — déjà vu, "
    "日本語. She opened the old box, counted forty-two coins, and wrote the sum into her book. "
)
_EVERY_MACHINE = len(ROWS_PER_CALL) + len(CUTS) + 8
"""How many checks run without more threads or another instruction set."""
_CONTEXT = 1024  # fits the text and its batch mates; a model's whole context takes more memory


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cutaway verify``."""
    arguments.add_model(parser, more="; toy-writer with --backend gpu")
    parser.add_argument(
        "--backend", choices=("cpu", "gpu"), default="cpu",
        help="gpu: compare a GPU's arithmetic and kernels with the CPU's, and print a table",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=_counts, metavar="N,N", default=THREADS,
        help="numbers of threads to compare; default 1,2,3,5",
    )  # fmt: skip
    parser.add_argument("--quantize", metavar="FORMAT", help=arguments.QUANTIZE)
    parser.add_argument("--kv", metavar="FORMAT", default="f16", help=arguments.KV)
    parser.add_argument("--offload-folder", metavar="DIR", help=arguments.OFFLOAD)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Verify, print, and return 0, or 1 where bits differ."""
    if args.backend == "gpu":
        from cutaway.features.measure import verify_gpu

        return verify_gpu.run(args)
    from cutaway.compute import backends
    from cutaway.compute.loading.open import model_name, open_model
    from cutaway.files import hub

    if backends.default() != "cpu":
        raise InputError("verify needs the cpu backend, which was not built here")
    from cutaway.api.llm import LLM
    from cutaway.compute.model import config_of
    from cutaway.text import Tokenizer

    path = hub.resolve(args.model, progress=not args.quiet)
    name, started = model_name(path, args.quantize, args.kv), perf_counter()
    if not args.quiet:
        say(f"checking {name}; this takes half a minute to a few minutes")
    with open_model(path) as file:
        config, sample = config_of(file.metadata), _sample(Tokenizer.from_gguf(file.metadata))
    context = min(_CONTEXT, config.context_length)

    def load(tier: str, threads: int) -> "Backend":
        with instruction_set(tier):
            return LLM(
                path, backend="cpu", threads=threads, context=context, kv_tokens=context,
                quantize=args.quantize, kv=args.kv, offload_folder=args.offload_folder,
                progress=False,
            ).backend  # fmt: skip

    source = checks(load, sample, backends.tiers(), args.threads, config.attention)
    total = _EVERY_MACHINE + 2 * (len(args.threads) - 1) + len(backends.tiers()) - 1
    done = list(_show_progress(source, total, show=not args.quiet and sys.stderr.isatty()))
    seconds = perf_counter() - started
    passed = all(check.passed for check in done)
    document = {
        "model": name, "instruction_sets": backends.tiers(), "threads": args.threads,
        "checks": [check.to_dict() for check in done], "passed": passed, "seconds": seconds,
    }  # fmt: skip
    print_report(args, lambda: document, lambda: [*_table(done), "", _verdict(name, done, seconds)])
    return 0 if passed else 1


def _sample(tokenizer: "Tokenizer") -> list[int]:
    try:
        return tokenizer.encode(_SAMPLE)
    except InputError:  # the vocabulary lacks some of these characters; any ids will do
        return [i % tokenizer.vocab_size for i in range(3, 203)]


def _show_progress(source: Iterable[BitsCheck], total: int, *, show: bool) -> Iterator[BitsCheck]:
    """Pass the checks on; the terminal shows the latest check while the next one is computed."""
    columns = get_terminal_size().columns
    for count, check in enumerate(source, 1):
        if show:
            line = f"  {count} of about {total} checks done; {check.varied}: {check.value}"
            print(f"\r\x1b[K{clip(line, columns - 1)}", end="", file=sys.stderr, flush=True)
        yield check
    if show:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _table(done: list[BitsCheck]) -> list[str]:
    rows = [("VARIED", "VALUE", "ROWS COMPARED", "BITS THAT DIFFER", "")]
    last = ""
    for c in done:
        remark = "" if c.passed and not c.control else "as it must" if c.passed else "WRONG"
        varied, last = ("" if c.varied == last else c.varied), c.varied
        rows.append((varied, c.value, f"{c.rows:13,}", f"{c.differing:16,}", remark))
    return table(rows)


def _verdict(name: str, done: list[BitsCheck], seconds: float) -> str:
    comparisons = [check for check in done if not check.control]
    wrong = sum(not check.passed for check in done)
    rows = sum(check.rows for check in comparisons)
    if wrong:
        return f"{name}: {wrong} of {len(done)} checks FAILED in {seconds:.0f} s"
    return (
        f"{name}: {rows:,} logit rows in {len(comparisons)} ways, the same bits ({seconds:.0f} s)"
    )


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= 1024 for count in counts):
        raise ArgumentTypeError(f"write numbers from 1 to 1024 with commas, as 1,2,8: {text!r}")
    return counts
