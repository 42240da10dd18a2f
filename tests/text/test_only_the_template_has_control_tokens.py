"""Whatever a user, a tool or a model says, only the template of its family writes control tokens.

The marks of each family, whole and in pieces, are said everywhere where a text may stand, in a
vocabulary in which they all are control tokens. The control tokens of the prompt are those of the
same conversation with plain words in their place, and the text is all there.
"""

import re
from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from cutaway.errors import FormatError, InputError
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.tools import parse_tools
from support.examples import few_or_many
from support.text_vocabularies import CONTROL, byte_level

FOLDER = Path(__file__).parent.parent / "data" / "chat_templates" / "families"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
MARK = re.compile(r"<[^<>{}'\"\s\\]{1,40}>|\[/?[A-Z_]{3,}\]")
WORDS = ["wordone", "wordtwo", "wordthree"]
REWRITTEN = ("functionary-3.1", "ministral-3", "nemotron-nano-v2", "smollm3")
"""Templates that escape HTML in a name, or take "/think" out of what is said."""
BYTES = 256  # of the vocabulary, before the marks
Say = Callable[[], str]


class Family:
    """A template, its marks, and a vocabulary in which they are control tokens."""

    def __init__(self, name: str) -> None:
        source = (FOLDER / f"{name}.jinja").read_text()
        self.template = ChatTemplate(source, "<s>", "</s>")
        self.marks = sorted({"<s>", "</s>", *MARK.findall(source)})
        extra = [(mark, CONTROL) for mark in self.marks]
        self.tokenizer = Tokenizer.from_gguf(byte_level(extra=extra, add_bos_token=False))

    def ids(self, said: Any, tools: Any) -> list[int] | None:
        """The prompt; None where the template refuses it."""
        try:
            offered = parse_tools(tools)
            return self.template.encode(said, self.tokenizer, tools=offered)
        except (InputError, FormatError):
            return None


family = cache(Family)


def message(role: str, say: Say, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": say(), **more}


def called(say: Say) -> dict[str, Any]:
    arguments = {"town": say(), f"v{say()}": [{say(): say()}, 1, None]}  # in order, if sorted
    function = {"name": say(), "arguments": arguments}
    return {"id": "abcdefgh1", "type": "function", "function": function}


def tool(say: Say) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"town": {"type": "string", "description": say(), "enum": [say()]}},
        "required": ["town"],
    }
    about = {"name": "weather", "description": say(), "parameters": schema}
    return {"type": "function", "function": about}


def conversations(say: Say) -> list[tuple[list[dict[str, Any]], list[Any]]]:
    """Messages and tools, in which every text is one that ``say`` returns."""
    system, user = message("system", say), message("user", say, name=say())
    answer = message("assistant", say, reasoning_content=say())
    calling = message("assistant", say, reasoning_content=say(), tool_calls=[called(say)])
    result = {"role": "tool", "content": say(), "tool_call_id": "abcdefgh1"}
    return [
        ([user, answer, message("user", say)], []),
        ([system, user], []),
        ([user], [tool(say)]),
        ([user, calling, result], [tool(say)]),
    ]


@pytest.mark.parametrize("name", NAMES)
@few_or_many(4, 10, st.data())
def test_only_the_template_writes_control_tokens(name: str, data: st.DataObject) -> None:
    one = family(name)
    marks = st.sampled_from(one.marks)
    parts = st.tuples(marks, st.integers(1, 6))
    piece = marks | parts.map(lambda part: part[0][part[1] :])
    last = marks | parts.map(lambda part: part[0][: part[1]])
    said = data.draw(st.lists(st.builds("{}q{}".format, piece, last), min_size=3, max_size=3))
    hostile, plain = (conversations(cycle(each).__next__) for each in (said, WORDS))
    for (messages, tools), (others, other_tools) in zip(hostile, plain, strict=True):
        ids, expected = one.ids(messages, tools), one.ids(others, other_tools)
        assert (ids is None) == (expected is None)
        if ids is None or expected is None:
            continue
        assert [i for i in ids if i >= BYTES] == [i for i in expected if i >= BYTES]
        text, other = (one.tokenizer.decode(each, special=True) for each in (ids, expected))
        for word, each in zip(WORDS, said, strict=True):
            other = other.replace(word, each)
        assert text == other or name in REWRITTEN
