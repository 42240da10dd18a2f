"""Thinking by request: whether, how long, and variables of the template, in every protocol."""

import json

import httpx
import pytest

from cutaway import LLM
from cutaway.errors import InputError
from cutaway.rerun import replay
from cutaway.server.http.settings import ServerSettings
from cutaway.trace import Trace
from cutaway.trace.endings import wanted_sentence
from support.random_llama import WORDS, write_tiny_llama
from support.served import serve
from support.thoughts import ASK, FORMS, NONE, OFF_NAMES, ON_NAMES, TWENTY, thought_and_count

SAID = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}{{ bos_token }}{{ mood }}"
MARKS = "{% if false %}<think></think>{% endif %}"
OFF = "<think>\n\n</think>\n\n"
FLAG = f"{SAID}{{% if enable_thinking is false %}}{OFF}{{% else %}}<think>\n{{% endif %}}"
TOKENS = ["<unk>", "<s>", "</s>", *WORDS[:-2], "<think>", "</think>"]
OPENING, CLOSING = len(TOKENS) - 2, len(TOKENS) - 1
SCHEMA = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
NOTE = "the template has no switch, so the empty thought is forced"


def opened(folder, template):
    metadata = {
        "tokenizer.chat_template": template,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 3, 3],
    }
    path = write_tiny_llama(folder / "t.gguf", metadata=metadata, context=1024)
    return LLM(path, threads=1, progress=False)


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    """A model whose prompt begins a thought, unless it is told not to."""
    with opened(tmp_path_factory.mktemp("switched"), FLAG) as llm:
        yield llm


@pytest.fixture(scope="module")
def unswitched(tmp_path_factory):
    """A model that thinks if it likes to."""
    with opened(tmp_path_factory.mktemp("unswitched"), SAID + MARKS) as llm:
        yield llm


# -- Python ---------------------------------------------------------------------------------------


def test_off_by_a_flag(switched):
    done = switched.chat(ASK, think=False, max_tokens=8, seed=1)
    assert switched.detokenize(done.prompt_token_ids, special=True).endswith(OFF)
    assert "reasoning_content" not in done.new_messages[0] and done.reasoning_tokens == 0
    same = switched.chat(ASK, chat_template_kwargs={"enable_thinking": False}, max_tokens=8, seed=1)
    assert same.fingerprint == done.fingerprint
    assert switched.chat_prompt(ASK, think=False) == list(done.prompt_token_ids)


@pytest.mark.parametrize("tokens", [0, 1, 20])
@pytest.mark.parametrize("constraint", [{}, {"json_schema": SCHEMA}])
def test_a_budget_closes_the_thought(switched, tokens, constraint):
    done = switched.chat(ASK, think_budget=tokens, max_tokens=100, seed=1, **constraint)
    [closed] = [step for step in done.steps if step.token_id == CLOSING]
    assert closed.index == done.reasoning_tokens <= tokens
    assert closed.refused_by == (("thinking_budget",) if closed.index == tokens else ())
    assert constraint or closed.index == tokens
    if constraint:
        assert json.loads(done.new_messages[0]["content"])


def test_off_where_there_is_no_switch(unswitched):
    done = unswitched.chat(ASK, think=False, max_tokens=12, seed=1)
    assert [step.token_id for step in done.steps[:2]] == [OPENING, CLOSING]
    assert done.reasoning_tokens == 0 and not done.new_messages[0].get("reasoning_content")


def test_its_trace_is_replayed_and_says_why(switched, tmp_path):
    file = tmp_path / "t.jsonl"
    switched.chat(ASK, think_budget=3, max_tokens=12, seed=1, trace=file)
    trace = Trace.read(file)
    assert replay(switched, trace).same
    closed = trace.steps[3]
    assert closed.refused_by == ("thinking_budget",)
    assert "the thinking budget left" in wanted_sentence(trace, closed)


