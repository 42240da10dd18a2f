"""RunParams: what the caller asked of the engine itself, checked once.

Knows names, ranges and defaults. Refuses to know what they do.
"""

from dataclasses import dataclass

from cutaway.checks import check_ids, check_int
from cutaway.errors import InputError

SPECULATE = ("off", "ngram", "draft")
MOST_LOGPROBS = 1000
_PRIORITIES = 2**31


@dataclass(frozen=True, kw_only=True)
class RunParams:
    """How a text is computed and what is told about it. Only ``forced`` changes a token.

    kv_cache         False computes the whole text again at every step: quadratic cost
    ledger           record in every TokenStep what each stage removed
    logprobs         tell the N likeliest tokens of every step, before and after the chain
    prompt_logprobs  tell the N likeliest tokens at every position of the prompt
    priority         lower goes first, in the queue and when blocks run out
    speculate        guess ahead: "off", "ngram" (from the text itself) or "draft" (a small model)
    forced           the answer begins with these token ids, whatever would be drawn; stops hold
    candidates       observe every step: its N likeliest tokens and what the chain did to them
    watch            observe every step: these token ids, however unlikely

    Raises InputError naming the field.
    """

    kv_cache: bool = True
    ledger: bool = False
    logprobs: int = 0
    prompt_logprobs: int = 0
    priority: int = 0
    speculate: str = "off"
    forced: tuple[int, ...] = ()
    candidates: int = 0
    watch: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("kv_cache", "ledger"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be true or false, not {getattr(self, name)!r}")
        for name, low, high in (
            ("logprobs", 0, MOST_LOGPROBS),
            ("prompt_logprobs", 0, MOST_LOGPROBS),
            ("priority", -_PRIORITIES, _PRIORITIES),
            ("candidates", 0, MOST_LOGPROBS),
        ):
            object.__setattr__(self, name, check_int(name, getattr(self, name), low, high))
        for name in ("forced", "watch"):
            object.__setattr__(self, name, check_ids(name, getattr(self, name)))
        if self.speculate not in SPECULATE:
            raise InputError(
                f"speculate must be one of {', '.join(SPECULATE)}, not {self.speculate!r}"
            )
