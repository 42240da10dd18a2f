"""What templates write: the marks of thoughts in each family's form, texts between messages."""

import pytest

from cutaway.errors import InputError
from cutaway.text import ChatTemplate, Tokenizer
from cutaway.text.chat_probe import ChatPieces, thinking_of
from cutaway.text.thinking import Thinking
from support.chat_templates import byte_tokenizer, template
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
    assert found and found.opened
    over = found.with_prompt("<turn>assistant\n<think>\n\n</think>\n\n")
    assert over.closed and not over.opened
    assert found.with_prompt("<turn>assistant\n<think>\n").opened


@pytest.mark.parametrize("kind", [CONTROL, USER], ids=["control", "user-defined"])
def test_a_tag_that_is_one_token_is_read_as_that_token(kind):
    """Of whatever kind: mostly it is none of control, and has a text."""
    tags = ["<think>", "</think>"]
    tokenizer = Tokenizer.from_gguf(byte_level(extra=[(tag, kind) for tag in tags]))
    found = thinking_of(family(THOUGHT + SAID), tokenizer)
    assert found and found.control == {tag: tokenizer.encode(tag, special=True)[0] for tag in tags}


# -- texts between messages: where that is all, and where it is refused ------------------------

CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def written(source):
    return ChatPieces.from_template(ChatTemplate(source, "<s>", "</s>"))


def test_what_stands_between_two_messages():
    pieces = written(CHATML)
    assert pieces.between["start user"] == "<|im_start|>user\n"
    assert pieces.between["user end"] == "<|im_end|>\n<|im_start|>assistant"
    assert (pieces.takes_system, pieces.trimmed) == (True, ())


@pytest.mark.parametrize("name", ["smollm2", "gemma2", "llama3", "mistral-array", "qwen2.5"])
def test_a_conversation_is_that_of_the_template(name):
    real, words = template(name), ("  What?\n", " This. ", "\tAnd\x1f", "é\u3000", "<|im_end|>")
    messages = [{"role": ("user", "assistant")[i % 2], "content": w} for i, w in enumerate(words)]
    pieces = ChatPieces.from_template(real)
    assert pieces.text(messages) == real.render(messages)
    if pieces.takes_system:
        messages.insert(0, {"role": "system", "content": " Be brief. "})
        assert pieces.text(messages) == real.render(messages)


@pytest.mark.parametrize("close", ["</think>", "[/THINK]"])
def test_thoughts_of_earlier_answers_are_left_out_as_the_template_does(close):
    said = f"""{{% if '{close}' in c and m.role == 'assistant' %}}
        {{%- set c = c.split('{close}')[-1].lstrip('\n') %}}{{% endif %}}"""
    source = CHATML.replace("%}<|im", "%}{% set c = m.content %}" + said + "<|im", 1)
    pieces = written(source.replace("{{ m.content }}", "{{ c }}"))
    assert (pieces.thought_end, pieces.blank) == (close, "\n")


@pytest.mark.parametrize(
    ("name", "rule"),
    [("qwen3.5", ("</think>", "\n", False)), ("lfm2.5", ("</think>", None, True)),
     ("lfm2", ("", "", True)), ("step-3.5", ("</think>", "\n", False))],
)  # fmt: skip
def test_what_published_templates_do_beside_writing_between_messages(name, rule):
    pieces = ChatPieces.from_template(template(name))
    assert (pieces.thought_end, pieces.blank, pieces.drops_empty) == rule


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (CHATML.replace("m.content", "m.content.split('</think>')[0]"), "does more than write"),
        (CHATML.replace("m.content", "m.content if loop.last else ''"), "leaves out messages"),
        (CHATML.replace("im_start|>{{", "{{ loop.index }}|>{{"), "other texts around later"),
        (CHATML + "{{ strftime_now('%d') }}", "writes today's date"),
        (CHATML.replace("m.content", "m.content | upper"), "does more than write"),
    ],
)
def test_another_template_is_refused_in_a_sentence(source, said):
    with pytest.raises(InputError, match=said):
        written(source)
