"""`suffix` of /v1/completions: what Python writes between two texts, over HTTP."""

import openai
import pytest
from openai import OpenAI

from cutaway import LLM
from support.random_llama import write_tiny_llama
from support.served import serve

NAMED = {
    f"tokenizer.ggml.fim_{name}_token_id": token_id
    for name, token_id in (("pre", 250), ("suf", 251), ("mid", 252))
}
ASKED = {"model": "tiny", "prompt": "ab", "suffix": " ba", "seed": 5, "max_tokens": 12}
OURS = {"seed": 5, "max_tokens": 12}


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
    create, path = trained
    with LLM(path, threads=1, progress=False) as alone:
        expected = alone.generate("ab", suffix=" ba", n=2, **OURS)
    whole = create(**ASKED, n=2, logprobs=1)
    assert [c.text for c in whole.choices] == [done.text for done in expected]
    for choice, done in zip(whole.choices, expected, strict=True):
        assert choice.cutaway["fingerprint"] == done.fingerprint
        assert choice.cutaway["between"]["method"] == "tokens"
    assert whole.cutaway["params"]["suffix"] == " ba"
    assert whole.usage.prompt_tokens == len(expected[0].prompt_token_ids)
    streamed = [chunk.choices[0] for chunk in create(**ASKED, stream=True)]
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
    create, _ = trained
    with pytest.raises(openai.BadRequestError) as refused:
        create(**{**ASKED, **more})
    assert field in refused.value.message


# -- a model that has no tokens for it ---------------------------------------------------------


@pytest.fixture
def create(openai_client):
    return openai_client.completions.create


def test_a_model_without_tokens_for_it_chooses_as_python_does(tiny, create, tiny_alone):
    expected = tiny_alone.generate(["ab", "b"], suffix=" ba", n=2, logprobs=1, **OURS)
    flat = [done for samples in expected for done in samples]
    whole = create(**{**ASKED, "prompt": ["ab", "b"]}, n=2, logprobs=1)
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
def test_what_does_not_go_with_a_choice_is_refused_by_name(tiny, create, field, more):
    with pytest.raises(openai.BadRequestError) as refused:
        create(**{**ASKED, **more})
    assert (refused.value.body or {}).get("param") == field or field in refused.value.message
    assert tiny.free()
