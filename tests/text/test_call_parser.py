"""The parser gives the same deltas however a text is cut, and never what it must take back."""

import json
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.text.tools import Arguments, CallParser, CallStart, Content, Tool, call_id
from cutaway.text.tools.dialect import UNRENDERED
from support.chat_templates import NAMES, dialect
from support.tool_texts import put_together, read

WEATHER, TIME = Tool("get_weather"), Tool("get_weather_time")
CODE = Tool("code", format="text")
SUM = Tool("sum", format="lark", definition='start: "1"')
TOOLS = (WEATHER, TIME, CODE, SUM)

ROME = '{"city": "Röm \\"}]\\\\", "of": [{"the": "</tool_call>]"}, null]}'
SAID = 'Grüße 🙂, one < two; [TOOL or <tool_ or {"name" is no call.'

families = pytest.mark.parametrize("name", NAMES)


def calls_in(name: str) -> list[tuple[str, str, str]]:
    calls = [("get_weather", ROME, "abcdefgh1"), ("get_weather_time", "{}", "abcdefgh2")]
    return calls if dialect(name).allows_several else calls[:1]


def answers(name: str) -> dict[str, tuple[str, str, int]]:
    """Texts with the content and the number of calls that each holds."""
    form = dialect(name)
    written = form.write(calls_in(name))
    code = form.write([("code", json.dumps({"input": ROME}), "abcdefgh1")])
    found = {
        "content": (SAID, SAID, 0),
        "calls": (written, "", len(calls_in(name))),
        "custom": (code, "", 1),
        "raw": (form.write([("sum", '{"input": "1+"}"}', "abcdefgh1")]), "", 1),
    }
    if form.trigger:
        found["both"] = (f"{SAID}\n\n{written}", SAID, len(calls_in(name)))
    return found


@families
def test_every_way_to_cut_a_text_in_two_gives_the_same(name: str) -> None:
    for text, content, count in answers(name).values():
        data = text.encode()
        whole = put_together(read(dialect(name), TOOLS, [data]))
        assert whole[0] == content
        assert len(whole[1]) == count
        assert all(call[3] for call in whole[1])
        for at in range(len(data)):
            assert put_together(read(dialect(name), TOOLS, [data[:at], data[at:]])) == whole
        assert put_together(read(dialect(name), TOOLS, (bytes([b]) for b in data))) == whole


@given(
    st.sampled_from(NAMES),
    st.sampled_from(["content", "calls", "custom", "raw", "both"]),
    st.data(),
)
def test_any_way_to_cut_a_text_gives_the_same(name: str, kind: str, draw: st.DataObject) -> None:
    text = answers(name).get(kind, ("", "", 0))[0].encode()
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert put_together(read(dialect(name), TOOLS, pieces)) == put_together(
        read(dialect(name), TOOLS, [text])
    )


NONSENSE = [
    *'<>[]{}"\\ \n,:a', "<tool_call>", "[TOOL_CALLS]", "<|tool_call|>", '{"name": "', "get_weather",
    '", "arguments": ', "}\n</tool_call>", "é", "🙂",
]  # fmt: skip


@given(st.sampled_from(NAMES), st.lists(st.sampled_from(NONSENSE), max_size=20))
def test_nonsense_is_read_alike_bytewise(name: str, parts: list[str]) -> None:
    data = "".join(parts).encode()
    assert put_together(read(dialect(name), TOOLS, (bytes([b]) for b in data))) == put_together(
        read(dialect(name), TOOLS, [data])
    )


@families
def test_names_arguments_and_ids(name: str) -> None:
    _, calls = put_together(read(dialect(name), TOOLS, [answers(name)["calls"][0].encode()]))
    assert [tuple(call[:3]) for call in calls] == [
        (called, call_id("r", index), arguments)
        for index, (called, arguments, _) in enumerate(calls_in(name))
    ]


@families
def test_custom_tools_get_their_text(name: str) -> None:
    _, [[called, _, text, ended]] = put_together(
        read(dialect(name), TOOLS, [answers(name)["custom"][0].encode()])
    )
    assert (called, text, ended) == ("code", ROME, True)
    _, [[called, _, text, ended]] = put_together(
        read(dialect(name), TOOLS, [answers(name)["raw"][0].encode()])
    )
    assert (called, text, ended) == ("sum", '1+"}', True)


@families
def test_a_call_that_was_cut_is_not_content(name: str) -> None:
    """From the trigger on nothing is said, and the arguments are a prefix of the whole."""
    data = answers(name)["calls"][0].encode()
    trigger = dialect(name).trigger or '{"name": "'
    for at in range(len(data)):
        content, calls = put_together(read(dialect(name), TOOLS, [data[:at]]))
        assert content == ("" if at >= len(trigger) else data[:at].decode())
        assert all(ROME.startswith(call[2]) or call[2] == "{}" for call in calls)
        required = put_together(read(dialect(name), TOOLS, [data[:at]], required=True))
        assert required == ("", calls)


def test_arguments_are_given_as_they_come() -> None:
    parser = CallParser(dialect("qwen2.5"), TOOLS, str)
    assert parser.push(b'<tool_call>\n{"name": "get_weather') == []
    assert parser.push(b'", "arguments": ') == [CallStart(0, "0", WEATHER)]
    assert parser.push(b'{"a') == [Arguments(0, '{"a')]
    assert parser.push('": "é'.encode()[:-1]) == [Arguments(0, '": "')]
    assert parser.push("é".encode()[1:]) == [Arguments(0, "é")]


def test_content_is_given_up_to_what_may_be_a_call() -> None:
    parser = CallParser(dialect("qwen2.5"), TOOLS, str)
    assert parser.push(b"a <b> \n<tool") == [Content("a <b>")]
    assert parser.push(b"s> c") == [Content(" \n<tools> c")]


def test_white_space_alone_is_content_where_no_call_follows() -> None:
    assert read(dialect("qwen2.5"), TOOLS, [b" \n"]) == [Content(" \n")]


def test_a_json_answer_of_a_model_that_calls_in_plain_json_is_content() -> None:
    for text in ('{"names": []}', '{"name": "nobody", "parameters": {}}', ' {"name": "get_weather'):
        assert read(dialect("llama3"), TOOLS, [text.encode()]) == [Content(text)]


def test_ids_are_nine_letters_or_digits_and_repeat_with_the_request() -> None:
    ids = [call_id("request", index) for index in range(100)]
    assert len(set(ids)) == 100
    assert ids == [call_id("request", index) for index in range(100)]
    assert all(len(identity) == 9 and identity.isalnum() for identity in ids)
    assert call_id("other", 0) not in ids


@pytest.mark.parametrize("after", ["", "get_weather:"])
def test_a_name_or_number_without_end_is_content_in_linear_time(after: str) -> None:
    """Reading it from its beginning with each piece would take minutes."""
    kimi = UNRENDERED["<|tool_call_argument_begin|>"]
    text, started = f"<|tool_call_begin|>functions.{after}", process_time()
    content, calls = put_together(read(kimi, TOOLS, [text.encode(), *[b"12345"] * 60_000]))
    assert process_time() - started < 4
    assert content == text + "12345" * 60_000 and not calls
