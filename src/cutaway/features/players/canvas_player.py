"""The screen of ``cutaway trace play`` for a canvas: its passes, and the keys of this screen."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cutaway.base.counting import count_from_1
from cutaway.cli.terminal.drawing import (
    BOLD,
    DIM,
    PLAIN,
    REVERSE,
    Line,
    Style,
    clip,
    fit,
    visible,
    width,
    window,
)  # fmt: skip
from cutaway.engine.events import Pass
from cutaway.features.players import LABEL, Player, spark_row, wrap_rows
from cutaway.trace.canvas import cell_life, find_edited_cells, standing
from cutaway.trace.figures import percent, probability, to_bits

_PAUSE_S = 0.3
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
class CanvasPlayer(Player):
    """A reader's place in the trace of a canvas; the canvas is shown as it is after a pass.

    cell  the index of the cell whose figures are shown
    """

    unit, keys, signs = "pass", _KEYS, _HELP

    cell: int = 0
    states: list[dict[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.last = len(self.trace.passes) - 1
        self.states = standing(self.trace.passes)

    @cached_property
    def positions(self) -> range:
        """The positions of all cells."""
        first = len(self.trace.head.prompt_token_ids)
        return range(first, first + self.trace.head.cells)

    @cached_property
    def guesses(self) -> list[dict[int, int]]:
        """A map for each pass: from position to likeliest token of all cells computed so far."""
        guesses: dict[int, int] = {}
        guesses_by_pass = []
        for run_pass in self.trace.passes:
            guesses = guesses | {c.position: c.likely[0][0] for c in run_pass.cells if c.likely}
            guesses_by_pass.append(guesses)
        return guesses_by_pass

    def _press(self, key: str) -> None:
        if key == " ":
            self.pause_s = None if self.pause_s else _PAUSE_S
            if self.pause_s and self.at == self.last:
                self.at = 0
        elif key in ("up", "down"):
            cell = self.cell + (1 if key == "down" else -1)
            self.cell = max(min(cell, len(self.positions) - 1), 0)
        elif key in ("e", "E"):
            passes = self.trace.passes
            target = "pass that edits or masks again"
            self._search(target, lambda n: undoes(passes[n]), ahead=key == "e")

    def _lines(self, columns: int, rows: int, style: Style) -> list[Line]:
        below = [[], *_sparks(self, columns, style), [], *_cell(self, style)]
        room = max(rows - 2 - len(below), 1)
        return [_header(self), [], *_text(self, columns, room, style), *below]


def undoes(run_pass: Pass) -> bool:
    """Whether a pass edits a cell or masks one again."""
    return bool(find_edited_cells(run_pass) or run_pass.masked_again)


def pass_line(style: Style, player: CanvasPlayer, index: int) -> str:
    """Write a pass in one line: what it did, and the canvas after it."""
    run_pass, stands = player.trace.passes[index], player.states[index]
    names = [
        visible(style, player.trace.name_of(stands[p])) if p in stands else _mask(style)
        for p in player.positions
    ]
    between = " " * any(len(name) > 1 for name in names)
    return f"{count_from_1(index):>5}  {_describe_pass(run_pass):<42}  {between.join(names)}"


def pass_document(player: CanvasPlayer, index: int) -> dict[str, Any]:
    """Make JSON of a pass; cells are counted from 0."""
    run_pass, stands, first = (
        player.trace.passes[index],
        player.states[index],
        player.positions.start,
    )
    name = player.trace.name_of
    return {
        "pass": index,
        "block": [place - first for place in run_pass.block],
        "rows": run_pass.rows,
        "revealed": [cell.position - first for cell in run_pass.revealed],
        "edited": [cell.position - first for cell in find_edited_cells(run_pass)],
        "masked_again": [position - first for position in run_pass.masked_again],
        "bound_bits": to_bits(run_pass.bound),
        "cells": [name(stands[p]) if p in stands else None for p in player.positions],
        "fingerprint": f"{run_pass.fingerprint:016x}",
    }


def _describe_pass(run_pass: Pass) -> str:
    parts, replaced = [f"{len(run_pass.revealed)} revealed"], len(find_edited_cells(run_pass))
    parts += [f"{replaced} edited"] * bool(replaced)
    parts += [f"{len(run_pass.masked_again)} masked again"] * bool(run_pass.masked_again)
    return ", ".join([*parts, f"bound {to_bits(run_pass.bound):.2f}"])


def _header(player: CanvasPlayer) -> Line:
    run_pass, first = player.trace.passes[player.at], player.positions.start
    start, end = (place - first for place in run_pass.block)
    ms = sum((run_pass.phases.schedule, run_pass.phases.run, run_pass.phases.sample)) * 1e3
    figures = f" · cells {count_from_1(start)} to {end} · {run_pass.rows} rows · {ms:.1f} ms"
    figures += f" · {_describe_pass(run_pass)} bits"
    playing = " · playing" if player.pause_s else ""
    return [
        (f" pass {count_from_1(player.at)}/{count_from_1(player.last)}", BOLD),
        (figures + playing, PLAIN),
    ]


# -- the canvas ---------------------------------------------------------------------------------


def _mask(style: Style) -> str:
    return style.pick("░", "_")


def _text(player: CanvasPlayer, columns: int, rows: int, style: Style) -> list[Line]:
    """Write the rows of cells around the selected cell."""
    looks = [_look(player, position, style) for position in player.positions]
    spans = [(clip(name, max(columns - 3, 1)), look) for name, look in looks]
    lines = wrap_rows([width(name) + 1 for name, _ in spans], columns - 1)
    here = next(n for n, row in enumerate(lines) if player.cell in row)
    edges = dict.fromkeys(range(len(spans)), " ") | {player.cell: style.pick("▸", ">")}
    return [
        [part for cell in lines[n] for part in ((edges[cell], PLAIN), spans[cell])]
        for n in window(len(lines), here, rows)
    ]


def _look(player: CanvasPlayer, position: int, style: Style) -> tuple[str, str]:
    """Find the text of a cell, and its style."""
    trace, stands = player.trace, player.states[player.at]
    before = player.states[player.at - 1] if player.at else {}
    if (token_id := stands.get(position)) is not None:
        new = before.get(position) != token_id
        return visible(style, trace.name_of(token_id)), REVERSE if new else PLAIN
    guess = player.guesses[player.at].get(position)
    if guess is None:
        return _mask(style), DIM
    return style.text(f"‹{visible(style, trace.name_of(guess))}›"), DIM


# -- all passes in two rows, and one cell -------------------------------------------------------


def _sparks(player: CanvasPlayer, columns: int, style: Style) -> list[Line]:
    seen = window(player.last + 1, player.at, max(columns - LABEL - 1, 1))
    here, total = player.at - seen.start, len(player.positions)
    masked = [total - len(player.states[n]) for n in seen]
    bounds = [to_bits(player.trace.passes[n].bound) for n in seen]
    return [
        spark_row(f"masked {masked[here]}", list(style.spark(m / total for m in masked)), here),
        spark_row(f"bound {bounds[here]:.2f}", list(style.spark(b / 8 for b in bounds)), here,
                  [style.tint(b / 8) for b in bounds]),
    ]  # fmt: skip


def _cell(player: CanvasPlayer, style: Style) -> list[Line]:
    """Write what this pass did to the selected cell, in three lines."""
    position = player.positions[player.cell]
    run_pass = player.trace.passes[player.at]
    title: Line = [(f" cell {count_from_1(player.cell)}", BOLD), (f" · position {position}", PLAIN)]
    pass_cell = next((cell for cell in run_pass.cells if cell.position == position), None)
    if pass_cell is None:
        again = (
            "masked again" if position in run_pass.masked_again else "not looked at in this pass"
        )
        return [[*title, (f" · {again}", PLAIN)], [], []]
    moment = next(m for m in cell_life(player.trace, player.cell) if m.index == run_pass.index)
    place = "" if moment.place is None else f" · {moment.place} of {moment.masked} in order"
    event = moment.event or ("stays masked" if pass_cell.now is None else "stays")
    name = player.trace.name_of
    likely = "  ".join(
        f"{fit(visible(style, name(token)), 14)} {percent(probability(logprob)):>8}"
        for token, logprob in pass_cell.likely
    )
    margin = ""
    if moment.margin is not None and moment.neighbour is not None:
        margin = f", {moment.margin:+.4g} to cell {count_from_1(moment.neighbour)}"
    return [
        [*title, (f" · {event}{place}", PLAIN)],
        [(f"   {likely}", PLAIN)],
        [(f"   drawn {visible(style, name(pass_cell.token_id))}"
          f" · entropy {to_bits(pass_cell.entropy):.2f} bits"
          f" · figure {pass_cell.figure:.4g}{margin}", PLAIN)],
    ]  # fmt: skip
