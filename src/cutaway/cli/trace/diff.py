"""``cutaway trace diff``: two recorded runs, compared from their files.

Knows also the table of curves after a mistake, which ``cutaway snowball`` prints, too.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cutaway.base.counting import count_from_1
from cutaway.cli.options import arguments
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import Style, clip, print_report, table
from cutaway.trace import Change, CommonRun, Continuation, Cost, Trace, TraceDiff, diff_texts
from cutaway.trace.differences import SHORTEST_RUN
from cutaway.trace.figures import chain_label, percent

if TYPE_CHECKING:
    from cutaway.rerun import Curve, Fork


_BAR = 16  # cells of the longest bar

EXPLAINED = """
  after    tokens since the mistake
  forced   KL divergence in bits between the distributions of the next token, with the
           mistake and without it, where the original's tokens follow it (teacher forcing)
  cost     how many bits more the original's token costs after the mistake
  free     the same KL divergence, where the text goes on with its own tokens
""".strip("\n")
PARTED_NOTE = "  parted   share of the texts whose token here is not the original's"


def curve_table(
    style: Style, forced: "Curve", cost: "Curve", free: "Curve", divergence: "Curve | None" = None
) -> list[str]:
    """Return a table of the curves' means by distance, and its legend; lengths may differ."""
    from cutaway.rerun import bands, span

    parts = bands(max(len(forced), len(free)))
    columns = [
        _bars(style, forced, free, parts),
        [f"{part.mean():+6.2f}" if len(part) else "     -" for part in (cost[p] for p in parts)],
        _bars(style, free, forced, parts),
    ]
    head, notes = ["after", "forced", "  cost", "free"], ["", *EXPLAINED.splitlines()]
    if divergence is not None:
        head.append("parted")
        columns.append([f"{divergence[part].mean():6.0%}" for part in parts])
        notes.append(PARTED_NOTE)
    return [*table([head, *zip(map(span, parts), *columns, strict=True)]), *notes]


def _bars(style: Style, curve: "Curve", other: "Curve", parts: list[slice]) -> list[str]:
    """Return the bars of ``curve``, on the scale of the larger curve."""
    heights = [
        either[part].mean() for either in (curve, other) for part in parts if len(either[part])
    ]
    high = max(heights, default=0.0) or 1.0
    means = [curve[part].mean() if len(curve[part]) else None for part in parts]
    return ["    -" if m is None else f"{m:5.2f} {style.bar(m / high, _BAR)}" for m in means]


# -- the command -----------------------------------------------------------------------------------


EPILOG = f"""
examples:
  cutaway trace diff run.jsonl fork.jsonl
  cutaway trace diff run.jsonl other.jsonl --json
  cutaway trace diff run.jsonl fork.jsonl -m smollm2

The files are enough: bits are the surprise of each text under its own model. With -m, that model
measures what follows the first token in which B differs (the mistake; A is the original):
{EXPLAINED}
"""

_VALUE = 40  # cells of a setting's value
_TEXT = 50  # cells of a common run of tokens


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway trace diff``."""
    parser.add_argument("a", metavar="A", help="a trace")
    parser.add_argument("b", metavar="B", help="another trace, or a branch of A")
    arguments.add_model_arguments(parser)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Compare and print."""
    a, b = Trace.read(args.a), Trace.read(args.b)
    diff, fork = diff_texts(a, b), _measure(args, a, b) if hasattr(args, "model") else None
    curves = []
    if fork and len(fork.forced):
        style = Style.from_stream(sys.stdout)
        curves = ["", *curve_table(style, fork.forced, fork.cost, fork.free)]
    print_report(
        args, lambda: diff.to_dict() | ({"fork": fork.to_dict()} if fork else {}),
        lambda: [*_lines(a, b, diff), *curves],
    )  # fmt: skip
    return 0


def _measure(args: Namespace, a: Trace, b: Trace) -> "Fork | None":
    """Measure B as a fork of A with the model of -m; None if one text is the other's beginning."""
    llm = console.load(args)
    from cutaway import rerun

    return rerun.diff_models(llm, a, b)


