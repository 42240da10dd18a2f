"""The marks of thoughts, found by letting templates of each family's form write one."""

import pytest

from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.chat_probe import thinking_of
from cutaway.text.thinking import Thinking
from support.chat_templates import byte_tokenizer
from support.text_vocabularies import CONTROL, USER, byte_level

HEAD = "{% for m in messages %}<turn>{{ m.role }}\n{% if m.role != 'assistant' %}{{ m.content }}"
TAIL = "{% endif %}<end>\n{% endfor %}{% if add_generation_prompt %}<turn>assistant\n{% endif %}"


def family(written: str, tail: str = TAIL) -> ChatTemplate:
    """A template that writes an assistant's message so."""
    return ChatTemplate(HEAD + "{% else %}" + written + tail, "<s>", "</s>")


THOUGHT = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
LAST = "{% if loop.last %}" + THOUGHT.replace(
    "{% endif %}", "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
CALLS = "{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}"
PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'thinking' %}[THINK]{{ p.thinking }}[/THINK]{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}"
)
SAID = "{{ m.content }}"
FORMS = {
    "beside content": (THOUGHT + SAID, "<think>\n", "\n</think>\n\n"),
    "empty where there is none": (LAST + SAID, "<think>\n", "\n</think>\n\n"),
    "always marked": (
        "<think>{{ m.reasoning_content or '' }}</think>\n" + SAID, "<think>", "</think>\n"
    ),
    "another field": (THOUGHT.replace("_content", "") + SAID, "<think>\n", "\n</think>\n\n"),
    "seed": (
        "{% if m.reasoning_content %}<seed:think>{{ m.reasoning_content }}</seed:think>\n"
        "{% endif %}" + SAID,
        "<seed:think>", "</seed:think>\n",
    ),
    "parts": (PARTS, "[THINK]", "[/THINK]"),
    "parts in parts": (
        PARTS.replace("p.thinking }}", "p.thinking[0].text }}"), "[THINK]", "[/THINK]"
    ),
    "only before calls": (
        "{% if m.tool_calls and m.reasoning_content %}<|channel>thought\n{{ m.reasoning_content }}"
        "<channel|>{% endif %}" + CALLS + SAID,
        "<|channel>thought\n", "<channel|>",
    ),
    "a switch": (
        "{% if thinking is defined and thinking %}" + THOUGHT + "{% endif %}" + SAID,
        "<think>\n", "\n</think>\n\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_the_marks_are_those_the_template_writes(name):
    written, before, after = FORMS[name]
    found = thinking_of(family(written), byte_tokenizer())
    assert found == Thinking(before, after)
    assert found.empty == before + after
    assert (found.opening, found.closing) == (before.strip(), after.strip())


@pytest.mark.parametrize(
    "written",
    [
        SAID,
        "{{ m.reasoning_content }}" + SAID,  # no marks
        "{{ m.reasoning_content }}\n" + CALLS,
        "{{ m.reasoning_content }}<turn>" + SAID,  # those of turns
        SAID + "<think>{{ m.reasoning_content }}</think>",  # behind the answer
    ],
)
def test_what_is_no_pair_of_marks_is_none(written):
    assert thinking_of(family(written), byte_tokenizer()) is None


MARKS = [
    ("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"),
    ("<|channel>thought\n", "<channel|>"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), MARKS)
def test_a_template_that_drops_thoughts_has_known_marks(before, after):
    dropped = SAID + f"{{% if false %}}{before}{after}{{% endif %}}"
    tags = [before.removesuffix("thought\n"), after]
    tokenizer = Tokenizer.from_gguf(byte_level(extra=[(tag, CONTROL) for tag in tags]))
    found = thinking_of(family(dropped), tokenizer)
    assert found and (found.before, found.after) == (before, after)
    assert list(found.control) == tags
    assert thinking_of(family(dropped), byte_tokenizer()) is None  # no tokens of the model's


@pytest.mark.parametrize("tail", ["<think>", "<think>\n"])
def test_a_prompt_may_have_opened_the_thought(tail):
    begun = TAIL.replace("<turn>assistant\n{% endif %}", f"<turn>assistant\n{tail}{{% endif %}}")
    found = thinking_of(family(THOUGHT + SAID, begun), byte_tokenizer())
    assert found and found.begun
    over = found.behind("<turn>assistant\n<think>\n\n</think>\n\n")
    assert over.closed and not over.begun
    assert found.behind("<turn>assistant\n<think>\n").begun


@pytest.mark.parametrize("kind", [CONTROL, USER], ids=["control", "user-defined"])
def test_a_tag_that_is_one_token_is_read_as_that_token(kind):
    """Of whatever kind: mostly it is none of control, and has a text."""
    tags = ["<think>", "</think>"]
    tokenizer = Tokenizer.from_gguf(byte_level(extra=[(tag, kind) for tag in tags]))
    found = thinking_of(family(THOUGHT + SAID), tokenizer)
    assert found and found.control == {tag: tokenizer.encode(tag, special=True)[0] for tag in tags}
