"""The likelihoods of given answers, and the probability of each among all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, log
from typing import Any, Literal, NamedTuple

from fastapi import Request

from cutaway.api.async_model import AsyncModel
from cutaway.errors import CutawayError, InputError
from cutaway.methods.scoring import Cut, Cutter, Likelihood, scoring
from cutaway.server.answering import prefill_texts
from cutaway.server.scores.schemas import Answered, ScoredToken, TracedAnswer
from cutaway.server.service import Service
from cutaway.server.shared.plain_schemas import TokensRead

Ids = tuple[int, ...]

MOST_ANSWERS = 2048
MOST_CHARACTERS = 1 << 22
"""Of all prompts and answers, each prompt counted as often as it is read."""
_PROBE = "7"


def method_of(llm: AsyncModel) -> Literal["log_likelihood", "cosine"]:
    """What this model says of two texts: one that writes and is no model of vectors knows more."""
    writes = llm.config.is_causal and llm.model.graph.has_head
    return "log_likelihood" if writes and llm.model.pooling.kind is None else "cosine"


def check_amount(field: str, answers: int, characters: int) -> None:
    """InputError for more than one request may ask for."""
    for count, most, what in (
        (answers, MOST_ANSWERS, "texts to be scored"),
        (characters, MOST_CHARACTERS, "characters to be read"),
    ):
        if count > most:
            raise InputError(
                f"{field}: there are {count} {what}, and at most {most} in one request: ask "
                "several times"
            )


def lead_of(llm: AsyncModel) -> str:
    """The space that the template writes before an answer: [INST] … [/INST] Yes."""
    if llm.template is None:
        return ""
    asked = [{"role": "user", "content": "?"}]
    answered = [*asked, {"role": "assistant", "content": _PROBE}]
    try:
        before = llm.template.render(asked, enable_thinking=False)
        whole = llm.template.render(answered, add_generation_prompt=False, enable_thinking=False)
    except CutawayError:  # the template does not take this: what is asked will say so
        return ""
    lead = whole.removeprefix(before).partition(_PROBE)[0]
    return lead if whole.startswith(before) and lead.isspace() else ""


class Likelihoods(NamedTuple):
    """What was read of answers.

    each    likelihood of each
    tokens  of all texts that were read, cached ones too
    cached  of these, how many were in the prefix cache
    """

    each: list[Likelihood]
    tokens: int
    cached: int

    @property
    def usage(self) -> TokensRead:
        """The usage in OpenAI's form."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}


async def likelihoods(
    request: Request,
    model: str | None,
    cut: Callable[[Service], Iterator[Cut]],
    *,
    said: Any,
    length: int,
    user: str | None,
    cache_salt: str | None,
) -> Likelihoods:
    """Those of all answers, computed together with whatever else runs; see ``prefill_texts``."""
    each, readers = await prefill_texts(
        request, model, lambda service: scoring(cut(service)), said=said, length=length, user=user,
        cache_salt=cache_salt,
    )  # fmt: skip
    usages = [reader.ended.usage for reader in readers if reader.ended]
    return Likelihoods(
        each, sum(one.prompt_tokens for one in usages), sum(one.cached_tokens for one in usages)
    )


@dataclass(frozen=True)
class PromptAnswers:
    """A prompt, and the answers that it may have.

    texts    of the answers
    answers  their tokens
    ends     tokens of which each may end an answer; none: an answer's end is not scored
    """

    prompt: Ids
    texts: tuple[str, ...]
    answers: tuple[Ids, ...]
    ends: Ids = ()

    @classmethod
    def read(
        cls,
        cutter: Cutter,
        prompt: Sequence[int],
        answers: Mapping[str, str],
        before: str,
        *,
        lead: str = "",
        ends: Ids = (),
    ) -> "PromptAnswers":
        """answers: each text, and what it is called in errors, as the prompt is ``before``.

        lead: the text before each of them
        """
        read = []
        for text, name in answers.items():
            answer = cutter.pair(prompt, text and lead + text, name, before).answer
            cutter.pair(prompt, (*answer, *ends[:1]), name, before)
            read.append(answer)
        return cls(tuple(prompt), (*answers,), (*read,), ends)

    def cuts(self) -> Iterator[Cut]:
        """What is scored."""
        for answer in self.answers:
            for i in range(max(len(self.ends), 1)):
                yield Cut(self.prompt, (*answer, *self.ends[i : i + 1]))

    def weigh(self, found: Iterator[Likelihood]) -> "Weighed":
        """Take the likelihoods of its own answers, the next ones in ``found``."""
        each = [[next(found) for _ in self.ends or (0,)] for _ in self.answers]
        return Weighed(self, each)


class Weighed:
    """A question's answers, weighed.

    logprobs       of each whole answer, in nats; with its end, whichever of those
    probabilities  of each among all
    covered        what all have together
    """

    def __init__(self, question: PromptAnswers, each: Sequence[Sequence[Likelihood]]) -> None:
        self.question, self._each = question, each
        pairs = zip(question.answers, each, strict=True)
        self.logprobs = [self._whole(len(answer), ways) for answer, ways in pairs]
        best = max(self.logprobs)
        shares = [exp(one - best) for one in self.logprobs]
        total = fsum(shares)
        self.probabilities = [share / total for share in shares]
        self.covered = min(exp(best) * total, 1.0)

    def _whole(self, length: int, ways: Sequence[Likelihood]) -> float:
        begun = fsum(ways[0].logprobs[:length])
        ends = [way.logprobs[length] for way in ways] if self.question.ends else []
        best = max(ends, default=0.0)
        return begun + (best + log(fsum(exp(one - best) for one in ends)) if ends else 0.0)

    def answered(self, llm: AsyncModel, *, traced: bool) -> Answered:
        """For the answer; if it is traced, with all that the numbers follow from."""
        ours: Answered = {"covered": self.covered}
        if traced:
            ours["prompt"] = llm.detokenize(self.question.prompt, special=True)
            ours["answers"] = [self._traced(llm, i) for i in range(len(self.logprobs))]
        return ours

    def _traced(self, llm: AsyncModel, index: int) -> TracedAnswer:
        answer, ways = self.question.answers[index], self._each[index]
        length = len(answer)
        return {
            "answer": self.question.texts[index],
            "logprob": self.logprobs[index],
            "tokens": scored_tokens(llm, ways[0])[:length],
            "ends": [one for way in ways for one in scored_tokens(llm, way)[length:]],
        }


def scored_tokens(llm: AsyncModel, found: Likelihood) -> list[ScoredToken]:
    """Each token of an answer."""
    name = llm.tokenizer.token_name
    return [
        {"token_id": token_id, "token": name(token_id), "logprob": logprob, "rank": rank}
        for token_id, logprob, rank in zip(
            found.token_ids, found.logprobs, found.ranks, strict=True
        )
    ]
