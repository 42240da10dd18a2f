"""Decides among given answers, by the probability of each whole answer among all answers.

Rankings and users' questions are scored alike: by an answer's tokens, its end, and the space that a
template writes before the answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, log
from typing import TYPE_CHECKING

from cutaway.errors import CutawayError, InputError, Name
from cutaway.methods.scoring import Cut, Cutter, Likelihood, LookUpReader, scoring
from cutaway.requests.prefill import PrefillTask

if TYPE_CHECKING:
    from cutaway.requests.base import BaseLLM, Message

Ids = tuple[int, ...]
_PROBE = "7"


@dataclass(frozen=True)
class PromptAnswers:
    """A prompt and its possible answers.

    texts    the texts of the answers
    answers  the tokens of each answer
    ends     tokens each of which may end an answer; (): the end of an answer is not scored
    """

    prompt: Ids
    texts: tuple[str, ...]
    answers: tuple[Ids, ...]
    ends: Ids = ()

    def cuts(self) -> Iterator[Cut]:
        """Yield the prompt with each answer, once for each of its ends."""
        for answer in self.answers:
            for i in range(max(len(self.ends), 1)):
                yield Cut(self.prompt, (*answer, *self.ends[i : i + 1]))

    def chances(self, likelihoods: Iterator[Likelihood]) -> "AnswerChances":
        """Return the chances of the answers, whose likelihoods come next in the iterator."""
        likelihoods_by_end = [
            tuple(next(likelihoods) for _ in self.ends or (0,)) for _ in self.answers
        ]
        logprobs = [
            self._logprob(len(answer), answer_likelihoods)
            for answer, answer_likelihoods in zip(self.answers, likelihoods_by_end, strict=True)
        ]
        best = max(logprobs)
        shares = [exp(logprob - best) for logprob in logprobs]
        total = fsum(shares)
        probabilities = tuple(share / total for share in shares)
        covered = min(exp(best) * total, 1.0)
        return AnswerChances(
            self, tuple(logprobs), probabilities, covered, tuple(likelihoods_by_end)
        )

    def _logprob(self, length: int, ways: Sequence[Likelihood]) -> float:
        answer_logprob = fsum(ways[0].logprobs[:length])
        ends = [way.logprobs[length] for way in ways] if self.ends else []
        best = max(ends, default=0.0)
        return answer_logprob + (best + log(fsum(exp(end - best) for end in ends)) if ends else 0.0)


@dataclass(frozen=True)
class AnswerChances:
    """How likely each answer to a question is.

    logprobs       log-probability of each whole answer, in nats; with ``ends``, of the answer with
                   any of its ends
    probabilities  probability of each answer among all answers
    covered        the probability that the model gives one of these answers
    ways           the likelihoods of each answer, one with each of its ends
    """

    question: PromptAnswers
    logprobs: tuple[float, ...]
    probabilities: tuple[float, ...]
    covered: float
    ways: tuple[tuple[Likelihood, ...], ...]


class QuestionReader:
    """Reads questions in the model's template.

    with_end: answers are scored with the end of the model's turn
    adapter: the name of a loaded adapter; "": none
    """

    def __init__(self, llm: "BaseLLM", *, with_end: bool = False, adapter: str = "") -> None:
        self._llm, self._cutter = llm, Cutter(llm, adapter=adapter)
        self._lead = lead_of(llm)
        self._ends = tuple(sorted(llm.tokenizer.end_ids)) if with_end else ()
        self.adapter = self._cutter.adapter

    def read(
        self, messages: "Iterable[Message]", answers: Mapping[str, str], before: str
    ) -> PromptAnswers:
        """Read a conversation and answers.

        answers: text -> the answer's name in errors; before: the prompt's name in errors
        """
        prompt = self._llm.chat_ids(messages, enable_thinking=False)
        answer_ids = []
        for text, name in answers.items():
            answer = self._cutter.pair(prompt, text and self._lead + text, name, before).answer
            self._cutter.pair(prompt, (*answer, *self._ends[:1]), name, before)
            answer_ids.append(answer)
        return PromptAnswers(tuple(prompt), (*answers,), (*answer_ids,), self._ends)


def weighing(
    questions: Iterable[PromptAnswers], adapter: str = ""
) -> PrefillTask[LookUpReader, list[AnswerChances]]:
    """Return a task for the chances of each question. adapter: as in a ``Request``."""
    all_questions = [*questions]
    task = scoring((cut for question in all_questions for cut in question.cuts()), adapter)

    def answer(readers: Sequence[LookUpReader]) -> list[AnswerChances]:
        likelihoods = iter(task.answer(readers))
        return [question.chances(likelihoods) for question in all_questions]

    return PrefillTask(task.requests, task.reader, answer)


def decide(
    llm: "BaseLLM", messages: "Iterable[Message]", answers: Sequence[str], *, adapter: str = ""
) -> PrefillTask[LookUpReader, AnswerChances]:
    """Return how likely each whole answer to a conversation is, among the given answers.

    messages: as for chat, with enable_thinking=False
    answers: two texts or more, of which each is scored with the end of the model's turn
    adapter: the name of a loaded adapter, as for generate
    Raises InputError for an answer that is empty or given twice, TooLongError for one that does not
    fit after the conversation.
    """
    is_list = isinstance(answers, Sequence) and not isinstance(answers, str | bytes)
    if not is_list or len(answers) < 2 or not all(isinstance(text, str) for text in answers):
        raise InputError("answers", " must be a list of two texts or more")
    names = {text: Name("answers", i) for i, text in enumerate(answers)}
    if len(names) < len(answers):
        raise InputError("answers", " must differ: one of them is given twice")
    reader = QuestionReader(llm, with_end=True, adapter=adapter)
    task = weighing([reader.read(messages, names, "messages")], reader.adapter)
    return PrefillTask(task.requests, task.reader, lambda readers: task.answer(readers)[0])


def lead_of(llm: "BaseLLM") -> str:
    """Return the space that the template writes before an answer: [INST] … [/INST] Yes."""
    if llm.template is None:
        return ""
    question = [{"role": "user", "content": "?"}]
    conversation = [*question, {"role": "assistant", "content": _PROBE}]
    try:
        before = llm.template.render(question, enable_thinking=False)
        whole = llm.template.render(
            conversation, add_generation_prompt=False, enable_thinking=False
        )
    except CutawayError:  # the template rejects this: the real question will raise the error
        return ""
    lead = whole.removeprefix(before).partition(_PROBE)[0]
    return lead if whole.startswith(before) and lead.isspace() else ""
