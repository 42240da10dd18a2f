"""What can be asked of a model at all. Refuses to know who else is running."""

from collections.abc import Iterable
from dataclasses import dataclass

from cutaway.backends import STEP_ROWS
from cutaway.errors import InputError, TooLongError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the model itself imposes.

    sight      what a token sees: what is before it ("past"), or "all" of its text
    step_rows  the most rows of a step, into which a text that sees itself must fit
    """

    context_length: int
    vocab_size: int
    end_ids: frozenset[int]
    sight: str = "past"
    step_rows: int = STEP_ROWS

    def longest(self, prompt_tokens: int, max_tokens: int) -> int:
        """How many tokens a text can have at most, its prompt included."""
        return min(prompt_tokens + max_tokens, self.context_length)

    @property
    def longest_prompt(self) -> int:
        """How many tokens a prompt can have."""
        return self.context_length - 1

    def too_long(self, tokens: object) -> TooLongError:
        """What is said of a prompt that has too many, or at least some number of them."""
        return TooLongError(
            f"prompt has {tokens} tokens, and at most {self.longest_prompt} leave room to answer "
            f"in a context of {self.context_length}: shorten it"
        )

    def check_past(self) -> None:
        """InputError where a token sees what is behind it, so that none can be added."""
        if self.sight != "past":
            raise InputError(
                "this model sees a text as a whole and cannot continue one: it fills in what is "
                "masked, with fill"
            )

    def check_whole(self, ids: tuple[int, ...]) -> None:
        """InputError where a text cannot be seen as a whole."""
        if self.sight != "all":
            raise InputError("this model sees only what is before a token, and no text as a whole")
        most = min(self.step_rows, self.context_length)
        if len(ids) > most:
            raise InputError(
                f"the text has {len(ids)} tokens, and one that is seen as a whole can have "
                f"{most}: shorten it"
            )
        self.check_scored(ids)

    def check_prompt(self, prompt: tuple[int, ...]) -> None:
        """InputError where the model cannot be asked to continue this."""
        if not prompt:
            raise InputError("prompt is empty and this model has no begin token: write something")
        if len(prompt) > self.longest_prompt:
            raise self.too_long(len(prompt))
        self.check_ids("prompt", prompt)

    def check_scored(self, prompt: tuple[int, ...]) -> None:
        """InputError where the model cannot score this."""
        if not 0 < len(prompt) <= self.context_length:
            raise InputError(
                f"token_ids must hold 1 to {self.context_length} ids, not {len(prompt)}"
            )
        self.check_ids("token_ids", prompt)

    def check_ids(self, name: str, ids: Iterable[int]) -> None:
        """InputError where one of them is no token of the vocabulary."""
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                last = self.vocab_size - 1
                raise InputError(f"{name}: token id {token_id} is not between 0 and {last}")
