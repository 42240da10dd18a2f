"""Tools and thinking over two turns, through every client, in three dialects of tool calls.

Random models with the templates of Qwen 3.5 (XML parameters), Gemma 4 (its own notation)
and gpt-oss (harmony): a call is required, so that one comes; a budget ends the thought before it.
"""

import asyncio
import gc
import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Literal

import pytest

from cutaway import LLM
from cutaway.server.http.settings import ServerSettings
from support.random_llama import WORDS, write_tiny_llama
from support.served import serve

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

FAMILIES = Path(__file__).parent.parent / "data" / "chat_templates" / "families"
MARKS = {
    "qwen3.5": "<|im_start|> <|im_end|> <think> </think> <tool_call> </tool_call>",
    "gemma-4": "<|turn> <turn|> <|channel> <channel|> <|tool> <tool|> <|tool_call> <tool_call|> "
    '<|tool_response> <tool_response|> <|"|> <|think|>',
    "gpt-oss": "<|start|> <|message|> <|channel|> <|end|> <|call|> <|return|> <|constrain|>",
}
NEVER = [f"<0x{byte:02X}>" for byte in range(0xF5, 0x100)]  # bytes that no text has
ASKED = "What is the weather in Paris?"
SAID = [{"role": "user", "content": ASKED}]
CITIES = ["Paris", "Rome"]
DAYS = {"type": "integer", "minimum": 1, "maximum": 9}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": CITIES}, "days": DAYS},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ABOUT = {"name": "get_weather", "description": "The weather of a city."}
TOOL = {"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}
FLAT = {"type": "function", **ABOUT, "parameters": SCHEMA}
BUDGET = 6
MORE = {"thinking_token_budget": BUDGET, "parallel_tool_calls": False, "seed": 3}
FIRST = {"model": "t", "max_tokens": 500, "tools": [TOOL], "extra_body": MORE}


@pytest.fixture(scope="module", params=MARKS)
def url(request, tmp_path_factory):
    """Where a model of the family is served."""
    tokens, kinds = ["<unk>", "<s>", "</s>", *WORDS], [2, 3, 3, *[6] * 256, *[1] * 5]
    free = [i for i in range(len(tokens)) if kinds[i] == 1 or tokens[i] in NEVER]
    for place, mark in zip(free, MARKS[request.param].split(), strict=False):
        tokens[place], kinds[place] = mark, 3
    metadata = {
        "tokenizer.chat_template": (FAMILIES / f"{request.param}.jinja").read_text("utf-8"),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
    }
    folder = tmp_path_factory.mktemp("dialect")
    path = write_tiny_llama(folder / "t.gguf", metadata=metadata, context=8192)
    with (
        LLM(path, threads=1, progress=False) as llm,
        serve(llm, ServerSettings(names=["t"])) as served,
    ):
        yield served.url
    with warnings.catch_warnings(action="ignore"):  # clients leave their connections to the end
        gc.collect()


@pytest.fixture
def thinks(request):
    """Whether the prompt has begun a thought; others think if they like to."""
    return "qwen3.5" in request.node.name


def check(arguments):
    """A call's arguments are of the schema."""
    told = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert told["city"] in CITIES and isinstance(told["days"], int), told


def test_openais_chats_whole_and_streamed(url, thinks):
    openai = pytest.importorskip("openai", reason="pip install openai: its own client")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        done = client.chat.completions.create(messages=SAID, tool_choice="required", **FIRST)
        message = done.choices[0].message
        [call] = message.tool_calls
        check(call.function.arguments)
        assert done.usage.completion_tokens_details.reasoning_tokens <= BUDGET
        assert message.to_dict().get("reasoning_content") or not thinks
        with client.chat.completions.stream(
            messages=SAID, tool_choice="required", **FIRST
        ) as stream:
            streamed = stream.get_final_completion().choices[0].message
        assert streamed.tool_calls[0].function.arguments == call.function.arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        said = [*SAID, message.to_dict(), result]
        last = client.chat.completions.create(messages=said, tool_choice="none", **FIRST)
        assert not last.choices[0].message.tool_calls


def test_openais_responses(url, thinks):
    openai = pytest.importorskip("openai", reason="pip install openai: its own client")
    fields = {"model": "t", "max_output_tokens": 500, "tools": [FLAT], "extra_body": MORE}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        done = client.responses.create(input=ASKED, tool_choice="required", **fields)
        kinds = [item.type for item in done.output]
        assert kinds[-1] == "function_call" and ("reasoning" in kinds or not thinks)
        call = done.output[-1]
        check(call.arguments)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
        items = [item.to_dict() for item in done.output]
        said = [*SAID, *items, result]
        last = client.responses.create(input=said, tool_choice="none", **fields)
        assert "function_call" not in [item.type for item in last.output]


def test_anthropics_messages(url, thinks):
    anthropic = pytest.importorskip("anthropic", reason="pip install anthropic: its own client")
    tool = {**ABOUT, "input_schema": SCHEMA}
    fields = {
        "model": "t", "max_tokens": 500, "tools": [tool], "extra_body": {"seed": 3},
        "thinking": {"type": "enabled", "budget_tokens": BUDGET},
    }  # fmt: skip
    required = {"type": "any", "disable_parallel_tool_use": True}
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        with client.messages.stream(messages=SAID, tool_choice=required, **fields) as stream:
            done = stream.get_final_message()
        kinds = [block.type for block in done.content]
        assert kinds[-1] == "tool_use" and ("thinking" in kinds or not thinks)
        check(done.content[-1].input)
        result = {"type": "tool_result", "tool_use_id": done.content[-1].id, "content": "rain"}
        turns = [{"role": "assistant", "content": [block.to_dict() for block in done.content]}]
        said = [*SAID, *turns, {"role": "user", "content": [result]}]
        last = client.messages.create(messages=said, tool_choice={"type": "none"}, **fields)
        assert "tool_use" not in [block.type for block in last.content]


def test_ollamas_client(url, thinks):
    """Its protocol cannot require a call: the first answer thinks, the second reads a result."""
    ollama = pytest.importorskip("ollama", reason="pip install ollama: its own client")
    client = ollama.Client(host=url)
    options = {"num_predict": 40, "seed": 3}
    done = client.chat("t", SAID, tools=[TOOL], think=None, options=options)
    assert done.message.thinking or not thinks
    call = {"function": {"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}}
    turns = [
        {"role": "assistant", "content": "", "thinking": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "rain"},
    ]
    last = client.chat("t", [*SAID, *turns], tools=[TOOL], options=options)
    assert last.done_reason in ("stop", "length")


def test_litellm(url, thinks):
    litellm = pytest.importorskip("litellm", reason="pip install litellm")
    fields = {**FIRST, "model": "openai/t", "api_base": f"{url}/v1", "api_key": "x"}
    done = litellm.completion(messages=SAID, tool_choice="required", **fields)
    message = done.choices[0].message
    [call] = message.tool_calls
    check(call.function.arguments)
    assert getattr(message, "reasoning_content", None) or not thinks
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    said = [*SAID, message.model_dump(), result]
    last = litellm.completion(messages=said, tool_choice="none", **fields)
    assert not last.choices[0].message.tool_calls


def test_langchain(url):
    langchain = pytest.importorskip("langchain_openai", reason="pip install langchain-openai")
    from langchain_core.messages import HumanMessage, ToolMessage

    model = langchain.ChatOpenAI(
        base_url=f"{url}/v1", api_key="x", model="t", max_tokens=500, extra_body=MORE
    )
    called = model.bind_tools([TOOL], tool_choice="required").invoke([HumanMessage(ASKED)])
    [call] = called.tool_calls
    check(call["args"])
    said = [HumanMessage(ASKED), called, ToolMessage("rain", tool_call_id=call["id"])]
    assert not model.bind_tools([TOOL], tool_choice="none").invoke(said).tool_calls


def test_llama_index(url):
    pytest.importorskip("llama_index", reason="pip install llama-index-llms-openai-like")
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    model = OpenAILike(
        model="t", api_base=f"{url}/v1", api_key="x", is_chat_model=True, max_tokens=500,
        is_function_calling_model=True, additional_kwargs={"extra_body": MORE},
    )  # fmt: skip

    def get_weather(days: Literal[1, 2, 3]) -> str:
        """The weather of the next days."""
        return f"rain for {days}"

    tool = FunctionTool.from_defaults(get_weather)
    done = model.chat_with_tools([tool], user_msg=ASKED, tool_required=True)
    [call] = model.get_tool_calls_from_response(done)
    assert isinstance(call.tool_kwargs["days"], int)
    result = ChatMessage(
        role="tool", content="rain", additional_kwargs={"tool_call_id": call.tool_id}
    )
    said = [ChatMessage(role="user", content=ASKED), done.message, result]
    assert model.chat(said).message.role == "assistant"


def test_pydantic_ai(url):
    pytest.importorskip("pydantic_ai", reason="pip install 'pydantic-ai-slim[openai]'")
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent, ToolOutput
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Visit(BaseModel):
        """A visit."""

        days: int = Field(ge=1, le=9)

    asked = []

    async def once(_, tool):
        return None if asked else tool

    model = OpenAIChatModel("t", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="x"))
    settings = {"max_tokens": 4000, "extra_body": MORE}
    agent = Agent(model, output_type=ToolOutput(Visit), model_settings=settings, retries=5)

    @agent.tool_plain(prepare=once)
    def get_weather(days: Literal[1, 2, 3]) -> str:
        """The weather of the next days."""
        asked.append(days)
        return "rain"

    assert isinstance(asyncio.run(agent.run(ASKED)).output.days, int)


def test_instructor(url):
    instructor = pytest.importorskip("instructor", reason="pip install instructor")
    from openai import OpenAI
    from pydantic import BaseModel, Field

    class Visit(BaseModel):
        """A visit."""

        days: int = Field(ge=1, le=9)

    client = instructor.from_openai(
        OpenAI(base_url=f"{url}/v1", api_key="x"), mode=instructor.Mode.TOOLS
    )
    fields = {"model": "t", "max_tokens": 500, "extra_body": MORE, "response_model": Visit}
    first = client.chat.completions.create(messages=SAID, **fields)
    turns = [
        {"role": "assistant", "content": first.model_dump_json()},
        {"role": "user", "content": "And in Rome?"},
    ]
    again = client.chat.completions.create(messages=[*SAID, *turns], **fields)
    assert isinstance(first.days, int) and isinstance(again.days, int)


@pytest.mark.skipif(
    "CUTAWAY_NPM" not in os.environ or not shutil.which("node"),
    reason="CUTAWAY_NPM names no folder in which npm has installed tests/clients/npm",
)
def test_vercels_ai(url, thinks, tmp_path):
    (tmp_path / "node_modules").symlink_to(
        Path(os.environ["CUTAWAY_NPM"]).absolute() / "node_modules"
    )
    shutil.copy(Path(__file__).parent / "npm" / "dialects.mjs", tmp_path)
    done = subprocess.run(
        ["node", "dialects.mjs", url], cwd=tmp_path, text=True, timeout=120, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "thought" in done.stdout or not thinks
