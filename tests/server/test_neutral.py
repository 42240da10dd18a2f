"""What clients of other engines send: fields that ask for nothing, -1 for off, names, and errors.

A field at its neutral value changes no token; at any other it is refused by name.
"""

from datetime import datetime

import httpx
import openai
import pytest
from openai import OpenAI

from cutaway import LLM
from cutaway.server.openai.chat import ChatRequest
from cutaway.server.openai.completions import CompletionRequest
from cutaway.text import ChatTemplate
from support.served import serve

CHAT, TEXT, ANSWERS = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ASKED = {
    CHAT: {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 6, "seed": 5},
    TEXT: {"prompt": "ab", "max_tokens": 6, "seed": 5},
    ANSWERS: {"input": "ab", "max_output_tokens": 6, "seed": 5},
}
ROUTERS = {
    "ignore_eos": False, "no_stop_trim": False, "skip_special_tokens": True,
    "continue_final_message": False, "separate_reasoning": True, "stream_reasoning": True,
    "include_reasoning": True, "return_hidden_states": False, "logprobs": False, "store": False,
    "service_tier": "auto", "metadata": {}, "use_beam_search": False, "length_penalty": 1.0,
    "user": "me", "prompt_cache_key": "key",
}  # fmt: skip
"""What vllm-router, smg and agents add."""


def user(text):
    return {"role": "user", "content": text}


