"""The decoder of masked diffusion: a pass reveals cells of a canvas in any order, by a rule.

A diffusion step is a pass: it computes those rows of the prompt and the canvas that can change. A
token is drawn for each masked cell of the current block, and the rule (canvas/) chooses which of
them are revealed. A finished block's tokens become steps, from left to right. With blocks of one
cell, left to right, on a causal model, this is the autoregressive loop, bit for bit.

The figures of cells, by which the rule decides and which each cell's record has, come from what the
sampler noted of the cells' rows.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cutaway.base.arithmetic import plainly
from cutaway.base.counting import count_from_1
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
    """The passes over one text: its canvas, once begun, and the fingerprint of all its draws."""

    canvas: Canvas | None = None
    fingerprint: int = START


@dataclass(frozen=True)
class Denoise:
    """Writes a canvas of ``max_tokens`` cells after the prompt.

    mask_id  the token that stands for a masked cell, and is never drawn; None where attention is
             causal
    suffix_ids  tokens after the canvas
    """

    rule: Rule
    mask_id: int | None = None
    suffix_ids: tuple[int, ...] = ()

    drafts = hidden = False
    goes_back = True

    def begin(self) -> Passes:
        """Return passes without a canvas."""
        return Passes()

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that are never drawn."""
        return () if self.mask_id is None else (self.mask_id,)

    # -- which rows ------------------------------------------------------------------------------

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The length of prompt, canvas and suffix together."""
        _check_plain(request)
        prompt, cells = len(request.prompt_token_ids), request.stopping.max_tokens
        total = prompt + cells + len(self.suffix_ids)
        limits.check_ids("prompt", request.prompt_token_ids)
        limits.check_ids("suffix", self.suffix_ids)
        limits.check_ids(
            "forced_cells", [forced_cell.token_id for forced_cell in self.rule.forced_cells]
        )
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
        if any(
            not 0 <= forced_cell.cell < cells or forced_cell.pass_index < 0
            for forced_cell in self.rule.forced_cells
        ):
            raise InputError(
                "forced_cells",
                f": the canvas has {cells} cells, and one that is forced is not there",
            )
        return total

    def shares(self, sequence: "Sequence") -> bool:
        """Whether keys and values of a KV block depend only on tokens up to its end."""
        return shares_blocks(sequence.vocabulary.limits.attention)

    def positions(self, sequence: "Sequence") -> int:
        """All positions up to the end of the rows that are computed."""
        return self._end(sequence, self._canvas(sequence))

    def reusable(self, sequence: "Sequence") -> int:
        """The tokens of the model's whole blocks before the first masked cell; 0 without blocks."""
        block = _model_block(sequence)
        if block is None or not self.shares(sequence):
            return 0
        return max(len(sequence) - _shift(sequence), 0) // block * block

    def is_decoding(self, sequence: "Sequence") -> bool:
        """Whether only one block is left to compute."""
        block = _model_block(sequence)
        return block is not None and self.positions(sequence) - sequence.num_computed_tokens <= max(
            2 * block, 1
        )

    def rows(self, sequence: "Sequence", room: int, logit_room: int) -> Scheduled:  # noqa: ARG002
        """The rows that can have changed; if there is no room for all, some rows of the prompt."""
        canvas, block = self._canvas(sequence), _model_block(sequence)
        start, end = self._stale(sequence, canvas)
        if end - start > room:
            known_end = min(start + room, len(sequence) - _shift(sequence))
            end = start if block is None else max(known_end // block * block, start)
            part = sequence.tokens(start, end)
            return Scheduled(sequence, start, part, len(part), limits=_limits(sequence, start, end))
        is_lost, mask = self._is_lost(sequence, canvas), self.mask_id or 0
        cells = [mask] * len(canvas.cells) if is_lost else canvas.token_ids(mask)
        unwritten = cells[len(sequence.output_token_ids) :]
        tokens = [*sequence.tokens(start, len(sequence)), *unwritten, *self.suffix_ids]
        shift = _shift(sequence) + start - canvas.first
        logit_rows = [] if is_lost else [cell - shift for cell in canvas.next_cells]
        limits = _limits(sequence, start, end, self._end(sequence, canvas))
        return Scheduled(sequence, start, tokens[: end - start], end - start, logit_rows, limits)

    def _stale(self, sequence: "Sequence", canvas: Canvas) -> tuple[int, int]:
        """The rows to compute, (first, end): all that can have changed, or fewer (``cache``)."""
        end = self._end(sequence, canvas)
        if self.rule.cache == "exact" or not sequence.num_computed_tokens:
            return sequence.num_computed_tokens, end
        first, last = canvas.span
        if self.rule.cache == "dual":
            end = canvas.first + last
        return max(canvas.first + first - _shift(sequence), 0), end

    def _is_lost(self, sequence: "Sequence", canvas: Canvas) -> bool:
        """Whether the keys and values of the block's first pass are gone (preemption)."""
        was_stored = self.rule.cache != "exact" and canvas.step > 0
        return was_stored and not sequence.num_computed_tokens

    def _canvas(self, sequence: "Sequence") -> Canvas:
        passes: Passes = sequence.decoding
        if passes.canvas is None:
            block, length = _model_block(sequence), sequence.request.stopping.max_tokens
            sees_ahead = block if block and block > 1 else None
            first = len(sequence.prompt_token_ids)
            passes.canvas = make_canvas(self.rule, first, length, sees_ahead)
        return passes.canvas

    def _end(self, sequence: "Sequence", canvas: Canvas) -> int:
        """The end of the rows that are computed: of the whole text, or of the current block."""
        block = _model_block(sequence)
        if block is None:
            return canvas.first + len(canvas.cells) + len(self.suffix_ids)
        end = canvas.first + (len(canvas.cells) if canvas.is_full else canvas.span[1])
        return end - (block == 1)  # a causal model's last row predicts the token after it

    # -- what is drawn ---------------------------------------------------------------------------

    def draws(self, scheduled: Scheduled) -> list[RowDraw]:
        """The draws, one for each cell that this pass computes."""
        sequence, redraw = scheduled.sequence, self._redraw(scheduled.sequence)
        if not scheduled.logit_rows:
            return []
        canvas, [mask] = self._canvas(sequence), sequence.masks([])
        token_ids = [cell.sampled.token_id for cell in canvas.cells if cell.sampled]
        history = sequence.history(token_ids[len(sequence.output_token_ids) :])
        observe = self._observe(sequence)
        return [
            RowDraw(
                sequence.chain, history, sequence.seed, canvas.first + cell, observe,
                canvas.forced.get(cell), mask, redraw,
            )
            for cell in canvas.next_cells
        ]  # fmt: skip

    def _redraw(self, sequence: "Sequence") -> int:
        return self._canvas(sequence).index if self.rule.noise == "fresh" else 0

    def _observe(self, sequence: "Sequence") -> Observe:
        observe = sequence.observe or Observe()
        top = max(observe.top, CANDIDATES)
        return replace(observe, top=top, after_chain=observe.after_chain or self.rule.after_chain)

    # -- what becomes of it ----------------------------------------------------------------------

    @plainly
    def commit(self, scheduled: Scheduled, computed: "Computed") -> list[Event]:
        """Reveal the cells that the rule chooses; a finished block becomes steps."""
        sequence, canvas = scheduled.sequence, self._canvas(scheduled.sequence)
        final = self._final(scheduled)
        events: list[Event] = []
        if scheduled.logit_rows:
            sampled = [outcome for outcome in computed.outcomes if isinstance(outcome, Sampled)]
            errors = [outcome for outcome in computed.outcomes if isinstance(outcome, Exception)]
            sequence.error = next(iter(errors), None) or _unreachable_cell_error(canvas)
            if sequence.error:
                return []
            events.append(self._reveal(scheduled, computed, sampled))
            if canvas.is_done:
                events += self._write(sequence, canvas, computed.phases)
        sequence.num_computed_tokens = min(final, len(sequence) - _shift(sequence))
        if self.rule.cache != "exact":  # the count then only tells whether the first pass is stored
            sequence.num_computed_tokens = int(canvas.step > 0)
        return events

    def _final(self, scheduled: Scheduled) -> int:
        """Return how many of the first rows no later pass can change."""
        sequence, block = scheduled.sequence, _model_block(scheduled.sequence)
        if block is None:
            return 0
        return min(len(sequence), scheduled.start + scheduled.num_rows) // block * block

    def _reveal(self, scheduled: Scheduled, computed: "Computed", sampled: list[Sampled]) -> Pass:
        """Reveal the cells that the rule chooses; return the event of the pass."""
        sequence, canvas = scheduled.sequence, self._canvas(scheduled.sequence)
        cells, index, redraw = canvas.next_cells, canvas.index, self._redraw(sequence)
        start, end = canvas.span
        was = [canvas.cells[cell].token_id for cell in cells]
        entropies = None
        if self.rule.after_chain:
            pairs = zip(self.draws(scheduled), computed.logits, strict=True)
            entropies = [entropy_after_chain(draw, row) for draw, row in pairs]
        positions = [canvas.first + cell for cell in cells]
        figures = figures_of(positions, sampled, self.mask_id, entropies)
        revealed = canvas.reveal(sampled, figures, sequence.seed)
        passes: Passes = sequence.decoding
        for cell_draw in sampled:
            passes.fingerprint = chain_hash(passes.fingerprint, cell_draw.logits_hash)
        now = [canvas.cells[cell].token_id for cell in cells]
        seen = cells_of(figures, revealed, sampled, list(zip(was, now, strict=True)), self.mask_id)
        if not sequence.observe:
            seen = tuple(cell._replace(observed=None) for cell in seen)
        again = tuple(canvas.first + cell for cell in revealed.masked_again)
        return Pass(
            sequence.id, index, (canvas.first + start, canvas.first + end), scheduled.num_rows,
            seen, again, revealed.bound, redraw, computed.phases, passes.fingerprint,
        )  # fmt: skip

    def _write(self, sequence: "Sequence", canvas: Canvas, phases: Phases) -> list[Event]:
        """Append the finished block's tokens to the text, up to a token that ends the text."""
        events: list[Event] = []
        for number in range(*canvas.span):
            cell = canvas.cells[number]
            assert cell.sampled is not None
            is_forced = (cell.pass_index, number) in {
                (f.pass_index, f.cell) for f in self.rule.forced_cells
            }
            observed = cell.sampled.observed if sequence.observe else None
            sampled = cell.sampled._replace(observed=observed)
            step = sequence.append(sampled, "forced" if is_forced else "", phases)
            events += sequence.confirm(step._replace(pass_index=cell.pass_index))
            if sequence.finish_reason or sequence.error:
                break
        canvas.next_block()
        return events


def _unreachable_cell_error(canvas: Canvas) -> InputError | None:
    """Return the error for a cell that is forced in a pass over another block."""
    start, end = canvas.span
    for pass_index, cell, _ in canvas.rule.forced_cells:
        if pass_index == canvas.index and not start <= cell < end:
            return InputError(
                "forced_cells",
                f": pass {count_from_1(canvas.index)} reveals cells {count_from_1(start)} to "
                f"{end}, and not cell {count_from_1(cell)}: give another",
            )
    return None


def _model_block(sequence: "Sequence") -> int | None:
    """The block size of a block-causal model: 1 if causal, None if bidirectional."""
    attention = sequence.vocabulary.limits.attention
    return _BLOCKS.get(attention) if isinstance(attention, str) else attention


def _shift(sequence: "Sequence") -> int:
    """How many positions the row that predicts a cell is before the cell."""
    limits = sequence.vocabulary.limits
    return int(limits.shift or limits.is_causal)


def _limits(
    sequence: "Sequence", start: int, end: int, length: int | None = None
) -> list[int] | None:
    """The last position that each row start … end - 1 attends to; None: its own.

    length: the text's length, where the text goes on after the rows
    """
    attention = sequence.vocabulary.limits.attention
    if _model_block(sequence) == 1:
        return None
    return [last_seen(attention, p, length or end) for p in range(start, end)]


def _check_plain(request: "Request") -> None:
    """Raise InputError for settings that only a text written from left to right can have."""
    constraint = request.constraint
    for name, is_set in (
        ("a constraint", replace(constraint, allowed_token_ids=None).is_set),
        ("forced", bool(request.run.forced)),
        ("speculate", request.run.speculate != "off"),
        ("prompt_logprobs", bool(request.observe.prompt_top)),
    ):
        if is_set:
            raise InputError(
                "denoise", ": ", Name(name), " needs a text that is written from left to right"
            )
    if request.stopping.max_tokens < 1:
        raise InputError("max_tokens", " must be 1 or more: it is how many cells the canvas has")


# -- the cells of a pass, in figures ---------------------------------------------------------------

CANDIDATES = 3
"""How many of each row's likeliest tokens are needed: two besides the mask token."""


def figures_of(
    positions: Items[int],
    sampled: Items[Sampled],
    mask_id: int | None,
    after_chain: Items[float] | None = None,
) -> Figures:
    """Return the figures of cells by which a rule decides.

    after_chain: the cells' entropies after the sampling stages; the other figures then describe the
    distribution after the stages, too. None: all figures describe the model's own distribution
    """
    best, logprobs, entropies = [], [], []
    for cell_draw in sampled:
        seen = cell_draw.observed
        assert seen is not None
        likely, drawn_logprob = _likely(cell_draw, mask_id), cell_draw.logprob
        if after_chain is not None:
            likely = tuple(seen.after_chain[:2])
            drawn_logprob = -np.inf if seen.final_logprob is None else seen.final_logprob
        best.append([*(logprob for _, logprob in likely), -np.inf, -np.inf][:2])
        logprobs.append(drawn_logprob)
        entropies.append(seen.entropy)
    first, second = np.array(best).T
    return Figures(
        np.array(positions, np.int64), exp(np.array(logprobs)), exp(first), exp(second),
        np.array(entropies if after_chain is None else after_chain),
    )  # fmt: skip


def _likely(sampled: Sampled, mask_id: int | None) -> tuple[tuple[int, float], ...]:
    """Return the two likeliest tokens except the mask, with their log-probabilities."""
    seen = sampled.observed
    assert seen is not None
    tokens = [c for c in seen.candidates[:CANDIDATES] if c.id != mask_id][:2]
    return tuple((c.id, c.logit - seen.log_sum_exp) for c in tokens)


def entropy_after_chain(draw: RowDraw, row: LogitsRow) -> float:
    """Return the entropy of a row (vocab,) after the sampling stages, in nats."""
    context = Context(draw.history, draw.mask, draw.seed, draw.place)
    return entropy(run_stages(draw.compiled.chain, row, context)[-1].logits.astype(np.float64))


def cells_of(
    figures: Figures,
    revealed: Revealed,
    sampled: Items[Sampled],
    tokens: Items[tuple[int | None, int | None]],
    mask_id: int | None,
) -> tuple[PassCell, ...]:
    """Return the record of each cell. tokens: each cell's token before and after the pass."""
    positions, order_figures, entropies = figures.positions, revealed.figures, figures.entropy
    columns = zip(
        positions.tolist(), sampled, entropies.tolist(), order_figures.tolist(), tokens, strict=True
    )
    return tuple(
        PassCell(
            position, draw.token_id, draw.logprob, nats, value, was, now, draw.logits_hash,
            _likely(draw, mask_id), draw.observed,
        )
        for position, draw, nats, value, (was, now) in columns
    )  # fmt: skip
