"""Practice sampling by hand, from six logits to a token: questions, judged answers, explanations.

The right answers come from ``cutaway.sampling`` itself; there is no second implementation. This
module reads and judges answers: figures within a tolerance, tokens by their names.
"""

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
    """A unit of figures: how they are written, and how exact an answer must be.

    example    a figure as a person may write it
    digits     decimal places of the solution
    slack      how far an answer may be off
    percent    the value of one percent; None if figures of this unit are never percentages
    """

    example: str
    digits: int
    slack: float
    percent: float | None = None

    @property
    def is_share(self) -> bool:
        """Whether figures are shares from 0 to 1, so that a figure above 1 must be a percentage."""
        return self.percent == 0.01


SHARE = Unit("0.45 or 45%", 3, 0.005, percent=0.01)
BITS = Unit("1.5", 2, 0.05)
COUNT = Unit("3", 0, 0)
REMARKS = {
    "right": "Right.",
    "wrong": "Not quite.",
    "some": "{right} of {all} are right; look at {labels}.",
    "unreadable": "That cannot be read: {unread}.",
}
"""The sentences of verdicts on an answer."""
ROUNDING = 1e-9
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


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
        """Judge which figures are near enough. InputError if the answer cannot be read."""
        pairs = zip(self._read(text), self.values, strict=True)
        near = [abs(figure - value) <= self.unit.slack + ROUNDING for figure, value in pairs]
        if all(near):
            return Verdict(True, REMARKS["right"])
        if not any(near):
            return Verdict(False, REMARKS["wrong"])
        wrong = [label for label, right in zip(self.labels, near, strict=True) if not right]
        remark = REMARKS["some"].format(right=sum(near), all=len(near), labels=", ".join(wrong))
        return Verdict(False, remark)

    @property
    def unread(self) -> str:
        """What to write in the place of an answer that cannot be read."""
        count = len(self.values)
        numbers_words = (
            "one number," if count == 1 else f"{count} numbers with spaces between, each"
        )
        return f"write {numbers_words} like {self.unit.example}"

    def _read(self, text: str) -> list[float]:
        plain = re.sub(r"\s+%", "%", text.replace("−", "-"))
        if "." not in plain:
            plain = re.sub(r"(?<=\d),(?=\d)", ".", plain)  # a decimal comma
        words = [word for word in re.split(r"[\s,;]+", plain) if word not in ("", "bits")]
        bare = [word.removesuffix("%") for word in words]
        if len(bare) != len(self.values) or not all(map(_NUMBER.fullmatch, bare)):
            raise InputError(self.unread)
        figures = [*map(float, bare)]
        in_percent = "%" in plain or (self.unit.is_share and max(figures) > 1)
        if in_percent and self.unit.percent is None:
            raise InputError(self.unread)
        return [figure * (self.unit.percent or 1.0) if in_percent else figure for figure in figures]


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """One of the tokens, named by its name or by its number in the table, from 1."""

    names: tuple[str, ...]
    row: int

    @property
    def solution(self) -> str:
        """The token's name; its number if another token has the same name."""
        name = self.names[self.row]
        return name if self.names.count(name) == 1 else f"#{self.row + 1}"

    def judge(self, text: str) -> Verdict:
        """Judge whether the right token is named. InputError if none of the tokens is named."""
        right = self._row(text) == self.row
        return Verdict(right, REMARKS["right" if right else "wrong"])

    @property
    def unread(self) -> str:
        """What to write in the place of an answer that cannot be read."""
        return f"write a token of the table, or its number, 1 to {len(self.names)}"

    def _row(self, text: str) -> int:
        """Find the row by exact name, else without case, spaces and quotes, else by number."""
        for spelling in (str.strip, _bare):
            rows = [n for n, name in enumerate(self.names) if spelling(name) == spelling(text)]
            if len(rows) == 1:
                return rows[0]
        number = re.fullmatch(r"#?([1-9]\d?)", text.strip(), re.ASCII)
        if number and int(number[1]) <= len(self.names):
            return int(number[1]) - 1
        raise InputError(self.unread)


Answer = Numbers | TokenAnswer


def _bare(text: str) -> str:
    return text.strip(" \t␣_\"'‹›<>").casefold()
