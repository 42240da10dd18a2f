"""Sequence: one text being written, and TokenStep: what one step of it looked like.

Knows tokens, how far they were computed, and the blocks that hold their keys and
values. Refuses to know the scheduler and the backend.
"""

from dataclasses import dataclass, field

from cutaway.engine.fingerprint import START
from cutaway.engine.params import RunParams
from cutaway.engine.stops import FinishReason, StopMatcher, StopParams
from cutaway.sampling import (
    CompiledChain,
    History,
    Observation,
    ReadRow,
    SamplingParams,
    Stage,
    build_chain,
)
from cutaway.text import TextStream


@dataclass(slots=True)
class Phases:
    """Seconds of one turn of the loop, by what was done."""

    schedule: float = 0.0
    run: float = 0.0
    sample: float = 0.0


@dataclass(frozen=True, slots=True)
class TokenStep:
    """One turn of the loop, as observers see it.

    sequence_id    which sequence
    index          0 for the first new token
    position       absolute position of the token in the text, prompt included
    token_id       the chosen token
    text           what the reader may see now; it lags where a stop string or a character
                   is not yet complete, and may belong to earlier tokens
    logprob        natural log-probability under the model's own logits, before the chain
    survivors      how many tokens the chain left to draw from
    source         "sampled", "greedy", "forced", or "draft" where it had been guessed before
    sampled_id     what the sampler drew, which may differ where the token was forced
    observed       what the row looked like and what the chain did, when the request asked
    phases         how long the step took that computed it; tokens of one step share it
    logits_hash    hash of this row's bits
    fingerprint    hash of the logits' bits of all steps up to this one
    finish_reason  None while the text goes on
    matched        the stop string, token or end token that ended it
    """

    sequence_id: int
    index: int
    position: int
    token_id: int
    text: str
    logprob: float
    survivors: int
    source: str
    sampled_id: int
    observed: Observation | None
    phases: Phases
    logits_hash: int
    fingerprint: int
    finish_reason: FinishReason | None = None
    matched: str | int | None = None


@dataclass(slots=True)
class Speculation:
    """What guessing ahead brought: tokens guessed, and guessed right; each saved a step."""

    proposed: int = 0
    accepted: int = 0


@dataclass(eq=False)
class Sequence:
    """A prompt, its growing output, and the state that the loop keeps for it.

    blocks             KV block ids by position // block size; the first ``published`` of them
                       are in the prefix cache
    num_cached_tokens  tokens of the prompt that were not computed for this sequence
    leader             the sample of the same prompt whose blocks this one may share
    longest            how many tokens it can have at most, prompt included
    """

    id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    stops: StopParams
    seed: int
    longest: int
    run: RunParams = field(default_factory=RunParams)
    leader: "Sequence | None" = None
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None
    blocks: list[int] = field(default_factory=list)
    published: int = 0
    fingerprint: int = START
    finish_reason: FinishReason | None = None
    matched: str | int | None = None
    error: Exception | None = None
    speculation: Speculation = field(default_factory=Speculation)

    def __post_init__(self) -> None:
        self.chain: tuple[Stage, ...] = build_chain(self.params)
        self.compiled = CompiledChain(self.chain, self.params, self.prompt_token_ids)
        self.matcher = StopMatcher(self.stops.stop)
        self.stream = TextStream()
        # Of prompt_token_ids[1:], as far as computed; samples of one prompt share the list.
        self.prompt_logprobs: list[ReadRow] = self.leader.prompt_logprobs if self.leader else []

    def __len__(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def key(self) -> tuple[int, int]:
        """Its place in every queue: priority, then arrival."""
        return self.run.priority, self.id

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not computed; one while decoding with a KV cache."""
        return len(self) - self.num_computed_tokens

    @property
    def num_forced(self) -> int:
        """How many tokens to come are given."""
        return max(0, len(self.run.forced) - len(self.output_token_ids))

    def forced(self, count: int) -> list[int]:
        """The given ones of the next ``count`` tokens."""
        done = len(self.output_token_ids)
        return list(self.run.forced[done : done + count])

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether log-probabilities of the prompt are still to be computed."""
        have = len(self.prompt_logprobs)
        return bool(self.run.observe.prompt_top) and have < len(self.prompt_token_ids) - 1

    @property
    def has_read_prompt(self) -> bool:
        """Whether its blocks hold the whole prompt."""
        return bool(self.blocks) and self.num_computed_tokens >= len(self.prompt_token_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens of the text at positions start … stop - 1, as far as there are any."""
        split = len(self.prompt_token_ids)
        head = self.prompt_token_ids[start:stop]
        return [*head, *self.output_token_ids[max(start - split, 0) : max(stop - split, 0)]]

    def history(self, guesses: list[int]) -> History:
        """What the penalties look at, if the guesses come true."""
        output = self.output_token_ids
        return History(self.prompt_token_ids, [*output, *guesses] if guesses else output)

    def append(self, token_id: int, data: bytes) -> str:
        """Commit a token and return the text that may now be shown.

        data: the token's bytes, empty where it ends the text.
        """
        self.output_token_ids.append(token_id)
        text = self.stream.push(self.matcher.push(data))
        if self.matcher.matched is not None:
            self.finish_reason, self.matched = FinishReason.STOP_STRING, self.matcher.matched
        return text

    def flush(self) -> str:
        """The text held back, once nothing follows."""
        return self.stream.push(self.matcher.flush()) + self.stream.flush()
