"""The screen of ``cutaway trace play`` for a text: its steps, and the keys that only it has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from cutaway.cli.terminal.drawing import DIM, PLAIN, REVERSE, Line, Style, clip, width, window
from cutaway.engine.events import Step
from cutaway.errors import CutawayError, InputError
from cutaway.features.players import play_lines
from cutaway.features.players.player import LABEL, Player, spark_row, wrapped
from cutaway.trace import Trace
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
    ("e", "next step with no token above 50%"),
    ("r", "next step whose token was not the likeliest"),
    ("x", "next step where the end token could have been drawn"),
    ("E  R  X", "the same, backwards"),
    ("i", "the inside of the step; needs the model (-m)"),
    ("?", "show or leave this help"),
    ("q  Ctrl-C", "quit"),
    ("●", "the token of the step"),
    ("○", "drawn, but another token was forced"),
    ("K, P, …", "removed by the stage with this letter; see the chain below the table"),
    ("model", "probability by the model alone"),
    ("final", "probability after the chain (top-k, temperature, …)"),
    ("logit", "the model's number for the token, before it becomes a probability"),
    ("luck", "random number of this token here, from the seed (Gumbel noise)"),
    ("score", "ln(final) + luck: the highest is drawn, so a likely token may lose"),
    ("rank", "1 is the model's likeliest token"),
    ("removed by", "the stage of the chain that took the token out"),
    ("bits", "surprise, −log2(model): 0 is certain, 8 is 1 in 256"),
    ("end", "probability of the end token, in 8 heights: two lower is ten times less likely"),
    ("entropy", "how uncertain the model is: 2 bits as between 4 equal tokens"),
    ("position", "the place in prompt and text together, from 0"),
    ("kv", "tokens in the KV cache, and their memory"),
)

_ROWS_WITH_PROMPT = 16


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
    prompt = _prompt(player.trace, columns, style) if rows >= _ROWS_WITH_PROMPT else []
    top = [
        play_lines.header(view, player.last), [], *prompt, *strip, [],
        *_sparks(player, columns, style),
    ]  # fmt: skip
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


def _prompt(trace: Trace, columns: int, style: Style) -> list[Line]:
    """The end of the prompt, in a row."""
    room = max(columns - 2, 1)
    text = style.text("".join(map(trace.name_of, trace.head.prompt_token_ids[-room:])))
    if width(text) > room:
        text = style.pick("…", "~") + clip(text[::-1], room - 1)[::-1]
    return [[(f" {text}", DIM)]]


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
