"""Fields of requests from the table of keywords: type, description, and which keyword each is."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from cutaway.requests.keyword import Fields, Kind
from cutaway.requests.keywords import KEYWORDS
from cutaway.sampling import PARAMS
from cutaway.server.body import Body, Stops
from cutaway.server.shared.canvas import Denoised


def _as_far_as_right(value: Any) -> Any:
    """Of an object with a value that is no number, the first: pydantic would refuse each."""
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
    "biases": Annotated[dict[str, float], BeforeValidator(_as_far_as_right)],
    "schema": dict[str, Any] | bool,
    "interventions": list[str | dict[str, Any]],
    "rule": Denoised,
}


def with_keywords(name: str, base: type[Body], names: Iterable[str]) -> Any:
    """A kind of request with fields for these keywords, besides those that it has."""
    fields = {k: _field(k) for k in names if k not in base.model_fields}
    return create_model(name, __base__=base, **fields)  # type: ignore[call-overload]


def own_form(*faces: str) -> list[str]:
    """The keywords that all of these faces have by their own name, in their own form."""
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
    said = "; ".join(filter(None, (about, row.fields.more)))
    return kind | None, Field(None, description=said, fail_fast=_is_list(kind) or None)


def _is_list(kind: Any) -> bool:
    return getattr(kind, "__origin__", None) is list


NumberFields: Any = with_keywords("NumberFields", Body, PARAMS)
"""The settings of the sampler that are one number."""
CACHE_SALT: Any = _field("cache_salt")[1]
"""Of requests whose texts are only read."""
