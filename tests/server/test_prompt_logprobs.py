"""`prompt_logprobs` of both completions, in vLLM's form, against the softmax of all logits."""

import numpy as np
import openai
import pytest

from support.full_logits import probabilities

SAID = [{"role": "user", "content": "ab b"}]
ONE = {"model": "tiny", "max_tokens": 1, "seed": 1}


@pytest.fixture
def complete(openai_client):
    return openai_client.completions.create


@pytest.fixture
def chat(openai_client):
    return openai_client.chat.completions.create


def by_definition(llm, ids, top):
    """Of each token after the first, and of the likeliest in its place: (log-probability, rank)."""
    found = [None]
    for row, own in zip(probabilities(llm, ids)[:-1], ids[1:], strict=True):
        logprobs, order = np.log(row), np.argsort(-row, kind="stable")
        rank = int((row > row[own]).sum()) + 1
        shown = dict.fromkeys([own, *map(int, order[:top])])
        ranks = {int(i): r for r, i in enumerate(order, 1)} | {own: rank}
        found.append({str(i): (logprobs[i], ranks[i]) for i in shown})
    return found


def numbers(told):
    return [each and {i: (one["logprob"], one["rank"]) for i, one in each.items()} for each in told]


@pytest.mark.parametrize("top", [0, 1, 5])
def test_they_are_what_all_logits_say(complete, tiny_alone, top):
    prompt = [1, 9, 30, 9, 31]
    told = complete(**ONE, prompt=prompt, extra_body={"prompt_logprobs": top}).choices[0]
    expected = by_definition(tiny_alone, prompt, top)
    found = numbers(told.prompt_logprobs)
    assert found[0] is expected[0] is None
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        assert got.keys() == wanted.keys()
        for token_id, (logprob, rank) in wanted.items():
            assert got[token_id] == (pytest.approx(logprob, abs=1e-6), rank)


def test_a_chat_has_them_once(chat, complete):
    more = {"prompt_logprobs": 2, "return_token_ids": True}
    answer = chat(**ONE, messages=SAID, n=2, extra_body=more)
    ids = answer.choices[0].prompt_token_ids
    same = complete(**ONE, prompt=ids, extra_body=more).choices[0]
    assert answer.prompt_logprobs == same.prompt_logprobs
    assert len(answer.prompt_logprobs) == len(ids)
    assert all(str(i) in each for i, each in zip(ids[1:], answer.prompt_logprobs[1:], strict=True))


def test_each_prompt_has_its_own(complete):
    more = {"prompt_logprobs": 0}
    both = complete(**ONE, prompt=["ab", "ba b"], extra_body=more).choices
    alone = [complete(**ONE, prompt=p, extra_body=more).choices[0] for p in ("ab", "ba b")]
    assert [one.prompt_logprobs for one in both] == [one.prompt_logprobs for one in alone]


@pytest.mark.parametrize("more", [{"max_tokens": 0}, {"echo": True, "logprobs": 1}])
def test_they_go_with_all_that_scores_a_prompt(complete, more):
    plain = complete(**ONE, prompt="ab", extra_body={"prompt_logprobs": 3}).choices[0]
    other = complete(**ONE | more, prompt="ab", extra_body={"prompt_logprobs": 3}).choices[0]
    assert other.prompt_logprobs == plain.prompt_logprobs
    assert [len(each) >= 3 for each in other.prompt_logprobs[1:]]


def test_the_text_is_the_same(complete):
    asked = ONE | {"max_tokens": 9, "prompt": "ab"}
    plain = complete(**asked).choices[0]
    scored = complete(**asked, extra_body={"prompt_logprobs": 1}).choices[0]
    assert plain.text == scored.text
    assert plain.cutaway["fingerprint"] == scored.cutaway["fingerprint"]
    assert not hasattr(plain, "prompt_logprobs")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "leave out stream"),
        ({"extra_body": {"prompt_logprobs": -1}}, "between 0 and 1000"),
        ({"extra_body": {"prompt_logprobs": 1001}}, "between 0 and 1000"),
        ({"extra_body": {"prompt_logprobs": "all"}}, "a whole number"),
    ],
)
def test_what_cannot_be_is_refused_by_name(complete, chat, more, said):
    for ask in (
        lambda: complete(**ONE, prompt="a", **more),
        lambda: chat(**ONE, messages=SAID, **more),
    ):
        with pytest.raises(openai.BadRequestError, match=said) as refused:
            ask()
        assert refused.value.param == "prompt_logprobs"
