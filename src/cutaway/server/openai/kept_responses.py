"""Answers of ``/v1/responses`` that are kept in memory, so that a later request can continue them.

Knows answers and conversations as JSON; not how they were written.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from cutaway.server.http.errors import ApiError
from cutaway.server.openai.responses_input import Said

_ITEMS: TypeAdapter[list[Said]] = TypeAdapter(list[Annotated[Said, Field(discriminator="type")]])


class _Kept(NamedTuple):
    """The answer's document, and its whole conversation with this answer, both as JSON."""

    document: bytes
    conversation: bytes

    @property
    def size(self) -> int:
        """Bytes that count against the limit."""
        return len(self.document) + len(self.conversation)


class KeptResponses:
    """The latest answers, by id; the oldest are dropped where there is no more room.

    limit  bytes of all; 0 keeps none
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._size, self._lock = limit, 0, Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def keep(self, document: bytes, id: str, said: Sequence[Said], output: Sequence[Any]) -> bool:
        """Keep an answer; False where it alone is larger than the limit.

        said    the conversation that it answers
        output  the answer's items
        """
        before = _ITEMS.dump_python([*said], mode="json", exclude_none=True)
        written = [_without_logprobs(item) for item in output]
        conversation = json.dumps([*before, *written]).encode()
        new = _Kept(document, conversation)
        with self._lock:
            self._drop(id)
            if new.size > self.limit:
                return False
            while self._size + new.size > self.limit:
                self._drop(next(iter(self._kept)))
            self._kept[id] = new
            self._size += new.size
        return True

    def conversation(self, id: str) -> list[Said]:
        """The conversation up to an answer, with it. ApiError 404 where it is not kept."""
        return _ITEMS.validate_python(
            json.loads(self._found(id, "previous_response_id").conversation)
        )

    def document(self, id: str) -> bytes:
        """An answer. ApiError 404 where it is not kept."""
        return self._found(id, "response_id").document

    def delete(self, id: str) -> None:
        """Forget an answer. ApiError 404 where it is not kept."""
        self._found(id, "response_id")
        with self._lock:
            self._drop(id)

    def _found(self, id: str, field: str) -> _Kept:
        with self._lock:
            if (kept := self._kept.get(id)) is not None:
                return kept
        raise ApiError(
            404, f"{field}: there is no response {id[:100]!r}; the latest are kept, {self.limit} "
            "bytes of them (serve --keep-responses) and none with store: false: send the whole "
            "conversation as input", param=field, code="response_not_found",
        )  # fmt: skip

    def _drop(self, id: str) -> None:
        if (old := self._kept.pop(id, None)) is not None:
            self._size -= old.size


def _without_logprobs(item: Any) -> Any:
    """An item of an answer as it is kept in a conversation."""
    if item["type"] != "message":
        return item
    return {**item, "content": [{**part, "logprobs": []} for part in item["content"]]}
