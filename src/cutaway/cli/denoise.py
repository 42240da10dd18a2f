"""``cutaway denoise``: reveal a text cell by cell. Standard output has only the text."""

import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from itertools import groupby
from typing import TYPE_CHECKING, TextIO

from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console, reports
from cutaway.cli.terminal.drawing import (
    BOLD,
    DIM,
    PLAIN,
    Line,
    Span,
    Style,
    join_spans,
    window,
    wrap,
)
from cutaway.engine import Pass, Step
from cutaway.engine.canvas import RULES, SETTING_WORDS
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.completion import Completion
    from cutaway.requests.sync_llm import Stream


class CanvasView:
    """A canvas on a terminal: the cells of a text that is being revealed.

    stream       where the canvas is drawn, if the stream is a terminal
    token_bytes  returns the bytes of a token, by its id
    first        the position of the first cell
    cells        how many cells there are
    """

    def __init__(
        self, stream: TextIO, token_bytes: Callable[[int], bytes], first: int, cells: int
    ) -> None:
        self._stream, self._token_bytes = stream, token_bytes
        self._style = Style.from_stream(stream)
        self._cells: dict[int, int | None] = dict.fromkeys(range(first, first + cells))
        self._new: set[int] = set()
        self._text, self._passes, self._below = "", 0, 0

    @property
    def is_drawn(self) -> bool:
        """Whether the stream is a terminal that can show a canvas."""
        return self._style.ansi

    @property
    def revealed_count(self) -> int:
        """How many cells of unfinished blocks are revealed."""
        return sum(token_id is not None for token_id in self._cells.values())

    def take_pass(self, canvas_pass: Pass, *, draw: bool) -> None:
        """Take a pass; with ``draw``, draw the canvas after the pass."""
        self._cells |= canvas_pass.tokens_after
        self._new = {cell.position for cell in canvas_pass.cells if cell.now != cell.was}
        self._passes += 1
        if draw:
            self._draw()

    def take_step(self, step: Step) -> None:
        """Take a token of a finished block: its cell becomes text."""
        self._text += step.text
        self._cells.pop(step.position, None)

    def unfinished_text(self) -> str:
        """Return the cells of unfinished blocks as one line of text."""
        return "".join(self._style.text(text) for text, _ in self._spans())

    def clear(self) -> None:
        """Erase the canvas from the terminal."""
        if self.is_drawn and self._below:
            up = f"\x1b[{self._below - 1}A" if self._below > 1 else ""
            self._stream.write(f"\r{up}\x1b[J")
            self._stream.flush()
        self._below = 0

    def _draw(self) -> None:
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except OSError:  # a stream without a file
            columns, rows = 80, 24
        columns, rows = max(columns - 1, 20), max(rows - 2, 1)
        lines, masked = _lines([(self._text, PLAIN), *self._spans()], columns, self._mask)
        visible_lines = [lines[i] for i in window(len(lines), masked, rows)]
        left = sum(token_id is None for token_id in self._cells.values())
        status = f"[pass {self._passes} · {left} of {len(self._cells)} cells masked]"
        self.clear()
        rendered = [
            self._style.render(line, columns)
            for line in (*visible_lines, [(status, DIM if self._style.colour else PLAIN)])
        ]
        self._stream.write("\r\n".join(rendered))
        self._stream.flush()
        self._below = len(rendered)

    @property
    def _mask(self) -> str:
        return self._style.pick("░", "_")

    def _spans(self) -> list[Span]:
        """Return the cells as spans; cells side by side that look alike share a span.

        Such cells may be parts of one character.
        """
        spans = []
        for (is_masked, is_new), cells in groupby(self._cells.items(), self._kind):
            ids = [token_id for _, token_id in cells]
            data = b"".join(self._token_bytes(i) for i in ids if i is not None)
            text = self._mask * len(ids) if is_masked else data.decode("utf-8", "replace")
            look = DIM if is_masked else BOLD if is_new else PLAIN
            spans.append((text, look if self._style.colour else PLAIN))
        return spans

    def _kind(self, cell: tuple[int, int | None]) -> tuple[bool, bool]:
        """Whether a cell is masked, and whether the last pass changed it."""
        position, token_id = cell
        return token_id is None, position in self._new


def _lines(spans: list[Span], columns: int, mask: str) -> tuple[list[Line], int]:
    """Return spans as lines of ``columns``, and the index of the first line that has a mask."""
    characters = "".join(
        c if c.isprintable() or c == "\n" else "\ufffd" for text, _ in spans for c in text
    )
    looks = (look for text, look in spans for _ in text)
    rows = [*wrap(zip(characters, looks, strict=True), columns)]
    masked = (n for n, row in enumerate(rows) if any(c == mask for c, _ in row))
    return [join_spans(row) for row in rows], next(masked, len(rows) - 1)


# -- the command -----------------------------------------------------------------------------------


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
    arguments.add_rule_arguments(parser)
    arguments.add_groups(parser, "sampling")
    group = parser.add_argument_group("stopping", argument_default=SUPPRESS)
    arguments.add_keywords(group, "stopping", but=("min_tokens",), help={"max_tokens": _CELLS})
    arguments.add_keyword(group, "allowed_token_ids")
    arguments.add_groups(parser, "trace")
    arguments.add_output_arguments(parser, samples=True, canvas=True)


def run(args: Namespace) -> int:
    """Reveal texts and print them; return an exit code: see ``reports.finish``."""
    prompt = namespace.read_text(args.prompt)
    vars(args).setdefault("model", _TOY)
    args.denoise = {name: value for name, value in vars(args).items() if name in SETTING_WORDS}
    options = namespace.request_options(args)
    if not args.json and "logprobs" in options:
        raise InputError("--logprobs are printed as JSON: add --json")
    llm = console.load(args)
    options |= namespace.read_track_option(args, llm)
    with ExitStack() as stack:
        streams = [stack.enter_context(stream) for stream in llm.streams(prompt, **options)]
        stack.enter_context(console.stoppable(*streams))
        done = [_reveal(args, llm, streams, place) for place in range(len(streams))]
    return reports.finish(args, streams, done)


def _reveal(args: Namespace, llm: "LLM", streams: "list[Stream]", place: int) -> "Completion":
    """Print one sample and its statistics; the same engine steps reveal the other samples."""
    reports.begin(args, streams, place)
    stream = streams[place]
    first, cells = len(stream.prompt_token_ids), stream.request.stopping.max_tokens
    view = CanvasView(sys.stdout, llm.tokenizer.token_bytes, first, cells)
    _read(stream, view, show=not args.json)
    completion, notes = stream.completion(), []
    if completion.finish_reason == "aborted" and view.revealed_count:
        cells, text = view.revealed_count, view.unfinished_text()
        notes = [f"stopped with {cells} cells of an unfinished block: {text}"]
    reports.end(args, streams, completion, notes)
    return completion


def _read(stream: "Stream", view: CanvasView, *, show: bool) -> None:
    """Read a stream to its end; with ``show``, print each piece of the text.

    On a terminal, the canvas is drawn after each pass; at the end, the text replaces the canvas.
    """
    draws = show and view.is_drawn
    try:
        for event in stream.events():
            if isinstance(event, Pass):
                view.take_pass(event, draw=draws)
                continue
            view.take_step(event)
            if show and not draws:
                console.put(event.text)
    finally:
        if draws:
            view.clear()
            console.put(stream.text)
    if show and not draws:
        console.put(stream.held_text)
