"""The fields that requests share, and the engine's keywords that they set.

Knows names and shapes of fields; their types and descriptions come from the table of keywords.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model, model_validator

from cutaway.base.checks import check_int
from cutaway.engine.canvas import RULES, SETTING_WORDS, Setting, read_rule
from cutaway.errors import InputError
from cutaway.requests.base import Prompt
from cutaway.requests.keywords import KEYWORDS, Fields, Kind, fields_at
from cutaway.requests.tools import ToolUse
from cutaway.sampling import PARAMS
from cutaway.server.body import Body, Stops, Unsupported, optional, refusal
from cutaway.server.http.errors import ApiError
from cutaway.server.limits import MOST_TEXTS

_JSON_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def _checked_rule(value: Any) -> Any:
    """Return the rule unchanged, None for false; refuse a bad rule."""
    if value is False:
        return None
    try:
        read_rule(value)
    except InputError as error:
        sentence = error.reason if error.field == "denoise" else f": {error}"
        raise refusal(sentence) from error
    return value


def _setting_schema(setting: Setting) -> dict[str, Any]:
    if setting.type is tuple:
        cell = {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 3}
        help = f"{setting.help}, counted from 0"
        return {"type": "array", "items": cell, "description": help}
    schema: dict[str, Any] = {"type": _JSON_TYPES[setting.type]}
    schema |= {"enum": list(setting.choices)} if setting.choices else {}
    return {**schema, "description": setting.help}


_RULE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "boolean"},
        {"enum": list(RULES)},
        {
            "type": "object",
            "properties": {
                name: _setting_schema(setting) for name, setting in SETTING_WORDS.items()
            },
            "additionalProperties": False,
        },
    ]
}

Denoised = Annotated[
    Any,
    BeforeValidator(_checked_rule),
    WithJsonSchema(_RULE_SCHEMA),
]


# -- fields from the table of keywords ---------------------------------------------------------


def _only_first_wrong(value: Any) -> Any:
    """Return the object, or only its first item that is no number: pydantic would refuse each."""
    if not isinstance(value, dict):
        return value
    wrong = next((key for key, bias in value.items() if type(bias) not in (int, float)), None)
    return value if wrong is None else {wrong: value[wrong]}


_TYPES: Mapping[Kind, Any] = {
    "int": int,
    "bool": bool,
    "off": bool,
    "text": str,
    "grammar": str,
    "texts": list[str],
    "names": list[str],
    "stops": Stops,
    "breakers": list[str | int],
    "ids": list[int],
    "tokens": list[int],
    "biases": Annotated[dict[str, float], BeforeValidator(_only_first_wrong)],
    "schema": dict[str, Any] | bool,
    "interventions": list[str | dict[str, Any]],
    "rule": Denoised,
}


def with_keywords(name: str, base: type[Body], names: Iterable[str]) -> Any:
    """Return a subclass of a request, which adds the fields of these keywords."""
    fields = {k: _field(k) for k in names if k not in base.model_fields}
    return create_model(name, __base__=base, **fields)  # type: ignore[call-overload]


def own_form(*faces: str) -> list[str]:
    """Return the keywords whose fields have the same name and form in all of these faces."""
    return [
        name
        for name, row in KEYWORDS.items()
        if isinstance(row.fields, Fields) and {*faces} <= {*row.fields.faces}
    ]


def _field(name: str) -> tuple[Any, Any]:
    row = KEYWORDS[name]
    assert isinstance(row.fields, Fields)
    kind = PARAMS[name].type if row.kind == "number" else _TYPES[row.kind]
    if row.choices:
        kind = Literal[row.choices]
    about = f"{'' if row.fields.openai else 'ours: '}{'false: ' * (row.kind == 'off')}{row.help}"
    description = "; ".join(filter(None, (about, row.fields.more)))
    return kind | None, Field(None, description=description, fail_fast=_is_list(kind) or None)


def _is_list(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is list


NumberFields: Any = with_keywords("NumberFields", Body, PARAMS)
"""The sampler's settings whose value is one number."""
CACHE_SALT: Any = _field("cache_salt")[1]
"""The field cache_salt, for requests whose texts are read and not continued."""


# -- fields of requests for text ---------------------------------------------------------------


When = Literal["before", "after"]

ONE_CACHE = "what was read is kept while there is room; leave it out"  # half of an error
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,18}")
_MINUS_ONE: Mapping[str, tuple[Any, str]] = {
    "top_k": (0, "top_k: -1 is 0 here, as other engines say that all tokens may come"),
    "seed": (None, "seed: -1 is no seed, as other engines say that one is chosen"),
}
"""Fields that other engines switch off with -1 -> cutaway's value for off, and a note on it."""
_SWITCHED_OFF: Unsupported = {
    name: ((value,), message)
    for value, message, names in (
        (False, "is not known here; leave it out", ("use_beam_search", "early_stopping")),
        (False, "hidden states are in /v1/inside; leave it out", ("return_hidden_states",)),
        (
            False,
            "a stop string is never shown; leave it out",
            ("include_stop_str_in_output", "no_stop_trim"),
        ),
        (
            True,
            "special tokens are never shown as text; leave it out",
            ("skip_special_tokens", "spaces_between_special_tokens"),
        ),
        (
            True,
            "thoughts are where the model writes them; leave it out",
            ("separate_reasoning", "stream_reasoning", "include_reasoning"),
        ),
    )
    for name in names
}
_INERT: Unsupported = {
    **_SWITCHED_OFF,
    "length_penalty": ((1, 1.0), "is of beam search, which is not known here; leave it out"),
    "lora": (([],), "an adapter is asked for by its name, as model: serve --adapter NAME=FILE:X"),
    "store": ((False,), "nothing is stored here; leave it out"),
    "metadata": (({},), "nothing is stored here; leave it out"),
    "service_tier": (("auto", "default"), "there is one tier; leave it out"),
}  # fmt: skip
"""Fields that routers and clients of other engines add -> accepted values, which change nothing,
and the error for other values."""
_NO_CHOICE = "choice: an empty list allows any text; give texts of which one is written"


