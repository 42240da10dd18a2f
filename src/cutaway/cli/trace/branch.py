"""``cutaway trace branch``: change a token of a recorded run, or the model; continue from there."""

from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import TYPE_CHECKING

from cutaway.base.counting import check_index, count_from_1
from cutaway.base.progress import say
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, reports, streams
from cutaway.cli.terminal.drawing import names_of, quote
from cutaway.errors import InputError
from cutaway.trace import Trace
from cutaway.trace.canvas import passes_over
from cutaway.trace.figures import percent, probability

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.engine import Step

COMMON = "-m --at --token --id --luck --max-tokens --trace --json"
EPILOG = """
examples:
  cutaway trace branch run.jsonl --at 12 --token " never"
  cutaway trace branch run.jsonl --at 12 --token " never" --trace fork.jsonl
  cutaway trace branch run.jsonl --at 12 --intervention "L25.H2 x 0" --trace fork.jsonl
  cutaway trace branch canvas.jsonl --at 12 --pass 3 --token " never"
  cutaway trace branch run.jsonl --at 1 --id 504 --luck fresh --max-tokens 64

On a canvas the step is a cell. The token is put there in the pass that revealed the recorded one,
or in --pass N; the passes before stay as recorded.
A word that follows another begins with a space. Each position keeps its luck (the random numbers
of the recorded run); --luck fresh takes another seed. A change begins at the step, and its token is
drawn, unless one is given. A new trace names the old one as its parent.
"""
_CONTEXT = 40  # characters before the fork


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace branch``."""
    arguments.add_trace(parser)
    parser.add_argument(
        "--at",
        type=arguments.read_step,
        required=True,
        metavar="STEP",
        help="the step to change, from 1",
    )
    parser.add_argument(
        "--pass", dest="passed", type=arguments.read_pass, metavar="N",
        help="on a canvas: the pass that puts the token there, from 1",
    )  # fmt: skip
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token", metavar="TEXT", help="the new token, as text")
    token.add_argument("--id", type=int, metavar="N", help="the new token, as an id")
    parser.add_argument(
        "--luck",
        choices=("same", "fresh"),
        default="same",
        help="luck (random numbers) of the tokens after it: as recorded, or of another seed",
    )
    parser.add_argument(
        "--seed", type=int, default=SUPPRESS, metavar="S", help="the seed of --luck fresh"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=SUPPRESS, metavar="N",
        help="maximum tokens, those before the branch included; default: as recorded",
    )  # fmt: skip
    parser.add_argument("--trace", default=SUPPRESS, metavar="OUT", help="record the branch in OUT")
    arguments.add_interventions(parser)
    arguments.add_model_arguments(parser)
    arguments.add_output_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def run(args: Namespace) -> int:
    """Branch, print the new text, and return 0, or 130 if Ctrl-C ended the text."""
    trace, options = Trace.read(args.file), namespace.request_options(args)
    if args.token is None and args.id is None and "interventions" not in options:
        raise InputError(
            "say what to change at this step: --token, --id, --intervention or --control-vector"
        )
    _check_place(args, trace)
    llm = console.load(args)
    from cutaway.rerun import open_branch

    token = args.token if args.id is None else args.id
    stream = open_branch(llm, trace, args.at, token, passed=args.passed, luck=args.luck, **options)
    with stream, console.stoppable(stream):
        done = console.write(stream, show=not args.json)
    if args.json:
        streams.print_json(reports.document(done, args.price))
    else:
        console.end_line(figures=not args.quiet)
    if not args.quiet and len(stream.steps) > args.at:
        say(_fork(trace, args.at, stream.steps[args.at], llm))
    reports.show_figures(args, done)
    if hasattr(args, "trace") and not args.quiet:
        console.say_where_traces_are(args.trace, [1])
    return 130 if done.finish_reason == "aborted" else 0


def _check_place(args: Namespace, trace: Trace) -> None:
    """Raise InputError where the trace has no such step, or the cell was in no such pass."""
    if trace.steps:
        check_index("--at", args.at, range(len(trace.steps)))
    if trace.steps and trace.passes:
        check_index("--pass", args.passed, passes_over(trace, args.at))


def _fork(trace: Trace, at: int, new: "Step", llm: "LLM") -> str:
    """Return a line on the fork: the text before it, and both tokens with their probabilities."""
    name, old = names_of(llm.tokenizer), trace.steps[at]
    ids = (*trace.head.prompt_token_ids, *trace.output_token_ids[:at])
    before = "".join(map(name, ids[-_CONTEXT:]))[-_CONTEXT:]
    tokens = (f"{quote(name(s.token_id))} {percent(probability(s.logprob))}" for s in (old, new))
    return f"[fork at step {count_from_1(at)}, after {quote(before)}: {' → '.join(tokens)}]"
