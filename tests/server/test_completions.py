"""/v1/completions asked by OpenAI's own client: whole, streamed, with a suffix; and ids."""

import asyncio

import numpy as np
import openai
import pytest
from openai import APIError, AsyncOpenAI, OpenAI

from cutaway import LLM
from cutaway.rerun import replay
from cutaway.sampling import derive_seed
from cutaway.trace import Trace
from support.openai_words import clean, join, trace_of
from support.random_llama import write_tiny_llama
from support.served import serve
from support.thoughts import ASK

SAMPLED = {"max_tokens": 12, "seed": 5, "temperature": 1, "extra_body": {"ignore_eos": True}}
OURS = {"max_tokens": 12, "seed": 5, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture
def create(openai_client):
    def make(prompt="ab", **fields):
        extra = SAMPLED["extra_body"] | fields.pop("extra_body", {})
        return openai_client.completions.create(
            model="tiny", prompt=prompt, **SAMPLED | fields | {"extra_body": extra}
        )

    return make


def streamed(create, *args, **fields):
    return join(create(*args, stream=True, **fields))


FIELDS = [
    {},
    {"n": 3, "logprobs": 0},
    {"prompt": ["ab", "b"], "n": 2, "logprobs": 3},
    {"prompt": [1, 9, 30]},
    {"prompt": [[1, 9], [1, 30, 8]], "echo": True},
    {"echo": True, "logprobs": 2, "n": 2},
    {"echo": True, "logprobs": 0, "max_tokens": 0},
    {"echo": True, "max_tokens": 0, "prompt": ["ab", "hä"]},
    {"stop": ["a", "zz"], "logprobs": 2, "max_tokens": 200},
    {"logit_bias": {"100": 8}, "presence_penalty": 1, "frequency_penalty": -0.5},
    {"extra_body": {"logprobs_when": "after", "min_p": 0.1, "top_k": 9}, "logprobs": 4},
    {"extra_body": {"return_token_ids": True, "stop_token_ids": [70, 71]}, "max_tokens": 99},
    {"temperature": 0, "extra_body": {"speculate": "ngram", "preset": "vllm"}},
    {"extra_body": {"trace": True, "candidates": 3, "track": [9]}, "max_tokens": 4},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_stream_says_what_the_whole_answer_says(create, fields):
    whole = create(**fields)
    stream = streamed(create, **fields, stream_options={"include_usage": True})
    assert clean(stream) == clean(whole)


@pytest.mark.parametrize("prompt", ["ab", [1, 9, 30], ["ab", "b"], [[1, 9], [1, 30]]])
def test_it_is_what_the_engine_writes(create, tiny_alone, prompt):
    answer = create(prompt, n=2)
    many = isinstance(prompt[0], (str, list)) and not isinstance(prompt, str)
    expected = tiny_alone.generate(prompt, n=2, **OURS)
    flat = [one for samples in expected for one in samples] if many else expected
    assert [choice.text for choice in answer.choices] == [done.text for done in flat]
    assert [c.cutaway["fingerprint"] for c in answer.choices] == [d.fingerprint for d in flat]
    assert [choice.index for choice in answer.choices] == list(range(len(flat)))
    seeds = [derive_seed(5, i) for i in range(2)]
    assert answer.cutaway["seeds"] == seeds * (len(flat) // 2)
    prompts = sum(len(done.prompt_token_ids) for done in flat[::2])
    written = sum(len(done.token_ids) for done in flat)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (prompts, written)
    assert usage.total_tokens == prompts + written


async def test_many_tasks_at_once_each_get_their_own(tiny, tiny_alone):
    async with AsyncOpenAI(base_url=f"{tiny.url}/v1", api_key="any") as client:

        async def one(seed):
            asked = {"model": "tiny", "prompt": "ab", **SAMPLED, "seed": seed}
            if seed % 2:
                return (await client.completions.create(**asked)).choices[0].text
            chunks = await client.completions.create(**asked, stream=True)
            return "".join([chunk.choices[0].text async for chunk in chunks])

        together = await asyncio.gather(*map(one, range(12)))
    assert together == [tiny_alone.generate("ab", **OURS | {"seed": i}).text for i in range(12)]


# -- how likely ----------------------------------------------------------------------------------


def log_softmax(row):
    wide = row.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


@pytest.mark.parametrize("temperature", [0.5, 1, 2])
def test_logprobs_before_the_chain_are_the_models(create, tiny_alone, temperature):
    answer = create(temperature=temperature, logprobs=3, extra_body={"return_token_ids": True})
    choice = answer.choices[0]
    ids = [*choice.prompt_token_ids, *choice.token_ids]
    rows = tiny_alone.logits(ids[:-1], start=len(choice.prompt_token_ids) - 1)
    told = choice.logprobs
    assert len(told.tokens) == len(rows)
    for i, row in enumerate(map(log_softmax, rows)):
        best = np.argsort(-row, kind="stable")[:3]
        assert told.token_logprobs[i] == pytest.approx(row[choice.token_ids[i]], abs=1e-5)
        assert [*told.top_logprobs[i].values()] == pytest.approx(row[best], abs=1e-5)


def test_logprobs_after_the_chain_are_those_of_the_survivors(create, tiny_alone):
    own = {"return_token_ids": True, "logprobs_when": "after", "top_k": 4}
    answer = create(temperature=0.5, top_p=1, logprobs=9, extra_body=own)
    choice = answer.choices[0]
    ids = [*choice.prompt_token_ids, *choice.token_ids]
    rows = tiny_alone.logits(ids[:-1], start=len(choice.prompt_token_ids) - 1)
    for i, row in enumerate(rows):
        kept = np.argsort(-row, kind="stable")[:4]
        shares = dict(zip(kept.tolist(), log_softmax(row[kept] / 0.5), strict=True))
        assert choice.logprobs.token_logprobs[i] == pytest.approx(
            shares[choice.token_ids[i]], abs=1e-5
        )
        top = choice.logprobs.top_logprobs[i]
        assert [*top.values()] == pytest.approx(sorted(shares.values(), reverse=True), abs=1e-5)


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("prompt", ["ab ba", "hä ab", [1, 70, 71, 262]])
def test_echo_tells_how_likely_the_prompt_was(create, tiny_alone, prompt, max_tokens):
    answer = create(prompt, echo=True, logprobs=1, max_tokens=max_tokens)
    ids = tiny_alone.tokenize(prompt) if isinstance(prompt, str) else prompt
    text = prompt if isinstance(prompt, str) else tiny_alone.detokenize(prompt)
    choice, rows = answer.choices[0], tiny_alone.logits(ids)
    assert choice.text.startswith(text) and (max_tokens > 0) == (choice.text != text)
    told = choice.logprobs.token_logprobs
    assert len(told) == len(ids) + max_tokens
    assert told[0] is None and choice.logprobs.top_logprobs[0] is None
    expected = [log_softmax(row)[token] for row, token in zip(rows, ids[1:], strict=False)]
    assert told[1 : len(ids)] == pytest.approx(expected, abs=1e-5)
    assert answer.usage.completion_tokens == max_tokens
    assert answer.usage.total_tokens == len(ids) + max_tokens


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "prompt": "a hä ab"}])
def test_offsets_say_where_tokens_are(create, fields):
    """Also behind an echo, to which the tokenizer adds a space that nobody wrote."""
    choice = create(logprobs=0, max_tokens=40, **fields).choices[0]
    told = choice.logprobs
    assert told.text_offset == sorted(told.text_offset)
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        if token.isascii() and token not in ("<s>", "</s>", "<unk>") and token[:6] != "bytes:":
            found = choice.text[offset:].removeprefix("\ufffd")
            assert found.startswith((token, token.lstrip(" ")))


