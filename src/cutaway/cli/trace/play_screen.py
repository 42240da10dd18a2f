"""The screen of ``cutaway trace play``: a state, what a key makes of it, and how it is shown."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from textwrap import wrap

from cutaway.cli.terminal.drawing import DIM, PLAIN, REVERSE, Line, Style, clip, width, window
from cutaway.cli.trace import play_lines
from cutaway.engine.events import Step
from cutaway.errors import CutawayError, InputError
from cutaway.trace import Trace
from cutaway.trace.endings import EndTokenStatus, end_token_status
from cutaway.trace.figures import bits, height, percent
from cutaway.trace.steps import observed
from cutaway.trace.views import is_uncertain, step_view

_LABEL = 17  # cells before a sparkline
MOVES = {
    "left": -1, "right": 1, "shift-left": -10, "shift-right": 10, "page-up": -10, "page-down": 10,
}  # fmt: skip
_KEYS = (
    "q quit", "? help", "←/→ step", "↑/↓ scroll", "e uncertain", "r rank≠1", "x end", "i inside",
)  # fmt: skip
_HELP = (
    ("←  →", "one step back, one on"),
    ("PgUp PgDn", "ten steps; or shift + arrow"),
    ("Home  End", "the first, the last step"),
    ("↑  ↓", "scroll the candidates"),
    ("e", "next where no token has 0.5"),
    ("r", "next step with rank above 1"),
    ("x", "next step where the end token survived the chain"),
    ("E  R  X", "the same, backwards"),
    ("i", "its inside, by the model"),
    ("?", "show or leave this help"),
    ("q  Ctrl-C", "quit"),
    ("●", "the token of the step"),
    ("○", "drawn; another was forced"),
    ("K", "removed by that stage"),
    ("model", "probability under the model's own logits"),
    ("final", "probability after the chain"),
    ("bits", "surprise, −log2 of model; height and colour: 0 to 8"),
    ("end", "probability of the end token; a quarter lower is ten times less"),
)
_HELP_INDENT = 11


@dataclass
class Player:
    """Where a reader is in a trace.

    scroll   candidates above the first that is shown; None: as many as it takes to show the chosen
    look     lines on the inside of a step; raises CutawayError where there is no model for it
    inside   whether those are shown; found: by step, those that there are
    """

    trace: Trace
    at: int = 0
    scroll: int | None = None
    helping: bool = False
    done: bool = False
    message: str = ""
    look: Callable[[int], list[str]] | None = None
    inside: bool = False
    found: dict[int, list[str]] = field(default_factory=dict)
    finders: dict[str, tuple[str, Callable[[Step], bool]]] = field(init=False)

    def __post_init__(self) -> None:
        self.finders = {
            "e": ("uncertain step", is_uncertain),
            "r": ("step whose rank is not 1", lambda step: observed(step).rank != 1),
            "x": ("step where the end token survived", self._end_survived),
        }

    @property
    def last(self) -> int:
        """The index of the last step; -1 where there is none."""
        return len(self.trace.steps) - 1

    @cached_property
    def moments(self) -> list[EndTokenStatus | None]:
        """How close each step came to the end."""
        return [end_token_status(self.trace, step) for step in self.trace.steps]

    def press(self, key: str) -> None:
        """Do what a key asks; unknown keys do nothing."""
        self.message = ""
        if key == "q":
            self.done = True
        elif key == "i" and self.last >= 0:
            self.inside, self.scroll = not self.inside, None
        elif key == "?" or (self.helping and key == "escape"):
            self.helping = not self.helping
        elif key in ("up", "down"):
            self.scroll = max((self.scroll or 0) + (1 if key == "down" else -1), 0)
        elif key in MOVES:
            self._go(self.at + MOVES[key])
        elif key in ("home", "end"):
            self._go(0 if key == "home" else self.last)
        elif key.lower() in self.finders:
            self._find(key)

    @property
    def waits(self) -> bool:
        """Whether the inside of this step is to be looked for."""
        return self.inside and not self.helping and not self.done and self.at not in self.found

    def find(self) -> None:
        """Look for it; where there is none, say why and leave."""
        try:
            if self.look is None:
                raise InputError("the inside of a step needs the model")
            self.found[self.at] = self.look(self.at)
        except CutawayError as error:
            self.inside, self.message = False, str(error)

    def _go(self, index: int) -> None:
        self.at, self.scroll = max(min(index, self.last), 0), None

    def _find(self, key: str) -> None:
        name, wanted = self.finders[key.lower()]
        ahead = range(self.at + 1, self.last + 1) if key.islower() else range(self.at - 1, -1, -1)
        found = next((i for i in ahead if wanted(self.trace.steps[i])), None)
        if found is None:
            self.message = f"no {name} {'after' if key.islower() else 'before'} this one"
        else:
            self._go(found)

    def _end_survived(self, step: Step) -> bool:
        moment = self.moments[step.index]
        return moment is not None and moment.survived


def frame(player: Player, columns: int, rows: int, style: Style) -> list[str]:
    """What a screen of that size shows, at most ``rows`` lines of ``columns`` cells."""
    if player.last < 0:
        lines: list[Line] = [[(" no step on record yet", PLAIN)]]
    elif player.helping:
        lines = [[(f" {line}", PLAIN)] for line in help_lines(_HELP, columns, style)]
    elif player.inside:
        lines = _inside(player, rows - 1, style)
    else:
        lines = _step(player, columns, rows - 1, style)
    lines = lines[: rows - 1] + [[]] * (rows - 1 - len(lines))
    lines.append([(f" {player.message or keys_line(_KEYS, columns, style)}", DIM)])
    return [style.render(line, columns) for line in lines[-rows:]]


def help_lines(signs: Sequence[tuple[str, str]], columns: int, style: Style) -> Iterator[str]:
    """What each key does and each sign means."""
    for sign, text in signs:
        line = style.text(f"{sign:<{_HELP_INDENT}}{text}")
        yield from wrap(line, max(columns - 2, 16), subsequent_indent=" " * _HELP_INDENT)


def keys_line(keys: Sequence[str], columns: int, style: Style) -> str:
    """The commonest keys, as many as fit."""
    shown = keys[0]
    for key in keys[1:]:
        longer = f"{shown} · {key}"
        if width(style.text(longer)) >= columns:
            break
        shown = longer
    return shown


def _inside(player: Player, rows: int, style: Style) -> list[Line]:
    view = step_view(player.trace, player.trace.steps[player.at])
    lines = player.found.get(player.at, ["the model computes this step again …"])
    room = max(rows - 2, 1)
    player.scroll = min(player.scroll or 0, max(len(lines) - room, 0))
    seen = lines[player.scroll : player.scroll + room]
    shown: list[Line] = [[(f" {style.text(line)}", PLAIN)] for line in seen]
    return [play_lines.header(view, player.last), [], *shown]


def _step(player: Player, columns: int, rows: int, style: Style) -> list[Line]:
    view = step_view(player.trace, player.trace.steps[player.at])
    strip = _strip(player, columns, max((rows - 12) // 5, 1), style)
    top = [play_lines.header(view, player.last), [], *strip, [], *_sparks(player, columns, style)]
    chain = play_lines.stages(style, view)
    if rows < len(top) + len(chain) + 8:  # the candidates matter more
        chain = []
    room = max(rows - len(top) - len(chain) - 3, 1)
    if player.scroll is None:
        chosen = next(i for i, c in enumerate(view.candidates) if c.chosen)
        player.scroll = max(chosen - room + 1, 0)
    player.scroll = min(player.scroll, max(len(view.candidates) - room, 0))
    seen = view.candidates[player.scroll : player.scroll + room]
    shown = [play_lines.candidate(style, c, columns) for c in seen]
    return [*top, [], play_lines.columns(columns), *shown, [], *chain]


# -- the text, and how surprising each token was -----------------------------------------------


def _strip(player: Player, columns: int, rows: int, style: Style) -> list[Line]:
    """The rows of text around the step; under each token its surprise."""
    names = [_plain(player.trace, style, s.token_id, columns - 2) for s in player.trace.steps]
    lines_of = wrapped([width(name) + 1 for name in names], columns - 1)
    here = next(i for i, row in enumerate(lines_of) if player.at in row)
    lines: list[Line] = []
    for i in window(len(lines_of), here, rows):
        lines += [
            _tokens(names, lines_of[i], player.at, style),
            _marks(player, names, lines_of[i], style),
        ]
    return lines


def _plain(trace: Trace, style: Style, token_id: int, cells: int) -> str:
    return clip(style.text(trace.name_of(token_id)) or "<>", max(cells, 1))


def wrapped(widths: list[int], cells: int) -> list[range]:
    """Which tokens are on each row."""
    rows, start, used = [], 0, 0
    for i, wide in enumerate(widths):
        if used + wide > cells and i > start:
            rows.append(range(start, i))
            start, used = i, 0
        used += wide
    return [*rows, range(start, len(widths))]


def _tokens(names: list[str], row: range, at: int, style: Style) -> Line:
    line: Line = []
    for i in row:
        edge = style.pick("▌", "[") if i == at else style.pick("▐", "]") if i - 1 == at else "│"
        edge = " " if i == row.start and i != at else edge
        line.append((edge, PLAIN if i in (at, at + 1) else DIM))
        line.append((names[i], REVERSE if i == at else PLAIN))
    return [*line, (style.pick("▐", "]"), PLAIN)] if row[-1] == at else line


def _marks(player: Player, names: list[str], row: range, style: Style) -> Line:
    line: Line = []
    for i in row:
        surprise = bits(player.trace.steps[i].logprob)
        mark = style.spark([surprise / 8]) * width(names[i])
        line += [(" ", PLAIN), (mark, style.surprise(surprise))]
    return line


# -- the whole run in three rows ----------------------------------------------------------------


def _sparks(player: Player, columns: int, style: Style) -> list[Line]:
    seen = window(player.last + 1, player.at, max(columns - _LABEL - 1, 1))
    steps, now = player.trace.steps, player.trace.steps[player.at]
    moment = player.moments[player.at]
    surprise = [bits(steps[i].logprob) for i in seen]
    ends = [player.moments[i] for i in seen]
    here = player.at - seen.start
    return [
        spark_row(f"bits {bits(now.logprob):.2f}", list(style.spark(b / 8 for b in surprise)), here,
                  [style.surprise(b) for b in surprise]),
        spark_row(f"end {percent(moment.probability if moment else None)}",
                  list(style.spark(height(m.probability) if m else None for m in ends)), here),
        spark_row(
            f"rank {observed(now).rank}", [_digit(observed(steps[i]).rank) for i in seen], here
        ),
    ]  # fmt: skip


def _digit(rank: int) -> str:
    return str(rank) if rank < 10 else "+"


def spark_row(label: str, marks: list[str], here: int, looks: list[str] | None = None) -> Line:
    """A figure, and a mark for each step or pass; that of ``here`` stands out."""
    looks = list(looks or [PLAIN] * len(marks))
    looks[here] = REVERSE
    return [(f" {label:<{_LABEL - 1}}", PLAIN), *zip(marks, looks, strict=True)]