def told(answer):
    """What was said, and how it ended."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    if "output" in body:
        return body["output"][0]["content"], body["cutaway"]
    [choice] = body["choices"]
    return choice.get("text", choice.get("message")), choice["cutaway"]


def refused(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_routers_add_changes_nothing(client, path):
    plain, _ = told(client.post(path, json=ASKED[path]))
    assert told(client.post(path, json={**ASKED[path], **ROUTERS}))[0] == plain


@pytest.mark.parametrize(("path", "model"), [(CHAT, ChatRequest), (TEXT, CompletionRequest)])
def test_each_neutral_value_asks_for_nothing_and_others_are_refused_by_name(client, path, model):
    plain, _ = told(client.post(path, json=ASKED[path]))
    for name, (harmless, why) in model.unsupported.items():
        for value in harmless:
            assert told(client.post(path, json={**ASKED[path], name: value}))[0] == plain
        error = refused(client.post(path, json={**ASKED[path], name: "something"}))
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert error["message"] == f"{name}: {why}"


def test_no_log_probabilities_may_be_said_as_chats_say_it(client):
    assert refused(client.post(TEXT, json={**ASKED[TEXT], "logprobs": True}))["param"] == "logprobs"


@pytest.mark.parametrize("path", ASKED)
def test_minus_one_switches_top_k_off_and_a_note_says_so(client, path):
    plain, about = told(client.post(path, json={**ASKED[path], "top_k": 0}))
    assert not [note for note in about["notes"] if "top_k" in note]
    said, about = told(client.post(path, json={**ASKED[path], "top_k": -1}))
    assert said == plain and [note for note in about["notes"] if note.startswith("top_k: -1")]
    assert refused(client.post(path, json={**ASKED[path], "top_k": -2}))["param"] == "top_k"


@pytest.mark.parametrize("path", ASKED)
def test_minus_one_is_no_seed_and_a_note_says_so(client, path):
    asked = {**ASKED[path], "seed": -1}
    answer = client.post(path, json=asked)
    said, about = told(answer)
    assert [note for note in about["notes"] if note.startswith("seed: -1")]
    ours = answer.json()["cutaway"]
    assert ours["params_source"]["seed"] == "chosen"
    [seed] = ours["seeds"]
    assert 0 <= seed < 2**32  # JavaScript keeps it
    assert told(client.post(path, json={**asked, "seed": seed}))[0] == said


def test_minus_one_goes_before_the_servers_seed(tiny_path):
    with serve(LLM(tiny_path, threads=1), seed=5) as served:
        seeds = [
            httpx.post(f"{served.url}{TEXT}", json={"prompt": "ab", "max_tokens": 1, **more})
            .json()["cutaway"]["seeds"][0]
            for more in ({}, {"seed": -1})
        ]  # fmt: skip
    assert seeds[0] == 5 != seeds[1]


def test_derived_seeds_can_be_sent_back(client):
    many = client.post(TEXT, json={**ASKED[TEXT], "n": 3}).json()
    for choice, seed in zip(many["choices"], many["cutaway"]["seeds"], strict=True):
        text, _ = told(client.post(TEXT, json={**ASKED[TEXT], "seed": seed}))
        assert text == choice["text"]
    assert max(many["cutaway"]["seeds"]) > 2**53


def test_responses_have_min_tokens(client):
    answer = client.post(ANSWERS, json={**ASKED[ANSWERS], "min_tokens": 3}).json()
    assert answer["cutaway"]["params"]["min_tokens"] == 3


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_who_measures_wants_no_cached_prompt(client, path):
    asked = {**ASKED[path], "max_tokens": 1}
    asked |= {"prompt": "cd" * 40} if path == TEXT else {"messages": [user("cd" * 40)]}
    found = []
    for cache_prompt in (True, False, True, False):
        answer = client.post(path, json={**asked, "cache_prompt": cache_prompt})
        told(answer)
        found.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found[1] == found[3] == 0 < found[2]


@pytest.mark.parametrize("path", ASKED)
def test_a_text_without_the_kv_cache_has_the_same_bits(client, path):
    texts = [
        told(client.post(path, json={**ASKED[path], "kv_cache": on, "speculate": drafts}))
        for on, drafts in ((True, "off"), (False, "off"), (True, "ngram"))
    ]
    assert len({about["fingerprint"] for _, about in texts}) == 1
    assert texts[0][0] == texts[1][0] == texts[2][0]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_who_asks_has_two_names(client, path):
    told(client.post(path, json={**ASKED[path], "safety_identifier": "me"}))
    both = {"user": "a", "safety_identifier": "b"}
    assert refused(client.post(path, json={**ASKED[path], **both}))["param"] == "safety_identifier"


# -- names ---------------------------------------------------------------------------------------

NAMED = {"messages": [{"role": "user", "content": "ab", "name": "ada"}], "max_tokens": 3, "seed": 5}


def test_a_name_that_the_template_does_not_show_is_noted(client):
    plain, about = told(client.post(CHAT, json={**ASKED[CHAT], "max_tokens": 3}))
    assert not [note for note in about["notes"] if note.startswith("name")]
    said, about = told(client.post(CHAT, json=NAMED))
    assert said == plain
    assert [note for note in about["notes"] if note.startswith("name: ignored")]


def test_a_name_that_the_template_shows_is_read(client, tiny, monkeypatch):
    shown = tiny.service.llm.template.source.replace("m.role", "m.name | default(m.role)")
    template = type(tiny.service.llm.template)(shown, "", "")
    monkeypatch.setattr(tiny.service.llm.model, "template", template)
    answer = client.post(CHAT, json={**NAMED, "return_token_ids": True}).json()
    [choice] = answer["choices"]
    assert not [note for note in choice["cutaway"]["notes"] if note.startswith("name")]
    prompt = tiny.service.llm.detokenize(choice["prompt_token_ids"])
    assert "ada" in prompt


def test_a_chat_with_names_is_written_once(client, monkeypatch):
    """Whether the template shows them is asked of it once, and not of each chat."""
    assert client.post(CHAT, json=NAMED).status_code == 200
    asked, encode = [], ChatTemplate.encode
    monkeypatch.setattr(
        ChatTemplate, "encode", lambda *a, **k: (asked.append(a), encode(*a, **k))[1]
    )
    assert client.post(CHAT, json=NAMED).status_code == 200
    assert len(asked) == 1


# -- the tokenizer -------------------------------------------------------------------------------


def test_the_tokenizer_is_told_as_lm_eval_reads_it(client, tiny, tiny_alone):
    answer = client.get("/tokenizer_info").json()
    tokenizer = tiny_alone.tokenizer
    assert answer == {
        "bos_token": tokenizer.token_name(tokenizer.bos_id),
        "eos_token": tokenizer.token_name(next(iter(tokenizer.end_ids))),
        "pad_token": None,
        "chat_template": tiny_alone.template.source,
    }


def test_another_query_is_refused_by_name(client):
    error = refused(client.get("/tokenizer_info?x=1"))
    assert (error["param"], error["message"]) == ("x", "unknown field 'x'; leave it out")


def test_a_conversation_is_tokenized_as_vllm_is_asked_for_it(client):
    body = {"messages": [{"role": "user", "content": "a"}]}
    plain = client.post("/tokenize", json=body).json()
    asked = {**body, "add_generation_prompt": True, "continue_final_message": False}
    assert client.post("/tokenize", json=asked).json() == plain


def test_an_empty_choice_is_noted(client):
    _, about = told(client.post(TEXT, json={**ASKED[TEXT], "choice": []}))
    assert [note for note in about["notes"] if note.startswith("choice: an empty list allows any")]


def test_models_are_listed_for_anthropics_clients_too(client):
    page = client.get("/v1/models").json()
    [model] = page["data"]
    assert (model["type"], model["display_name"]) == ("model", model["id"])
    assert datetime.fromisoformat(model["created_at"]).timestamp() == model["created"]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (
        False,
        model["id"],
        model["id"],
    )


def test_special_tokens_are_read_everywhere_in_a_text_or_nowhere(client, tiny_alone):
    """So lm-eval finds the id of the end token."""
    end = client.get("/tokenizer_info").json()["eos_token"]
    [id] = [id for id in tiny_alone.tokenizer.end_ids if tiny_alone.tokenizer.token_name(id) == end]

    def tokens(prompt, **more):
        body = {"prompt": prompt, "add_special_tokens": False, **more}
        return client.post("/tokenize", json=body).json()["tokens"]

    assert tokens(end) == [id]
    for text in (end, f"{end} ", f"a{end}", end + end):
        assert id in tokens(text) == tokens(text, special=True)
        assert id not in tokens(text, special=False)


def test_head_works_wherever_get_does(client):
    document = client.get("/openapi.json").json()
    paths = [path for path, verbs in document["paths"].items() if "get" in verbs]
    for path in [path.replace("{name}", "tiny") for path in paths] + ["/"]:
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        assert head.headers["content-type"] == got.headers["content-type"]


# -- prompts that are too long -------------------------------------------------------------------


@pytest.mark.parametrize("path", ASKED)
def test_clients_recognise_a_prompt_that_is_too_long(client, path):
    """LangChain by the code or the first words, LiteLLM by the second."""
    long = "a " * 600
    field = {CHAT: {"messages": [{"role": "user", "content": long}]}, TEXT: {"prompt": long},
             ANSWERS: {"input": long}}[path]  # fmt: skip
    error = refused(client.post(path, json={**ASKED[path], **field}))
    assert error["code"] == "context_length_exceeded"
    assert "prompt is too long" in error["message"]
    assert "this model's maximum context length is 512" in error["message"]


def test_openais_client_raises_it_with_its_code(tiny):
    client = OpenAI(base_url=f"{tiny.url}/v1", api_key="any")
    with client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="a " * 600)
    assert caught.value.code == "context_length_exceeded"
    assert "prompt is too long" in caught.value.message