# -- token in, token out -------------------------------------------------------------------------


def test_tokens_go_in_as_they_came_out(create):
    own = {"extra_body": {"return_token_ids": True}}
    first = create("hä", **own).choices[0]
    again = create(first.prompt_token_ids, **own).choices[0]
    assert again.token_ids == first.token_ids
    assert again.cutaway["fingerprint"] == first.cutaway["fingerprint"]
    half = [*first.prompt_token_ids, *first.token_ids[:6]]
    rest = create(half, max_tokens=6, **own).choices[0]
    assert rest.token_ids == first.token_ids[6:], "a token's luck is a matter of its place"


def test_a_trace_is_one(create, tiny_alone, tmp_path):
    own = {"extra_body": {"trace": True}}
    whole, stream = create(n=2, **own), streamed(create, n=2, **own)
    for i in range(2):
        trace = trace_of(whole.choices[i])
        assert trace_of(stream.choices[i]).steps[-1].fingerprint == trace.steps[-1].fingerprint
        assert trace.text == whole.choices[i].text
        assert replay(tiny_alone, trace).same


@pytest.mark.model
def test_a_trace_of_smollm2_replays_to_the_last_bit(smollm2, smollm2_path):
    with OpenAI(base_url=f"{smollm2.url}/v1", api_key="any") as client:
        answer = join(
            client.completions.create(
                model="smollm2", prompt="Über den Fluss", max_tokens=24, temperature=0.9, seed=3,
                stream=True, extra_body={"trace": True},
            )
        )  # fmt: skip
    trace = trace_of(answer.choices[0])
    assert isinstance(trace, Trace) and trace.text == answer.choices[0].text
    done = replay(LLM(smollm2_path), trace)
    assert done.same and done.steps == len(trace.steps)


