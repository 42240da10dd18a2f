"""A conversation as harmony's templates take it.

Knows their fields: a thought is "thinking", a message has one call, and what is said before a call
is part of the thought.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from cutaway.errors import InputError

MARK = "<|channel|>analysis<|message|>"
"""What is in the source of these templates."""


def for_harmony(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, each call with its result behind it.

    InputError for a system message that is not the first, which these templates would leave out.
    """
    made: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if message["role"] in ("system", "developer") and index:
            raise InputError(
                f"messages[{index}]: this model's template takes a system message only as the "
                "first; put its text there"
            )
        if message["role"] != "assistant":
            made += [message] if message["role"] != "tool" else []
            continue
        thought = message.get("reasoning_content") or message.get("thinking")
        plain = {k: v for k, v in message.items() if k not in ("reasoning_content", "thinking")}
        if "tool_calls" not in message:
            made.append({**plain, "thinking": thought} if thought else plain)
            continue
        said = "\n".join(filter(None, [thought, plain["content"]]))
        results = [*takewhile(lambda m: m["role"] == "tool", messages[index + 1 :])]
        for call in plain["tool_calls"]:
            made.append({**plain, "content": "", "tool_calls": [call]})
            made[-1] |= {"thinking": said} if said else {}
            made += [one for one in results if one["tool_call_id"] == call["id"]]
            said = ""
    return made
