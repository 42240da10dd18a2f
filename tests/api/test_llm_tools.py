"""Tools in Python: functions, OpenAI's JSON and Tool objects; their calls, results and limits."""

import json
from itertools import accumulate
from types import SimpleNamespace
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cutaway import LLM, AsyncLLM, InputError
from cutaway.requests.answer import AnswerReader
from cutaway.rerun import replay
from cutaway.text.tools import CallParser, Tool, call_id, parse_tools
from cutaway.trace import Trace
from support.chat_templates import byte_tokenizer, dialect

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]
SAMPLED = {"temperature": 0.7, "seed": 3, "max_tokens": 80}
ONE = {"tool_choice": "required", "parallel_tool_calls": False, **SAMPLED}


def get_weather(city: Literal["Paris", "Rome"], days: int = 1) -> dict:
    """The weather of a city."""
    return {"city": city, "degrees": 12}


def fails(city: Literal["Paris"]) -> str:
    """Says nothing."""
    raise OSError(f"no weather in {city}")


async def later() -> str:
    return "soon"


DATA = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 9}},
            "required": ["word"],
            "additionalProperties": False,
        },
    },
}
DIAL = Tool("dial", "Calls a number", format="regex", definition="[0-9]{3}")


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path) as llm:
        yield llm


def named(name):
    return {"type": "function", "function": {"name": name}}


@pytest.mark.model
class TestCalls:
    def test_functions_data_and_tools_may_stand_side_by_side(self, llm):
        tools = [get_weather, DATA, DIAL]
        for name in ("get_weather", "look_up", "dial"):
            done = llm.chat(
                ASK, tools=tools, tool_choice=named(name), parallel_tool_calls=False, **SAMPLED
            )
            [call] = done.tool_calls
            assert call.name == name
            [message] = done.new_messages
            assert message["tool_calls"][0]["id"] == call.id and message["content"] is None
            if name == "dial":
                assert len(call.arguments) == 3 and call.arguments.isdecimal()
                assert message["tool_calls"][0]["type"] == "custom"
            else:
                allowed = {"get_weather": {"city", "days"}, "look_up": {"word"}}[name]
                assert call.values().keys() <= allowed

    def test_required_calls_and_none_does_not(self, llm):
        called = llm.chat(ASK, tools=[get_weather], **ONE)
        assert called.tool_calls and called.finish_reason in ("constraint", "end_token")
        said = llm.chat(ASK, tools=[get_weather], tool_choice="none", **SAMPLED)
        assert said.tool_calls == ()
        assert said.new_messages == ({"role": "assistant", "content": said.text},)
        assert llm.chat(ASK, **SAMPLED).text == said.text  # as if there were none

    def test_auto_may_say_something(self, llm):
        done = llm.chat(ASK, tools=[get_weather], **SAMPLED | {"temperature": 0.0})
        [message] = done.new_messages
        assert message["content"] or message["tool_calls"]

    def test_the_same_question_makes_the_same_call(self, llm):
        one, two = (llm.chat(ASK, tools=[get_weather], **ONE) for _ in range(2))
        assert one.new_messages == two.new_messages
        assert one.fingerprint == two.fingerprint

    def test_several_samples_have_ids_of_their_own(self, llm):
        both = llm.chat(ASK, tools=[get_weather], tool_choice="required", n=2, **SAMPLED)
        ids = [call.id for done in both for call in done.tool_calls]
        assert len(both) == 2 and len(ids) == len(set(ids)) >= 2

    def test_a_call_that_was_cut_is_not_made(self, llm):
        done = llm.chat(
            ASK, tools=[get_weather], tool_choice="required", **SAMPLED | {"max_tokens": 20}
        )
        assert done.finish_reason == "max_tokens"
        assert done.tool_calls[0].name == "get_weather"
        with pytest.raises(InputError, match="get_weather has no whole arguments: raise max_tok"):
            done.tool_calls[0].values()
        with pytest.raises(InputError, match="raise max_tokens"):
            llm.chat(
                ASK, tools=[get_weather], tool_choice="required", run_tools=True,
                **SAMPLED | {"max_tokens": 20},
            )  # fmt: skip

    def test_what_is_printed_shows_the_calls(self, llm):
        done = llm.chat(ASK, tools=[get_weather], **ONE)
        assert "ToolCall(id=" in repr(done)
        assert "ToolCall" not in repr(llm.chat(ASK, **SAMPLED))
        document = json.loads(json.dumps(done.to_dict()))
        assert document["new_messages"] == [*done.new_messages]

    async def test_asyncio(self, llm):
        fields = {"tools": [get_weather], **ONE}
        expected = llm.chat(ASK, **fields)
        async with AsyncLLM(llm) as model:
            ids = await model.chat_prompt(ASK, [get_weather])
            done = await model.chat(ASK, **fields)
        assert done.new_messages == expected.new_messages
        assert ids == llm.chat_prompt(ASK, [get_weather]) == [*expected.prompt_token_ids]