class Read(NamedTuple):
    """A request's prompts, the keywords that the client gave, and the client's tools."""

    prompts: Sequence[Prompt]
    keywords: dict[str, Any]
    use: ToolUse | None = None


class StreamOptions(Body):
    """What a stream includes beside the text."""

    include_usage: bool = Field(False, description="the usage, in a last event of its own")
    continuous_usage_stats: bool = Field(
        False, description="ours, as in vLLM: the usage so far, in every event"
    )
    unsupported: ClassVar[Unsupported] = {
        "include_obfuscation": ((False,), "nothing is padded here; leave it out"),
    }


_COMMON_KEYWORDS = own_form("chat", "completions", "responses", "messages")
_CommonFields: Any = with_keywords("_CommonFields", NumberFields, _COMMON_KEYWORDS)


class TextFields(_CommonFields):  # type: ignore[misc]  # its fields are not known before it runs
    """What every request for text may say; sampling as in ``cutaway generate``.

    The description of a field that OpenAI does not have says so.
    FACE    the form of request, by its name in the table of keywords
    PROMPT  the field with what the model reads
    FILL    whether a text without a maximal length may fill the context
    """

    FACE: ClassVar[str] = ""
    PROMPT: ClassVar[str] = "prompt"
    FILL: ClassVar[bool] = False

    model: str | None = optional("one of /v1/models; left out: the first")
    stream: bool | None = optional("server-sent events, a token at a time")
    user: str | None = optional("is written into the log")
    safety_identifier: str | None = optional("the newer name of user")
    prompt_cache_key: str | None = optional("is needless: texts themselves are compared")
    trace: bool = Field(False, description="ours: include every step's record (docs/trace.md)")
    return_token_ids: bool = Field(False, description="ours: prompt_token_ids and token_ids")

    @model_validator(mode="after")
    def _one_user(self) -> "TextFields":
        if self.safety_identifier is not None:
            if self.user not in (None, self.safety_identifier):
                raise refusal(" is the newer name of user: give one", "safety_identifier")
            self.user = self.safety_identifier
        return self

    @property
    def readings(self) -> list[str]:
        """Notes on how fields were understood."""
        return [note for name, (_, note) in _MINUS_ONE.items() if getattr(self, name) == -1]

    def prompt_to_log(self) -> Any:
        """Return the prompt for the log, as the client sent it."""
        return self.model_dump(include={self.PROMPT}, exclude_none=True).get(self.PROMPT)

    def field_names(self) -> Mapping[str, str]:
        """Return the name of each keyword's field in this request."""
        return {"prompt": self.PROMPT, **fields_at(self.FACE)}

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that the client gave."""
        if not self.trace and (self.candidates is not None or self.track is not None):
            raise ApiError(
                400, "candidates and track say what a trace keeps: add trace", param="trace"
            )
        names = [name for name in own_form(self.FACE) if name in type(self).model_fields]
        values = {name: getattr(self, name) for name in names}
        off = {name: here for name, (here, _) in _MINUS_ONE.items() if values[name] == -1}
        return {name: value for name, value in values.items() if value is not None} | off


_Sampled: Any = with_keywords("_Sampled", TextFields, own_form("chat", "completions"))


class SampledFields(_Sampled):  # type: ignore[misc]  # as TextFields
    """What both kinds of completion may say."""

    unsupported: ClassVar[Unsupported] = _INERT
    stream_options: StreamOptions | None = None
    logprobs_when: When = Field(
        "before", description="ours: under the model's own logits, or after the chain"
    )

    @property
    def readings(self) -> list[str]:
        """Notes on how fields were understood, including an empty choice."""
        return [*super().readings, *([_NO_CHOICE] if self.choice == [] else [])]

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that the client gave."""
        keywords: dict[str, Any] = super().keywords()
        if self.n is not None:
            check_int("n", self.n, 1, MOST_TEXTS)
        if self.align and self.stream:
            raise InputError("align", ": the text is chosen when all are written: leave out stream")
        if self.logit_bias is not None:
            keywords["logit_bias"] = bias_of(self.logit_bias)
        if self.prompt_logprobs is not None:
            if self.stream:
                raise InputError("prompt_logprobs", ": whole answers have them: leave out stream")
            keywords["prompt_logprobs"] = self.prompt_logprobs or 1  # 0: the token itself alone
        if self.stream_options is not None and not self.stream:
            raise InputError("stream_options", " is for streams: add stream")
        return keywords

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every event of a stream has the usage up to that event."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)


def bias_of(biases: Mapping[str, float]) -> dict[int, float]:
    """Return the biases with token ids as ints, since the names in a JSON object are strings."""
    for name in biases:
        if not _TOKEN_ID.fullmatch(name):
            raise InputError("logit_bias", f": {name!r:.40} is no token id; /tokenize returns them")
    return {int(name): bias for name, bias in biases.items()}
