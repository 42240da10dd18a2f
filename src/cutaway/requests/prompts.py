"""Reads prompts: a text or token ids, or a list of either."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from cutaway.base.checks import shown
from cutaway.errors import InputError

Prompt = str | Sequence[int]


def one_or_many(prompt: Any) -> tuple[list[Any], bool]:
    """A list of the prompts, and whether a list was given. An empty list is an empty prompt."""
    prompt = _plain(prompt)
    many = _is_list(prompt) and not _is_prompt(prompt)
    return (list(prompt) if many else [prompt]), many


def check_prompt(prompt: Any, name: str = "prompt") -> Prompt:
    """A prompt, an array's ids as a list; InputError for anything else."""
    prompt = _plain(prompt)
    if not _is_prompt(prompt):
        raise InputError(f"{name} must be a string or a list of token ids, not {shown(prompt)}")
    checked: Prompt = prompt
    return checked


def _plain(prompt: Any) -> Any:
    return prompt.tolist() if isinstance(prompt, np.ndarray) else prompt


def _is_list(prompt: Any) -> bool:
    """Whether it may be a list of ids or prompts; bytes are not."""
    raw = (str, bytes, bytearray, memoryview)
    return isinstance(prompt, Sequence) and not isinstance(prompt, raw)


def _is_prompt(prompt: Any) -> bool:
    listed = _is_list(prompt) and all(isinstance(token_id, Integral) for token_id in prompt)
    return listed or isinstance(prompt, str)
