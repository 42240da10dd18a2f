"""Compare two traces: where they diverge, which runs they share after that, what each text costs.

Knows only the files; ``cutaway.rerun`` computes the cost of a text under another model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import SequenceMatcher
from typing import Any

from cutaway.base.arithmetic import plainly
from cutaway.engine.events import Pass, PassCell, Step
from cutaway.trace.figures import bits, probability
from cutaway.trace.read import Trace
from cutaway.trace.record import Head
from cutaway.trace.steps import observation_of

SHORTEST_RUN = 8
"""The minimum length of a common run: texts on one subject share shorter ones by chance."""


@dataclass(frozen=True, slots=True)
class Change:
    """A field of the heads, or a setting, that differs; None: missing in that trace."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, slots=True)
class Continuation:
    """The next token of one text, and its probability under the logits of run a and of run b.

    A probability is None if the run did not record the token.
    """

    token_id: int
    token: str
    under_a: float | None
    under_b: float | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step whose tokens differ. a, b: None if that text has ended."""

    index: int
    a: Continuation | None
    b: Continuation | None


@dataclass(frozen=True, slots=True)
class PassDivergence:
    """The first pass that differs between two canvases.

    cell          the first cell that differs, from 0; None if one canvas had ended, or only the
                  luck or the cells that were masked again differ
    same_logits   whether the cell's rows are equal, bit for bit; None if one pass lacks the cell
    a, b          names of the cell's tokens after the pass; None: masked
    """

    index: int
    cell: int | None
    same_logits: bool | None = None
    a: str | None = None
    b: str | None = None


@dataclass(frozen=True, slots=True)
class CommonRun:
    """``length`` equal tokens, from step ``a`` of one text and step ``b`` of the other."""

    a: int
    b: int
    length: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Length and total surprise of a stretch of text, under the model that wrote it."""

    tokens: int
    bits: float

    @property
    def per_token(self) -> float | None:
        """Bits per token; None if there are no tokens."""
        return self.bits / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class TraceDiff:
    """The common parts and the differences of two traces.

    changes            the fields and settings that differ, by name
    same_prompt        whether the prompts are equal, token by token
    is_fork            whether trace b names trace a as its parent
    common             number of equal tokens from the beginning
    logits_differ_at   the first step, up to the divergence, whose logits are not equal bit for
                       bit; None if all are equal
    divergence         None if the texts are equal
    common_runs        runs of ``SHORTEST_RUN`` tokens or more that are equal after the
                       divergence, in the order of both texts
    passes             the first passes that differ; None if all are equal, or a trace has none
    a, b               the cost of each whole text
    a_after, b_after   the cost of each text from the divergence on
    """

    changes: tuple[Change, ...]
    same_prompt: bool
    is_fork: bool
    common: int
    logits_differ_at: int | None
    divergence: Divergence | None
    common_runs: tuple[CommonRun, ...]
    a: Cost
    b: Cost
    a_after: Cost
    b_after: Cost
    passes: PassDivergence | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        plain = asdict(self)
        return plain if self.passes else {k: v for k, v in plain.items() if k != "passes"}


