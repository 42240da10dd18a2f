"""Compare two ways to answer the same questions with the same luck, which needs fewer samples.

Knows how to score and compare answers. Where two ways differ little, one seed mostly draws the same
text for both. Then their difference has less variance than that of two independent samples (common
random numbers; Glasserman and Yao 1992), and fewer samples suffice.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from cutaway.api.llm import LLM
from cutaway.base.progress import Progress, silent
from cutaway.errors import CutawayError, InputError
from cutaway.requests.completion import Completion
from cutaway.rerun.statistics import Estimate, estimate
from cutaway.sampling.luck import trial_seed

_RULES: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda text, value: value in text,
    "icontains": lambda text, value: value.casefold() in text.casefold(),
    "equals": lambda text, value: text.strip() == value.strip(),
    "regex": lambda text, value: re.search(value, text) is not None,
}
RULES = tuple(_RULES)


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and the (rule, value) pairs that a right answer must all satisfy.

    judge    scores a text instead of the rules: 1.0 where the text is right
    options  of generate for this question, such as stop strings; a way's own options win
    """

    prompt: str
    expect: tuple[tuple[str, str], ...]
    judge: Callable[[str], float] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def score(self, text: str) -> float:
        """Score an answer: 1.0 where the rules hold, else 0.0; or the judge's score."""
        if self.judge is not None:
            return self.judge(text)
        return float(all(_RULES[rule](text, value) for rule, value in self.expect))


@dataclass(frozen=True, slots=True)
class Way:
    """A model, a template in which {prompt} stands for the question, and options of generate."""

    llm: LLM
    template: str
    options: Mapping[str, Any]

    def prompt(self, question: Question) -> str:
        """The prompt that the model reads."""
        return self.template.replace("{prompt}", question.prompt)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to one question under one seed, both ways.

    parts_at  the index of the first token that differs; None where the texts are the same
    """

    question: int
    seed: int
    texts: tuple[str, str]
    scores: tuple[float, float]
    parts_at: int | None


@dataclass(frozen=True, slots=True)
class Paired:
    """All answers both ways, and the comparison.

    a, b        the mean score of each way: the share of right answers
    difference  b - a, with a 95 % interval over questions
    saved       how many times as many samples independent luck would need: the variance of b - a
                between different seeds of a question, divided by the variance under equal seeds;
                None where the variance under equal seeds is 0
    """

    answers: tuple[Answers, ...]
    a: float
    b: float
    difference: Estimate
    saved: float | None

    @property
    def same(self) -> float:
        """The share of seeds under which both texts are the same."""
        return sum(answer.parts_at is None for answer in self.answers) / len(self.answers)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "same": self.same}


def compare_ways(
    questions: Sequence[Question], a: Way, b: Way, *, samples: int, seed: int,
    progress: Progress = silent,
) -> Paired:  # fmt: skip
    """Answer every question ``samples`` times both ways, each time with the same seed.

    InputError where there are no questions, or fewer than two samples.
    """
    if not questions:
        raise InputError("questions", ": there are none")
    if samples < 2:
        raise InputError("samples", f" must be 2 or more, not {samples}: else nothing varies")
    seeds = [trial_seed(seed, n) for n in range(len(questions))]  # samples derive theirs otherwise
    texts = []
    for name, way in (("answering, A", a), ("answering, B", b)):
        report = partial(progress, name)
        texts.append(_answer_all(way, questions, seeds, samples, report))
    answers = []
    scores = np.zeros((2, len(questions), samples))
    for n, question in enumerate(questions):
        for k, (first, second) in enumerate(zip(texts[0][n], texts[1][n], strict=True)):
            scores[:, n, k] = pair = question.score(first.text), question.score(second.text)
            at = _parts_at(first, second)
            answers.append(Answers(n, first.seed, (first.text, second.text), pair, at))
    of_a, of_b = (float(mean) for mean in scores.mean(axis=(1, 2)))
    difference = estimate((scores[1] - scores[0]).mean(axis=1))
    return Paired(tuple(answers), of_a, of_b, difference, _compute_saving(scores))


def _compute_saving(scores: Any) -> float | None:
    """Divide variances within questions; the variance between questions is equal either way."""
    like = scores[1] - scores[0]
    unlike = np.stack(
        [np.roll(scores[1], shift, axis=1) - scores[0] for shift in range(1, scores.shape[2])]
    )
    of_like = like.var(axis=1).mean()
    return float(unlike.var(axis=2).mean() / of_like) if of_like > 0 else None


def _answer_all(
    way: Way,
    questions: Sequence[Question],
    seeds: Sequence[int],
    samples: int,
    report: Callable[[int, int], object],
) -> list[list[Completion]]:
    """Write ``samples`` texts for each question: by its seed, and by seeds derived from it."""
    pairs = zip(questions, seeds, strict=True)
    requests = (
        (way.prompt(question), {**question.options, **way.options, "seed": seed})
        for question, seed in pairs
    )
    completions: dict[int, list[Completion]] = {}
    for index, result in way.llm.generate_each(requests, n=samples):
        if isinstance(result, CutawayError):
            raise result
        assert isinstance(result, list)  # samples are two or more
        completions[index] = result
        report(len(completions), len(questions))
    return [completions[n] for n in range(len(questions))]


def _parts_at(a: Completion, b: Completion) -> int | None:
    """Find the first token that differs between two answers; None where they are the same."""
    if a.text == b.text and a.finish_reason == b.finish_reason:
        return None
    pairs = zip(a.token_ids, b.token_ids, strict=False)
    shorter = min(len(a.token_ids), len(b.token_ids))
    return next((n for n, (x, y) in enumerate(pairs) if x != y), shorter)
