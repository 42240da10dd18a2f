"""Reading and judging answers: figures within a tolerance, tokens by their names."""

import re
from dataclasses import dataclass

from cutaway.errors import InputError


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, and one sentence on it."""

    right: bool
    remark: str


@dataclass(frozen=True, slots=True)
class Unit:
    """How figures of a kind are written, and how exact they must be.

    example    one, for a person
    digits     decimal places of the solution
    slack      how far a figure may be off
    percent    the value of one percent; None where the unit has no percent
    """

    example: str
    digits: int
    slack: float
    percent: float | None = None


SHARE = Unit("0.45 or 45%", 3, 0.005, percent=0.01)
BITS = Unit("1.5", 2, 0.05)
COUNT = Unit("3", 0, 0)


@dataclass(frozen=True, slots=True)
class Numbers:
    """One figure or several, in the order of their labels."""

    values: tuple[float, ...]
    labels: tuple[str, ...]
    unit: Unit

    @property
    def solution(self) -> str:
        """The figures, rounded."""
        return " ".join(f"{value:.{self.unit.digits}f}" for value in self.values)

    def judge(self, text: str) -> Verdict:
        """Which of the figures are near enough. InputError where they cannot be read."""
        pairs = zip(self._read(text), self.values, strict=True)
        near = [abs(given - value) <= self.unit.slack + 1e-9 for given, value in pairs]
        if all(near):
            return Verdict(True, "Right.")
        if not any(near):
            return Verdict(False, "Not quite.")
        wrong = [label for label, right in zip(self.labels, near, strict=True) if not right]
        return Verdict(False, f"{sum(near)} of {len(near)} are right; look at {', '.join(wrong)}.")

    def _read(self, text: str) -> list[float]:
        plain = re.sub(r"\s+%", "%", text.replace("−", "-"))
        if "." not in plain:
            plain = re.sub(r"(?<=\d),(?=\d)", ".", plain)  # a decimal comma
        words = [word for word in re.split(r"[\s,;]+", plain) if word not in ("", "bits")]
        try:
            figures = [float(word.removesuffix("%")) for word in words]
        except ValueError:
            raise self._unread() from None
        if len(figures) != len(self.values):
            raise self._unread()
        in_percent = "%" in plain or (self.unit is SHARE and max(figures) > 1)
        if in_percent and self.unit.percent is None:
            raise self._unread()
        return [figure * (self.unit.percent or 1.0) if in_percent else figure for figure in figures]

    def _unread(self) -> InputError:
        count = len(self.values)
        what = "one number," if count == 1 else f"{count} numbers with spaces between, each"
        return InputError(f"write {what} like {self.unit.example}")


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """One of the tokens, by its name or its number in the table, which begins at 1."""

    names: tuple[str, ...]
    row: int

    @property
    def solution(self) -> str:
        """The token's name; its number if the name is there twice."""
        name = self.names[self.row]
        return name if self.names.count(name) == 1 else f"#{self.row + 1}"

    def judge(self, text: str) -> Verdict:
        """InputError where it is none of the tokens."""
        right = self._row(text) == self.row
        return Verdict(right, "Right." if right else "Not quite.")

    def _row(self, text: str) -> int:
        """By the exact name, else without regard to case, spaces and brackets, else by number."""
        for spelling in (str.strip, _bare):
            found = [n for n, name in enumerate(self.names) if spelling(name) == spelling(text)]
            if len(found) == 1:
                return found[0]
        number = re.fullmatch(r"#?([1-9]\d?)", text.strip(), re.ASCII)
        if number and int(number[1]) <= len(self.names):
            return int(number[1]) - 1
        raise InputError(f"write a token of the table, or its number, 1 to {len(self.names)}")


Answer = Numbers | TokenAnswer


def _bare(text: str) -> str:
    return text.strip(" \t␣_\"'‹›<>").casefold()