def _lines(a: Trace, b: Trace, diff: TraceDiff) -> Iterator[str]:
    yield f"A  {a.path}: {_cost(diff.a)}"
    yield f"B  {b.path}: {_cost(diff.b)}{', a fork of A' if diff.is_fork else ''}"
    yield from ("", "What differs in the settings:" if diff.changes else "The settings are equal.")
    yield from (_change(c) for c in diff.changes if not (c.name == "parent" and diff.is_fork))
    yield from ("", _common(diff, _cause(a, b, diff)))
    yield from _passes(a, b, diff)
    if diff.divergence is None:
        return
    yield f"They part at step {count_from_1(diff.divergence.index)}:"
    yield from (_continuation("A", diff.divergence.a), _continuation("B", diff.divergence.b))
    yield f"From there on, A is {_cost(diff.a_after)}, B is {_cost(diff.b_after)}."
    yield from _common_runs(a, diff.common_runs)


def _cost(cost: Cost) -> str:
    per_token = "" if cost.per_token is None else f", {cost.per_token:.2f} bits each"
    return f"{cost.tokens} token{'s' * (cost.tokens != 1)}{per_token}"


def _change(change: Change) -> str:
    to_text = chain_label if change.name == "chain" else str
    a, b = (clip(to_text(value), _VALUE) for value in (change.a, change.b))
    return f"  {change.name:<20} {a:<{_VALUE}}  {b}".rstrip()


def _cause(a: Trace, b: Trace, diff: TraceDiff) -> str:
    """Return a clause on B's new interventions, or "".

    The clause is there if the logits first differ at the step where these interventions begin.
    """
    new = [
        intervention
        for intervention in b.head.interventions
        if intervention not in a.head.interventions
    ]
    if not new or diff.logits_differ_at != min(intervention.from_step or 0 for intervention in new):
        return ""
    return f", where B is changed inside: {'; '.join(map(str, new))}"


def _common(diff: TraceDiff, cause: str) -> str:
    prompts = "The prompts are equal" if diff.same_prompt else "The prompts differ"
    at = diff.logits_differ_at
    logits = "the logits up to there are equal, bit for bit"
    if at is not None:
        logits = f"the logits differ from step {count_from_1(at)} on{cause}"
    return f"{prompts}. {_equal(diff)}; {logits}."


def _passes(a: Trace, b: Trace, diff: TraceDiff) -> Iterator[str]:
    """Yield lines on the first pass at which two canvases differ, if both are canvases."""
    if not (a.passes and b.passes):
        return
    if (difference := diff.passes) is None:
        yield f"All {len(a.passes)} passes are equal."
        return
    at, number = difference.index, count_from_1(difference.index)
    yield f"The first {at} passes are equal." if at else "No pass is equal."
    if difference.cell is None:
        yield f"One canvas has ended before pass {number}, or luck or masking differs in it."
        return
    logits = "the logits are equal" if difference.same_logits else "the logits differ"
    if difference.same_logits is None:
        logits = "one of them did not look at it"
    a_has, b_has = (
        "the mask" if token is None else f"'{token}'" for token in (difference.a, difference.b)
    )
    after = f"A has {a_has} and B has {b_has} there"
    cell = f"pass {number} cell {count_from_1(difference.cell)}"
    yield f"In {cell} is the first that differs: {after}; {logits}."


def _equal(diff: TraceDiff) -> str:
    if diff.common < 2:
        return "The first token is equal" if diff.common else "No token is equal"
    return f"{'The first' if diff.divergence else 'All'} {diff.common} tokens are equal"


def _continuation(name: str, to: Continuation | None) -> str:
    if to is None:
        return f"  {name} has ended"
    shares = f"{percent(to.under_a)} in A, {percent(to.under_b)} in B"
    return f"  {name} continues with '{to.token}': {shares}"


def _common_runs(a: Trace, runs: tuple[CommonRun, ...]) -> Iterator[str]:
    if not runs:
        yield f"They never again share {SHORTEST_RUN} tokens in a row."
        return
    yield "They meet again at step"
    for run in runs:
        steps = a.steps[run.a : run.a + run.length]
        text = clip("".join(a.name_of(step.token_id) for step in steps), _TEXT)
        yield f"  A {count_from_1(run.a)}, B {count_from_1(run.b)}: {run.length} tokens, '{text}'"
