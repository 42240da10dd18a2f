"""Answers with calls, read by a parser and joined again."""

from collections.abc import Iterable, Sequence
from typing import Any

from cutaway.text.tools import (
    Arguments,
    CallEnd,
    CallParser,
    CallStart,
    Content,
    Delta,
    Dialect,
    Tool,
    call_id,
)
from support.chat_templates import byte_tokenizer


def read(form: Dialect, tools: Sequence[Tool], pieces: Iterable[bytes], **options) -> list[Delta]:
    parser = CallParser(form, tools, lambda index: call_id("r", index), **options)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return deltas + parser.finish()


def read_tokens(form: Dialect, tools: Sequence[Tool], tokens: Sequence[int]) -> list[Delta]:
    names, tokenizer = form.token_bytes, byte_tokenizer()
    return read(form, tools, [names.get(t) or tokenizer.token_bytes(t) for t in tokens])


def put_together(deltas: Sequence[Delta]) -> tuple[str, list[list[Any]]]:
    """Return (content, calls), each call [name, id, arguments, whether it ended]."""
    content = ""
    calls: list[list[Any]] = []
    for delta in deltas:
        match delta:
            case Content(text):
                assert text
                content += text
            case CallStart(index, identity, tool):
                assert index == len(calls)
                calls.append([tool.name, identity, "", False])
            case Arguments(index, text):
                assert text
                assert index == len(calls) - 1
                calls[-1][2] += text
            case CallEnd(index):
                assert index == len(calls) - 1
                calls[-1][3] = True
    return content, calls