@plainly
def diff_texts(a: Trace, b: Trace) -> TraceDiff:
    """Compare two traces, step by step."""
    common = common_prefix(a.output_token_ids, b.output_token_ids)
    return TraceDiff(
        changes=tuple(_changes(a.head, b.head)),
        same_prompt=a.head.prompt_token_ids == b.head.prompt_token_ids,
        is_fork=b.head.parent is not None and b.head.parent.trace == a.sha256,
        common=common,
        logits_differ_at=_logits_differ_at(a, b, common),
        divergence=_divergence(a, b, common),
        common_runs=tuple(_common_runs(a.output_token_ids, b.output_token_ids, common)),
        a=_cost(a.steps),
        b=_cost(b.steps),
        a_after=_cost(a.steps[common:]),
        b_after=_cost(b.steps[common:]),
        passes=_pass_divergence(a, b),
    )


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix, in tokens."""
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def _changes(a: Head, b: Head) -> Iterator[Change]:
    left, right = _flat(a), _flat(b)
    for name in left | right:
        if left.get(name) != right.get(name):
            yield Change(name, left.get(name), right.get(name))


def _flat(head: Head) -> dict[str, Any]:
    """Map the names of fields and settings to values. A name in both has one value."""
    # A grammar's text is among the settings, under the name of its kind. Sizes follow from the
    # weights, and older files lack them.
    apart = ("params", "grammar", "interventions", "decoder", "sizes")
    values = {f.name: getattr(head, f.name) for f in fields(head) if f.name not in apart}
    values |= {"grammar engine": head.grammar.engine} if head.grammar else {}
    if head.interventions:
        values["interventions"] = "; ".join(map(str, head.interventions))
    if head.decoder:
        values |= {f"canvas: {name}": value for name, value in head.decoder.rule.to_json().items()}
    return values | {name: value for name, value in head.params.items() if name not in values}


def _logits_differ_at(a: Trace, b: Trace, common: int) -> int | None:
    """Return the first step whose logits differ; None if there is none.

    The divergence is the last step that is compared.
    """
    pairs = zip(a.steps[: common + 1], b.steps[: common + 1], strict=False)
    return next((x.index for x, y in pairs if x.logits_hash != y.logits_hash), None)


def _divergence(a: Trace, b: Trace, index: int) -> Divergence | None:
    steps = [t.steps[index] if index < len(t.steps) else None for t in (a, b)]
    if steps == [None, None]:
        return None
    pairs = zip((a, b), steps, strict=True)
    return Divergence(index, *(_continuation(t, s, *steps) if s else None for t, s in pairs))


def _continuation(trace: Trace, step: Step, in_a: Step | None, in_b: Step | None) -> Continuation:
    token_id = step.token_id
    name, under_a, under_b = trace.name_of(token_id), *(_share(s, token_id) for s in (in_a, in_b))
    return Continuation(token_id, name, under_a, under_b)


def _share(step: Step | None, token_id: int) -> float | None:
    if step is None:
        return None
    seen = observation_of(step)
    candidate = next((c for c in seen.candidates if c.id == token_id), None)
    return probability(candidate.logit - seen.log_sum_exp) if candidate else None


def _common_runs(a: Sequence[int], b: Sequence[int], start: int) -> Iterator[CommonRun]:
    matcher = SequenceMatcher(None, a[start:], b[start:], autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.size >= SHORTEST_RUN:
            yield CommonRun(start + block.a, start + block.b, block.size)


def _pass_divergence(a: Trace, b: Trace) -> PassDivergence | None:
    if not (a.head.decoder and b.head.decoder):
        return None
    for old, new in zip(a.passes, b.passes, strict=False):
        if _as_made(old) != _as_made(new):
            return _cell_divergence(a, b, old, new)
    shorter = min(len(a.passes), len(b.passes))
    return None if len(a.passes) == len(b.passes) else PassDivergence(shorter, None)


def _as_made(canvas_pass: Pass) -> tuple[Any, ...]:
    """Return the parts of a pass that the request determines."""
    return canvas_pass.block, canvas_pass.cells, canvas_pass.masked_again, canvas_pass.redraw


def _cell_divergence(a: Trace, b: Trace, old: Pass, new: Pass) -> PassDivergence:
    cells: tuple[dict[int, PassCell], ...] = tuple(
        {cell.position: cell for cell in canvas_pass.cells} for canvas_pass in (old, new)
    )
    for position in sorted(cells[0] | cells[1]):
        first_cell, second_cell = (of.get(position) for of in cells)
        if first_cell != second_cell:
            names = (
                None if cell is None or cell.now is None else trace.name_of(cell.now)
                for trace, cell in ((a, first_cell), (b, second_cell))
            )
            same = (
                first_cell.logits_hash == second_cell.logits_hash
                if first_cell and second_cell
                else None
            )
            first = len(a.head.prompt_token_ids)
            return PassDivergence(old.index, position - first, same, *names)
    return PassDivergence(old.index, None)


def _cost(steps: Sequence[Step]) -> Cost:
    return Cost(len(steps), sum(bits(step.logprob) for step in steps))