SCHEMA = {
    "type": "object", "properties": {"degrees": {"enum": [12, 13]}}, "required": ["degrees"],
    "additionalProperties": False,
}  # fmt: skip
EITHER = {"tools": [get_weather], "json_schema": SCHEMA, "parallel_tool_calls": False, **SAMPLED}


@pytest.mark.model
class TestBesideASchema:
    """Which of the two a text is: test_schema_or_calls.py."""

    def begun(self, llm, text):
        return {**EITHER, "forced": llm.tokenize(text, add_bos=False)}

    def test_the_answer_is_a_call_or_keeps_to_the_schema(self, llm):
        said = llm.chat(ASK, **self.begun(llm, "{"))
        assert json.loads(said.text)["degrees"] in (12, 13)
        assert said.new_messages == ({"role": "assistant", "content": said.text},)
        called = llm.chat(ASK, **self.begun(llm, "<"))
        [call] = called.tool_calls
        assert call.name == "get_weather" and call.values().keys() <= {"city", "days"}
        [message] = called.new_messages
        assert message["content"] is None
        assert called.params["json_schema"] and "get_weather" in called.params["calls"]

    def test_a_choice_of_calls_or_none_is_kept_to(self, llm):
        assert llm.chat(ASK, **EITHER, tool_choice="required").tool_calls
        text = llm.chat(ASK, **EITHER, tool_choice="none").text
        assert text == llm.chat(ASK, json_schema=SCHEMA, **SAMPLED).text

    def test_after_calls_that_were_required_the_answer_keeps_to_the_schema(self, llm):
        done = llm.chat(ASK, **EITHER, tool_choice="required", run_tools=True, max_rounds=2)
        *_, result, last = done.new_messages
        assert result["role"] == "tool"
        assert "tool_calls" in last or json.loads(last["content"])["degrees"] in (12, 13)

    async def test_asyncio_and_several_samples(self, llm):
        fields = {**EITHER, "n": 2}
        expected = [done.new_messages for done in llm.chat(ASK, **fields)]
        async with AsyncLLM(llm) as model:
            found = await model.chat(ASK, **fields)
        assert [done.new_messages for done in found] == expected

    def test_a_trace_is_replayed(self, llm, tmp_path):
        done = llm.chat(ASK, **self.begun(llm, "<"), trace=tmp_path / "run.jsonl")
        trace = Trace.read(tmp_path / "run.jsonl")
        assert trace.head.params["calls"] == done.params["calls"]
        assert replay(llm, trace).same


@pytest.mark.model
class TestRunning:
    def test_results_are_answered(self, llm):
        seen = []

        def noted(city: Literal["Paris"]) -> list:
            seen.append(city)
            return [city, 12]

        done = llm.chat(ASK, tools=[noted], run_tools=True, **ONE)
        assert seen and set(seen) == {"Paris"}
        first, result = done.new_messages[:2]
        assert result == {
            "role": "tool",
            "tool_call_id": first["tool_calls"][0]["id"],
            "content": '["Paris", 12]',
        }
        assert done.new_messages[-1]["role"] == "assistant"
        again = llm.chat([*ASK, *done.new_messages, *ASK], tools=[noted], **ONE)
        ids = [
            call["id"] for message in done.new_messages for call in message.get("tool_calls", ())
        ]
        assert again.tool_calls[0].id not in ids

    def test_the_limit_is_one_of_answers(self, llm):
        calls = []

        def count() -> str:
            """Counts."""
            calls.append(1)
            return "call count again"

        fields = {"tools": [count], "run_tools": True, **ONE}
        done = llm.chat(ASK, max_rounds=1, **fields)
        assert calls == [] and len(done.tool_calls) == 1 and len(done.new_messages) == 1
        done = llm.chat(ASK, max_rounds=2, **fields)
        assert calls == [1]
        assert [m["role"] for m in done.new_messages] == ["assistant", "tool", "assistant"]

    def test_each_answer_has_a_trace(self, llm, tmp_path):
        fields = {"run_tools": True, "max_rounds": 2, **ONE}
        llm.chat(ASK, tools=[get_weather], trace=tmp_path / "run.jsonl", **fields)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["run.2.jsonl", "run.jsonl"]

    def test_what_a_function_raises_is_raised(self, llm):
        with pytest.raises(OSError, match="no weather in Paris"):
            llm.chat(ASK, tools=[fails], run_tools=True, **ONE)

    def test_a_result_that_is_no_json_is_refused(self, llm):
        def things() -> set:
            return {1}

        with pytest.raises(InputError, match=r"what things returned is no JSON \(.*set.*return"):
            llm.chat(ASK, tools=[things], run_tools=True, **ONE)

    def test_none_of_the_calls_is_made_where_one_was_cut(self, llm):
        made = []

        def note() -> str:
            """Notes."""
            made.append(1)
            return ""

        fields = {"tools": [note], "tool_choice": "required", **SAMPLED, "seed": 2}
        whole = llm.chat(ASK, **fields)
        texts = [*accumulate(step.text for step in whole.steps)]
        fields["max_tokens"] = next(i for i, text in enumerate(texts, 1) if text.count('s": {') > 1)
        with pytest.raises(InputError, match="raise max_tokens"):
            llm.chat(ASK, run_tools=True, **fields)
        assert made == []


