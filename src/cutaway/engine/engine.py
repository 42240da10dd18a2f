"""The loop: schedule → run → sample → commit → emit.

Knows what becomes of each drawn token. Refuses to know HTTP, terminals and files, how
logits are computed, and why these sequences are in a step (scheduler.py).
"""

from collections.abc import Callable, Iterable
from itertools import count
from random import SystemRandom
from time import perf_counter

import numpy as np

from cutaway.backends import Backend, Logits
from cutaway.checks import check_ids
from cutaway.engine.batch import batch_of, logits_of
from cutaway.engine.block_manager import BlockManager
from cutaway.engine.fingerprint import chain_hash
from cutaway.engine.limits import Limits
from cutaway.engine.params import RunParams
from cutaway.engine.scheduler import Policy, Scheduled, Scheduler
from cutaway.engine.sequence import Phases, Sequence, TokenStep
from cutaway.engine.speculation import Speculator
from cutaway.engine.stops import FinishReason, StopParams
from cutaway.errors import InputError, QueueFullError
from cutaway.sampling import RowDraw, Sampled, SamplingParams

randbits = SystemRandom().getrandbits  # as `secrets` has it, which loads a cryptographic library


class Engine:
    """Runs any number of sequences, a step at a time. One thread at a time may use it.

    failed  sequences that the last step ended with an error; see ``Sequence.error``
    """

    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        token_bytes: Callable[[int], bytes],
        policy: Policy | None = None,
    ) -> None:
        self.backend, self.limits, self.token_bytes = backend, limits, token_bytes
        self.blocks = BlockManager(backend.kv_blocks, backend.kv.block_tokens)
        self.speculator = Speculator()
        self.scheduler = Scheduler(self.blocks, policy or Policy(), self.speculator.propose)
        self.failed: list[Sequence] = []
        self.phases = Phases()
        self._ids = count()

    # -- the loop ----------------------------------------------------------------------------

    def step(self) -> list[TokenStep]:
        """One turn for every running sequence; the steps of those that drew a token."""
        self.failed, self.phases, started = [], Phases(), perf_counter()
        turn = self.scheduler.schedule()
        if not turn:
            return []
        self._copy_blocks()
        self.phases.schedule, started = lap(started)
        logits = self.backend.run(batch_of(turn))
        self.phases.run, started = lap(started)
        drawn = self._sample(turn, logits)
        self.phases.sample, _ = lap(started)
        return [step for part in zip(turn, drawn, strict=True) for step in self._commit(*part)]

    def _copy_blocks(self) -> None:
        """Forks get a copy of the block that they will write into."""
        if self.scheduler.copies:
            self.backend.copy_blocks(self.scheduler.copies)
            self.scheduler.copied()

    def _sample(self, turn: list[Scheduled], logits: Logits) -> list[list[Sampled | Exception]]:
        """Draw for each of the turn as if its guesses were right; read the prompts that ask."""
        rows, draws = [], []
        for scheduled, mine in logits_of(turn, logits):
            if scheduled.sequence.wants_prompt_logprobs:
                self._read_prompt(scheduled, mine)
            count = 1 + len(scheduled.guesses) if scheduled.draws else 0
            rows.append(mine[len(mine) - count :])
            draws.append(_draws(scheduled, count))
        together = logits if sum(map(len, rows)) == len(logits) else np.concatenate(rows)
        flat = [draw for part in draws for draw in part]
        drawn = iter(self.backend.sample(together, flat))
        return [[next(drawn) for _ in part] for part in draws]

    def _read_prompt(self, scheduled: Scheduled, logits: Logits) -> None:
        """Note how likely the model found the prompt's tokens, each after those before it."""
        sequence = scheduled.sequence
        start = sequence.num_computed_tokens
        following = sequence.prompt_token_ids[start + 1 : start + 1 + len(logits)]
        top, known = sequence.run.observe.prompt_top, len(sequence.prompt_logprobs) - start
        rows = self.backend.read(logits[: len(following)], following, top)
        for read in rows[known:]:
            if isinstance(read, Exception):
                self.fail(sequence, read)
                break
            sequence.prompt_logprobs.append(read)

    def _commit(self, scheduled: Scheduled, drawn: list[Sampled | Exception]) -> list[TokenStep]:
        """Append what was drawn, up to the first token that was guessed wrong."""
        sequence, steps = scheduled.sequence, []
        if sequence.finish_reason:  # ended while the step was computed
            return []
        sequence.num_computed_tokens += len(scheduled.tokens)
        forced = sequence.num_forced > 0
        for outcome, guess in zip(drawn, [*scheduled.guesses, None], strict=False):
            if isinstance(outcome, Exception):
                self.fail(sequence, outcome)
                break
            steps.append(self._append(sequence, outcome, guessed=outcome.token_id == guess))
            if sequence.finish_reason or outcome.token_id != guess:
                break
            sequence.num_computed_tokens += 1  # the guess was right, and was computed with the rest
        if scheduled.guesses and not forced and not sequence.error:
            self.speculator.learn(sequence, len(scheduled.guesses), max(len(steps) - 1, 0))
        self._settle(sequence, wrote=bool(steps))
        return steps

    def _append(self, sequence: Sequence, sampled: Sampled, *, guessed: bool) -> TokenStep:
        """Append one token, decide whether the text ends, and tell."""
        position, token_id, source = len(sequence), sampled.token_id, _source(sequence, guessed)
        sequence.fingerprint = chain_hash(sequence.fingerprint, sampled.logits_hash)
        ends = self._ends_text(sequence, token_id)
        text = sequence.append(token_id, b"" if ends else self.token_bytes(token_id))
        self._check_stops(sequence, token_id)
        if sequence.finish_reason:
            text += sequence.flush()
        return TokenStep(
            sequence.id, len(sequence.output_token_ids) - 1, position, token_id, text,
            sampled.logprob, sampled.survivors, source, sampled.sampled_id, sampled.observed,
            self.phases, sampled.logits_hash, sequence.fingerprint, sequence.finish_reason,
            sequence.matched,
        )  # fmt: skip

    def _settle(self, sequence: Sequence, *, wrote: bool) -> None:
        """Leave the sequence ready for the next step, or let go of it."""
        if sequence in self.failed:
            return
        self.scheduler.publish(sequence)
        if sequence.finish_reason:
            self._release(sequence)
        elif wrote and not sequence.run.kv_cache:
            sequence.num_computed_tokens = 0  # the lesson's loop: everything again, every step

    # -- who comes and goes ------------------------------------------------------------------

    @property
    def waiting(self) -> list[Sequence]:
        """Who is in the queue, next first."""
        return self.scheduler.waiting

    @property
    def running(self) -> list[Sequence]:
        """Who holds blocks, first in the queue first."""
        return self.scheduler.running

    def add(
        self,
        prompt_token_ids: Iterable[int],
        params: SamplingParams,
        stops: StopParams,
        run: RunParams | None = None,
        *,
        leader: Sequence | None = None,
    ) -> Sequence:
        """Queue a sequence. InputError if it does not fit the model, QueueFullError if full.

        A seed that was not given is chosen here; ``sequence.seed`` tells it.
        leader: a sample of the same prompt, added before, whose blocks this one may share.
        """
        run = run or RunParams()
        prompt = check_ids("prompt", prompt_token_ids)
        self._check(prompt, params, stops, run)
        read = prompt, run.observe.prompt_top
        if leader and (leader.prompt_token_ids, leader.run.observe.prompt_top) != read:
            raise InputError("leader must have the same prompt and prompt_logprobs: leave it out")
        most = self.scheduler.policy.max_waiting
        if most is not None and len(self.waiting) >= most:
            raise QueueFullError(f"the queue is full with {most} waiting: try again later")
        seed = params.seed if params.seed is not None else randbits(32)
        longest = self.limits.longest(len(prompt), stops.max_tokens)
        sequence = Sequence(
            next(self._ids), prompt, params, stops, seed, longest, run, leader=leader
        )
        self.scheduler.add(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """End a sequence at once, wherever it is; its blocks are free again."""
        if sequence.finish_reason is None:
            sequence.finish_reason = FinishReason.ABORTED
            self._release(sequence)

    def abort_all(self, error: Exception | None = None) -> None:
        """End every sequence, also after a step that raised; ``error`` becomes each one's own."""
        for sequence in [*self.running, *self.waiting]:
            sequence.finish_reason = sequence.finish_reason or FinishReason.ABORTED
            sequence.error = sequence.error or error
            self._release(sequence)
        self.scheduler.copied()  # no fork is left to copy for

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence, unless it has ended, with an error of its own; the others go on."""
        sequence.error = error
        if sequence.finish_reason is None:
            sequence.finish_reason = FinishReason.ERROR
            self.failed.append(sequence)
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.speculator.forget(sequence)

    def _check(
        self, prompt: tuple[int, ...], params: SamplingParams, stops: StopParams, run: RunParams
    ) -> None:
        """InputError where a request does not fit the model or the machine."""
        self.limits.check_prompt(prompt)
        self.limits.check_ids("logit_bias", params.logit_bias)
        self.limits.check_ids("stop_token_ids", stops.stop_token_ids)
        self.limits.check_ids("forced", run.forced)
        self.limits.check_ids("track", run.observe.track)
        if run.speculate == "draft" and self.speculator.draft is None:
            raise InputError("speculate: no draft model is loaded; name one, draft:MODEL")
        longest = self.limits.longest(len(prompt), stops.max_tokens)
        self.blocks_for(longest, "prompt and max_tokens", "shorten the prompt or lower max_tokens")

    def blocks_for(self, tokens: int, name: str, fix: str) -> int:
        """How many blocks hold so many tokens; InputError where there are never as many."""
        wanted = self.scheduler.blocks_for(tokens)
        if wanted > self.blocks.count:
            raise InputError(
                f"{name} need {wanted} KV blocks of {self.blocks.block} tokens; there are "
                f"{self.blocks.count}: {fix}"
            )
        return wanted

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


def _draws(scheduled: Scheduled, count: int) -> list[RowDraw]:
    """The draws of a sequence: the token after its last, then the one after each guess."""
    s, guesses = scheduled.sequence, scheduled.guesses
    observe = s.run.observe if s.run.observe.any_step else None
    forced: list[int | None] = [*s.forced(count)]
    forced += [None] * (count - len(forced))
    return [
        RowDraw(s.compiled, s.history(guesses[:i]), s.seed, len(s) + i, observe, forced[i])
        for i in range(count)
    ]


def _source(sequence: Sequence, guessed: bool) -> str:
    """Where the next token of this sequence comes from."""
    if sequence.num_forced:
        return "forced"
    if guessed:
        return "draft"
    return "sampled" if sequence.params.temperature > 0 else "greedy"


def lap(started: float) -> tuple[float, float]:
    """Seconds since then, and now."""
    now = perf_counter()
    return now - started, now
