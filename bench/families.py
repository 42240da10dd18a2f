"""A table in Markdown of the published chat templates, in which each cell is found by trying.

    python bench/families.py > table.md

The script needs '.[test-transformers]' and the checkout's tests/data. For each family, the table
has: whether the prompt equals transformers' ``apply_chat_template`` byte for byte, the marks of a
thought, how thinking is switched off, whether cutaway reads a call that the template writes, and
whether the prompt has the call's result.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from cutaway.errors import CutawayError
from cutaway.text import ChatTemplate
from cutaway.text.chat_probe import thinking_of
from cutaway.text.message_form import MessageForm
from cutaway.text.thinking_switch import ThinkingSwitch, ThinkingWish
from cutaway.text.tools import Arguments, CallParser, CallStart, Tool

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "chat_templates" / "families"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HI = {"role": "user", "content": "How warm is it in Rome?"}
TURNS = [
    [HI],
    [{"role": "system", "content": "Be brief."}, HI],
    [HI, {"role": "assistant", "content": "12 degrees"}, {"role": "user", "content": "Why?"}],
]
TOWN = {"type": "string", "description": "its name"}  # some templates need a description
CITY = {"type": "object", "properties": {"city": TOWN}}
WEATHER = Tool("get_weather", "Says how warm it is", CITY)
FUNCTION = {"name": WEATHER.name, "arguments": {"city": "Rome"}}
CALL = {"id": "abcdefgh1", "type": "function", "function": FUNCTION}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "content": "31 degrees"}


class Marks:
    """A tokenizer for which each string that looks like a mark is a control token."""

    @staticmethod
    def control_tokens(text: str) -> dict[str, int]:
        """Return all strings that look like a control token, with an id."""
        return {name: index for index, name in enumerate(re.findall(r"<\|\w+\|>", text))}

    @staticmethod
    def encode(text: str, **_: Any) -> list[str]:
        """Return the text as one token."""
        return [text]


def main() -> None:
    came = dict(re.findall(r"^\| (\S+) \| (.+?) \|", (FOLDER / "README.md").read_text(), re.M))
    print("| template of | from | prompt | thoughts | off by | call | result |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(FOLDER.glob("*.jinja")):
        cells = [path.stem, came[path.stem], *row(path.read_text("utf-8"))]
        print(f"| {' | '.join(cells)} |")


def row(source: str) -> Iterator[str]:
    """Yield the cells of one template."""
    template = ChatTemplate(source, *TOKENS.values())
    yield yes(all(same(template, turns) for turns in TURNS))
    thinking = thinking_of(template, Marks())  # type: ignore[arg-type]  # it has what is called
    marks = "" if thinking is None else f"{thinking.opening}…{thinking.closing}"
    yield f"`{marks}`".replace("|", "\\|").replace("\n", "\\n") if marks else "-"
    off = ThinkingSwitch(template, thinking).settings(ThinkingWish(think=False))
    yield f"`{next(iter(off.variables))}`" if off.variables else "force" if off.opens else "-"
    yield yes(in_messages(thinking) or called(template))
    yield yes(answered(template))


def same(template: ChatTemplate, turns: list[dict[str, Any]]) -> bool:
    """Whether transformers writes the same prompt; if transformers fails, whether cutaway does."""
    try:
        theirs = reference().apply_chat_template(
            turns, chat_template=template.source, tokenize=False, add_generation_prompt=True
        )
    except Exception:  # a template is a program, and may raise anything
        theirs = None
    try:
        ours = template.render(turns)
    except CutawayError:
        ours = None
    return theirs is None or ours == theirs


@cache
def reference() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({})), **TOKENS)


def in_messages(thinking: Any) -> bool:
    """Whether calls are messages of their own, which tests/text/test_harmony.py and others read."""
    return isinstance(thinking, MessageForm)


def called(template: ChatTemplate) -> bool:
    """Whether the call that the template writes is read."""
    try:
        text = template.render([HI, CALLED], [WEATHER], add_generation_prompt=False)
        form = template._tool_support.dialect
    except CutawayError:
        return False
    if form is None:
        return False
    first = form.opening[0]
    at = text.find(first, text.rindex("Rome?")) if isinstance(first, str) else -1
    at = at if at >= 0 else text.rindex(WEATHER.name)
    parser = CallParser(form, [WEATHER], str)
    said = [*parser.push(text[at:].encode()), *parser.finish()]
    names = [delta.tool.name for delta in said if isinstance(delta, CallStart)]
    arguments = "".join(delta.text for delta in said if isinstance(delta, Arguments))
    return names == [WEATHER.name] and json.loads(arguments) == FUNCTION["arguments"]


def answered(template: ChatTemplate) -> bool:
    """Whether the prompt has the result of a call after the call."""
    try:
        text = template.render([HI, CALLED, RESULT], [WEATHER])
    except CutawayError:
        return False
    return text.rindex("Rome") < text.rindex("31 degrees")


def yes(found: bool) -> str:
    return "yes" if found else "no"


if __name__ == "__main__":
    main()
