"""``cutaway denoise``: a text revealed cell by cell. Standard output has text alone."""

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cutaway.cli import arguments, console, namespace, rule_arguments, sample_output
from cutaway.cli.terminal.canvas import CanvasView
from cutaway.engine import Pass
from cutaway.engine.canvas import RULES, SETTING_WORDS
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.completion import Completion
    from cutaway.requests.sync_llm import Stream

COMMON = "-m --rule --steps --threshold --max-tokens --temperature --seed --trace"
EPILOG = f"""
examples:
  cutaway denoise "It is a truth universally acknowledged, that " --max-tokens 128
  cutaway denoise "Mr. Darcy " --max-tokens 64 --steps 16 --seed 1
  cutaway denoise "Mr. Darcy " --max-tokens 64 --rule entropy-bound --entropy-bound 0.5
  cutaway denoise "Mr. Darcy " --max-tokens 16 --suffix " and Elizabeth."
  cutaway denoise -m path/to/llada "The sky is" --rule llada --steps 128 --block 32
  cutaway denoise -m path/to/dream "The sky is" --rule dream --steps 64 --temperature 0.2
  cutaway denoise -m path/to/sdar - --rule threshold --threshold 0.8 < notes.txt
  cutaway denoise -m smollm2 "The sky is" --order left --block 1     with any model: the loop

A canvas of --max-tokens masked cells follows the prompt. Each pass computes all of them and
draws a token for each; a rule says which of the draws stay. On a terminal the canvas fills in
place; elsewhere the text comes block by block, each when it is finished. Ctrl-C keeps the blocks
that are finished (exit code 130), and standard error has the unfinished one.

The default model, toy-canvas, is a toy: it writes characters that look like English from afar.

rules: {", ".join(RULES)}
--steps, --threshold, --factor and --entropy-bound say how many cells a pass reveals: one of them,
or none for one cell a pass. docs/denoise.md has the definitions, and what each costs.
"""
_TOY = "toy-canvas"
_CELLS = "how many cells the canvas has, 1 or more, at most as many as fit"
_SUFFIX = "text that follows the canvas, for models that attend to it"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway denoise``."""
    parser.add_argument("prompt", help="the text before the canvas; - reads standard input")
    arguments.add_groups(parser, "prompt", but=("forced",), help={"suffix": _SUFFIX})
    arguments.add_loading_arguments(parser, _TOY)
    rule_arguments.add_rule_arguments(parser)
    arguments.add_groups(parser, "sampling")
    group = parser.add_argument_group("stopping", argument_default=SUPPRESS)
    arguments.add_keywords(group, "stopping", but=("min_tokens",), help={"max_tokens": _CELLS})
    arguments.add_keyword(group, "allowed_token_ids")
    arguments.add_groups(parser, "trace")
    arguments.add_output_arguments(parser, samples=True, canvas=True)


def run(args: Namespace) -> int:
    """Reveal, print, and return 0, or 130 where Ctrl-C ended it."""
    prompt = namespace.read_text(args.prompt)
    vars(args).setdefault("model", _TOY)
    args.denoise = {name: value for name, value in vars(args).items() if name in SETTING_WORDS}
    options = namespace.request_options(args)
    if not args.json and "logprobs" in options:
        raise InputError("--logprobs are printed as JSON: add --json")
    llm = console.load(args)
    options |= namespace.tracked(args, llm)
    with ExitStack() as stack:
        streams = [stack.enter_context(stream) for stream in llm.streams(prompt, **options)]
        stack.enter_context(console.stoppable(*streams))
        done = [_revealed(args, llm, streams, place) for place in range(len(streams))]
    return sample_output.finish(args, streams, done)


def _revealed(args: Namespace, llm: "LLM", streams: "list[Stream]", place: int) -> "Completion":
    """Print one sample and its statistics; the others are revealed at the same time."""
    sample_output.begin(args, streams, place)
    stream = streams[place]
    first, cells = len(stream.prompt_token_ids), stream.request.stopping.max_tokens
    view = CanvasView(sys.stdout, llm.tokenizer.token_bytes, first, cells)
    _read(stream, view, show=not args.json)
    completion, notes = stream.completion(), []
    if completion.finish_reason == "aborted" and view.written:
        notes = [f"stopped with {view.written} cells of an unfinished block: {view.standing()}"]
    sample_output.end(args, streams, completion, notes)
    return completion


def _read(stream: "Stream", view: CanvasView, *, show: bool) -> None:
    """Read a stream to its end; where ``show``, print text as it comes.

    On a terminal that shows the canvas, the text comes when all of it is there.
    """
    drawn = show and view.is_drawn
    try:
        for event in stream.events():
            if isinstance(event, Pass):
                view.passed(event, draw=drawn)
                continue
            view.wrote(event)
            if show and not drawn:
                console.put(event.text)
    finally:
        if drawn:
            view.clear()
            console.put(stream.text)
    if show and not drawn:
        console.put(stream.held_text)
