"""The screen of ``cutaway trace play`` for a text: its steps, and the keys that only it has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from cutaway.cli.terminal.drawing import DIM, PLAIN, REVERSE, Line, Style, clip, width, window
from cutaway.cli.trace import play_lines
from cutaway.cli.trace.player import LABEL, Player, spark_row, wrapped
from cutaway.engine.events import Step
from cutaway.errors import CutawayError, InputError
from cutaway.trace.endings import EndTokenStatus, end_token_status
from cutaway.trace.figures import bits, height, percent
from cutaway.trace.steps import observed
from cutaway.trace.views import is_uncertain, step_view

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


@dataclass
class StepPlayer(Player):
    """Where a reader is in the steps of a text.

    scroll   candidates above the first that is shown; None: as many as it takes to show the chosen
    look     lines on the inside of a step; raises CutawayError where there is no model for it
    inside   whether those are shown; found: step -> its lines
    """

    unit, keys, signs = "step", _KEYS, _HELP

    scroll: int | None = None
    look: Callable[[int], list[str]] | None = None
    inside: bool = False
    found: dict[int, list[str]] = field(default_factory=dict)
    finders: dict[str, tuple[str, Callable[[Step], bool]]] = field(init=False)

    def __post_init__(self) -> None:
        self.last = len(self.trace.steps) - 1
        self.finders = {
            "e": ("uncertain step", is_uncertain),
            "r": ("step whose rank is not 1", lambda step: observed(step).rank != 1),
            "x": ("step where the end token survived", self._end_survived),
        }

    @cached_property
    def moments(self) -> list[EndTokenStatus | None]:
        """How close each step came to the end."""
        return [end_token_status(self.trace, step) for step in self.trace.steps]

    def _press(self, key: str) -> None:
        if key == "i" and self.last >= 0:
            self.inside, self.scroll = not self.inside, None
        elif key in ("up", "down"):
            self.scroll = max((self.scroll or 0) + (1 if key == "down" else -1), 0)
        elif key.lower() in self.finders:
            what, wanted = self.finders[key.lower()]
            self._search(what, lambda i: wanted(self.trace.steps[i]), ahead=key.islower())

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
        super()._go(index)
        self.scroll = None

    def _end_survived(self, step: Step) -> bool:
        moment = self.moments[step.index]
        return moment is not None and moment.survived

    def _lines(self, columns: int, rows: int, style: Style) -> list[Line]:
        return _inside(self, rows, style) if self.inside else _step(self, columns, rows, style)


def _inside(player: StepPlayer, rows: int, style: Style) -> list[Line]:
    view = step_view(player.trace, player.trace.steps[player.at])
    lines = player.found.get(player.at, ["the model computes this step again …"])
    room = max(rows - 2, 1)
    player.scroll = min(player.scroll or 0, max(len(lines) - room, 0))
    seen = lines[player.scroll : player.scroll + room]
    shown: list[Line] = [[(f" {style.text(line)}", PLAIN)] for line in seen]
    return [play_lines.header(view, player.last), [], *shown]


def _step(player: StepPlayer, columns: int, rows: int, style: Style) -> list[Line]:
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


def _strip(player: StepPlayer, columns: int, rows: int, style: Style) -> list[Line]:
    """The rows of text around the step; under each token its surprise."""
    trace, most = player.trace, max(columns - 2, 1)
    names = [clip(style.text(trace.name_of(s.token_id)) or "<>", most) for s in trace.steps]
    lines_of = wrapped([width(name) + 1 for name in names], columns - 1)
    here = next(i for i, row in enumerate(lines_of) if player.at in row)
    lines: list[Line] = []
    for i in window(len(lines_of), here, rows):
        lines += [
            _tokens(names, lines_of[i], player.at, style),
            _marks(player, names, lines_of[i], style),
        ]
    return lines


def _tokens(names: list[str], row: range, at: int, style: Style) -> Line:
    line: Line = []
    for i in row:
        edge = style.pick("▌", "[") if i == at else style.pick("▐", "]") if i - 1 == at else "│"
        edge = " " if i == row.start and i != at else edge
        line.append((edge, PLAIN if i in (at, at + 1) else DIM))
        line.append((names[i], REVERSE if i == at else PLAIN))
    return [*line, (style.pick("▐", "]"), PLAIN)] if row[-1] == at else line


def _marks(player: StepPlayer, names: list[str], row: range, style: Style) -> Line:
    line: Line = []
    for i in row:
        surprise = bits(player.trace.steps[i].logprob)
        mark = style.spark([surprise / 8]) * width(names[i])
        line += [(" ", PLAIN), (mark, style.tint(surprise / 8))]
    return line


# -- the whole run in three rows ----------------------------------------------------------------


def _sparks(player: StepPlayer, columns: int, style: Style) -> list[Line]:
    seen = window(player.last + 1, player.at, max(columns - LABEL - 1, 1))
    steps, now = player.trace.steps, player.trace.steps[player.at]
    moment = player.moments[player.at]
    surprise = [bits(steps[i].logprob) for i in seen]
    ends = [player.moments[i] for i in seen]
    here = player.at - seen.start
    ranks = [observed(steps[i]).rank for i in seen]
    return [
        spark_row(f"bits {bits(now.logprob):.2f}", list(style.spark(b / 8 for b in surprise)), here,
                  [style.tint(b / 8) for b in surprise]),
        spark_row(f"end {percent(moment.probability if moment else None)}",
                  list(style.spark(height(m.probability) if m else None for m in ends)), here),
        spark_row(f"rank {ranks[here]}", [str(n) if n < 10 else "+" for n in ranks], here),
    ]  # fmt: skip
