"""``/v1/decisions``, OpenAI's: questions about a text, and the probability of each answer.

An answer is whole: all its tokens and the end of the model's turn, among the answers that the
question allows.
"""

from collections.abc import Iterator
from math import fsum

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from cutaway.api.async_model import AsyncModel
from cutaway.methods.scoring import Cut, Cutter
from cutaway.server.document import TEXT, replies
from cutaway.server.http.strict_json import StrictRoute
from cutaway.server.models import service_of
from cutaway.server.openai.response_schemas import ResponseUsage
from cutaway.server.scores.likelihoods import (
    Likelihoods,
    PromptAnswers,
    Weighed,
    check_amount,
    lead_of,
    likelihoods,
)
from cutaway.server.scores.questions import (
    ChoiceQuestion,
    DecisionsRequest,
    PredicateQuestion,
    ScoreQuestion,
)
from cutaway.server.scores.schemas import (
    Decision,
    DecisionChoice,
    DecisionPredicate,
    DecisionScore,
)
from cutaway.server.service import Service

router = APIRouter(route_class=StrictRoute, tags=["text"])


@router.post("/v1/decisions", responses=replies(Decision, *TEXT))
async def decisions(body: DecisionsRequest, request: Request) -> Response:
    """Answer questions about a text or a conversation with probabilities; nothing is written."""
    service = service_of(request, body.model)
    name, length = service.names.named(body.model), _check(body)
    questions: list[PromptAnswers] = []

    def cut(service: Service) -> Iterator[Cut]:
        questions.extend(_read(body, service.llm))
        return (one for question in questions for one in question.cuts())

    found = await likelihoods(
        request, body.model, cut, said=body.model_dump(include={"input"}, exclude_none=True),
        length=length, user=body.safety_identifier, cache_salt=body.cache_salt,
    )  # fmt: skip
    each = iter(found.each)
    answer: Decision = {
        "model": name,
        "answers": [
            _answer(asked, question.weigh(each), service.llm, traced=body.trace)
            for asked, question in zip(body.questions, questions, strict=True)
        ],
        "usage": _usage(found),
        "cutaway": {
            "method": "whole_answers",
            "system_fingerprint": service.names.fingerprint(body.model),
        },
    }
    return JSONResponse(answer)


def _check(body: DecisionsRequest) -> int:
    """How many characters there are; InputError where these or the answers are too many."""
    said = sum(len(str(one["content"])) for one in body.conversations()[0])
    answers = [question.answers() for question in body.questions]
    asked = sum(len(question.written()) for question in body.questions)
    length = said * len(body.questions) + asked + sum(len(text) for one in answers for text in one)
    check_amount("questions", sum(map(len, answers)), length)
    return length


def _read(body: DecisionsRequest, llm: AsyncModel) -> Iterator[PromptAnswers]:
    cutter, lead, ends = Cutter(llm), lead_of(llm), tuple(sorted(llm.tokenizer.end_ids))
    for i, messages in enumerate(body.conversations()):
        answers = {
            text: f"questions[{i}]: {name}" for text, name in body.questions[i].answers().items()
        }
        prompt = llm.chat_ids(messages, enable_thinking=False)
        yield PromptAnswers.read(
            cutter, prompt, answers, f"input with questions[{i}]", lead=lead, ends=ends
        )


def _answer(
    asked: PredicateQuestion | ChoiceQuestion | ScoreQuestion,
    weighed: Weighed,
    llm: AsyncModel,
    *,
    traced: bool,
) -> DecisionPredicate | DecisionChoice | DecisionScore:
    chances, ours = weighed.probabilities, weighed.answered(llm, traced=traced)
    best = chances.index(max(chances))
    if isinstance(asked, PredicateQuestion):
        return {
            "type": "predicate", "name": asked.name, "probability": chances[0], "cutaway": ours,
        }  # fmt: skip
    if isinstance(asked, ChoiceQuestion):
        return {
            "type": "choice", "name": asked.name, "choice": asked.choices[best].value,
            "confidence": chances[best],
            "probabilities": [
                {"value": one.value, "probability": chance}
                for one, chance in zip(asked.choices, chances, strict=True)
            ],
            "cutaway": ours,
        }  # fmt: skip
    return {
        "type": "score", "name": asked.name,
        "score": fsum(i * chance for i, chance in enumerate(chances)),
        "confidence": chances[best],
        "probabilities": [
            {"value": i, "label": level.label, "probability": chance}
            for i, (level, chance) in enumerate(zip(asked.levels, chances, strict=True))
        ],
        "cutaway": ours,
    }  # fmt: skip


def _usage(found: Likelihoods) -> ResponseUsage:
    return {
        "input_tokens": found.tokens,
        "input_tokens_details": {"cached_tokens": found.cached, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": found.tokens,
    }
