"""The screen of ``cutaway trace play`` for a canvas: a state, what a key makes of it, its lines."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cutaway.cli.terminal.drawing import (
    BOLD,
    DIM,
    PLAIN,
    REVERSE,
    Line,
    Style,
    clip,
    fit,
    width,
    window,
)
from cutaway.cli.trace.play_lines import shown
from cutaway.cli.trace.play_screen import MOVES, help_lines, keys_line, spark_row, wrapped
from cutaway.engine.events import Pass, PassCell
from cutaway.trace import Trace
from cutaway.trace.canvas import cell_life, standing
from cutaway.trace.figures import in_bits, percent, probability

PAUSE_S = 0.3
"""How long a pass is shown while it plays."""

_KEYS = ("q quit", "? help", "space play", "←/→ pass", "↑/↓ cell", "e undone")
_HELP = (
    ("space", "play the passes, or stop"),
    ("←  →", "one pass back, one on"),
    ("PgUp PgDn", "ten passes; or shift + arrow"),
    ("Home  End", "the first, the last pass"),
    ("↑  ↓", "the cell before, the next; its figures are below"),
    ("e", "next pass that edits a cell or masks one again"),
    ("E", "the same, backwards"),
    ("?", "show or leave this help"),
    ("q  Ctrl-C", "quit"),
    ("word", "stands there; highlighted where this pass put it"),
    ("‹word›", "masked; the likeliest token when it was last looked at"),
    ("░", "masked, and not looked at yet"),
    ("masked", "cells that are masked after each pass"),
    ("bound", "the most that revealing cells together can lose, in bits: 0 to 8"),
)


@dataclass
class CanvasPlayer:
    """Where a reader is in the trace of a canvas.

    at    the pass, after which the canvas is shown
    cell  the one whose figures are shown
    """

    trace: Trace
    at: int = 0
    cell: int = 0
    playing: bool = False
    helping: bool = False
    done: bool = False
    message: str = ""
    states: list[dict[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.states = standing(self.trace.passes)

    @property
    def last(self) -> int:
        """The index of the last pass; -1 where there is none."""
        return len(self.trace.passes) - 1

    @cached_property
    def positions(self) -> range:
        """Of all cells."""
        first = len(self.trace.head.prompt_token_ids)
        return range(first, first + self.trace.head.cells)

    @cached_property
    def guesses(self) -> list[dict[int, int]]:
        """After each pass, the likeliest token of each cell that was looked at."""
        known: dict[int, int] = {}
        found = []
        for made in self.trace.passes:
            known = known | {c.position: c.likely[0][0] for c in made.cells if c.likely}
            found.append(known)
        return found

    @property
    def pause_s(self) -> float | None:
        """How long to wait for a key; None: until one comes."""
        return PAUSE_S if self.playing else None

    def tick(self) -> None:
        """The pause is over."""
        self._go(self.at + 1)
        self.playing = self.playing and self.at < self.last

    def press(self, key: str) -> None:
        """Do what a key asks; unknown keys do nothing."""
        self.message = ""
        if key == "q":
            self.done = True
        elif key == " ":
            self.playing = not self.playing
            if self.playing and self.at == self.last:
                self.at = 0
        elif key == "?" or (self.helping and key == "escape"):
            self.helping = not self.helping
        elif key in ("up", "down"):
            moved = self.cell + (1 if key == "down" else -1)
            self.cell = max(min(moved, len(self.positions) - 1), 0)
        elif key in MOVES:
            self._go(self.at + MOVES[key])
        elif key in ("home", "end"):
            self._go(0 if key == "home" else self.last)
        elif key in ("e", "E"):
            self._find(ahead=key == "e")

    def _go(self, index: int) -> None:
        self.at = max(min(index, self.last), 0)

    def _find(self, *, ahead: bool) -> None:
        order = range(self.at + 1, self.last + 1) if ahead else range(self.at - 1, -1, -1)
        found = next((n for n in order if undone(self.trace.passes[n])), None)
        if found is None:
            self.message = f"no pass {'after' if ahead else 'before'} this one undoes anything"
        else:
            self._go(found)


def undone(made: Pass) -> list[PassCell | int]:
    """Cells that a pass edited, and positions that it masked again."""
    edited = [c for c in made.cells if None not in (c.was, c.now) and c.was != c.now]
    return [*edited, *made.masked_again]


def frame(player: CanvasPlayer, columns: int, rows: int, style: Style) -> list[str]:
    """What a screen of that size shows, at most ``rows`` lines of ``columns`` cells."""
    if player.last < 0:
        lines: list[Line] = [[(" no pass on record yet", PLAIN)]]
    elif player.helping:
        lines = [[(f" {line}", PLAIN)] for line in help_lines(_HELP, columns, style)]
    else:
        below = [[], *_sparks(player, columns, style), [], *_cell(player, style)]
        room = max(rows - 3 - len(below), 1)
        text = _text(player, columns, room, style)
        lines = [_header(player), [], *text, *below]
    lines = lines[: rows - 1] + [[]] * (rows - 1 - len(lines))
    lines.append([(f" {player.message or keys_line(_KEYS, columns, style)}", DIM)])
    return [style.render(line, columns) for line in lines[-rows:]]


def pass_line(style: Style, player: CanvasPlayer, index: int) -> str:
    """One pass in one line: what it did, and the canvas after it."""
    made, stands = player.trace.passes[index], player.states[index]
    names = [
        shown(style, player.trace.name_of(stands[p])) if p in stands else _mask(style)
        for p in player.positions
    ]
    between = " " * any(len(name) > 1 for name in names)
    return f"{index:>5}  {_what(made):<42}  {between.join(names)}"


def pass_document(player: CanvasPlayer, index: int) -> dict[str, Any]:
    """One pass as JSON; cells are counted from 0."""
    made, stands, first = player.trace.passes[index], player.states[index], player.positions.start
    name = player.trace.name_of
    return {
        "pass": index,
        "block": [place - first for place in made.block],
        "rows": made.rows,
        "revealed": [cell.position - first for cell in made.revealed],
        "edited": [c.position - first for c in undone(made) if isinstance(c, PassCell)],
        "masked_again": [position - first for position in made.masked_again],
        "bound_bits": in_bits(made.bound),
        "cells": [name(stands[p]) if p in stands else None for p in player.positions],
        "fingerprint": f"{made.fingerprint:016x}",
    }


def _what(made: Pass) -> str:
    edited = sum(isinstance(one, PassCell) for one in undone(made))
    parts = [f"{len(made.revealed)} revealed"]
    parts += [f"{edited} edited"] * bool(edited)
    parts += [f"{len(made.masked_again)} masked again"] * bool(made.masked_again)
    return ", ".join([*parts, f"bound {in_bits(made.bound):.2f}"])


def _header(player: CanvasPlayer) -> Line:
    made, first = player.trace.passes[player.at], player.positions.start
    start, end = (place - first for place in made.block)
    ms = sum((made.phases.schedule, made.phases.run, made.phases.sample)) * 1e3
    figures = f" · cells {start} to {end - 1} · {made.rows} rows · {ms:.1f} ms · {_what(made)} bits"
    playing = " · playing" if player.playing else ""
    return [(f" pass {player.at}/{player.last}", BOLD), (figures + playing, PLAIN)]


# -- the canvas ---------------------------------------------------------------------------------


def _mask(style: Style) -> str:
    return style.pick("░", "_")


def _text(player: CanvasPlayer, columns: int, rows: int, style: Style) -> list[Line]:
    """The rows of cells around the one that is looked at."""
    looks = [_look(player, position, style) for position in player.positions]
    spans = [(clip(name, max(columns - 3, 1)), look) for name, look in looks]
    lines = wrapped([width(name) + 1 for name, _ in spans], columns - 1)
    here = next(n for n, row in enumerate(lines) if player.cell in row)
    return [
        [part for cell in lines[n] for part in ((_edge(player, cell, style), PLAIN), spans[cell])]
        for n in window(len(lines), here, rows)
    ]


def _edge(player: CanvasPlayer, cell: int, style: Style) -> str:
    return style.pick("▸", ">") if cell == player.cell else " "


def _look(player: CanvasPlayer, position: int, style: Style) -> tuple[str, str]:
    """What is shown of a cell, and how."""
    trace, stands = player.trace, player.states[player.at]
    before = player.states[player.at - 1] if player.at else {}
    if (token_id := stands.get(position)) is not None:
        new = before.get(position) != token_id
        return shown(style, trace.name_of(token_id)), REVERSE if new else PLAIN
    guess = player.guesses[player.at].get(position)
    if guess is None:
        return _mask(style), DIM
    return style.text(f"‹{shown(style, trace.name_of(guess))}›"), DIM


# -- all passes in two rows, and one cell -------------------------------------------------------


def _sparks(player: CanvasPlayer, columns: int, style: Style) -> list[Line]:
    seen = window(player.last + 1, player.at, max(columns - 18, 1))
    here, total = player.at - seen.start, len(player.positions)
    masked = [total - len(player.states[n]) for n in seen]
    bounds = [in_bits(player.trace.passes[n].bound) for n in seen]
    return [
        spark_row(f"masked {masked[here]}", list(style.spark(m / total for m in masked)), here),
        spark_row(f"bound {bounds[here]:.2f}", list(style.spark(b / 8 for b in bounds)), here,
                  [style.surprise(b) for b in bounds]),
    ]  # fmt: skip


def _cell(player: CanvasPlayer, style: Style) -> list[Line]:
    """What this pass made of the cell; three lines."""
    position = player.positions[player.cell]
    made = player.trace.passes[player.at]
    title: Line = [(f" cell {player.cell}", BOLD), (f" · position {position}", PLAIN)]
    own = next((cell for cell in made.cells if cell.position == position), None)
    if own is None:
        again = "masked again" if position in made.masked_again else "not looked at in this pass"
        return [[*title, (f" · {again}", PLAIN)], [], []]
    moment = next(m for m in cell_life(player.trace, player.cell) if m.index == made.index)
    place = "" if moment.place is None else f" · {moment.place} of {moment.masked} in order"
    event = moment.event or ("stays masked" if own.now is None else "stays")
    name = player.trace.name_of
    likely = "  ".join(
        f"{fit(shown(style, name(token)), 14)} {percent(probability(logprob)):>8}"
        for token, logprob in own.likely
    )
    margin = ""
    if moment.margin is not None:
        margin = f", {moment.margin:+.4g} to cell {moment.neighbour}"
    return [
        [*title, (f" · {event}{place}", PLAIN)],
        [(f"   {likely}", PLAIN)],
        [(f"   drawn {shown(style, name(own.token_id))} · entropy {in_bits(own.entropy):.2f} bits"
          f" · figure {own.figure:.4g}{margin}", PLAIN)],
    ]  # fmt: skip
