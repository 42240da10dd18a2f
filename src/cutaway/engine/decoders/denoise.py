"""The decoder of masked diffusion: a pass reveals cells of a canvas in any order, by a rule.

A diffusion step is a pass: it computes the rows of the canvas and of what is before it, as far as
they can change; each masked cell of the current block is drawn, and the rule (canvas/) says which
draws stay. A finished block's tokens become steps, from left to right. With blocks of one cell,
left to right, on a causal model, this is the autoregressive loop, bit for bit.

The figures of the cells that a pass looked at (confidences for the rule, each cell's record) are
what the sampler noted of their rows.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cutaway.base.arithmetic import plainly
from cutaway.engine.canvas import Canvas, Figures, Revealed, Rule, make_canvas
from cutaway.engine.events import Event, Pass, PassCell, Phases
from cutaway.engine.limits import last_seen, shares_blocks
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError, Name
from cutaway.sampling import Observe, RowDraw, Sampled
from cutaway.sampling.chain import run_stages
from cutaway.sampling.definitions import Context, LogitsRow
from cutaway.sampling.fixed_math import entropy, exp
from cutaway.sampling.observe import START, chain_hash

if TYPE_CHECKING:
    from cutaway.engine.decoders import Computed
    from cutaway.engine.limits import Limits
    from cutaway.engine.request import Request
    from cutaway.engine.sequence import Sequence


# -- the decoder -----------------------------------------------------------------------------------

_BLOCKS = {"causal": 1, "bidirectional": None}


@dataclass
class Passes:
    """The passes over one text: its cells, once begun, and the fingerprint of all rows seen."""

    canvas: Canvas | None = None
    fingerprint: int = START


@dataclass(frozen=True)
class Denoise:
    """Writes a canvas of ``max_tokens`` cells after the prompt.

    mask_id  what a masked cell is computed as, and what is never drawn; None where attention is
             causal
    suffix_ids  tokens after the canvas
    """

    rule: Rule
    mask_id: int | None = None
    suffix_ids: tuple[int, ...] = ()

    drafts = hidden = False
    goes_back = True

    def begin(self) -> Passes:
        """None yet."""
        return Passes()

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that are never drawn."""
        return () if self.mask_id is None else (self.mask_id,)

    # -- which rows ------------------------------------------------------------------------------

    def longest(self, request: "Request", limits: "Limits") -> int:
        """Prompt, canvas and suffix."""
        _check_plain(request)
        prompt, cells = len(request.prompt_token_ids), request.stopping.max_tokens
        total = prompt + cells + len(self.suffix_ids)
        limits.check_ids("prompt", request.prompt_token_ids)
        limits.check_ids("suffix", self.suffix_ids)
        limits.check_ids("forced_cells", [one.token_id for one in self.rule.forced_cells])
        limits.check_canvas(total, prompt, self.rule.block, self.mask_id)
        if self.suffix_ids and limits.attention != "bidirectional":
            raise InputError(
                "suffix", ": this model does not attend to what follows a canvas: leave it out"
            )
        if self.rule.cache != "exact" and limits.attention != "bidirectional":
            raise InputError(
                "cache",
                ": what is before a block of this model does not change, and is kept exactly: "
                "leave it out",
            )
        if any(not 0 <= one.cell < cells or one.passed < 0 for one in self.rule.forced_cells):
            raise InputError(
                "forced_cells", f": cells are counted from 0 to {cells - 1}, and passes from 0"
            )
        return total

    def shares(self, sequence: "Sequence") -> bool:
        """Whether keys and values of a KV block depend on no token after it."""
        return shares_blocks(sequence.vocabulary.limits.attention)

    def positions(self, sequence: "Sequence") -> int:
        """To the end of what is computed."""
        return self._end(sequence, self._canvas(sequence))

    def reusable(self, sequence: "Sequence") -> int:
        """Whole blocks of the model before the first masked cell; none if bidirectional."""
        block = _model_block(sequence)
        if block is None or not self.shares(sequence):
            return 0
        return max(len(sequence) - _shift(sequence), 0) // block * block

    def is_decoding(self, sequence: "Sequence") -> bool:
        """Whether a block alone is to be computed."""
        block = _model_block(sequence)
        return block is not None and self.positions(sequence) - sequence.num_computed_tokens <= max(
            2 * block, 1
        )

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:  # noqa: ARG002
        """All from the first that can have changed; without room for them, some of the prompt."""
        canvas, block = self._canvas(sequence), _model_block(sequence)
        start, end = self._stale(sequence, canvas)
        if end - start > room:
            known = min(start + room, len(sequence) - _shift(sequence))
            end = start if block is None else max(known // block * block, start)
            part = sequence.tokens(start, end)
            return Scheduled(sequence, start, part, len(part), limits=_limits(sequence, start, end))
        is_lost, mask = self._is_lost(sequence, canvas), self.mask_id or 0
        cells = [mask] * len(canvas.cells) if is_lost else canvas.token_ids(mask)
        unwritten = cells[len(sequence.output_token_ids) :]
        tokens = [*sequence.tokens(start, len(sequence)), *unwritten, *self.suffix_ids]
        shift = _shift(sequence) + start - canvas.first
        wanted = [] if is_lost else [cell - shift for cell in canvas.asked]
        limits = _limits(sequence, start, end, self._end(sequence, canvas))
        return Scheduled(sequence, start, tokens[: end - start], end - start, wanted, limits)

    def _stale(self, sequence: "Sequence", canvas: Canvas) -> tuple[int, int]:
        """Which rows to compute: those that can have changed, or as the rule's cache says."""
        end = self._end(sequence, canvas)
        if self.rule.cache == "exact" or not sequence.num_computed_tokens:
            return sequence.num_computed_tokens, end
        first, last = canvas.span
        if self.rule.cache == "dual":
            end = canvas.first + last
        return max(canvas.first + first - _shift(sequence), 0), end

    def _is_lost(self, sequence: "Sequence", canvas: Canvas) -> bool:
        """Whether the keys and values of the block's first pass are gone (preemption)."""
        kept = self.rule.cache != "exact" and canvas.step > 0
        return kept and not sequence.num_computed_tokens

    def _canvas(self, sequence: "Sequence") -> Canvas:
        passes: Passes = sequence.decoding
        if passes.canvas is None:
            block, length = _model_block(sequence), sequence.request.stopping.max_tokens
            sees_ahead = block if block and block > 1 else None
            first = len(sequence.prompt_token_ids)
            passes.canvas = make_canvas(self.rule, first, length, sees_ahead)
        return passes.canvas

    def _end(self, sequence: "Sequence", canvas: Canvas) -> int:
        """The end of the rows that are computed: of all, or of those up to the current block."""
        block = _model_block(sequence)
        if block is None:
            return canvas.first + len(canvas.cells) + len(self.suffix_ids)
        end = canvas.first + (len(canvas.cells) if canvas.is_full else canvas.span[1])
        return end - (block == 1)  # a causal model's last row predicts the token after it

    # -- what is drawn ---------------------------------------------------------------------------

    def draws(self, scheduled: Scheduled) -> list[RowDraw]:
        """One for each cell that this pass looks at."""
        sequence, redraw = scheduled.sequence, self._redraw(scheduled.sequence)
        if not scheduled.logit_rows:
            return []
        canvas, [mask] = self._canvas(sequence), sequence.masks([])
        known = [cell.drawn.token_id for cell in canvas.cells if cell.drawn]
        history = sequence.history(known[len(sequence.output_token_ids) :])
        observe = self._observe(sequence)
        return [
            RowDraw(
                sequence.chain, history, sequence.seed, canvas.first + cell, observe,
                canvas.forced.get(cell), mask, redraw,
            )
            for cell in canvas.asked
        ]  # fmt: skip

    def _redraw(self, sequence: "Sequence") -> int:
        return self._canvas(sequence).index if self.rule.noise == "fresh" else 0

    def _observe(self, sequence: "Sequence") -> Observe:
        own = sequence.observe or Observe()
        top = max(own.top, CANDIDATES)
        return replace(own, top=top, after_chain=own.after_chain or self.rule.after_chain)

    # -- what becomes of it ----------------------------------------------------------------------

    @plainly
    def commit(self, scheduled: Scheduled, computed: "Computed") -> list[Event]:
        """Reveal what the rule says; a finished block becomes steps."""
        sequence, canvas = scheduled.sequence, self._canvas(scheduled.sequence)
        final = self._final(scheduled)
        events: list[Event] = []
        if scheduled.logit_rows:
            drawn = [one for one in computed.drawn if isinstance(one, Sampled)]
            failed = [one for one in computed.drawn if isinstance(one, Exception)]
            sequence.error = next(iter(failed), None) or _out_of_reach(canvas)
            if sequence.error:
                return []
            events.append(self._reveal(scheduled, computed, drawn))
            if canvas.is_done:
                events += self._write(sequence, canvas, computed.phases)
        sequence.num_computed_tokens = min(final, len(sequence) - _shift(sequence))
        if self.rule.cache != "exact":  # here only whether the block's first pass is stored
            sequence.num_computed_tokens = int(canvas.step > 0)
        return events

    def _final(self, scheduled: Scheduled) -> int:
        """How many of the first rows have attended to all that they will ever attend to."""
        sequence, block = scheduled.sequence, _model_block(scheduled.sequence)
        if block is None:
            return 0
        return min(len(sequence), scheduled.start + scheduled.num_rows) // block * block

    def _reveal(self, scheduled: Scheduled, computed: "Computed", drawn: list[Sampled]) -> Pass:
        """Reveal cells as the rule says; the event of the pass."""
        sequence, canvas = scheduled.sequence, self._canvas(scheduled.sequence)
        cells, index, redraw = canvas.asked, canvas.index, self._redraw(sequence)
        start, end = canvas.span
        was = [canvas.cells[cell].token_id for cell in cells]
        entropies = None
        if self.rule.after_chain:
            each = zip(self.draws(scheduled), computed.logits, strict=True)
            entropies = [entropy_after_chain(draw, row) for draw, row in each]
        positions = [canvas.first + cell for cell in cells]
        of = figures_of(positions, drawn, self.mask_id, entropies)
        revealed = canvas.reveal(drawn, of, sequence.seed)
        passes: Passes = sequence.decoding
        for one in drawn:
            passes.fingerprint = chain_hash(passes.fingerprint, one.logits_hash)
        now = [canvas.cells[cell].token_id for cell in cells]
        seen = cells_of(of, revealed, drawn, list(zip(was, now, strict=True)), self.mask_id)
        if not sequence.observe:
            seen = tuple(cell._replace(observed=None) for cell in seen)
        again = tuple(canvas.first + cell for cell in revealed.masked_again)
        return Pass(
            sequence.id, index, (canvas.first + start, canvas.first + end), scheduled.num_rows,
            seen, again, revealed.bound, redraw, computed.phases, passes.fingerprint,
        )  # fmt: skip

    def _write(self, sequence: "Sequence", canvas: Canvas, phases: Phases) -> list[Event]:
        """Append the finished block's tokens to the text, up to one that ends it."""
        events: list[Event] = []
        for number in range(*canvas.span):
            cell = canvas.cells[number]
            assert cell.drawn is not None
            is_forced = (cell.passed, number) in {
                (f.passed, f.cell) for f in self.rule.forced_cells
            }
            observed = cell.drawn.observed if sequence.observe else None
            drawn = cell.drawn._replace(observed=observed)
            step = sequence.append(drawn, "forced" if is_forced else "", phases)
            events += sequence.confirm(step._replace(pass_index=cell.passed))
            if sequence.finish_reason or sequence.error:
                break
        canvas.next_block()
        return events


def _out_of_reach(canvas: Canvas) -> InputError | None:
    """The error for a cell that is forced in a pass over another block."""
    start, end = canvas.span
    for passed, cell, _ in canvas.rule.forced_cells:
        if passed == canvas.index and not start <= cell < end:
            return InputError(
                "forced_cells",
                f": pass {canvas.index} reveals cells {start} to {end - 1}, and not "
                f"cell {cell}: give another",
            )
    return None


def _model_block(sequence: "Sequence") -> int | None:
    """The size of the blocks that attend to themselves: 1 for a causal model, None: the text."""
    attention = sequence.vocabulary.limits.attention
    return _BLOCKS.get(attention) if isinstance(attention, str) else attention


def _shift(sequence: "Sequence") -> int:
    """How many positions before a cell the row lies that predicts it."""
    limits = sequence.vocabulary.limits
    return int(limits.shift or limits.is_causal)


def _limits(
    sequence: "Sequence", start: int, end: int, length: int | None = None
) -> list[int] | None:
    """The last position, of ``length`` or ``end``, that each row attends to; None: its own."""
    attention = sequence.vocabulary.limits.attention
    if _model_block(sequence) == 1:
        return None
    return [last_seen(attention, p, length or end) for p in range(start, end)]


def _check_plain(request: "Request") -> None:
    """InputError for settings that need a text written from left to right."""
    constraint = request.constraint
    for name, given in (
        ("a constraint", replace(constraint, allowed_token_ids=None).is_set),
        ("forced", bool(request.run.forced)),
        ("speculate", request.run.speculate != "off"),
        ("prompt_logprobs", bool(request.observe.prompt_top)),
    ):
        if given:
            raise InputError(
                "denoise", ": ", Name(name), " needs a text that is written from left to right"
            )
    if request.stopping.max_tokens < 1:
        raise InputError("max_tokens", " must be 1 or more: it is how many cells the canvas has")


# -- the cells of a pass, in figures ---------------------------------------------------------------

CANDIDATES = 3
"""How many of each row's likeliest tokens are needed: two, and the mask, which is left out."""


def figures_of(
    positions: Items[int],
    drawn: Items[Sampled],
    mask_id: int | None,
    after_chain: Items[float] | None = None,
) -> Figures:
    """What a rule looks at.

    after_chain: entropies after the sampling stages; the other figures are then of the distribution
    after the stages, too. None: all are of the model's own distribution
    """
    best, own, entropies = [], [], []
    for one in drawn:
        seen = one.observed
        assert seen is not None
        likely, mine = _likely(one, mask_id), one.logprob
        if after_chain is not None:
            likely = tuple(seen.after_chain[:2])
            mine = -np.inf if seen.final_logprob is None else seen.final_logprob
        best.append([*(logprob for _, logprob in likely), -np.inf, -np.inf][:2])
        own.append(mine)
        entropies.append(seen.entropy)
    first, second = np.array(best).T
    return Figures(
        np.array(positions, np.int64), exp(np.array(own)), exp(first), exp(second),
        np.array(entropies if after_chain is None else after_chain),
    )  # fmt: skip


def _likely(one: Sampled, mask_id: int | None) -> tuple[tuple[int, float], ...]:
    """The two likeliest tokens except the mask, with their log-probabilities."""
    seen = one.observed
    assert seen is not None
    tokens = [c for c in seen.candidates[:CANDIDATES] if c.id != mask_id][:2]
    return tuple((c.id, c.logit - seen.log_sum_exp) for c in tokens)


def entropy_after_chain(draw: RowDraw, row: LogitsRow) -> float:
    """The entropy of what the sampling stages leave of a row (vocab,), in nats."""
    context = Context(draw.history, draw.mask, draw.seed, draw.place)
    return entropy(run_stages(draw.compiled.chain, row, context)[-1].logits.astype(np.float64))


def cells_of(
    of: Figures,
    revealed: Revealed,
    drawn: Items[Sampled],
    tokens: Items[tuple[int | None, int | None]],
    mask_id: int | None,
) -> tuple[PassCell, ...]:
    """The record of each cell. tokens: its token before and after the pass."""
    positions, figures, entropies = of.positions, revealed.figures, of.entropy
    each = zip(positions.tolist(), drawn, entropies.tolist(), figures.tolist(), tokens, strict=True)
    return tuple(
        PassCell(
            position, one.token_id, one.logprob, nats, value, was, now, one.logits_hash,
            _likely(one, mask_id), one.observed,
        )
        for position, one, nats, value, (was, now) in each
    )  # fmt: skip
