"""A token with its log-probability, as OpenAI's ``logprobs`` objects have it."""

from typing import Any

REMOVED = -9999.0
"""What OpenAI writes where a token's probability is not known to be above zero."""


def openai_token(data: bytes, name: str, logprob: float | None) -> dict[str, Any]:
    """A token with its true bytes; one that adds nothing to the text has its name."""
    text = data.decode("utf-8", "replace") if data else name
    return {"token": text, "logprob": logprob, "bytes": list(data) or None}
