"""Check: what decides about a token by the text before it, where no grammar can.

Knows how checks are named, what a user's own must have, and arithmetic.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

from cutaway.base.checks import shown
from cutaway.errors import CutawayError, InputError

# -- arithmetic --------------------------------------------------------------------------------
# ``a op b =`` and ``a op b op c =`` must be followed by the right result. Operands are integers,
# decimals and fractions such as 1/3, the operators + - * × / ÷ with their usual precedence, spaces
# where anybody likes. Anything else, and whatever could be read in two ways, is left alone. Exact,
# by ``fractions.Fraction``.

_OPERAND = r"(?:[0-9]{1,30}/[0-9]{1,30}(?![0-9.])|[0-9]{1,30}(?:\.[0-9]{1,30})?)"
_SUM = re.compile(rf"(?:(?<=[\s(\[{{\"'`=>:])|^)-?{_OPERAND}(?: *[-+*/÷] *{_OPERAND}){{0,2}} *$")
_PART = re.compile(rf"(?:(?<=[0-9])(/)([0-9.]+)|([-+*/÷]?) *({_OPERAND}))")
_READ = 512  # bytes before the sign of equality
_SPACES = 2
_FEWEST, _MOST = 2, 15
"""Decimals of a number that does not end."""
_EQUALS = re.compile(rb"(?s)[0-9] *=.")
_EQUALS_NEXT = re.compile(rb"(?s)^ *=.|[0-9] *=.")
_LONGER = re.compile(rb"(?s)^[0-9]|^[.,/][0-9]|=.")
_AFTER_DIGIT = re.compile(rb"[0-9] *$")


class Arithmetic:
    """Refuses what a calculator would not write after a sign of equality."""

    name, reads_prompt = "arithmetic", True
    limit_s: float | None = 1.0

    def allows(self, text: bytes, token: bytes) -> bool:
        """Whether the token spells the result, or none is due; a text must not end within one."""
        if not token:
            return _awaited(text) != "more"
        if b"=" not in text[-_READ:] and b"=" not in token:
            return True
        whole, start = text[-2 * _READ :] + token, len(text[-2 * _READ :])
        return all(_fits(whole[:i], whole[i : i + 1]) for i in range(start, len(whole)))

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        """Any token within a number; else those with a sign of equality."""
        awaited = _awaited(text)
        if awaited == "more":
            return None
        if awaited:
            return _LONGER
        return _EQUALS_NEXT if _AFTER_DIGIT.search(text[-_READ:]) else _EQUALS


def _fits(text: bytes, byte: bytes) -> bool:
    """Whether a byte may follow a text, of which all is right so far."""
    awaited = _awaited(text)
    if not awaited:
        return True
    spellings, said = _open_sum(text)
    if not said.strip(b" ") and byte == b" ":
        return len(said) < _SPACES
    said = said.lstrip(b" ")
    if awaited == "end":  # .5 after 12 would be 12.5, after 12.3 it would be nothing
        return not byte.isdigit()
    begun = any(one.startswith(said + byte) for one in spellings)
    return begun or (said in spellings and not byte.isdigit())


def _awaited(text: bytes) -> str:
    """What comes: "more" of a number, "any" where it may be whole, "end" after its point, or ""."""
    spellings, said = _open_sum(text)
    said = said.lstrip(b" ")
    if said in spellings:
        return "any"
    if any(one.startswith(said) for one in spellings):
        return "more"
    return "end" if said[-1:] in (b".", b",", b"/") and said[:-1] in spellings else ""


def _open_sum(text: bytes) -> tuple[frozenset[bytes], bytes]:
    """The spellings of the result that is being written, and what is written of it so far."""
    before, sign, said = text[-_READ:].rpartition(b"=")
    if not sign or len(said) > 2 * _READ:
        return frozenset(), b""
    return _results(before, len(text) > _READ), said


@lru_cache(1024)
def _results(before: bytes, is_cut: bool) -> frozenset[bytes]:
    """The spellings of the result of what precedes an equals sign."""
    text = before.decode("utf-8", "replace").replace("×", "*").replace("−", "-")
    found = _SUM.search(text)
    if not found or (is_cut and found.start() == 0):
        return frozenset()
    if re.search(r"[-+*/÷^][ \t]*$", text[: found.start()]):  # a part of something longer
        return frozenset()
    value = _value(found.group())
    return frozenset() if value is None else frozenset(_spellings(value))


def _value(said: str) -> Fraction | None:
    """Of a sum; None where it has none, or could mean two things."""
    parts = [(a or c, b or d) for a, b, c, d in _PART.findall(said)]
    if len(parts) == 1 and "/" not in said:
        return None
    terms: list[Fraction] = []
    for sign, operand in parts:
        if sign == "/" and "/" in operand:  # 8 / 4/2
            return None
        numerator, _, denominator = operand.partition("/")
        if not int(denominator or 1):
            return None
        number = Fraction(numerator) / int(denominator or 1)
        if sign in ("/", "÷") and not number:
            return None
        if sign == "*":
            terms[-1] *= number
        elif sign in ("/", "÷"):
            terms[-1] /= number
        else:
            terms.append(-number if sign == "-" else number)
    return sum(terms, Fraction())


def _spellings(value: Fraction) -> Iterator[bytes]:
    """The decimal number and the fraction in lowest terms; of a number that does not end, what
    is cut or rounded after 2 to 15 decimals, two digits of it other than leading zeros.
    """
    signs = (b"-", "−".encode()) if value < 0 else (b"",)
    for text in _magnitudes(abs(value)):
        yield from (sign + text.encode() for sign in signs)


def _magnitudes(value: Fraction) -> Iterator[str]:
    if value.denominator == 1:
        yield str(value.numerator)
        return
    yield f"{value.numerator}/{value.denominator}"
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest == 1:
        yield _decimal(value, max(twos, fives))
        return
    for places in range(_FEWEST, _MOST + 1):
        for rounding in (False, True):
            text = _decimal(value, places, rounded=rounding)
            if len(text.replace(".", "").lstrip("0")) >= _FEWEST:
                yield text


def _decimal(value: Fraction, places: int, *, rounded: bool = False) -> str:
    scaled = value * 10**places + (Fraction(1, 2) if rounded else 0)
    digits = str(scaled.numerator // scaled.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}"


# -- named checks ------------------------------------------------------------------------------


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
            "check",
            f' must be "arithmetic", or an object with allows(text, token), not {shown(value)}',
        )
    return _Own(value)
