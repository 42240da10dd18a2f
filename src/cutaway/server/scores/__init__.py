"""Scores, rankings and decisions: a model's probabilities of given answers.

Knows the parts that ``/v1/score``, ``/v1/rerank`` and ``/v1/decisions`` share: the limits of a
request, and the JSON of likelihoods and probabilities.
"""

from collections.abc import Sequence
from typing import Literal

from cutaway.api.async_model import AsyncModel
from cutaway.errors import InputError
from cutaway.methods.decision import AnswerChances
from cutaway.methods.scoring import Likelihood
from cutaway.requests.owner import EndListener
from cutaway.server.scores.schemas import Answered, ScoredToken, TracedAnswer
from cutaway.server.shared.plain_schemas import TokensRead

MOST_ANSWERS = 2048
MOST_CHARACTERS = 1 << 22
"""The most characters of all prompts and answers; a prompt counts each time that it is read."""


def method_of(llm: AsyncModel) -> Literal["log_likelihood", "cosine"]:
    """Return how a model scores two texts: by likelihood if it writes, else by cosine."""
    writes = llm.config.is_causal and llm.model.graph.has_head
    return "log_likelihood" if writes and llm.model.pooling.kind is None else "cosine"


def check_amount(field: str, answers: int, characters: int) -> None:
    """InputError for more than MOST_ANSWERS texts or MOST_CHARACTERS characters."""
    for count, limit, unit in (
        (answers, MOST_ANSWERS, "texts to be scored"),
        (characters, MOST_CHARACTERS, "characters to be read"),
    ):
        if count > limit:
            raise InputError(
                field,
                f": there are {count} {unit}, and at most {limit} in one request: "
                "ask several times",
            )


def usage_of(readers: Sequence[EndListener]) -> TokensRead:
    """Return the number of tokens of all texts that were read, including cached ones."""
    read = sum(reader.end.usage.prompt_tokens for reader in readers if reader.end)
    return {"prompt_tokens": read, "total_tokens": read}


def report_chances(llm: AsyncModel, chances: AnswerChances, *, traced: bool) -> Answered:
    """Return the sum of all answers' probabilities; if traced, with the tokens of each answer."""
    report: Answered = {"covered": chances.covered}
    if traced:
        report["prompt"] = llm.detokenize(chances.question.prompt, special=True)
        report["answers"] = [_trace_answer(llm, chances, i) for i in range(len(chances.logprobs))]
    return report


def _trace_answer(llm: AsyncModel, chances: AnswerChances, index: int) -> TracedAnswer:
    ways, length = chances.ways[index], len(chances.question.answers[index])
    return {
        "answer": chances.question.texts[index],
        "logprob": chances.logprobs[index],
        "tokens": scored_tokens(llm, ways[0])[:length],
        "ends": [token for way in ways for token in scored_tokens(llm, way)[length:]],
    }


def scored_tokens(llm: AsyncModel, likelihood: Likelihood) -> list[ScoredToken]:
    """Return each token of an answer with its log-probability and rank."""
    name = llm.tokenizer.token_name
    return [
        {"token_id": token_id, "token": name(token_id), "logprob": logprob, "rank": rank}
        for token_id, logprob, rank in zip(
            likelihood.token_ids, likelihood.logprobs, likelihood.ranks, strict=True
        )
    ]
