"""Repair: whether a rule takes a wrong token back, and what else the token changes.

A wrong token is forced into a cell in the pass that reveals the cell, and the canvas continues with
the same luck. The autoregressive loop, which takes nothing back, is one of the rules: it reveals
one cell per block, from the left.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, islice
from typing import Any

import numpy as np

from cutaway.api.llm import LLM
from cutaway.base.checks import check_int
from cutaway.base.progress import Progress, silent
from cutaway.engine.canvas import ForcedCell, Rule, rule_of_text
from cutaway.engine.request import randbits
from cutaway.errors import CutawayError, InputError
from cutaway.requests.base import usual_rule
from cutaway.requests.completion import Completion
from cutaway.rerun.request import UNSTOPPED
from cutaway.rerun.statistics import Estimate, estimate, rate
from cutaway.sampling import derive_seed
from cutaway.trace.canvas import standing

LOOP = "left,block=1"
_ERRORS = 8
_MEANS = ("gone", "own_gone", "restored", "differ", "later")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong token, and how its canvas ends.

    seed        the seed of the run
    cell        the cell, from 0, into which the token was forced in pass ``passed``
    token_id    the wrong token; ``instead_of``: the token revealed without the mistake
    gone        whether the cell ends with another token than ``token_id``
    own_gone    whether, without the mistake, the cell ends with another token than ``instead_of``
    restored    whether the cell ends with the same token as without the mistake
    differ      number of other cells that end with another token than without the mistake
    later       as ``differ``, but only among the ``of_later`` cells that were still masked after
                the pass
    """

    seed: int
    cell: int
    passed: int
    token_id: int
    instead_of: int
    gone: bool
    own_gone: bool
    restored: bool
    differ: int
    later: int
    of_later: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """The mistakes under one rule, and rates over them."""

    rule: str
    mistakes: tuple[Mistake, ...]

    @property
    def gone(self) -> Estimate:
        """How often the wrong token is gone at the end: the repair rate."""
        return self._rate("gone")

    @property
    def own_gone(self) -> Estimate:
        """How often the cell's own token is gone without the mistake: the baseline of ``gone``."""
        return self._rate("own_gone")

    @property
    def restored(self) -> Estimate:
        """How often the cell ends as it does without the mistake."""
        return self._rate("restored")

    @property
    def differ(self) -> Estimate:
        """The mean number of other cells that end with another token."""
        return estimate(np.array([float(mistake.differ) for mistake in self.mistakes]))

    @property
    def later(self) -> Estimate | None:
        """The share of the cells still masked after the mistake that end with another token.

        None if no cell was still masked.
        """
        shares = [mistake.later / mistake.of_later for mistake in self.mistakes if mistake.of_later]
        return estimate(np.array(shares)) if shares else None

    def _rate(self, name: str) -> Estimate:
        return rate(sum(getattr(mistake, name) for mistake in self.mistakes), len(self.mistakes))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        means = {name: getattr(self, name) for name in _MEANS}
        return {
            "rule": self.rule,
            **{name: mean and asdict(mean) for name, mean in means.items()},
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
        }


def usual_repairs(llm: LLM, cells: int) -> tuple[str, ...]:
    """Rules that take no token back, and rules that do; for a causal model, only the loop."""
    if llm.config.is_causal:
        return (LOOP,)
    if usual := usual_rule(llm.config):
        return (usual["rule"],)
    steps = min(cells, 10)
    return (
        "confidence", f"confidence,steps={steps}", f"mask-predict,steps={steps}",
        f"remdm,steps={cells}", "edit",
    )  # fmt: skip


def repair(
    llm: LLM,
    prompt: str | Sequence[int],
    *,
    rules: Sequence[str] | None = None,
    errors: int | None = None,
    seeds: int = 4,
    max_tokens: int = 32,
    progress: Progress = silent,
    **options: Any,
) -> tuple[Repaired, ...]:
    """Make mistakes in canvases after a prompt, one in each, and measure which ones a rule repairs.

    rules       as ``rule_of_text`` reads them; None: ``usual_repairs``
    errors      mistakes for each run, in evenly spread cells; None: 8, or one per cell if the
                canvas has fewer cells
    seeds       number of runs without a mistake, whose seeds are the same for all rules
    max_tokens  cells of the canvas; no stop condition ends it
    progress    called with ("writing", canvases done, canvases in all)
    options     of LLM.denoise, such as temperature and seed

    Raises InputError for a value out of range, or a rule that the model cannot follow.
    """
    if own_options := [name for name in ("denoise", "n", "trace") if name in options]:
        raise InputError(
            own_options[0], ": rules and seeds say which canvases there are: leave it out"
        )
    cells = check_int("max_tokens", max_tokens, 2)
    errors = min(_ERRORS, cells) if errors is None else check_int("errors", errors, 1, cells)
    seeds = check_int("seeds", seeds, 1, 64)
    rule_names = usual_repairs(llm, cells) if rules is None else rules
    if not rule_names:
        raise InputError("rules", " must name at least one: leave it out for the usual ones")
    usual = usual_rule(llm.config)
    planned = [(name, rule_of_text(name, usual)) for name in rule_names]
    ids = llm.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
    options |= {"max_tokens": cells, **UNSTOPPED}
    llm.parse_options(options)
    seed = randbits(32) if options.get("seed") is None else options["seed"]
    total = len(planned) * seeds * (1 + errors)
    runs = [
        (rule, options | {"seed": derive_seed(seed, n)})
        for _, rule in planned
        for n in range(seeds)
    ]
    done = count(1)
    run_mistakes = iter(
        _mistakes(llm, ids, runs, errors, lambda: progress("writing", next(done), total))
    )
    progress("writing", total, total)
    return tuple(_sum_up(name, islice(run_mistakes, seeds)) for name, _ in planned)


