"""The screen of ``cutaway trace play`` for a text: its steps, and the keys of this screen.

Without a screen, the command prints the same lines of a step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import log

from cutaway.base.counting import count_from_1
from cutaway.base.progress import megabytes
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
)
from cutaway.engine.events import Step
from cutaway.errors import CutawayError, InputError
from cutaway.features.players import LABEL, Player, spark_row, wrap_rows
from cutaway.trace import Trace, canvas_figures
from cutaway.trace.canvas import rule_label
from cutaway.trace.endings import EndTokenStatus, end_token_status, ends_thought
from cutaway.trace.figures import (
    bits,
    chain_label,
    chosen_candidate,
    final_probability,
    height,
    percent,
    probability,
)
from cutaway.trace.steps import observation_of
from cutaway.trace.views import CandidateView, StepView, is_uncertain, step_view

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
    """A reader's place in the steps of a text.

    scroll   number of candidates above the first shown one; None: the chosen candidate is shown
    look     makes the lines on a step's inside; raises CutawayError if there is no model for it
    inside   whether the lines on a step's inside are shown; inside_lines: step -> its lines
    """

    unit, keys, signs = "step", _KEYS, _HELP

    scroll: int | None = None
    look: Callable[[int], list[str]] | None = None
    inside: bool = False
    inside_lines: dict[int, list[str]] = field(default_factory=dict)
    finders: dict[str, tuple[str, Callable[[Step], bool]]] = field(init=False)

    def __post_init__(self) -> None:
        self.last = len(self.trace.steps) - 1
        self.finders = {
            "e": ("uncertain step", is_uncertain),
            "r": ("step whose rank is not 1", lambda step: observation_of(step).rank != 1),
            "x": ("step where the end token could have been drawn", self._end_survived),
        }

    @cached_property
    def moments(self) -> list[EndTokenStatus | None]:
        """How close the end token came to being drawn, at each step."""
        return [end_token_status(self.trace, step) for step in self.trace.steps]

    def _press(self, key: str) -> None:
        if key == "i" and self.last >= 0:
            self.inside, self.scroll = not self.inside, None
        elif key in ("up", "down"):
            self.scroll = max((self.scroll or 0) + (1 if key == "down" else -1), 0)
        elif key.lower() in self.finders:
            target, is_wanted = self.finders[key.lower()]
            self._search(target, lambda i: is_wanted(self.trace.steps[i]), ahead=key.islower())

    @property
    def waits(self) -> bool:
        """Whether ``find`` must compute the inside of this step."""
        return (
            self.inside and not self.helping and not self.done and self.at not in self.inside_lines
        )

    def find(self) -> None:
        """Compute the inside of this step; if that fails, show the reason and hide the inside."""
        try:
            if self.look is None:
                raise InputError("the inside of a step needs the model")
            self.inside_lines[self.at] = self.look(self.at)
        except CutawayError as error:
            self.inside, self.message = False, str(error)

    def _go(self, index: int) -> None:
        super()._go(index)
        self.scroll = None

    def _end_survived(self, step: Step) -> bool:
        moment = self.moments[step.index]
        return moment is not None and moment.survived

    def _lines(self, columns: int, rows: int, style: Style) -> list[Line]:
        return _draw_inside(self, rows, style) if self.inside else _step(self, columns, rows, style)


def _draw_inside(player: StepPlayer, rows: int, style: Style) -> list[Line]:
    view = step_view(player.trace, player.trace.steps[player.at])
    lines = player.inside_lines.get(player.at, ["the model computes this step again …"])
    room = max(rows - 2, 1)
    player.scroll = min(player.scroll or 0, max(len(lines) - room, 0))
    seen = lines[player.scroll : player.scroll + room]
    shown_lines: list[Line] = [[(f" {style.text(line)}", PLAIN)] for line in seen]
    return [header(view, player.last), [], *shown_lines]


def _step(player: StepPlayer, columns: int, rows: int, style: Style) -> list[Line]:
    view = step_view(player.trace, player.trace.steps[player.at])
    strip = _strip(player, columns, max((rows - 12) // 5, 1), style)
    prompt = _prompt(player.trace, columns, style) if rows >= _ROWS_WITH_PROMPT else []
    top = [
        header(view, player.last), [], *prompt, *strip, [],
        *_sparks(player, columns, style),
    ]  # fmt: skip
    chain = stages(style, view)
    if rows < len(top) + len(chain) + 8:  # the candidates matter more
        chain = []
    room = max(rows - len(top) - len(chain) - 3, 1)
    if player.scroll is None:
        chosen_row = next(i for i, c in enumerate(view.candidates) if c.chosen)
        player.scroll = max(chosen_row - room + 1, 0)
    player.scroll = min(player.scroll, max(len(view.candidates) - room, 0))
    seen = view.candidates[player.scroll : player.scroll + room]
    rows_shown = [candidate(style, c, columns) for c in seen]
    return [*top, [], candidate_head(columns), *rows_shown, [], *chain]


# -- the text, and each token's surprise -------------------------------------------------------


def _prompt(trace: Trace, columns: int, style: Style) -> list[Line]:
    """The end of the prompt, in one row."""
    room = max(columns - 2, 1)
    text = style.text("".join(map(trace.name_of, trace.head.prompt_token_ids[-room:])))
    if width(text) > room:
        text = style.pick("…", "~") + clip(text[::-1], room - 1)[::-1]
    return [[(f" {text}", DIM)]]


def _strip(player: StepPlayer, columns: int, rows: int, style: Style) -> list[Line]:
    """Write the rows of text around the step; under each token is its surprise."""
    trace, widest = player.trace, max(columns - 2, 1)
    names = [clip(style.text(trace.name_of(s.token_id)) or "<>", widest) for s in trace.steps]
    lines_of = wrap_rows([width(name) + 1 for name in names], columns - 1)
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
    ranks = [observation_of(steps[i]).rank for i in seen]
    return [
        spark_row(f"bits {bits(now.logprob):.2f}", list(style.spark(b / 8 for b in surprise)), here,
                  [style.tint(b / 8) for b in surprise]),
        spark_row(f"end {percent(moment.probability if moment else None)}",
                  list(style.spark(height(m.probability) if m else None for m in ends)), here),
        spark_row(f"rank {ranks[here]}", [str(n) if n < 10 else "+" for n in ranks], here),
    ]  # fmt: skip


# -- one step of a trace in lines ------------------------------------------------------------------


_NAME = 18  # columns of a token's name in a line of its own
_TOKEN = 15  # columns of a token's name in the table
_WIDE = 80  # columns from which the table has logits and ranks
_REST = 65  # columns of a candidate's line beside its name and its bar, "->" for an arrow
_BAR = 16


def summary(style: Style, trace: Trace) -> str:
    """One line that describes the run."""
    head = trace.head
    parts = [head.model, f"seed {head.seed}", chain_label(head.chain)]
    if head.parent:
        token = head.parent.token_id
        token_name = "changes" if token is None else visible(style, trace.name_of(token))
        parts.append(f"fork at step {count_from_1(head.parent.step)} with {token_name}")
    if head.interventions:
        parts.append(f"changed: {'; '.join(map(str, head.interventions))}")
    parts.append(f"{len(trace.steps)} steps")
    if head.decoder:
        parts += _canvas(trace)
    return style.text(" · ".join(parts))


def _canvas(trace: Trace) -> list[str]:
    """The figures of a canvas."""
    figures = canvas_figures(trace)
    assert trace.head.decoder is not None
    tau = "" if figures.order is None else f", order {figures.order:+.2f} (1: left to right)"
    undone = f", {figures.edited} edited" * bool(figures.edited)
    undone += f", {figures.masked_again} masked again" * bool(figures.masked_again)
    return [
        rule_label(trace.head.decoder.rule),
        f"{figures.passes} passes of {figures.rows} rows, {figures.tokens_per_pass:.2f} tokens each"
        f"{tau}{undone}",
        f"bound {figures.bound_bits:.2f} bits",
    ]


def ending(style: Style, trace: Trace) -> str:
    """One line on the end of the record."""
    if trace.end is None:
        return "no end on record: the run was cut short, or is still going on"
    match = trace.end.matched
    by = trace.name_of(match) if isinstance(match, int) else repr(match)
    because = "" if match is None else f" {by}"
    error = f": {trace.end.error}" if trace.end.error else ""
    return style.text(f"ended: {trace.end.reason}{because}{error}")


def step_line(style: Style, trace: Trace, step: Step) -> str:
    """One step in one line."""
    moment, seen = end_token_status(trace, step), observation_of(step)
    shares = (
        percent(probability(step.logprob)),
        percent(final_probability(step, chosen_candidate(step))),
        percent(moment.probability if moment else None),
    )
    source = "thinking budget" if ends_thought(step) else step.source
    raw, after, end = (style.text(share) for share in shares)
    return (
        f"{count_from_1(step.index):>5}  {fit(visible(style, trace.name_of(step.token_id)), _NAME)}"
        f"  {raw:>8} {style.pick('→', '>')} {after:<8}  {bits(step.logprob):5.2f} bits"
        f"  rank {seen.rank:<5}  end {end:<9}  {source}"
    ).rstrip()


def header(view: StepView, last: int) -> Line:
    """The first line of a step: its place in the run, and its time."""
    kv = ""
    if view.kv_tokens is not None and view.kv_bytes is not None:
        kv = f" · kv {view.kv_tokens} · {megabytes(view.kv_bytes)}"
    figures = (
        f" · position {view.position}{kv}"
        f" · {sum(view.ms.values()):.1f} ms · {view.source} · entropy {view.entropy:.2f} bits"
    )
    return [(f" step {count_from_1(view.index)}/{count_from_1(last)}", BOLD), (figures, PLAIN)]


def candidate_head(cells: int) -> Line:
    """The header of the table of candidates."""
    bar, wide = _bar_cells(cells), cells >= _WIDE
    text = f"    {fit('token', _TOKEN)} {fit('', bar)}{'model':>8} → {'final':<8}"
    logit, rest = (f" {'logit':>7}", "  rank  removed by") if wide else ("", "")
    return [(f"{text}{logit}  {'luck':>5} {'score':>6}{rest}", DIM)]


def candidate(style: Style, view: CandidateView, cells: int) -> Line:
    """One candidate: its mark, bar, probabilities, luck and score, and whether it was removed.

    A wide line also has its logit and its rank, and names the stage that removed it.
    """
    wide = cells >= _WIDE
    look = BOLD if view.chosen else DIM if view.removed_by else PLAIN
    name = fit(visible(style, view.token), _TOKEN)
    final = percent(view.final_probability)
    logit, rest = "", ""
    if wide:
        logit, rest = f" {view.logit:>7.2f}", f"  {view.rank:<5}{_fate(view)}"
    luck = "" if view.luck is None else f"{view.luck:+.2f}"
    figures = f"{percent(view.probability):>8} → {final:<8}{logit}  {luck:>5} {_score(view):>6}"
    return [
        (f" {_mark(style, view)}  {name} ", look),
        (style.bar(view.probability, _bar_cells(cells)), PLAIN),
        (f"{figures}{rest}", look),
    ]


def _bar_cells(cells: int) -> int:
    return min(max(cells - _TOKEN - _REST, 0), _BAR)


def _score(view: CandidateView) -> str:
    """The score that the draw compares: the log-probability after the chain plus the luck."""
    if view.luck is None or not view.final_probability:
        return ""
    return f"{log(view.final_probability) + view.luck:.2f}"


def _mark(style: Style, view: CandidateView) -> str:
    if view.chosen:
        return style.pick("●", "*")
    return view.letter or (style.pick("○", "o") if view.drawn else " ")


def _fate(view: CandidateView) -> str:
    parts = [view.removed_by] if view.removed_by else []
    if view.drawn and not view.chosen:
        parts.append("drawn; another was given")
    if view.delta:
        parts.append(f"logit {view.delta:+.2f}")
    return f" {', '.join(parts)}" if parts else ""


def stages(style: Style, view: StepView) -> list[Line]:
    """The sampling chain: one line per stage, with what it removed; then a constraint's change."""
    label = max((len(stage.label) for stage in view.stages), default=0)
    lines: list[Line] = []
    for stage in view.stages:
        text = f" {stage.letter}  {stage.label:<{label}}  {stage.survivors} left"
        if stage.removed_mass or stage.top_removed:
            names = " ".join(visible(style, name) for name in stage.top_removed)
            text += f", −{percent(stage.removed_mass)}: {names}"
        lines.append([(text, PLAIN)])
    if view.bent:
        lines.append([(f"    {style.text(view.bent)}", BOLD)])
    return lines


def panel(style: Style, view: StepView, last: int, cells: int) -> list[Line]:
    """A whole step: its header, the candidates and the chain."""
    return [
        header(view, last),
        [],
        candidate_head(cells),
        *(candidate(style, c, cells) for c in view.candidates),
        [],
        *stages(style, view),
    ]