# -- settings ------------------------------------------------------------------------------------


def test_the_settings_in_force_and_where_they_came_from(create):
    told = create(max_tokens=3, extra_body={"preset": "hf", "top_k": 5}).cutaway
    assert told["params"]["top_k"] == 5 and told["params"]["max_tokens"] == 3
    assert told["params"]["seed"] == 5 and told["params"]["preset"] == "hf"
    assert told["params_source"]["top_k"] == "given"
    assert told["params_source"]["top_p"] == "default"
    assert told["params"].keys() == told["params_source"].keys()
    assert [stage["stage"] for stage in told["chain"]] == ["top_k", "top_p"]


def test_a_seed_that_was_chosen_can_be_given(create):
    first = create(seed=None)
    assert first.cutaway["params_source"]["seed"] == "chosen"
    again = create(seed=first.cutaway["seeds"][0])
    assert again.choices[0].text == first.choices[0].text


def test_a_bias_decides(create, tiny_alone):
    token = tiny_alone.tokenize("b", add_bos=False)[-1]
    answer = create(logit_bias={str(token): 100}, extra_body={"return_token_ids": True})
    assert answer.choices[0].token_ids == [token] * 12


@pytest.mark.parametrize("stream", [False, True])
def test_constraints_that_leave_no_token_are_the_requests_fault(create, tiny, stream):
    """The expression asks for a digit behind a letter, and digits are not allowed."""
    letters = tiny.llm.tokenize("a")[-1:]
    only = {"regex": "aa[0-9]", "allowed_token_ids": letters, "ignore_eos": False}
    with pytest.raises(APIError, match=r"allows no token at position \d: loosen it") as told:
        [*create(stream=True, extra_body=only)] if stream else create(extra_body=only)
    assert told.value.type == "invalid_request_error"


# -- suffix: what Python writes between two texts ----------------------------------------------