def test_a_variable_cannot_have_control_tokens(switched):
    ids = switched.chat_prompt(ASK, chat_template_kwargs={"mood": "</think>", "enable_thinking": 1})
    assert CLOSING not in ids
    assert "</think>" in switched.detokenize(ids, special=True)


def test_a_mark_of_a_control_token_and_a_word(tmp_path):
    """As Gemma 4's, of a tokenizer that would put a space behind the control token."""
    thought = "{% if m.thinking %}<think>thought\n{{ m.thinking }}</think>{% endif %}"
    template = f"{{% for m in messages %}}{thought}{{{{ m.content }}}}\n{{% endfor %}}"
    with opened(tmp_path, template) as llm:
        mark = [OPENING, *llm.tokenizer.encode("thought\n", goes_on=True)]
        done = llm.chat(ASK, think_budget=5, forced=mark, max_tokens=40, seed=1)
        [closed] = [step for step in done.steps if step.token_id == CLOSING]
        assert 0 < done.reasoning_tokens <= 5 and closed.refused_by == ("thinking_budget",)


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ask(switched):
    """Posts to a server of the model with a switch."""
    with serve(switched, ServerSettings(names=["t"])) as served:
        yield lambda path, **fields: httpx.post(
            served.url + path, json={"model": "t", **FORMS.get(path, {}), **fields}, timeout=60
        )


@pytest.mark.parametrize("path", FORMS)
def test_none_gives_no_thought_in_any_protocol(ask, path):
    usual, none = ask(path).json(), ask(path, **NONE[path]).json()
    assert thought_and_count(path, usual)[1] > 0
    assert thought_and_count(path, none) == ("", 0)


def test_the_prompt_without_a_thought_is_shown(ask, switched):
    shown = ask("/apply-template", messages=ASK, reasoning_effort="none").json()
    asked = switched.chat_prompt(ASK, think=False)
    assert "<s>" + shown["prompt"] == switched.detokenize(asked, special=True)


@pytest.mark.parametrize("fields", OFF_NAMES, ids=str)
def test_every_name_that_chats_have_for_it_gives_the_same_prompt(ask, switched, fields):
    answer = ask("/v1/chat/completions", return_token_ids=True, **fields).json()
    [choice] = answer["choices"]
    assert choice["prompt_token_ids"] == switched.chat_prompt(ASK, think=False)
    assert thought_and_count("/v1/chat/completions", answer) == ("", 0)


@pytest.mark.parametrize("fields", ON_NAMES, ids=str)
def test_every_name_that_chats_have_for_it_gives_a_thought(ask, fields):
    answer = ask("/v1/chat/completions", **fields).json()
    count = thought_and_count("/v1/chat/completions", answer)[1]
    assert 0 < count <= (20 if "20" in str(fields) else 40)


@pytest.mark.parametrize("fields", [*ON_NAMES, *OFF_NAMES], ids=str)
def test_a_model_that_never_thinks_answers_whoever_speaks_of_it(tiny_path, fields):
    """Agents send what their settings say to every model."""
    with (
        LLM(tiny_path, threads=1, progress=False) as llm,
        serve(llm, ServerSettings(names=["t"])) as served,
    ):
        asked = {"model": "t", "messages": ASK, "max_tokens": 4, **fields}
        answer = httpx.post(f"{served.url}/v1/chat/completions", json=asked, timeout=60)
    notes = str(answer.json()["choices"][0]["cutaway"].get("notes", ""))
    assert answer.status_code == 200
    assert ("has no words for thoughts" in notes or "does not read it" in notes) == (
        fields in ON_NAMES
    )


@pytest.mark.parametrize("level", ["low", "max"])
def test_a_level_of_ollamas_is_on_where_the_template_has_none(unswitched, level):
    with serve(unswitched, ServerSettings(names=["t"])) as served:
        body = {"model": "t", **FORMS["/api/chat"], "think": level}
        assert httpx.post(f"{served.url}/api/chat", json=body, timeout=60).status_code == 200


