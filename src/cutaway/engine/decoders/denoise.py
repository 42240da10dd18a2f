"""The decoder of diffusion: a pass reveals cells of a canvas of masks or noise, by a rule.

A diffusion step is a pass: it computes those rows of the prompt and the canvas that can change. A
token is drawn for each masked or noisy cell of the current block, and the rule (canvas/) chooses
which of them are revealed. A finished block's tokens become steps, from left to right. With blocks
of one cell, left to right, on a causal model, this is the autoregressive loop, bit for bit.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cutaway.base.arithmetic import plainly
from cutaway.compute.backends import Logits
from cutaway.engine.canvas import Canvas, Rule, make_canvas
from cutaway.engine.decoders import Computed, Decoder
from cutaway.engine.decoders.pass_cells import (
    CANDIDATES,
    blend_rows,
    cells_of,
    figures_of,
    finish_block,
    unreachable_cell_error,
)
from cutaway.engine.events import Event, Pass, Phases
from cutaway.engine.limits import last_seen, shares_blocks
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError, Name
from cutaway.sampling import (
    CompiledChain,
    Observe,
    RowDraw,
    Sampled,
    SamplingParams,
    Stage,
    build_chain,
)
from cutaway.sampling.luck import noise_tokens, place_of
from cutaway.sampling.observe import START, chain_hash

if TYPE_CHECKING:
    from cutaway.engine.limits import Limits
    from cutaway.engine.request import Request
    from cutaway.engine.sequence import Sequence


# -- the decoder -----------------------------------------------------------------------------------

_BLOCKS = {"causal": 1, "bidirectional": None}


@dataclass
class Passes:
    """The passes over one text: its canvas, once begun, and the fingerprint of all its draws.

    signal  what the last pass predicted in each cell of the current block, as the model reads it
            (self-conditioning): (cells, ``Limits.signal``); None in a block's first pass
    """

    canvas: Canvas | None = None
    fingerprint: int = START
    signal: Logits | None = None


@dataclass(frozen=True)
class Denoise(Decoder):
    """Writes a canvas of ``max_tokens`` cells after the prompt.

    mask_id  the token that stands for a masked cell, and is never drawn; None where attention is
             causal, or the model has none
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

    def stages(self, params: SamplingParams, *, constrained: bool) -> tuple[Stage, ...]:
        """Return the sampling stages of the first pass."""
        if self.rule.t_max is None or params.temperature == 0:
            return build_chain(params, constrained=constrained)
        temperature = params.temperature * self.rule.t_max
        if not 0.01 <= temperature <= 100:
            raise InputError(
                "t_max",
                f" {self.rule.t_max:g} times the temperature {params.temperature:g} is "
                f"{temperature:g}, which is not in 0.01 to 100: change t_max or ",
                Name("temperature"),
            )
        params = replace(params, temperature=temperature)
        return build_chain(params, constrained=constrained, scheduled=True)

    # -- which rows ------------------------------------------------------------------------------

    def longest(self, request: "Request", limits: "Limits") -> int:
        """The length of prompt, canvas and suffix together."""
        _check_plain(request)
        self.rule.check_whole()
        prompt, cells = len(request.prompt_token_ids), request.stopping.max_tokens
        total = prompt + cells + len(self.suffix_ids)
        limits.check_ids("prompt", request.prompt_token_ids)
        limits.check_ids("suffix", self.suffix_ids)
        limits.check_ids(
            "forced_cells", [forced_cell.token_id for forced_cell in self.rule.forced_cells]
        )
        limits.check_canvas(
            total,
            prompt,
            self.rule.block,
            has_start=self.rule.start == "noise" or self.mask_id is not None,
        )
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
        if _reads_causally(sequence):
            return len(sequence)
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
        if _reads_causally(sequence) and sequence.num_pending:
            part = sequence.tokens(start, start + room)
            return Scheduled(sequence, start, part, len(part))
        if end - start > room:
            known_end = min(start + room, len(sequence) - _shift(sequence))
            end = start if block is None else max(known_end // block * block, start)
            part = sequence.tokens(start, end)
            return Scheduled(sequence, start, part, len(part), limits=_limits(sequence, start, end))
        is_lost, fillers = self._is_lost(sequence, canvas), self._fillers(sequence, canvas)
        cells = fillers if is_lost else canvas.token_ids(fillers)
        unwritten = cells[len(sequence.output_token_ids) :]
        tokens = [*sequence.tokens(start, len(sequence)), *unwritten, *self.suffix_ids]
        shift = _shift(sequence) + start - canvas.first
        logit_rows = [] if is_lost else [cell - shift for cell in canvas.next_cells]
        limits = _limits(sequence, start, end, self._end(sequence, canvas))
        entry = Scheduled(sequence, start, tokens[: end - start], end - start, logit_rows, limits)
        if _reads_causally(sequence):
            entry.limits, entry.window_end = [end - 1] * (end - start), start
            entry.inputs = self._signal(sequence, end - start)
        return entry

    def _signal(self, sequence: "Sequence", rows: int) -> Logits | None:
        """Return what the rows of a block read besides their tokens; None if they read nothing."""
        passes: Passes = sequence.decoding
        width = sequence.vocabulary.limits.signal
        if not width:
            return None
        return np.zeros((rows, width), np.float32) if passes.signal is None else passes.signal

    def _fillers(self, sequence: "Sequence", canvas: Canvas) -> list[int]:
        """Return what the next pass reads in each cell if that is not revealed."""
        count = len(canvas.cells)
        if self.rule.start == "mask":
            return [self.mask_id or 0] * count
        places = [place_of(canvas.first + cell, canvas.index) for cell in range(count)]
        return noise_tokens(sequence.seed, places, sequence.vocabulary.limits.vocab_size)

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
        if block is None and not _reads_causally(sequence):
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
        observe, chain = self._observe(sequence), self._chain(sequence, canvas)
        forced = canvas.forced
        return [
            RowDraw(
                chain, history, sequence.seed, canvas.first + cell, observe,
                forced.get(cell), mask, redraw,
            )
            for cell in canvas.next_cells
        ]  # fmt: skip

    def _chain(self, sequence: "Sequence", canvas: Canvas) -> CompiledChain:
        """Return the sampling stages of the next pass."""
        base, temperature = sequence.chain, sequence.request.sampling.temperature
        if self.rule.t_max is None or temperature == 0:
            return base
        rule = {"temperature": temperature * canvas.temperature}
        stages = [s._replace(rule=rule) if s.name == "temperature" else s for s in base.chain]
        return CompiledChain(tuple(stages), base.params, sequence.prompt_token_ids)

    def _redraw(self, sequence: "Sequence") -> int:
        return self._canvas(sequence).index if self.rule.noise == "fresh" else 0

    def _observe(self, sequence: "Sequence") -> Observe:
        observe = sequence.observe or Observe()
        top, after_chain = max(observe.top, CANDIDATES), observe.after_chain
        after_chain |= self.rule.after_chain or self.rule.remask == "unchosen"
        return replace(observe, top=top, after_chain=after_chain)

    # -- what becomes of it ----------------------------------------------------------------------

    @plainly
    def commit(self, scheduled: Scheduled, computed: Computed) -> list[Event]:
        """Reveal the cells that the rule chooses; a finished block becomes steps."""
        sequence, canvas = scheduled.sequence, self._canvas(scheduled.sequence)
        final = self._final(scheduled)
        events: list[Event] = []
        if scheduled.logit_rows:
            sampled = [outcome for outcome in computed.outcomes if isinstance(outcome, Sampled)]
            errors = [outcome for outcome in computed.outcomes if isinstance(outcome, Exception)]
            sequence.error = next(iter(errors), None) or unreachable_cell_error(canvas)
            if sequence.error:
                return []
            events.append(self._reveal(scheduled, computed, sampled))
            if sequence.error:
                return []
            if canvas.is_done:
                events += self._write(sequence, canvas, computed.phases)
        sequence.num_computed_tokens = min(final, len(sequence) - _shift(sequence))
        if self.rule.cache != "exact":  # the count then only tells whether the first pass is stored
            sequence.num_computed_tokens = int(canvas.step > 0)
        return events

    def _final(self, scheduled: Scheduled) -> int:
        """Return how many of the first rows no later pass can change."""
        sequence, block = scheduled.sequence, _model_block(scheduled.sequence)
        if _reads_causally(sequence):  # which a block does not, until it is finished
            return scheduled.start + (0 if scheduled.logit_rows else scheduled.num_rows)
        if block is None:
            return 0
        return min(len(sequence), scheduled.start + scheduled.num_rows) // block * block

    def _reveal(self, scheduled: Scheduled, computed: Computed, sampled: list[Sampled]) -> Pass:
        """Reveal the cells that the rule chooses; return the event of the pass."""
        sequence, canvas = scheduled.sequence, self._canvas(scheduled.sequence)
        cells, index, redraw = canvas.next_cells, canvas.index, self._redraw(sequence)
        start, end = canvas.span
        was = [canvas.cells[cell].token_id for cell in cells]
        draws, entropies, chances = self.draws(scheduled), None, None
        if self.rule.after_chain or computed.blend:
            entropies, chances = computed.read_distributions(
                computed.logits, draws, with_chances=computed.blend is not None
            )
        positions = [canvas.first + cell for cell in cells]
        after_chain = entropies if self.rule.after_chain else None
        figures = figures_of(positions, sampled, self.mask_id, after_chain)
        revealed = canvas.reveal(sampled, figures, sequence.seed)
        passes: Passes = sequence.decoding
        for cell_draw in sampled:
            passes.fingerprint = chain_hash(passes.fingerprint, cell_draw.logits_hash)
        passes.signal = None
        if computed.blend and chances is not None and not canvas.is_done:
            passes.signal = blend_rows(computed.blend, chances)
        if canvas.is_done and self.rule.remask == "unchosen":
            sequence.error = finish_block(canvas, draws, computed.logits)
            revealed = revealed._replace(masked_again=[])
        now = [canvas.cells[cell].token_id for cell in cells]
        tokens = zip(was, now, self._read(scheduled, cells), strict=True)
        seen = cells_of(figures, revealed, sampled, list(tokens), self.mask_id)
        if not sequence.observe:
            seen = tuple(cell._replace(observed=None) for cell in seen)
        again = tuple(canvas.first + cell for cell in revealed.masked_again)
        return Pass(
            sequence.id, index, (canvas.first + start, canvas.first + end), scheduled.num_rows,
            seen, again, revealed.bound, redraw, computed.phases, passes.fingerprint,
        )  # fmt: skip

    def _read(self, scheduled: Scheduled, cells: Items[int]) -> list[int] | list[None]:
        """Return the tokens that a pass read in these cells; None in a canvas of masks."""
        if self.rule.start == "mask":
            return [None] * len(cells)
        sequence = scheduled.sequence
        first = self._canvas(sequence).first - scheduled.start
        return [scheduled.token_ids[first + cell] for cell in cells]

    def _write(self, sequence: "Sequence", canvas: Canvas, phases: Phases) -> list[Event]:
        """Append the finished block's tokens to the text, up to a token that ends the text."""
        events: list[Event] = []
        for number in range(*canvas.span):
            cell = canvas.cells[number]
            assert cell.sampled is not None
            is_forced = number in canvas.forced_tokens.get(cell.pass_index, {})
            observed = cell.sampled.observed if sequence.observe else None
            sampled = cell.sampled._replace(observed=observed)
            source = "greedy" if self.rule.remask == "unchosen" else ""
            step = sequence.append(sampled, "forced" if is_forced else source, phases)
            events += sequence.confirm(step._replace(pass_index=cell.pass_index))
            if sequence.finish_reason or sequence.error:
                break
        canvas.next_block()
        return events


def _model_block(sequence: "Sequence") -> int | None:
    """The block size of a block-causal model: 1 if causal, None if bidirectional."""
    attention = sequence.vocabulary.limits.attention
    return _BLOCKS.get(attention) if isinstance(attention, str) else attention


def _reads_causally(sequence: "Sequence") -> bool:
    """Whether the model reads all but the block that is denoised from left to right."""
    return sequence.vocabulary.limits.attention == "canvas"


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
