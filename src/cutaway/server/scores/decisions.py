"""OpenAI's ``/v1/decisions``: questions about a text, and the probability of each answer.

An answer's probability is that of all its tokens and of the end of the model's turn, among the
answers that the question allows.
"""

import json
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import BeforeValidator, Field
from starlette.responses import JSONResponse, Response

from cutaway.api.async_model import AsyncModel
from cutaway.errors import InputError, Name
from cutaway.methods.decision import AnswerChances, QuestionReader, weighing
from cutaway.methods.scoring import LookUpReader
from cutaway.requests.owner import EndListener
from cutaway.requests.prefill import PrefillTask
from cutaway.server.answering import prefill_texts
from cutaway.server.body import Body, StrictRoute, Unsupported, examples, optional
from cutaway.server.document import QUEUE_ERRORS, replies
from cutaway.server.openai.response_schemas import (
    BaseInputMessage,
    CallResult,
    EarlierCustomCall,
    EarlierFunctionCall,
    EarlierText,
    InputText,
    ResponseUsage,
    as_items,
)
from cutaway.server.openai.responses_request import conversation
from cutaway.server.scores import check_amount, report_chances
from cutaway.server.scores.schemas import (
    Decision,
    DecisionChoice,
    DecisionPredicate,
    DecisionScore,
)
from cutaway.server.service import service_of
from cutaway.server.shared.conversation import only_types
from cutaway.server.shared.fields import CACHE_SALT

MOST_QUESTIONS, MOST_CHOICES = 400, 255  # OpenAI's limits


class DecisionJson(Body):
    """A part that is data, which is read as text."""

    type: Literal["input_json"]
    data: dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        """The data as the text that the model reads."""
        return json.dumps(self.data, ensure_ascii=False)


QuestionPart = Annotated[
    InputText | DecisionJson,
    Field(discriminator="type"),
    only_types("input_text", "input_json"),
]
MessagePart = Annotated[
    InputText | EarlierText | DecisionJson,
    Field(discriminator="type"),
    only_types("input_text", "output_text", "input_json"),
]


class DecisionMessage(BaseInputMessage):
    """A message of texts and data."""

    content: str | Annotated[list[MessagePart], Field(fail_fast=True)]


Item = Annotated[
    DecisionMessage | EarlierFunctionCall | EarlierCustomCall | CallResult,
    Field(discriminator="type"),
]


class _Question(Body):
    instructions: str | Annotated[list[QuestionPart], Field(fail_fast=True)]
    name: str | None = optional("is answered with its answer")

    def _instruction_text(self) -> str:
        if isinstance(self.instructions, str):
            return self.instructions
        return "\n".join(part.text for part in self.instructions)


class _Listed(_Question):
    """A question whose answers are listed.

    LIST  the field that has them
    """

    LIST: ClassVar[str]

    def to_prompt(self) -> str:
        """Return the question as text for the prompt, with its answers."""
        options = [(option.text, option.description) for option in getattr(self, self.LIST)]
        lines = [f"- {text}: {about}" if about else f"- {text}" for text, about in options]
        return "\n".join([self._instruction_text(), *lines, "Answer with one of these."])

    def answers(self) -> Mapping[str, str]:
        """Return each possible answer -> its name in the request, for errors."""
        names: dict[str, str] = {}
        for i, text in enumerate(option.text for option in getattr(self, self.LIST)):
            if text in names:
                raise InputError(
                    "questions",
                    f": {names[text]} and {self.LIST}[{i}] are both answered "
                    f"{text!r:.100}: give each another text",
                )
            names[text] = f"{self.LIST}[{i}]"
        return names


class PredicateQuestion(_Question):
    """How likely it is that a statement about the input is true."""

    type: Literal["predicate"]

    def to_prompt(self) -> str:
        """Return the question as text for the prompt."""
        return f"{self._instruction_text()}\nAnswer Yes or No."

    def answers(self) -> Mapping[str, str]:
        """Return each possible answer -> its name in errors."""
        return {"Yes": "the answer Yes", "No": "the answer No"}


class ChoiceOption(Body):
    """One of the choices."""

    value: str | bool
    description: str | None = optional("is shown to the model")

    @property
    def text(self) -> str:
        """The answer of the model that means this choice."""
        return str(self.value).lower() if isinstance(self.value, bool) else self.value


class ChoiceQuestion(_Listed):
    """Which of some choices fits the input."""

    LIST = "choices"
    type: Literal["choice"]
    choices: list[ChoiceOption] = Field(
        min_length=2, max_length=MOST_CHOICES, fail_fast=True, description="each with another value"
    )


class ScoreLevel(Body):
    """One of the levels."""

    label: str
    description: str | None = optional("is shown to the model")

    @property
    def text(self) -> str:
        """The answer of the model that means this level."""
        return self.label


class ScoreQuestion(_Listed):
    """Where the input is among ordered levels."""

    LIST = "levels"
    type: Literal["score"]
    levels: list[ScoreLevel] = Field(
        min_length=2, max_length=MOST_CHOICES, fail_fast=True, description="the lowest first"
    )


Question = Annotated[
    PredicateQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")
]


