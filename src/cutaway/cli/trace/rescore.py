"""``cutaway trace rescore``: the recorded tokens under another model or other settings."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from cutaway.base.counting import count_from_1
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import names_of, print_report, quote, table
from cutaway.trace import Trace

if TYPE_CHECKING:
    from cutaway.rerun import Rescored

_COLUMNS = """
  bits      surprise of the token, -log2 of its probability under the model: recorded, and now
  rank      1 is the likeliest token: recorded, and now
  chain     surprise after the sampling chain, "-" where the token could not be drawn
  instead   the token that the same luck would choose now, where it is another
""".strip("\n")
EPILOG = f"""
examples:
  cutaway trace rescore run.jsonl -m other.gguf
  cutaway trace rescore run.jsonl --temperature 1.2 --top-p 1
  cutaway trace rescore run.jsonl -m other.gguf --trace again.jsonl --json

{_COLUMNS}
A new trace (--trace) records as many candidates as the old, unless --candidates says otherwise.
"""
_HEAD = ("step", "token", " bits", "  now", " rank", "  now", "chain", "  now", "instead")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace rescore``."""
    arguments.add_trace(parser)
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, "sampling", "trace")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Rescore and print a line per token."""
    trace, options = Trace.read(args.file), namespace.request_options(args)
    llm = console.load(args)
    options |= namespace.read_track_option(args, llm)
    from cutaway.rerun import rescore

    done = rescore(llm, trace, **options)
    name_of = names_of(llm.tokenizer)
    print_report(args, done.to_dict, lambda: _report(trace, done, name_of))
    return 0


def _report(trace: Trace, done: "Rescored", name_of: Callable[[int], str]) -> list[str]:
    rows = []
    for i, (token_id, old, new) in enumerate(zip(done.token_ids, done.old, done.new, strict=True)):
        instead = "" if new.own == token_id else quote(name_of(new.own))
        rows.append((
            f"{count_from_1(i):4d}", quote(trace.name_of(token_id)),
            f"{old.bits:5.2f}", f"{new.bits:5.2f}", f"{old.rank:5d}", f"{new.rank:5d}",
            _bits(old.final_bits), _bits(new.final_bits), instead,
        ))  # fmt: skip
    before, now = done.perplexity
    closing = f"perplexity {before:.3f} on record, {now:.3f} now; the same luck would choose "
    return [
        *table([_HEAD, *rows]), "", *_COLUMNS.splitlines(), "",
        f"{closing}{done.agreement:.0%} of them again",
    ]  # fmt: skip


def _bits(bits: float | None) -> str:
    return "    -" if bits is None else f"{bits:5.2f}"
