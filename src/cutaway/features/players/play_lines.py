"""One step of a trace in lines: what ``cutaway trace play`` prints, and its screen is made of."""

from math import log

from cutaway.base.progress import megabytes
from cutaway.cli.terminal.drawing import BOLD, DIM, PLAIN, Line, Style, fit
from cutaway.cli.terminal.tokens import visible
from cutaway.engine.events import Step
from cutaway.trace import Trace, canvas_figures
from cutaway.trace.canvas import rule_label
from cutaway.trace.endings import end_token_status, ends_thought
from cutaway.trace.figures import bits, chain_label, percent, probability
from cutaway.trace.steps import observed
from cutaway.trace.views import CandidateView, StepView

_NAME = 18  # cells of a token's name in a line of its own
_TOKEN = 15  # and in the table
_WIDE = 80  # cells from which the table has logits and ranks
_REST = 65  # cells of a candidate's line beside its name and its bar, "->" for an arrow
_BAR = 16


def summary(style: Style, trace: Trace) -> str:
    """What run this is, in one line."""
    head = trace.head
    parts = [head.model, f"seed {head.seed}", chain_label(head.chain)]
    if head.parent:
        token = head.parent.token_id
        given = "changes" if token is None else visible(style, trace.name_of(token))
        parts.append(f"fork at step {head.parent.step} with {given}")
    if head.interventions:
        parts.append(f"changed: {'; '.join(map(str, head.interventions))}")
    parts.append(f"{len(trace.steps)} steps")
    if head.decoder:
        parts += _canvas(trace)
    return style.text(" · ".join(parts))


def _canvas(trace: Trace) -> list[str]:
    """The figures of a canvas."""
    of = canvas_figures(trace)
    assert trace.head.decoder is not None
    tau = "" if of.order is None else f", order {of.order:+.2f} (1: left to right)"
    undone = f", {of.edited} edited" * bool(of.edited)
    undone += f", {of.masked_again} masked again" * bool(of.masked_again)
    return [
        rule_label(trace.head.decoder.rule),
        f"{of.passes} passes of {of.rows} rows, {of.tokens_per_pass:.2f} tokens each{tau}{undone}",
        f"bound {of.bound_bits:.2f} bits",
    ]


def ending(style: Style, trace: Trace) -> str:
    """How the record ends, in one line."""
    if trace.end is None:
        return "no end on record: the run was cut short, or is still going on"
    matched = trace.end.matched
    by = trace.name_of(matched) if isinstance(matched, int) else repr(matched)
    because = "" if matched is None else f" {by}"
    error = f": {trace.end.error}" if trace.end.error else ""
    return style.text(f"ended: {trace.end.reason}{because}{error}")


def step_line(style: Style, trace: Trace, step: Step) -> str:
    """One step in one line."""
    moment, seen = end_token_status(trace, step), observed(step)
    final = seen.final_logprob
    shares = (
        percent(probability(step.logprob)),
        percent(None if final is None else probability(final)),
        percent(moment.probability if moment else None),
    )
    source = "thinking budget" if ends_thought(step) else step.source
    raw, after, end = (style.text(share) for share in shares)
    return (
        f"{step.index:>5}  {fit(visible(style, trace.name_of(step.token_id)), _NAME)}"
        f"  {raw:>8} {style.pick('→', '>')} {after:<8}  {bits(step.logprob):5.2f} bits"
        f"  rank {seen.rank:<5}  end {end:<9}  {source}"
    ).rstrip()


def header(view: StepView, last: int) -> Line:
    """Where and when: the first line of a step."""
    kv = ""
    if view.kv_tokens is not None and view.kv_bytes is not None:
        kv = f" · kv {view.kv_tokens} · {megabytes(view.kv_bytes)}"
    figures = (
        f" · position {view.position}{kv}"
        f" · {sum(view.ms.values()):.1f} ms · {view.source} · entropy {view.entropy:.2f} bits"
    )
    return [(f" step {view.index}/{last}", BOLD), (figures, PLAIN)]


def columns(cells: int) -> Line:
    """The header of the table of candidates."""
    bar, wide = _bar_cells(cells), cells >= _WIDE
    text = f"    {fit('token', _TOKEN)} {fit('', bar)}{'model':>8} → {'final':<8}"
    logit, rest = (f" {'logit':>7}", "  rank  removed by") if wide else ("", "")
    return [(f"{text}{logit}  {'luck':>5} {'score':>6}{rest}", DIM)]


def candidate(style: Style, view: CandidateView, cells: int) -> Line:
    """One candidate: its mark, bar, probabilities, luck, score, and what became of it.

    With its logit, its rank and what removed it in words, where there are cells for them.
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
    """What the draw compares: the log-probability after the chain plus the luck."""
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
    """The sampling chain: one line per stage, with what it removed; what was wanted instead."""
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
        columns(cells),
        *(candidate(style, c, cells) for c in view.candidates),
        [],
        *stages(style, view),
    ]
