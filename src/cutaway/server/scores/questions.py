"""The requests of ``/v1/decisions``: questions about a text or a conversation."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cutaway.errors import InputError
from cutaway.server.body import Body, Unsupported, examples, optional
from cutaway.server.openai.responses_input import (
    CallResult,
    EarlierCustomCall,
    EarlierFunctionCall,
    EarlierText,
    InputText,
    SaidMessage,
    as_items,
    conversation,
)
from cutaway.server.shared.keyword_fields import CACHE_SALT
from cutaway.server.shared.messages import only_types

MOST_QUESTIONS, MOST_CHOICES = 400, 255  # as OpenAI has it


class DecisionJson(Body):
    """A part that is data, which is read as text."""

    type: Literal["input_json"]
    data: dict[str, Any] | Annotated[list[dict[str, Any]], Field(fail_fast=True)]

    @property
    def text(self) -> str:
        """As a model reads it."""
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


class DecisionMessage(SaidMessage):
    """A message of texts and data."""

    content: str | Annotated[list[MessagePart], Field(fail_fast=True)]


Item = Annotated[
    DecisionMessage | EarlierFunctionCall | EarlierCustomCall | CallResult,
    Field(discriminator="type"),
]


class _Question(Body):
    instructions: str | Annotated[list[QuestionPart], Field(fail_fast=True)]
    name: str | None = optional("is answered with its answer")

    def _said(self) -> str:
        if isinstance(self.instructions, str):
            return self.instructions
        return "\n".join(part.text for part in self.instructions)


class _Listed(_Question):
    """A question whose answers are listed.

    LIST  the field that has them
    """

    LIST: ClassVar[str]

    def written(self) -> str:
        """What is asked."""
        each = [(one.text, one.description) for one in getattr(self, self.LIST)]
        lines = [f"- {text}: {about}" if about else f"- {text}" for text, about in each]
        return "\n".join([self._said(), *lines, "Answer with one of these."])

    def answers(self) -> Mapping[str, str]:
        """The possible answers -> the name of each in the request."""
        found: dict[str, str] = {}
        for i, text in enumerate(one.text for one in getattr(self, self.LIST)):
            if text in found:
                raise InputError(
                    f"questions: {found[text]} and {self.LIST}[{i}] are both answered "
                    f"{text!r:.100}: give each another text"
                )
            found[text] = f"{self.LIST}[{i}]"
        return found


class PredicateQuestion(_Question):
    """How likely it is that a statement about the input is true."""

    type: Literal["predicate"]

    def written(self) -> str:
        """What is asked."""
        return f"{self._said()}\nAnswer Yes or No."

    def answers(self) -> Mapping[str, str]:
        """The possible answers -> the name of each in errors."""
        return {"Yes": "the answer Yes", "No": "the answer No"}


class ChoiceOption(Body):
    """One of the choices."""

    value: str | bool
    description: str | None = optional("is shown to the model")

    @property
    def text(self) -> str:
        """As the model answers it."""
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
        """As the model answers it."""
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
        """The prompts: the input, each time followed by one of the questions."""
        said = conversation(self.input)
        return [_followed(said, question.written()) for question in self.questions]


def _followed(said: Sequence[dict[str, Any]], question: str) -> list[dict[str, Any]]:
    """The question as the end of the user's turn, or as a turn: in templates they alternate."""
    if said[-1]["role"] != "user":
        return [*said, {"role": "user", "content": question}]
    last = said[-1]
    return [*said[:-1], {**last, "content": f"{last['content']}\n\n{question}"}]
