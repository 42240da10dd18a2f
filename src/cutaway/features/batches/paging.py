"""Lists in pages, in OpenAI's form."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from cutaway.server.body import optional
from cutaway.server.http.errors import ApiError


class Asked(BaseModel):
    """A page of a list."""

    model_config = ConfigDict(extra="forbid")
    after: str | None = optional("the id before the first of the page")
    limit: int = Field(20, ge=1, le=100)


def page_of(each: Sequence[Any], asked: Asked) -> dict[str, Any]:
    """A page of objects that have ids. ApiError where there is none to begin after."""
    ids = [one["id"] for one in each]
    if asked.after is not None and asked.after not in ids:
        raise ApiError(404, f"after: there is no {asked.after[:100]!r} here", param="after")
    start = 0 if asked.after is None else ids.index(asked.after) + 1
    page = each[start : start + asked.limit]
    return {
        "object": "list", "data": page,
        "first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None,
        "has_more": start + len(page) < len(each),
    }  # fmt: skip
