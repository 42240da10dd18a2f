"""Texts that are given, scored: answers after a prompt, and a long text whole.

Refuses to know who steps the engine, and what scores are for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import InputError
from cutaway.methods.scoring.cutting import Cut, Cutter, windows
from cutaway.methods.scoring.likelihood import Likelihood, LookUpReader, Scorer, joined
from cutaway.requests.owner import EngineOwner
from cutaway.requests.prompts import Prompt
from cutaway.requests.reading import each_ended

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

    Progress = Callable[[str, int, int], object]

__all__ = [
    "Cut",
    "Cutter",
    "Likelihood",
    "LookUpReader",
    "Pair",
    "Scorer",
    "answers_of",
    "joined",
    "parts_of",
    "score",
    "windows",
    "windows_of",
]

Pair = tuple[Prompt, Prompt]
_AT_ONCE = 256  # texts in the engine: one step takes as many as have room in it
_CHUNK = 512  # pairs of many that are read ahead


def answers_of(llm: "BaseLLM", prompt: Any, answers: Any, *, special: bool, adapter: str) -> Scorer:
    """The answers of one prompt. InputError where one cannot be scored."""
    listed = isinstance(answers, Sequence) and not isinstance(answers, str | bytes)
    if not listed or not answers:
        raise InputError(
            f"answers must be a list of texts or of lists of ids, not {shown(answers)}"
        )
    cutter = Cutter(llm, special=special, adapter=adapter)
    each = (cutter.pair(prompt, one, f"answers[{i}]") for i, one in enumerate(answers))
    return Scorer(each, cutter.adapter)


def windows_of(
    llm: "BaseLLM", text: Any, *, window: int | None, before: int, special: bool, adapter: str
) -> Scorer:
    """The windows of a long text. InputError where it cannot be scored."""
    cutter = Cutter(llm, special=special, adapter=adapter)
    size = check_int("window", cutter.room if window is None else window, 1, cutter.room)
    each = windows(cutter.whole(text), size, check_int("before", before, 1, size))
    return Scorer(each, cutter.adapter)


def score(
    owner: EngineOwner, asked: Scorer, progress: "Progress | None" = None
) -> list[Likelihood]:
    """Compute them beside whatever else runs. progress: see ``LLM.likelihood``."""
    jobs = [(request, LookUpReader()) for request in asked.requests]
    readers, total = [reader for _, reader in jobs], sum(len(cut.answer) for cut in asked.cuts)

    def told() -> bool:
        if progress is not None:
            progress("scoring", sum(reader.found for reader in readers), total)
        return False

    for _ in each_ended(owner, jobs, told, _AT_ONCE):
        pass
    return asked.found(readers)


def parts_of(
    llm: "BaseLLM", pairs: Iterable[Pair], *, special: bool, adapter: str
) -> Iterator[Scorer]:
    """Any number of prompts with an answer each, a part after the other; see ``LLM.score_each``."""
    cutter = Cutter(llm, special=special, adapter=adapter)
    try:
        numbered = enumerate(pairs)
    except TypeError:
        raise InputError(
            "pairs must be prompts with an answer each: a list, or an iterator"
        ) from None
    while some := [*islice(numbered, _CHUNK)]:
        each = (cutter.pair(*_two(i, one), f"pairs[{i}]: answer") for i, one in some)
        yield Scorer(each, cutter.adapter)


def _two(index: int, pair: Any) -> Pair:
    two: Any = () if isinstance(pair, str) else pair  # "ab" is no pair of letters
    try:
        prompt, answer = two
    except (TypeError, ValueError):
        raise InputError(f"pairs[{index}] must be a prompt and an answer") from None
    return prompt, answer
