"""``cutaway trace play``: a recorded run, step by step, with its inside by a model."""

import shutil
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from cutaway.base.counting import check_index
from cutaway.cli.options import arguments
from cutaway.cli.terminal.drawing import Style, names_of
from cutaway.cli.terminal.streams import are_a_screen, print_json
from cutaway.errors import InputError
from cutaway.features.players import Player, step_player
from cutaway.features.players.canvas_player import CanvasPlayer, pass_document, pass_line
from cutaway.features.players.step_player import StepPlayer
from cutaway.trace import Trace, step_view

if TYPE_CHECKING:
    from cutaway.api.llm import LLM

EPILOG = """
examples:
  cutaway trace play run.jsonl               interactive; ? lists the keys
  cutaway trace play run.jsonl --static      a line per step
  cutaway trace play run.jsonl --step 12 --static
  cutaway trace play canvas.jsonl --pass 6   a canvas after six passes; space plays
  cutaway trace play run.jsonl --json        one JSON document per step, or pass of a canvas

A canvas is shown pass by pass: what is in each cell, the likeliest token of those that are
masked, and what the pass did; with --step, a cell's own step. Space plays it.
A trace that was cut short is shown as far as it goes. The key i shows the inside of a step, which
the model (-m) computes again.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace play``."""
    arguments.add_trace(parser)
    parser.add_argument(
        "--step", type=arguments.read_step, metavar="N", help="begin at, or print, step N, from 1"
    )
    parser.add_argument(
        "--pass", dest="passed", type=arguments.read_pass, metavar="N",
        help="of a canvas: begin at, or print, pass N, from 1",
    )  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--static", action="store_true", help="print lines, even on a terminal")
    form.add_argument("--json", action="store_true", help="print a JSON document per step")
    arguments.add_loading_arguments(parser)


def run(args: Namespace) -> int:
    """Show the trace."""
    trace = Trace.read(args.file)
    _check("step", args.step, len(trace.steps))
    _check("pass", args.passed, len(trace.passes))
    if args.json or args.static or not are_a_screen():
        _print(args, trace)
    elif trace.head.decoder and args.step is None:
        _play(CanvasPlayer(trace, args.passed or 0))
    else:
        _play(
            StepPlayer(
                trace, args.step or 0, look=_Looking(args, trace, Style.from_stream(sys.stdout))
            )
        )
    return 0


def _check(name: str, at: int | None, count: int) -> None:
    if at is not None and not count:
        raise InputError(f"--{name}: the trace has no {name} on record")
    check_index(f"--{name}", at, range(count))


def _print(args: Namespace, trace: Trace) -> None:
    style, steps = Style.from_stream(sys.stdout), trace.steps
    if trace.head.decoder and args.step is None:
        _print_passes(args, trace, style)
    elif args.json:
        for step in steps if args.step is None else [steps[args.step]]:
            print_json(step_view(trace, step).to_dict())
    elif args.step is not None:
        columns = shutil.get_terminal_size((120, 24)).columns
        view = step_view(trace, steps[args.step])
        for line in step_player.panel(style, view, len(steps) - 1, columns):
            print(style.render(line, columns).rstrip())
    else:
        print(step_player.summary(style, trace))
        for step in steps:
            print(step_player.step_line(style, trace, step))
        print(step_player.ending(style, trace))


def _print_passes(args: Namespace, trace: Trace, style: Style) -> None:
    player = CanvasPlayer(trace)
    indices = range(len(trace.passes)) if args.passed is None else [args.passed]
    if args.json:
        for index in indices:
            print_json(pass_document(player, index))
        return
    if args.passed is None:
        print(step_player.summary(style, trace))
    for index in indices:
        print(pass_line(style, player, index))
    if args.passed is None:
        print(step_player.ending(style, trace))


def _play(player: Player) -> None:
    from cutaway.features.players.screen import screen

    style = Style.from_stream(sys.stdout)
    with suppress(EOFError), screen() as terminal:
        while not player.done:
            terminal.draw(player.frame(*terminal.size, style))
            if isinstance(player, StepPlayer) and player.waits:
                player.find()
                continue
            keys, pause_s = terminal.wait_for_keys(player.pause_s), player.pause_s
            for key in keys:
                player.press(key)
            if pause_s and not keys:
                player.tick()


class _Looking:
    """Makes lines on the inside of steps; the first call loads the model."""

    def __init__(self, args: Namespace, trace: Trace, style: Style) -> None:
        self._args, self._trace, self._style = args, trace, style

    @cached_property
    def _llm(self) -> "LLM":
        from cutaway.cli.terminal import console

        self._args.quiet = True  # the screen is ours
        return console.load(self._args)

    def __call__(self, step: int) -> list[str]:
        from cutaway.features.inside.inside_tables import describe_lens
        from cutaway.features.inside.look import inside

        look = inside(self._llm, self._trace, step)
        name = names_of(self._llm.tokenizer)
        lines = describe_lens(look, look.logit_attribution(), look.lens(1), name, self._style.spark)
        return [*lines, "", look.proof()]
