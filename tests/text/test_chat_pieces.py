"""A chat template as texts between messages: where it is one, and where it is refused."""

import pytest

from cutaway.errors import InputError
from cutaway.text import ChatTemplate
from cutaway.text.chat_probe import ChatPieces
from support.chat_templates import template

CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def written(source):
    return ChatPieces.of(ChatTemplate(source, "<s>", "</s>"))


def test_what_stands_between_two_messages():
    pieces = written(CHATML)
    assert pieces.between["start user"] == "<|im_start|>user\n"
    assert pieces.between["user end"] == "<|im_end|>\n<|im_start|>assistant"
    assert (pieces.takes_system, pieces.trimmed) == (True, ())


@pytest.mark.parametrize("name", ["smollm2", "gemma2", "llama3", "mistral-array", "qwen2.5"])
def test_a_conversation_is_that_of_the_template(name):
    real, words = template(name), ("  What?\n", " This. ", "\tAnd\x1f", "é\u3000", "<|im_end|>")
    messages = [{"role": ("user", "assistant")[i % 2], "content": w} for i, w in enumerate(words)]
    pieces = ChatPieces.of(real)
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
    pieces = ChatPieces.of(template(name))
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
