"""Check: what decides about a token by the text before it, where no grammar can.

Knows how checks are named and what a user's own must have.
"""

import re
from typing import Any, Protocol

from cutaway.base.checks import shown
from cutaway.errors import CutawayError, InputError
from cutaway.text.grammar.arithmetic import Arithmetic


class OwnCheck(Protocol):
    """What a user's own check has: ``LLM.generate(..., check=object)``.

    It may also have ``name``, which errors and records call it by; ``suspects`` as ``Check`` has
    it, without which it is asked about every token at every step; and ``reads_prompt = True``,
    with which the text begins with the last 512 tokens of the prompt.
    """

    def allows(self, text: bytes, token: bytes) -> bool:
        """As ``Check`` has it."""
        ...


class Check(Protocol):
    """Bytes in, yes or no out; a function of them and nothing else.

    name          as errors and records call it
    reads_prompt  whether the text begins with the end of the prompt
    limit_s       how much of the processor's time it may take for one token; None: any, where it
                  is the user's own
    """

    name: str
    reads_prompt: bool
    limit_s: float | None

    def allows(self, text: bytes, token: bytes) -> bool:
        """Whether a token may follow the text; where it is empty, whether the text may end.

        What is refused stays refused whatever follows: no longer token that begins with it is
        asked about. A text may end within a character.
        """
        ...

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        """What is found in every token that can be refused here; None: any token can be."""
        ...


class _Own:
    """A user's own check as the loop calls it: what it raises ends its own text only."""

    limit_s: float | None = None

    def __init__(self, check: OwnCheck) -> None:
        self._check = check
        self.name = str(getattr(check, "name", type(check).__name__))
        self.reads_prompt = bool(getattr(check, "reads_prompt", False))

    def allows(self, text: bytes, token: bytes) -> bool:
        try:
            return bool(self._check.allows(text, token))
        except Exception as error:
            raise CutawayError(f"check {self.name}: {type(error).__name__}: {error}") from error

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        suspects = getattr(self._check, "suspects", None)
        try:
            return None if suspects is None else suspects(text)
        except Exception as error:
            raise CutawayError(f"check {self.name}: {type(error).__name__}: {error}") from error


_ARITHMETIC = Arithmetic()


def check_named(value: Any) -> Check:
    """The check that a request asks for; InputError where it is none."""
    if value is None or value == "arithmetic":
        return _ARITHMETIC
    if isinstance(value, str) or not callable(getattr(value, "allows", None)):
        raise InputError(
            f'check must be "arithmetic", or an object with allows(text, token), not {shown(value)}'
        )
    return _Own(value)
