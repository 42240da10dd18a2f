"""Simon Willison's llm with our models in its process. Slow: it is not among what tests install."""

import asyncio
import json
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from support.page_sections import blocks

pytest.importorskip("llm.parts", reason="pip install 'cutaway[llm]', to try Simon Willison's llm")

import llm

pytestmark = [pytest.mark.slow, pytest.mark.model]

NAME = "cutaway/smollm2"
DRAWN = {"seed": 3, "temperature": 0.7, "max_tokens": 24}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "legs": {"type": "integer"}},
    "required": ["name", "legs"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """As llm finds it where cutaway is installed: by the name in pyproject.toml."""
    from llm.plugins import load_plugins, pm

    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    [(name, module)] = project["entry-points"]["llm"].items()
    load_plugins()
    if not pm.has_plugin(name):
        pm.register(import_module(module), name=name)


@pytest.fixture(scope="module")
def smollm2(plugin):
    """The LLM that the plugin has opened."""
    return import_module("cutaway.features.integrations.llm").open_model("smollm2")


@pytest.fixture
def command(tmp_path, monkeypatch, plugin):
    """The command llm, with a log of its own: what it writes, and its exit code."""
    from click.testing import CliRunner

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    cli = import_module("llm.cli").cli

    def run(*args: str, input: str | None = None) -> tuple[int, str]:
        done = CliRunner().invoke(cli, [*args], input=input, catch_exceptions=False)
        return done.exit_code, done.output

    return run


def flags(options) -> list[str]:
    return [word for name, value in options.items() for word in ("-o", name, str(value))]


def test_an_answer_its_log_and_the_next(command, smollm2):
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hello."}]
    first = smollm2.chat(said, **DRAWN)
    written = command("-m", NAME, "-s", "Be brief.", "Say hello.", *flags(DRAWN))
    assert written == (0, first.text + "\n")
    said += [*first.new_messages, {"role": "user", "content": "Again."}]
    second = smollm2.chat(said, **DRAWN)
    assert command("-c", "Again.", "--no-stream", *flags(DRAWN)) == (0, second.text + "\n")
    logs = json.loads(command("logs", "--json")[1])
    for log, done in zip(logs, (first, second), strict=True):
        assert (log["input_tokens"], log["output_tokens"]) == tuple(done.usage[::2])
        assert log["response_json"]["fingerprint"] == done.fingerprint
        assert log["response_json"]["finish_reason"] == done.finish_reason
        assert log["response_json"]["seed"] == 3


def test_the_text_streams_as_it_is_written(smollm2):
    parts = [*llm.get_model(NAME).prompt("Say hello.", **DRAWN)]
    told = smollm2.stream(smollm2.chat_prompt([{"role": "user", "content": "Say hello."}]), **DRAWN)
    assert parts == [step.text for step in told if step.text]
    assert len(parts) > 5


def test_an_answer_that_is_not_read_to_its_end_is_written_no_further(smollm2):
    answer = iter(llm.get_model(NAME).prompt("Say hello.", seed=3, max_tokens=2000))
    next(answer)
    answer.close()
    assert not smollm2.engine.running


def test_without_max_tokens_an_answer_ends_where_the_model_ends_it(smollm2):
    ask = "What is the capital of France?"
    answer = llm.get_model(NAME).prompt(ask, seed=0)
    answer.text()
    done = smollm2.chat([{"role": "user", "content": ask}], seed=0, max_tokens=8000)
    assert answer.response_json["finish_reason"] == done.finish_reason == "end_token"
    assert answer.text() == done.text


def test_json_that_a_schema_describes(smollm2):
    answer = llm.get_model(NAME).prompt("Describe a dog.", schema=SCHEMA, seed=1)
    said = json.loads(answer.text())
    assert said.keys() == SCHEMA["properties"].keys()
    assert type(said["legs"]) is int
    assert "Answer in JSON" in smollm2.detokenize(last_prompt(smollm2, answer))


def last_prompt(smollm2, answer) -> list[int]:
    """What an answer was asked with: its prompt is in the tree of texts."""
    from cutaway.text.messages import with_schema

    said = with_schema([{"role": "user", "content": answer.prompt.prompt}], answer.prompt.schema)
    ids = smollm2.chat_prompt(said)
    assert len(ids) == answer.input_tokens
    return ids


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def test_json_of_a_schema_or_calls():
    """Which of them the model decides: with this seed it is each once."""
    asked = {"schema": SCHEMA, "tools": [get_weather], "options": {"seed": 0, "max_tokens": 60}}
    described = llm.get_model(NAME).prompt("Describe a dog.", **asked)
    assert json.loads(described.text()).keys() == SCHEMA["properties"].keys()
    assert described.tool_calls() == []
    called = llm.get_model(NAME).prompt("Call get_weather for Paris.", **asked)
    assert {call.name for call in called.tool_calls()} == {"get_weather"} and called.text() == ""


def test_a_call_of_a_function_whose_result_is_answered():
    """Whether one is made the model decides: with this seed it does."""
    asked = {"options": {"seed": 27, "max_tokens": 60}, "tools": [get_weather]}
    chain = llm.get_model(NAME).chain("Call get_weather for Paris.", **asked)
    chain.text()
    called, answered = chain._responses
    [call] = called.tool_calls()
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    [part] = [part for part in called._build_parts() if type(part).__name__ == "ToolCallPart"]
    assert (part.arguments, part.tool_call_id) == (call.arguments, call.tool_call_id)
    assert answered.prompt.tool_results[0].output == "rain in Paris"
    assert answered.input_tokens > called.input_tokens


def test_a_call_that_is_cut_is_an_error():
    answer = llm.get_model(NAME).prompt(
        "Call get_weather for Paris.", tools=[get_weather], seed=27, max_tokens=44
    )
    with pytest.raises(ValueError, match="raise max_tokens"):
        answer.text()


def test_tasks_at_once_have_the_same_bits(smollm2):
    async def ask():
        model = llm.get_async_model(NAME)
        return await asyncio.gather(*(model.prompt("Hi", **DRAWN).text() for _ in range(3)))

    whole = smollm2.chat([{"role": "user", "content": "Hi"}], **DRAWN)
    assert asyncio.run(ask()) == [whole.text] * 3


def test_a_task_that_is_cancelled_ends_its_text(smollm2):
    async def ask():
        answer = llm.get_async_model(NAME).prompt("Hi", seed=3, max_tokens=2000)
        assert await anext(aiter(answer))
        await answer._generator.aclose()

    asyncio.run(ask())
    assert not smollm2.engine.running


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-m", NAME, "-o", "top_p", "2"], "top_p must be above 0"),
        (["-m", NAME, "-o", "regex", "("], "regex"),
        (["-m", "cutaway", "-o", "model", "nothing.gguf"], "nothing.gguf' does not exist"),
        (["-m", "cutaway", "-o", "model", "minilm"], "no head"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(command, words, said):
    code, output = command(*words, "Hi")
    assert code == 1
    assert output.startswith("Error: ") and said in output and output.count("\n") == 1


def test_a_model_of_ones_own(command, tiny_path):
    from cutaway import LLM

    options = {"model": tiny_path, "seed": 1, "max_tokens": 8, "top_k": 3}
    code, output = command("-m", "cutaway", "Hi", *flags(options))
    with LLM(tiny_path, progress=False) as tiny:
        done = tiny.chat([{"role": "user", "content": "Hi"}], seed=1, max_tokens=8, top_k=3)
    assert (code, output) == (0, done.text + "\n")


def test_a_model_without_a_template_continues_a_text_and_no_conversation(command, tmp_path):
    from cutaway import LLM
    from support.random_llama import write_tiny_llama

    path = write_tiny_llama(tmp_path / "base.gguf", context=64)
    options = flags({"model": path, "seed": 1, "max_tokens": 4})
    with LLM(path, progress=False) as base:
        text = base.generate("Hi", seed=1, max_tokens=4).text
    assert command("-m", "cutaway", "Hi", *options) == (0, text + "\n")
    assert "no chat template" in command("-m", "cutaway", "Hi", "-s", "Be brief.", *options)[1]


def test_options_are_told_with_what_they_may_be(command):
    code, output = command("models", "--options", "-q", NAME)
    assert code == 0
    for words in ("temperature: float", "above 0 and at most 1", "seed: int", "schemas", "async"):
        assert words in output


def test_vectors(command, smollm2):
    texts = ["one", "two", "three"]
    vectors = smollm2.embed(texts).vectors.tolist()
    model = llm.get_embedding_model(NAME)
    assert [*model.embed_multi(texts)] == vectors
    assert command("embed", "-m", NAME, "-c", "one") == (0, json.dumps(vectors[0]) + "\n")
    code, output = command("embed", "-m", NAME, "-c", "word " * 9000)
    assert code == 1 and output.startswith("Error: texts[0] has 9001 tokens")


def test_the_page_s_example(capsys, smollm2):
    [example] = blocks("integrations.md", "llm", "python", "")
    exec(compile(example, "integrations.md", "exec"), {})
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a city."}]
    assert capsys.readouterr().out == smollm2.chat(said, seed=3, max_tokens=20).text
