"""RunParams: what the caller asked of the engine itself, checked once.

Knows names, ranges and defaults. Refuses to know what they do.
"""

from dataclasses import dataclass

from cutaway.checks import check_ids, check_int
from cutaway.errors import InputError
from cutaway.sampling import Observe

SPECULATE = ("off", "ngram", "draft")
_PRIORITIES = 2**31


@dataclass(frozen=True, kw_only=True)
class RunParams:
    """How a text is computed and what is noted of it. Only ``forced`` changes a token.

    kv_cache         False computes the whole text again at every step: quadratic cost
    priority         lower goes first, in the queue and when blocks run out
    speculate        guess ahead: "off", "ngram" (from the text itself) or "draft" (a small model)
    forced           the answer begins with these token ids, whatever would be drawn; stops hold
    observe          what to note of every step and of the prompt

    Raises InputError naming the field.
    """

    kv_cache: bool = True
    priority: int = 0
    speculate: str = "off"
    forced: tuple[int, ...] = ()
    observe: Observe = Observe()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if not isinstance(self.kv_cache, bool):
            raise InputError(f"kv_cache must be true or false, not {self.kv_cache!r}")
        priority = check_int("priority", self.priority, -_PRIORITIES, _PRIORITIES)
        object.__setattr__(self, "priority", priority)
        object.__setattr__(self, "forced", check_ids("forced", self.forced))
        if self.speculate not in SPECULATE:
            raise InputError(
                f"speculate must be one of {', '.join(SPECULATE)}, not {self.speculate!r}"
            )
