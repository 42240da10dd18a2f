"""Values that a caller may give as a prompt or an option: sound, wrong and hostile."""

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from cutaway import CutawayError


class Mistake(Exception):
    """An exception of the caller's own."""


class Hostile:
    """An object whose methods all raise."""

    def __repr__(self) -> str:
        raise Mistake("repr")

    def __len__(self) -> int:
        raise Mistake("len")

    def __iter__(self) -> Iterator[int]:
        raise Mistake("iter")

    def __eq__(self, other: object) -> bool:
        raise Mistake("eq")

    __hash__ = object.__hash__


class Endless(Sequence[int]):
    """A sequence whose length is larger than its contents."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: Any) -> Any:
        if index > 3:
            raise Mistake("the end")
        return 5


def make_endless_list() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


def failing() -> Iterator[int]:
    yield 5
    raise Mistake("in the midst")


SOUND: list[Callable[[], Any]] = [
    lambda: "ab", lambda: "a" * 20, lambda: [5, 6, 7], lambda: np.arange(4, 9), lambda: [b"a"[0]],
    lambda: ["ab", "b"], lambda: [[5, 6], [7]], lambda: "é\n", lambda: (259, 260),
]  # fmt: skip
JUNK: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: 0, lambda: -1, lambda: 3, lambda: 2**31, lambda: 2**63,
    lambda: 2**64, lambda: 10**30, lambda: -(10**30), lambda: 10**5000, lambda: 0.5,
    lambda: float("nan"), lambda: float("inf"), lambda: -1e308, lambda: 5e-324, lambda: 1 + 2j,
    lambda: "", lambda: "ab", lambda: "a" * 5000, lambda: "\ud800", lambda: "\0", lambda: b"ab",
    lambda: bytearray(b"ab"), lambda: memoryview(b"ab"), list, lambda: [[]], lambda: [1, 2],
    lambda: [-1], lambda: [2**40], lambda: [10**30], lambda: [1.5], lambda: [None],
    lambda: ["a", 1], lambda: [True], lambda: [[5], "a", None], tuple, dict, lambda: {"a": 1},
    lambda: {5: float("nan")}, lambda: {-1: 1.0}, lambda: {2**40: 1}, lambda: {None: None},
    lambda: {1, 2}, object, lambda: int, lambda: len, lambda: ..., lambda: NotImplemented,
    lambda: np.array(3), lambda: np.zeros((2, 2)), lambda: np.array([1, 2], np.uint64),
    lambda: np.array([np.nan]), lambda: np.array(["a"]), lambda: np.array([None]),
    lambda: np.zeros((0, 3), np.int32), lambda: np.float32(0.5), lambda: np.int64(5),
    lambda: np.bool_(True), lambda: Decimal("NaN"), lambda: Fraction(1, 3), lambda: range(5),
    lambda: iter([5]), failing, make_endless_list, Hostile, Endless, lambda: Path("x"),
    lambda: Mistake,
    lambda: [("ab", {"max_tokens": 2}), ("ab", {"n": None}), ("ab",), CutawayError("unread")],
    lambda: [{"role": "user", "content": "ab"}], lambda: [{"role": None}],
    lambda: [{"role": "user", "content": [{"type": "text", "text": 5}]}], lambda: [{}],
]  # fmt: skip