@pytest.mark.parametrize("path", [path for path in FORMS if path != "/v1/messages"])
def test_a_variable_that_the_template_does_not_read_is_named_in_a_note(ask, path):
    answer = ask(path, chat_template_kwargs={"preserve_thinking": True}).json()
    [note] = (answer["choices"][0] if "choices" in answer else answer)["cutaway"]["notes"]
    assert note == (
        "chat_template_kwargs.preserve_thinking: ignored, since this model's template does not "
        "read it"
    )


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a_thought_goes_back_by_either_name(tmp_path, name):
    said = "{% for m in messages %}{{ m.reasoning_content }}:{{ m.content }}{% endfor %}"
    with opened(tmp_path, said) as llm, serve(llm, ServerSettings(names=["t"])) as served:
        messages = [{"role": "assistant", "content": "b", name: "hm"}, *ASK]
        body = {"messages": messages}
        answer = httpx.post(f"{served.url}/apply-template", json=body, timeout=60).json()
    assert "hm:b" in answer["prompt"]


@pytest.mark.parametrize("path", TWENTY)
def test_a_budget_of_20_gives_20_at_most(ask, path):
    answer = ask(path, **TWENTY[path]).json()
    assert 0 < thought_and_count(path, answer)[1] <= 20


@pytest.mark.parametrize(
    ("path", "fields", "param", "sentence"),
    [
        ("/v1/chat/completions", {"reasoning_effort": "much"},
         "reasoning_effort", "must be one of"),
        ("/v1/chat/completions", {"reasoning_effort": "high", "enable_thinking": False},
         "enable_thinking", "enable_thinking contradicts reasoning_effort: give one of the two"),
        ("/v1/chat/completions", {"reasoning": {"effort": "high"}, "think": "low"},
         "think", "think contradicts reasoning.effort: give one of the two"),
        ("/v1/chat/completions",
         {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
         "chat_template_kwargs.enable_thinking", "contradicts thinking.type: give one of the two"),
        ("/v1/chat/completions",
         {"thinking_token_budget": 5, "thinking": {"type": "enabled", "budget_tokens": 6}},
         "thinking.budget_tokens", "contradicts thinking_token_budget: give one of the two"),
        ("/v1/chat/completions", {"thinking_token_budget": 5, "thinking_budget_tokens": 9},
         "thinking_budget_tokens", "contradicts thinking_token_budget: give one of the two"),
        ("/v1/chat/completions", {"thinking_token_budget": -1},
         "thinking_token_budget", "must be greater than or equal to 0"),
        ("/v1/chat/completions", {"reasoning_effort": "none", "thinking_token_budget": 5},
         "thinking_token_budget", "without thoughts there is no budget"),
        ("/v1/responses", {"reasoning": {"effort": "much"}}, "reasoning.effort", "must be one of"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(ask, path, fields, param, sentence):
    answer = ask(path, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param
    assert sentence in error["message"], error


def test_the_answer_says_that_an_empty_thought_was_forced(unswitched):
    with serve(unswitched, ServerSettings(names=["t"])) as served:
        for path, fields in FORMS.items():
            asked = {"model": "t", **fields, **NONE[path]}
            answer = httpx.post(served.url + path, json=asked, timeout=60).json()
            ours = answer["choices"][0] if "choices" in answer else answer
            assert any(NOTE in note for note in ours["cutaway"]["notes"]), path
            assert thought_and_count(path, answer) == ("", 0)


# -- the command line -----------------------------------------------------------------------------


def test_lines_of_a_file(switched):
    from cutaway.cli.bulk import _request

    line = {"messages": ASK, "think": False, "max_tokens": 5}
    ids, options = _request(switched, json.dumps(line).encode(), {})
    assert ids == switched.chat_prompt(ASK, think=False)
    assert options["max_tokens"] == 5 and options["thinking_budget"].tokens == 0
    _, options = _request(switched, json.dumps({"messages": ASK, "think_budget": 4}).encode(), {})
    assert options["thinking_budget"].tokens == 4
    with pytest.raises(InputError, match="think must be one of"):
        _request(switched, json.dumps({**line, "think": "much"}).encode(), {})