class DecisionsRequest(Body):
    """An input, and questions about it."""

    model_config = examples(
        {"input": "a", "questions": [{"type": "predicate", "instructions": "b?"}]},
        {
            "input": [{"role": "user", "content": "a"}],
            "questions": [
                {"type": "choice", "name": "c", "instructions": "?",
                 "choices": [{"value": "x"}, {"value": True}]},
            ],
            "trace": True,
        },
        {
            "input": "a",
            "questions": [
                {"type": "score", "instructions": "?", "levels": [{"label": "x"}, {"label": "y"}]},
            ],
        },
    )  # fmt: skip
    model: str | None = optional("one of /v1/models; left out: the first")
    input: Annotated[
        list[Item],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(as_items, json_schema_input_type=str | list[Item]),
    ] = Field(description="a text, or messages and calls from the first to the last")
    questions: list[Question] = Field(
        min_length=1, max_length=MOST_QUESTIONS, fail_fast=True,
        description="each is asked for itself, after the input",
    )  # fmt: skip
    safety_identifier: str | None = optional("is in the log")
    cache_salt: str | None = CACHE_SALT
    prompt_cache_key: str | None = optional("is needless: texts themselves are compared")
    prompt_cache_options: dict[str, Any] | None = optional("is needless, too")
    trace: bool = Field(False, description="ours: the tokens of each probability")
    unsupported: ClassVar[Unsupported] = {
        "stream": ((False,), "nothing is written; leave it out"),
    }

    def conversations(self) -> list[list[dict[str, Any]]]:
        """Return a conversation for each question: the input, followed by the question."""
        messages = conversation(self.input)
        return [_append_question(messages, question.to_prompt()) for question in self.questions]


def _append_question(messages: Sequence[dict[str, Any]], question: str) -> list[dict[str, Any]]:
    """Add the question to the last turn if it is a user's: turns alternate in templates."""
    if messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": question}]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": f"{last['content']}\n\n{question}"}]


# -- their answers -----------------------------------------------------------------------------


router = APIRouter(route_class=StrictRoute, tags=["text"])


@router.post("/v1/decisions", responses=replies(Decision, *QUEUE_ERRORS))
async def decisions(body: DecisionsRequest, request: Request) -> Response:
    """Answer questions about a text or a conversation with probabilities; nothing is written."""
    service = service_of(request, body.model)
    name, length = service.names.resolve(body.model), _check(body)
    chances, readers = await prefill_texts(
        request, body.model, lambda service: _make_task(body, service.llm),
        prompt=body.model_dump(include={"input"}, exclude_none=True), length=length,
        user=body.safety_identifier, cache_salt=body.cache_salt,
    )  # fmt: skip
    answer: Decision = {
        "model": name,
        "answers": [
            _answer(question, answers, service.llm, traced=body.trace)
            for question, answers in zip(body.questions, chances, strict=True)
        ],
        "usage": _usage(readers),
        "cutaway": {
            "method": "whole_answers",
            "system_fingerprint": service.names.fingerprint(body.model),
        },
    }
    return JSONResponse(answer)


def _check(body: DecisionsRequest) -> int:
    """Return the number of all characters; InputError for too many characters or answers."""
    input_length = sum(len(str(message["content"])) for message in body.conversations()[0])
    answers = [question.answers() for question in body.questions]
    questions_length = sum(len(question.to_prompt()) for question in body.questions)
    length = input_length * len(body.questions) + questions_length
    length += sum(len(text) for texts in answers for text in texts)
    check_amount("questions", sum(map(len, answers)), length)
    return length


def _make_task(
    body: DecisionsRequest, llm: AsyncModel
) -> PrefillTask[LookUpReader, list[AnswerChances]]:
    reader = QuestionReader(llm, with_end=True)
    names = [
        {text: Name("questions", i, prose=f": {name}") for text, name in question.answers().items()}
        for i, question in enumerate(body.questions)
    ]
    return weighing(
        reader.read(messages, names[i], Name("input", prose=f" with questions[{i}]"))
        for i, messages in enumerate(body.conversations())
    )


def _answer(
    question: PredicateQuestion | ChoiceQuestion | ScoreQuestion,
    answers: AnswerChances,
    llm: AsyncModel,
    *,
    traced: bool,
) -> DecisionPredicate | DecisionChoice | DecisionScore:
    chances, report = answers.probabilities, report_chances(llm, answers, traced=traced)
    best = chances.index(max(chances))
    if isinstance(question, PredicateQuestion):
        return {
            "type": "predicate", "name": question.name, "probability": chances[0],
            "cutaway": report,
        }  # fmt: skip
    if isinstance(question, ChoiceQuestion):
        return {
            "type": "choice", "name": question.name, "choice": question.choices[best].value,
            "confidence": chances[best],
            "probabilities": [
                {"value": choice.value, "probability": chance}
                for choice, chance in zip(question.choices, chances, strict=True)
            ],
            "cutaway": report,
        }  # fmt: skip
    return {
        "type": "score", "name": question.name,
        "score": fsum(i * chance for i, chance in enumerate(chances)),
        "confidence": chances[best],
        "probabilities": [
            {"value": i, "label": level.label, "probability": chance}
            for i, (level, chance) in enumerate(zip(question.levels, chances, strict=True))
        ],
        "cutaway": report,
    }  # fmt: skip


def _usage(readers: Sequence[EndListener]) -> ResponseUsage:
    usages = [reader.end.usage for reader in readers if reader.end]
    read = sum(usage.prompt_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in usages)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read,
    }