NAMED = {
    f"tokenizer.ggml.fim_{name}_token_id": token_id
    for name, token_id in (("pre", 250), ("suf", 251), ("mid", 252))
}
ASKED = {"model": "tiny", "prompt": "ab", "suffix": " ba", "seed": 5, "max_tokens": 12}
BETWEEN = {"seed": 5, "max_tokens": 12}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A server of a model that has tokens for it, and its client."""
    path = write_tiny_llama(tmp_path_factory.mktemp("middle") / "tiny.gguf", metadata=NAMED)
    with (
        serve(LLM(path, threads=1)) as served,
        OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client,
    ):
        yield client.completions.create, path


def test_a_model_with_tokens_for_it_writes_what_python_writes(trained):
    ask_between, path = trained
    with LLM(path, threads=1, progress=False) as alone:
        expected = alone.generate("ab", suffix=" ba", n=2, **BETWEEN)
    whole = ask_between(**ASKED, n=2, logprobs=1)
    assert [c.text for c in whole.choices] == [done.text for done in expected]
    for choice, done in zip(whole.choices, expected, strict=True):
        assert choice.cutaway["fingerprint"] == done.fingerprint
        assert choice.cutaway["between"]["method"] == "tokens"
    assert whole.cutaway["params"]["suffix"] == " ba"
    assert whole.usage.prompt_tokens == len(expected[0].prompt_token_ids)
    streamed = [chunk.choices[0] for chunk in ask_between(**ASKED, stream=True)]
    assert "".join(one.text for one in streamed) == expected[0].text
    assert streamed[-1].cutaway["between"]["method"] == "tokens"


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("echo", {"echo": True}),
        ("heal", {"extra_body": {"heal": True}}),
        ("suffix", {"suffix": "b" * 500}),
    ],
)
def test_what_cannot_be_is_refused_by_name(trained, field, more):
    ask_between, _ = trained
    with pytest.raises(openai.BadRequestError) as refused:
        ask_between(**{**ASKED, **more})
    assert field in refused.value.message


# -- a model that has no tokens for it ---------------------------------------------------------


@pytest.fixture
def ask_between(openai_client):
    return openai_client.completions.create


@pytest.mark.elsewhere
def test_a_model_without_tokens_for_it_chooses_as_python_does(tiny, ask_between, tiny_alone):
    expected = tiny_alone.generate(["ab", "b"], suffix=" ba", n=2, logprobs=1, **BETWEEN)
    flat = [done for samples in expected for done in samples]
    whole = ask_between(**{**ASKED, "prompt": ["ab", "b"]}, n=2, logprobs=1)
    assert [c.text for c in whole.choices] == [done.text for done in flat]
    for choice, done in zip(whole.choices, flat, strict=True):
        assert choice.finish_reason == "stop"
        assert choice.cutaway["fingerprint"] == done.fingerprint
        assert choice.cutaway["between"] == done.between._asdict()
        assert len(choice.logprobs.tokens) == len(done.token_ids)
    assert whole.cutaway["seeds"] == [done.seed for done in flat]
    assert whole.usage.completion_tokens == sum(len(done.token_ids) for done in flat)
    assert tiny.free()


@pytest.mark.parametrize(
    ("field", "more"),
    [
        ("stream", {"stream": True}),
        ("trace", {"extra_body": {"trace": True}}),
        ("regex", {"extra_body": {"regex": "a"}}),
        ("suffix", {"suffix": "b" * 400, "n": 100}),
        ("n", {"n": 129}),
        ("seed", {"seed": -2}),
    ],
)
def test_what_does_not_go_with_a_choice_is_refused_by_name(tiny, ask_between, field, more):
    with pytest.raises(openai.BadRequestError) as refused:
        ask_between(**{**ASKED, **more})
    assert (refused.value.body or {}).get("param") == field or field in refused.value.message
    assert tiny.free()


# -- ids: no two are equal, whatever the client calls its requests -----------------------------


ANSWERED = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 1},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/messages": {"messages": ASK, "max_tokens": 1},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b"], "method": "cosine"},
}


@pytest.mark.elsewhere
@pytest.mark.parametrize("path", ANSWERED)
def test_one_request_id_sent_twice_gives_two_ids(client, path):
    headers = {"x-request-id": "same-id"}
    answers = [client.post(path, json=ANSWERED[path], headers=headers) for _ in range(2)]
    ids = [answer.json()["id"] for answer in answers]
    assert all("same-id-" in id for id in ids), answers[0].text
    assert ids[0] != ids[1]
    assert {answer.headers["x-request-id"] for answer in answers} == {"same-id"}
