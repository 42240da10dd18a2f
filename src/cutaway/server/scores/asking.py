"""The prompt of a question in the model's chat template, and how its answers begin and end."""

from collections.abc import Sequence
from typing import Any

from cutaway.api.async_model import AsyncModel
from cutaway.errors import CutawayError

_PROBE = "7"


def prompt_of(llm: AsyncModel, messages: Sequence[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation, ready to be answered, without thoughts before the answer."""
    return llm.chat_ids(messages, enable_thinking=False)


def ends_of(llm: AsyncModel) -> tuple[int, ...]:
    """Tokens that end the model's turn."""
    return tuple(sorted(llm.tokenizer.end_ids))


def lead_of(llm: AsyncModel) -> str:
    """The space that the template writes before an answer: [INST] … [/INST] Yes."""
    if llm.template is None:
        return ""
    asked = [{"role": "user", "content": "?"}]
    answered = [*asked, {"role": "assistant", "content": _PROBE}]
    try:
        before = llm.template.render(asked, enable_thinking=False)
        whole = llm.template.render(answered, add_generation_prompt=False, enable_thinking=False)
    except CutawayError:  # the template does not take this: what is asked will say so
        return ""
    lead = whole.removeprefix(before).partition(_PROBE)[0]
    return lead if whole.startswith(before) and lead.isspace() else ""
