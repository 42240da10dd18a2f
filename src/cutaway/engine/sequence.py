"""Sequence: one text being written, and TokenStep: what one step of it looked like.

Knows tokens, how far they were computed, and the blocks that hold their keys and
values. Refuses to know the scheduler and the backend.
"""

from dataclasses import dataclass, field

from cutaway.engine.fingerprint import START
from cutaway.engine.stops import FinishReason, StopMatcher, StopParams
from cutaway.sampling import History, Recipe, SamplingParams, Stage, StageReport, build_chain
from cutaway.text import TextStream


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
    ledger         what each stage removed, when the request asked to look
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
    ledger: tuple[StageReport, ...]
    fingerprint: int
    finish_reason: FinishReason | None = None
    matched: str | int | None = None


@dataclass(eq=False)
class Sequence:
    """A prompt, its growing output, and the state that the loop keeps for it."""

    id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    stops: StopParams
    seed: int
    kv_cache: bool = True
    ledger: bool = False
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    fingerprint: int = START
    finish_reason: FinishReason | None = None
    matched: str | int | None = None

    def __post_init__(self) -> None:
        self.chain: tuple[Stage, ...] = build_chain(self.params)
        self.recipe = Recipe(self.chain, self.params, self.prompt_token_ids)
        self.matcher = StopMatcher(self.stops.stop)
        self.stream = TextStream()

    def __len__(self) -> int:
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def history(self) -> History:
        """What the penalties look at."""
        return History(self.prompt_token_ids, self.output_token_ids)

    def pending(self, limit: int) -> list[int]:
        """The next tokens to compute, at most ``limit``."""
        start, split = self.num_computed_tokens, len(self.prompt_token_ids)
        head = self.prompt_token_ids[start : start + limit]
        tail_start = max(start - split, 0)
        tail = self.output_token_ids[tail_start : tail_start + limit - len(head)]
        return [*head, *tail]

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
