"""Likelihoods of given texts: answers after a prompt, and a long text as a whole."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int, shown
from cutaway.errors import InputError
from cutaway.methods.scoring.cutting import Cut, Cutter, windows
from cutaway.methods.scoring.likelihood import Likelihood, LookUpReader, joined, scoring
from cutaway.requests.prefill import PrefillTask
from cutaway.requests.prompts import Prompt

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM

    Progress = Callable[[str, int, int], object]
    Scores = PrefillTask[LookUpReader, list[Likelihood]]

__all__ = [
    "Cut",
    "Cutter",
    "Likelihood",
    "LookUpReader",
    "Pair",
    "likelihood",
    "scores",
    "scores_of_each",
    "scoring",
    "windows",
]

Pair = tuple[Prompt, Prompt]
_CHUNK = 512  # pairs of many that are read ahead


def scores(
    llm: "BaseLLM",
    prompt: Prompt,
    answers: Sequence[Prompt],
    *,
    special: bool = False,
    adapter: str = "",
) -> "Scores":
    """See ``LLM.score``. InputError where an answer cannot be scored."""
    listed = isinstance(answers, Sequence) and not isinstance(answers, str | bytes)
    if not listed or not answers:
        raise InputError(
            f"answers must be a list of texts or of lists of ids, not {shown(answers)}"
        )
    cutter = Cutter(llm, special=special, adapter=adapter)
    each = (cutter.pair(prompt, one, f"answers[{i}]") for i, one in enumerate(answers))
    return scoring(each, cutter.adapter)


def likelihood(
    llm: "BaseLLM",
    text: Prompt,
    *,
    window: int | None = None,
    before: int = 1,
    special: bool = False,
    adapter: str = "",
    progress: "Progress | None" = None,
) -> PrefillTask[LookUpReader, Likelihood]:
    """See ``LLM.likelihood``. InputError where the text cannot be scored."""
    cutter = Cutter(llm, special=special, adapter=adapter)
    size = check_int("window", cutter.room if window is None else window, 1, cutter.room)
    cuts = [*windows(cutter.whole(text), size, check_int("before", before, 1, size))]
    asked = scoring(cuts, cutter.adapter)
    total = sum(len(cut.answer) for cut in cuts)

    def tell(readers: Sequence[LookUpReader]) -> None:
        if progress is not None:
            progress("scoring", sum(reader.found for reader in readers), total)

    found = lambda readers: joined(asked.found(readers))  # noqa: E731
    return PrefillTask(asked.requests, LookUpReader, found, tell)


def scores_of_each(
    llm: "BaseLLM", pairs: Iterable[Pair], *, special: bool = False, adapter: str = ""
) -> "Iterator[Scores]":
    """A task for each few hundred (prompt, answer) pairs; see ``LLM.score_each``."""
    cutter = Cutter(llm, special=special, adapter=adapter)
    try:
        numbered = enumerate(pairs)
    except TypeError:
        raise InputError(
            "pairs must be prompts with an answer each: a list, or an iterator"
        ) from None
    while some := [*islice(numbered, _CHUNK)]:
        each = (cutter.pair(*_two(i, one), f"pairs[{i}]: answer") for i, one in some)
        yield scoring(each, cutter.adapter)


def _two(index: int, pair: Any) -> Pair:
    two: Any = () if isinstance(pair, str) else pair  # "ab" is no pair of letters
    try:
        prompt, answer = two
    except (TypeError, ValueError):
        raise InputError(f"pairs[{index}] must be a prompt and an answer") from None
    return prompt, answer
