"""The test templates, and a vocabulary of bytes with the control tokens of their families."""

from functools import cache
from pathlib import Path

from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.tools import Dialect
from support.text_vocabularies import CONTROL, byte_level

FOLDER = Path(__file__).parent.parent / "data" / "chat_templates"
CONTROLS = [
    "<|im_end|>", "<s>", "</s>", "<|eot_id|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|tool_call|>", "<|/tool_call|>", "<|tool_calls_begin|>", "<|tool_call_begin|>",
    "<|tool_sep|>", "<|tool_call_end|>", "<|tool_calls_end|>", "<|tool_call_start|>",
    "<|tool_call>", "<tool_call|>", '<|"|>', "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "<minimax:tool_call>", "</minimax:tool_call>",
]  # fmt: skip
END = 256
NAMES = sorted(
    path.stem
    for path in FOLDER.glob("*.jinja")
    if path.stem not in ("qwen3-coder", "functiongemma")
)
FORMS = (
    "deepseek-v3.2", "gemma-4", "glm-4.5", "glm-4.7-flash", "hunyuan-3", "lfm2", "lfm2.5",
    "minimax-m2", "nemotron-3-nano", "nemotron-3-super", "qwen3-coder", "qwen3.5", "seed-oss",
    "step-3.5",
)  # fmt: skip
"""Families whose arguments are no JSON object."""


@cache
def template(name: str) -> ChatTemplate:
    """Return a test template, or the template of a published family."""
    folder = FOLDER / "families" if name in FORMS else FOLDER
    return ChatTemplate((folder / f"{name}.jinja").read_text(), "<s>", "</s>")


@cache
def byte_tokenizer(control: bool = True) -> Tokenizer:
    """Return a tokenizer of the 256 bytes and the families' control tokens."""
    extra = [(text, CONTROL) for text in (CONTROLS if control else CONTROLS[:4])]
    return Tokenizer.from_gguf(byte_level(extra=extra))


@cache
def dialect(name: str, control: bool = True) -> Dialect:
    """control: whether the family's tags are control tokens, or ordinary text"""
    return template(name).dialect(byte_tokenizer(control))
