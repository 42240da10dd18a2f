"""``cutaway compare``: one prompt, written in every way that the models have."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report, table

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.features.experiments.compare import Compared, ComparedText


_COLUMNS = """
  passes      of the model; rows: computed in them; ms: of this one run
  /pass       tokens that each pass wrote
  bits        surprise of the text after the prompt under the judge; /byte: of its UTF-8
  words       the share of the text's words that are different; pairs: of its pairs of words
  order       1: the tokens came from left to right, -1: from right to left (Kendall's tau-b)
  price       bits that the tokens lose by having been revealed together; - where none is drawn
""".strip("\n")
COMMON = "-m --rule --judge --max-tokens --temperature --seed --json"
EPILOG = f"""
examples:
  cutaway compare "The old lighthouse" -m smollm2 -m path/to/llada
  cutaway compare "The old lighthouse" -m path/to/bert --judge smollm2 --seed 7
  cutaway compare "The old lighthouse" -m path/to/llada --rule threshold --rule llada,steps=16
  cutaway compare "Mr. Darcy " -m toy-canvas --judge smollm2 --temperature 0.5

A model that sees the past writes from left to right; one that sees more reveals a canvas, one cell
a pass and by published rules, or by those of --rule. All ways have the same seed and the same
length. The judge, a model that sees the past, reads every text with its own tokens.

{_COLUMNS}
"""
_RULE = (
    "of models that reveal a canvas: a rule, with commas before its settings, as in "
    "llada,steps=16; repeat for more"
)
_HEAD = (
    "model", "way", "passes", " rows", "     ms", "tokens", "/pass", "  bits", "/byte", "words",
    "pairs", "order", " price",
)  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway compare``."""
    parser.add_argument("prompt", help="the text to continue; - reads standard input")
    arguments.add_rules(parser, _RULE)
    parser.add_argument(
        "--judge", metavar="NAME|PATH",
        help="the model that reads the texts; default: the first -m that sees only the past",
    )  # fmt: skip
    arguments.add_number(parser, "--max-tokens", 64, "length of a text")
    arguments.add_loading_arguments(parser, several=True, more="; repeat for more")
    arguments.add_groups(parser, "sampling")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Write all texts, and print the table and each of them."""
    prompt, options = namespace.read_text(args.prompt), namespace.request_options(args)
    rules = arguments.rules(args)
    llms = _models(args)
    judge = llms.get(args.judge) or (_load(args, args.judge) if args.judge else None)
    from cutaway.features.experiments.compare import compare

    with console.progress(show=not args.quiet) as progress:
        done = compare(
            [*llms.values()], prompt, rules=rules, judge=judge, progress=progress, **options
        )
    print_report(args, done.to_dict, lambda: _report(done))
    return 0


def _models(args: Namespace) -> "dict[str | None, LLM]":
    """Load each model, by its name; the default model if no name is given."""
    if not hasattr(args, "model"):
        return {None: _load(args, None)}
    return {name: _load(args, name) for name in dict.fromkeys(args.model)}


def _load(args: Namespace, name: str | None) -> "LLM":
    """Load a model without a prefix cache, so that each way computes all its rows."""
    other_args = {key: value for key, value in vars(args).items() if key != "model"}
    model_arg = {} if name is None else {"model": name}
    return console.load(Namespace(**other_args, **model_arg, prefix_cache=False))


def _report(done: "Compared") -> list[str]:
    rows = [_row(way) for way in done.ways]
    judge = f", judged by {done.judge}" if done.judge else ""
    lines = [f"seed {done.seed}{judge}", "", *table([_HEAD, *rows]), ""]
    lines += [*_COLUMNS.splitlines()]
    for way in done.ways:
        lines += ["", f"{way.model}, {way.way}:", repr(way.text)]
    return lines


def _row(way: "ComparedText") -> tuple[str, ...]:
    words, pairs = way.distinct
    return (
        way.model, way.way, f"{way.passes:6d}", f"{way.rows:5d}", f"{way.ms:7.1f}",
        f"{len(way.token_ids):6d}", f"{way.tokens_per_pass:5.2f}", _figure(way.bits, "6.1f"),
        _figure(way.bits_per_byte, "5.2f"), _figure(words, "5.2f"), _figure(pairs, "5.2f"),
        _figure(way.order, "+5.2f"), _figure(way.price, "+6.2f"),
    )  # fmt: skip


def _figure(value: float | None, form: str) -> str:
    return f"{'-':>{form.lstrip('+').partition('.')[0]}}" if value is None else f"{value:{form}}"
