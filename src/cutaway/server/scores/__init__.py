"""Scores, rankings and decisions: how likely a model finds given answers.

Knows what ``/v1/score``, ``/v1/rerank`` and ``/v1/decisions`` share: how much a request may ask
for, and how likelihoods and chances are written as JSON.
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
"""Of all prompts and answers, each prompt counted as often as it is read."""


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
                field,
                f": there are {count} {what}, and at most {most} in one request: ask several times",
            )


def usage_of(readers: Sequence[EndListener]) -> TokensRead:
    """The tokens of all texts that were read, cached ones too."""
    read = sum(reader.end.usage.prompt_tokens for reader in readers if reader.end)
    return {"prompt_tokens": read, "total_tokens": read}


def answered(llm: AsyncModel, chances: AnswerChances, *, traced: bool) -> Answered:
    """What a probability leaves out; traced: with all that the numbers follow from."""
    ours: Answered = {"covered": chances.covered}
    if traced:
        ours["prompt"] = llm.detokenize(chances.question.prompt, special=True)
        ours["answers"] = [_traced(llm, chances, i) for i in range(len(chances.logprobs))]
    return ours


def _traced(llm: AsyncModel, chances: AnswerChances, index: int) -> TracedAnswer:
    ways, length = chances.ways[index], len(chances.question.answers[index])
    return {
        "answer": chances.question.texts[index],
        "logprob": chances.logprobs[index],
        "tokens": scored_tokens(llm, ways[0])[:length],
        "ends": [token for way in ways for token in scored_tokens(llm, way)[length:]],
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