def _sum_up(rule: str, runs: Iterable[list[Mistake]]) -> Repaired:
    mistakes = tuple(chain.from_iterable(runs))
    if not mistakes:
        raise InputError("rule", f" {rule!r}: no cell has a likely token that is wrong: add seeds")
    return Repaired(rule, mistakes)


_Run = tuple[Rule, Mapping[str, Any]]
"""A canvas to generate: its rule, and its other options."""


def _mistakes(
    llm: LLM, ids: list[int], runs: Sequence[_Run], errors: int, one_done: Callable[[], object]
) -> list[list[Mistake]]:
    """Make the mistakes of each run: ``errors`` of them, or as many as are possible."""
    plain = _all(llm, ids, runs, one_done)
    wrong = [_spread(_possible(done), errors) for done in plain]
    forks = [
        (replace(rule, forced_cells=(cell,)), options)
        for (rule, options), cells in zip(runs, wrong, strict=True)
        for cell in cells
    ]
    forked = iter(_all(llm, ids, forks, one_done))
    return [
        [_mistake(done, cell, next(forked)) for cell in cells]
        for done, cells in zip(plain, wrong, strict=True)
    ]


def _all(
    llm: LLM, ids: list[int], runs: Sequence[_Run], one_done: Callable[[], object]
) -> list[Completion]:
    """Generate all canvases in one batch, in the order of the runs."""
    completions: dict[int, Completion] = {}
    requests = ((ids, {**options, "denoise": rule}) for rule, options in runs)
    with closing(llm.generate_each(requests)) as results:
        for index, done in results:
            if isinstance(done, CutawayError):
                raise done
            assert isinstance(done, Completion)  # since n is 1
            completions[index] = done
            one_done()
    return [completions[index] for index in range(len(runs))]


def _possible(done: Completion) -> list[ForcedCell]:
    """Find each cell's likeliest wrong token in the pass that revealed the cell, in order.

    A wrong token is neither the revealed token nor the cell's last token. Cells without another
    recorded token are left out.
    """
    first, mistakes, seen = len(done.prompt_token_ids), dict[int, ForcedCell](), set[int]()
    for run_pass in done.passes:
        for revealed in run_pass.revealed:
            cell = revealed.position - first
            right = (revealed.token_id, done.token_ids[cell])
            wrong = [token_id for token_id, _ in revealed.likely if token_id not in right]
            if wrong and cell not in seen:
                mistakes[cell] = ForcedCell(run_pass.index, cell, wrong[0])
            seen.add(cell)
    return [mistakes[cell] for cell in sorted(mistakes)]


def _spread(cells: list[ForcedCell], errors: int) -> list[ForcedCell]:
    """Take ``errors`` cells, evenly spread; all cells if there are fewer."""
    errors = min(errors, len(cells))
    return [cells[len(cells) * i // errors] for i in range(errors)]


def _mistake(plain: Completion, wrong: ForcedCell, fork: Completion) -> Mistake:
    first, pass_index, cell = len(plain.prompt_token_ids), wrong.pass_index, wrong.cell
    token_ids = {c.position - first: c.token_id for c in plain.passes[pass_index].revealed}
    pairs = zip(plain.token_ids, fork.token_ids, strict=True)
    differing = {i for i, (a, b) in enumerate(pairs) if a != b} - {cell}
    stands = standing(plain.passes[: pass_index + 1])[-1]
    masked = {i for i in range(len(plain.token_ids)) if first + i not in stands}
    plain_token, now = plain.token_ids[cell], fork.token_ids[cell]
    return Mistake(
        plain.seed, cell, pass_index, wrong.token_id, token_ids[cell], now != wrong.token_id,
        plain_token != token_ids[cell], now == plain_token, len(differing), len(differing & masked),
        len(masked),
    )  # fmt: skip