@pytest.mark.model
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tools": "get_weather"}, "tools must be a list of tools, not 'get_weather'"),
        ({"tools": 5}, "tools must be a list of tools, not 5"),
        ({"tools": DATA}, "tools must be a list of tools, not {"),
        ({"tools": [5]}, r'tools\[0\] must be an object with "type"'),
        ({"tools": [lambda city: city]}, "parameter city of <lambda> has no type; annotate it"),
        ({"tools": [get_weather, get_weather]}, r'tools\[1\] is a second tool named "get_weather"'),
        ({"tools": [Tool("a b")]}, r"tools\[0\].function.name must be 1 to 128"),
        ({"tools": [Tool("a", parameters={"type": "array"})]}, "must describe an object"),
        ({"tools": [DIAL, Tool("b", format="regex", definition="(")]}, r"tools(\[1\])?: "),
        ({"tool_choice": "required"}, "requires a call, but no tools are given"),
        ({"tools": [get_weather], "tool_choice": "must"}, "tool_choice must be one of none, auto"),
        ({"tools": [get_weather], "tool_choice": named("a")}, '"a", which is not among the tools'),
        ({"tools": [get_weather], "parallel_tool_calls": 1}, "parallel_tool_calls must be true"),
        ({"tools": [get_weather], "regex": "a"}, "tools and regex exclude each other"),
        ({"tools": [get_weather], "json_schema": 5}, "json_schema must be a schema as a dict"),
        ({"tools": [get_weather], "json_schema": 5, "tool_choice": "required"}, "must be a schema"),
        ({"tools": [get_weather], "json_compact": True}, "json_compact says how JSON is written"),
        ({"calls": "start: /a/"}, "calls are written in place of JSON: give json_schema"),
        ({"calls": 1}, "calls must be Lark, a text, not 1"),
        ({"tools": [get_weather], "run_tools": 1}, "run_tools must be true or false, not 1"),
        ({"tools": [get_weather], "run_tools": True, "n": 2}, "n must be 1 where run_tools"),
        ({"tools": [get_weather], "run_tools": True, "max_rounds": 0}, "max_rounds must be betw"),
        ({"max_rounds": "many"}, "max_rounds must be a whole number"),
        ({"tools": [DATA], "run_tools": True}, "run_tools: look_up is no Python function"),
        ({"tools": [later], "run_tools": True}, "later is async: give a function"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(llm, fields, said):
    with pytest.raises(InputError, match=said):
        llm.chat(ASK, **SAMPLED | fields)


def test_a_model_without_a_template_takes_no_tools(tmp_path):
    from support.random_llama import write_tiny_llama

    refused = pytest.raises(InputError, match="tools: this model has no chat template")
    with LLM(write_tiny_llama(tmp_path / "tiny.gguf")) as tiny, refused:
        tiny.chat(ASK, tools=[get_weather])


@given(
    st.builds(Tool, st.just("a"), st.text(), st.none() | st.just(DATA["function"]["parameters"]))
)
@example(DIAL)
@example(Tool("a", format="text"))
@example(Tool("b", format="lark", definition="start: /a/"))
def test_a_tool_that_is_offered_as_data_is_the_same_tool(tool):
    assert parse_tools([tool.as_data()]) == (tool,)


# -- text that is shown late: the reader is fed by the definition, all at once -------------------


def read(tokens, shown):
    """An answer of these tokens, whose text each step shows up to ``shown``."""
    family = dialect("mistral-args")
    parser = CallParser(family, [Tool("f")], lambda index: call_id("x", index))
    tokenizer = byte_tokenizer()
    reader = AnswerReader(parser, family.token_bytes, tokenizer.token_bytes)
    text = b"".join(map(tokenizer.token_bytes, tokens)).decode()
    at = 0
    for token_id, end in zip(tokens, shown, strict=True):
        reader.push(SimpleNamespace(token_id=token_id, text=text[at:end]))
        at = max(at, end)
    reader.finish(text[at:])
    return reader


@given(st.data())
def test_a_control_token_stands_where_it_was_drawn_however_late_text_is_shown(data):
    tokenizer = byte_tokenizer()
    call = dialect("mistral-args").write([("f", '{"a": 1}', "abcdefgh1")])
    tokens = tokenizer.encode(f"Let me see. {call}", special=True)
    ends = [*accumulate(len(tokenizer.token_bytes(token_id)) for token_id in tokens)]
    shown, at = [], 0
    for end in ends:
        at = data.draw(st.integers(at, end))
        shown.append(at)
    message = read(tokens, ends).message
    assert message["content"] == "Let me see."
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert read(tokens, shown).message == message


def test_who_was_cut_in_a_call_has_not_called():
    call = dialect("mistral-args").write([("f", '{"a": 1}', "abcdefgh1")])
    tokens = byte_tokenizer().encode(call, special=True)
    ends = [*accumulate(len(byte_tokenizer().token_bytes(token_id)) for token_id in tokens)]
    assert read(tokens, ends).has_called
    assert not read(tokens[:-1], ends[:-1]).has_called
