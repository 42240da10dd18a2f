"""Check: decides whether a token may follow a text, by rules that no grammar can express.

Knows the names of checks, the interface of a user's own check, and arithmetic.
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
# anywhere. Other texts and ambiguous expressions are not checked. The arithmetic is exact, by
# ``fractions.Fraction``.

_OPERAND = r"(?:[0-9]{1,30}/[0-9]{1,30}(?![0-9.])|[0-9]{1,30}(?:\.[0-9]{1,30})?)"
_SUM = re.compile(rf"(?:(?<=[\s(\[{{\"'`=>:])|^)-?{_OPERAND}(?: *[-+*/÷] *{_OPERAND}){{0,2}} *$")
_PART = re.compile(rf"(?:(?<=[0-9])(/)([0-9.]+)|([-+*/÷]?) *({_OPERAND}))")
_READ = 512  # bytes read before an equals sign
_SPACES = 2
_MIN_DIGITS, _MAX_DIGITS = 2, 15
"""The fewest and the most decimals accepted of a number whose decimals do not end."""
_EQUALS = re.compile(rb"(?s)[0-9] *=.")
_EQUALS_NEXT = re.compile(rb"(?s)^ *=.|[0-9] *=.")
_LONGER = re.compile(rb"(?s)^[0-9]|^[.,/][0-9]|=.")
_AFTER_DIGIT = re.compile(rb"[0-9] *$")


class Arithmetic:
    """Refuses a wrong result after an equals sign."""

    name, reads_prompt = "arithmetic", True
    limit_s: float | None = 1.0

    def allows(self, text: bytes, token: bytes) -> bool:
        """Return whether the token fits the result, if one is due; no text ends within a result."""
        if not token:
            return _find_awaited_part(text) != "more"
        if b"=" not in text[-_READ:] and b"=" not in token:
            return True
        whole, start = text[-2 * _READ :] + token, len(text[-2 * _READ :])
        return all(_fits(whole[:i], whole[i : i + 1]) for i in range(start, len(whole)))

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        """Suspect any token within a result (None), elsewhere those with an equals sign."""
        awaited = _find_awaited_part(text)
        if awaited == "more":
            return None
        if awaited:
            return _LONGER
        return _EQUALS_NEXT if _AFTER_DIGIT.search(text[-_READ:]) else _EQUALS


def _fits(text: bytes, byte: bytes) -> bool:
    """Return whether a byte may follow a text that is right so far."""
    awaited = _find_awaited_part(text)
    if not awaited:
        return True
    spellings, partial_result = _open_sum(text)
    if not partial_result.strip(b" ") and byte == b" ":
        return len(partial_result) < _SPACES
    partial_result = partial_result.lstrip(b" ")
    if awaited == "end":  # a digit would continue the number: 12.5 instead of 12
        return not byte.isdigit()
    is_start = any(spelling.startswith(partial_result + byte) for spelling in spellings)
    return is_start or (partial_result in spellings and not byte.isdigit())


def _find_awaited_part(text: bytes) -> str:
    """Return what may follow the result that a text ends with; "" if it does not end with one.

    "more": the rest of the result. "any": the rest, or anything but a digit, since the result may
    be complete. "end": anything but a digit, since a point, comma or slash follows the result.
    """
    spellings, partial_result = _open_sum(text)
    partial_result = partial_result.lstrip(b" ")
    if partial_result in spellings:
        return "any"
    if any(spelling.startswith(partial_result) for spelling in spellings):
        return "more"
    return (
        "end"
        if partial_result[-1:] in (b".", b",", b"/") and partial_result[:-1] in spellings
        else ""
    )


def _open_sum(text: bytes) -> tuple[frozenset[bytes], bytes]:
    """Return the spellings of the result after the last equals sign, and the result so far."""
    before, sign, partial_result = text[-_READ:].rpartition(b"=")
    if not sign or len(partial_result) > 2 * _READ:
        return frozenset(), b""
    return _results(before, len(text) > _READ), partial_result


@lru_cache(1024)
def _results(before: bytes, is_cut: bool) -> frozenset[bytes]:
    """Return the spellings of the result of the expression before an equals sign."""
    text = before.decode("utf-8", "replace").replace("×", "*").replace("−", "-")
    match = _SUM.search(text)
    if not match or (is_cut and match.start() == 0):
        return frozenset()
    if re.search(r"[-+*/÷^][ \t]*$", text[: match.start()]):  # a part of a longer expression
        return frozenset()
    value = _value(match.group())
    return frozenset() if value is None else frozenset(_spellings(value))


def _value(expression: str) -> Fraction | None:
    """Return the value of an expression; None if it has none or is ambiguous."""
    parts = [(a or c, b or d) for a, b, c, d in _PART.findall(expression)]
    if len(parts) == 1 and "/" not in expression:
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
    """Yield the spellings of a number: as a decimal, and as a fraction in lowest terms.

    A number whose decimals do not end is cut or rounded after 2 to 15 of them, where that leaves at
    least two digits besides leading zeros.
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
    for places in range(_MIN_DIGITS, _MAX_DIGITS + 1):
        for rounding in (False, True):
            text = _decimal(value, places, rounded=rounding)
            if len(text.replace(".", "").lstrip("0")) >= _MIN_DIGITS:
                yield text


def _decimal(value: Fraction, places: int, *, rounded: bool = False) -> str:
    scaled = value * 10**places + (Fraction(1, 2) if rounded else 0)
    digits = str(scaled.numerator // scaled.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}"


# -- named checks ------------------------------------------------------------------------------


class OwnCheck(Protocol):
    """The interface of a user's own check: ``LLM.generate(..., check=object)``.

    Optional members: ``name``, for errors and records; ``suspects``, as in ``Check`` (if it is
    missing, every step asks ``allows`` about every token); ``reads_prompt = True``, which puts the
    last 512 tokens of the prompt before the text.
    """

    def allows(self, text: bytes, token: bytes) -> bool:
        """Return whether a token may follow the text, as in ``Check``."""
        ...


class Check(Protocol):
    """Decides from bytes alone: the same text and token always get the same answer.

    name          its name in errors and records
    reads_prompt  whether the text begins with the end of the prompt
    limit_s       processor time for one token, in seconds; None: no limit, for a user's own
    """

    name: str
    reads_prompt: bool
    limit_s: float | None

    def allows(self, text: bytes, token: bytes) -> bool:
        """Return whether a token may follow the text; for an empty token, whether it may end.

        A refused token also rules out all longer tokens that begin with it; none of these is
        asked about. A text may end within a character.
        """
        ...

    def suspects(self, text: bytes) -> re.Pattern[bytes] | None:
        """Return a pattern of the tokens that may be refused here; None: any token may be."""
        ...


class _Own:
    """A user's own check; its exception ends only the text that it checked."""

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
    """Return the check that a request asks for; InputError if no such check exists."""
    if value is None or value == "arithmetic":
        return _ARITHMETIC
    if isinstance(value, str) or not callable(getattr(value, "allows", None)):
        raise InputError(
            "check",
            f' must be "arithmetic", or an object with allows(text, token), not {shown(value)}',
        )
    return _Own(value)
