"""The loop: schedule → run → sample → commit → emit.

Knows which rows go into the next step and what becomes of each drawn token. Refuses to
know HTTP, terminals and files, and how logits are computed.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from secrets import randbits

import numpy as np

from cutaway.backends import KV_BLOCK, Backend, Batch, Logits
from cutaway.cache import BlockPool
from cutaway.engine.batch import batch_of, lay_rows
from cutaway.engine.fingerprint import chain_hash
from cutaway.engine.sequence import Sequence, TokenStep
from cutaway.engine.stops import FinishReason, StopParams
from cutaway.errors import CutawayError, InputError
from cutaway.sampling import Draw, Request, SamplingParams, sample
from cutaway.sampling.params import check_ids

MAX_ROWS = 512
"""Rows per step: what bounds the memory of a long prompt's attention scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the model itself imposes."""

    context_length: int
    vocab_size: int
    end_ids: frozenset[int]


class Engine:
    """Runs any number of sequences, a step at a time."""

    def __init__(
        self, backend: Backend, limits: Limits, token_bytes: Callable[[int], bytes]
    ) -> None:
        self.backend, self.limits, self.token_bytes = backend, limits, token_bytes
        self.pool = BlockPool(backend.kv_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._ids = count()

    # -- the loop ----------------------------------------------------------------------------

    def step(self) -> list[TokenStep]:
        """One turn for every running sequence; the steps of those that drew a token."""
        scheduled = self._schedule()
        if not scheduled:
            return []
        logits = self.backend.run(batch_of(scheduled))
        ready = [s for s, tokens in scheduled if s.num_computed_tokens + len(tokens) == len(s)]
        draws = _sample(ready, logits)
        for sequence, tokens in scheduled:  # not before: a step that raised can be taken again
            sequence.num_computed_tokens += len(tokens)
        return [self._commit(s, *drawn) for s, drawn in zip(ready, draws, strict=True)]

    def _schedule(self) -> list[tuple[Sequence, list[int]]]:
        """Admit whom there is room for; give each sequence its pending tokens, oldest first."""
        while self.waiting and self._blocks_for(self.waiting[0]) <= self.pool.free:
            sequence = self.waiting.popleft()
            sequence.blocks = self.pool.take(self._blocks_for(sequence))
            self.running.append(sequence)
        scheduled, room = [], MAX_ROWS
        for sequence in self.running:
            tokens = sequence.pending(room)
            room -= len(tokens)
            if tokens:
                scheduled.append((sequence, tokens))
        return scheduled

    def _commit(self, sequence: Sequence, drawn: Draw, logprob: float, bits: int) -> TokenStep:
        """Append the token, decide whether the text ends, and tell."""
        position, token_id = len(sequence), drawn.token_id
        sequence.fingerprint = chain_hash(sequence.fingerprint, bits)
        ends = self._ends_text(sequence, token_id)
        text = sequence.append(token_id, b"" if ends else self.token_bytes(token_id))
        self._check_stops(sequence, token_id)
        if not sequence.kv_cache:
            sequence.num_computed_tokens = 0  # the lesson's loop: everything again, every step
        if sequence.finish_reason:
            text += sequence.flush()
            self._release(sequence)
        return TokenStep(
            sequence.id, len(sequence.output_token_ids) - 1, position, token_id, text, logprob,
            drawn.survivors, drawn.ledger, sequence.fingerprint,
            sequence.finish_reason, sequence.matched,
        )  # fmt: skip

    # -- who comes and goes ------------------------------------------------------------------

    def add(
        self,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        stops: StopParams,
        *,
        kv_cache: bool = True,
        ledger: bool = False,
    ) -> Sequence:
        """Queue a sequence. InputError if the prompt or a token id does not fit the model.

        A seed that was not given is chosen here; ``sequence.seed`` tells it.
        """
        prompt = check_ids("prompt", prompt_token_ids)
        self.check_prompt(prompt)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("stop_token_ids", stops.stop_token_ids)
        seed = params.seed if params.seed is not None else randbits(32)
        sequence = Sequence(next(self._ids), prompt, params, stops, seed, kv_cache, ledger)
        if self._blocks_for(sequence) > self.pool.count:
            raise InputError(
                f"prompt and max_tokens need {self._blocks_for(sequence)} KV blocks of {KV_BLOCK} "
                f"tokens; there are {self.pool.count}: shorten the prompt or lower max_tokens"
            )
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """End a sequence at once, wherever it is; its blocks are free again."""
        if sequence.finish_reason is None:
            sequence.finish_reason = FinishReason.ABORTED
            self._release(sequence)

    def check_prompt(self, prompt: tuple[int, ...]) -> None:
        """InputError where the model cannot be asked to continue this."""
        longest = self.limits.context_length - 1
        if not prompt:
            raise InputError("prompt is empty and this model has no begin token: write something")
        if len(prompt) > longest:
            raise InputError(
                f"prompt has {len(prompt)} tokens, and at most {longest} leave room to answer in "
                f"a context of {self.limits.context_length}: shorten it"
            )
        self._check_ids("prompt", prompt)

    def _check_ids(self, name: str, ids: Iterable[int]) -> None:
        for token_id in ids:
            if not 0 <= token_id < self.limits.vocab_size:
                last = self.limits.vocab_size - 1
                raise InputError(f"{name}: token id {token_id} is not between 0 and {last}")

    def _blocks_for(self, sequence: Sequence) -> int:
        """Blocks for the whole text at its longest, so that a running sequence never runs out."""
        longest = len(sequence.prompt_token_ids) + sequence.stops.max_tokens
        return -(-min(longest, self.limits.context_length) // KV_BLOCK)

    def _release(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
            self.pool.give_back(sequence.blocks)
            sequence.blocks = []
        else:
            self.waiting.remove(sequence)

    # -- stops -------------------------------------------------------------------------------

    def _ends_text(self, sequence: Sequence, token_id: int) -> bool:
        is_end = token_id in self.limits.end_ids and not sequence.stops.ignore_eos
        return is_end or token_id in sequence.stops.stop_token_ids

    def _check_stops(self, sequence: Sequence, token_id: int) -> None:
        """Set the finish reason; the first that holds in this order wins."""
        if sequence.finish_reason is not None:
            return
        if token_id in sequence.stops.stop_token_ids:
            sequence.finish_reason, sequence.matched = FinishReason.STOP_TOKEN, token_id
        elif self._ends_text(sequence, token_id):
            sequence.finish_reason, sequence.matched = FinishReason.END_TOKEN, token_id
        elif len(sequence.output_token_ids) >= sequence.stops.max_tokens:
            sequence.finish_reason = FinishReason.MAX_TOKENS
        elif len(sequence) >= self.limits.context_length:
            sequence.finish_reason = FinishReason.CONTEXT_FULL

    # -- reading without writing ---------------------------------------------------------------

    def score(self, token_ids: Iterable[int]) -> Logits:
        """Teacher-forced logits of every position, float32 (n, vocab)."""
        token_ids = check_ids("token_ids", token_ids)
        longest = self.limits.context_length
        if not 0 < len(token_ids) <= longest:
            raise InputError(f"token_ids must hold 1 to {longest} ids, not {len(token_ids)}")
        self._check_ids("token_ids", token_ids)
        wanted = -(-len(token_ids) // KV_BLOCK)
        if wanted > self.pool.free:
            raise CutawayError(
                f"scoring needs {wanted} KV blocks and {self.pool.free} are free while others run"
            )
        blocks = self.pool.take(wanted)
        try:
            out = np.empty((len(token_ids), self.limits.vocab_size), np.float32)
            for start in range(0, len(token_ids), MAX_ROWS):
                tokens = token_ids[start : start + MAX_ROWS]
                rows = lay_rows([(start, tokens, blocks)])
                every = np.arange(len(tokens), dtype=np.int32)
                out[start : start + len(tokens)] = self.backend.run(Batch(*rows, every))
            return out
        finally:
            self.pool.give_back(blocks)


def _sample(sequences: list[Sequence], logits: Logits) -> list[tuple[Draw, float, int]]:
    """Draw each sequence's next token from its row; raise the first row's error, if any."""
    requests = [Request(s.recipe, s.history, s.seed, len(s), s.ledger) for s in sequences]
    drawn: list[tuple[Draw, float, int]] = []
    for row in sample(logits, requests):
        if isinstance(row, Exception):
            raise row
        drawn.append((row.draw, row.logprob, row.row_hash))
    return drawn
