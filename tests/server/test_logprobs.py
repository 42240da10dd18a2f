"""Log-probabilities over HTTP: of prompts, and none of a stop string."""

import json

import httpx
import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from support.engine_definition import first_stop
from support.full_logits import probabilities
from support.served import serve

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


# -- stop strings: neither in the text nor among its tokens' log-probabilities -----------------


ASKED = {
    "prompt": "ab", "ignore_eos": True, "logprobs": 0, "return_token_ids": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def client():
    with httpx.Client(timeout=300) as client:
        yield client


FORCED = [3 + byte for byte in "x€\xe9".encode()] + [262, 259, 261, 262, 263, 2, 262]
"""Tokens of parts of characters, of several characters ("ab", " a"), and one of no text."""


@pytest.fixture(scope="module")
def rich(tiny_path):
    """A server whose every text has these tokens, again and again, with a hanging byte between."""
    forced = [*FORCED, 3 + 0xE9, *FORCED, 3 + 0xE2, *FORCED[::-1]]
    with serve(LLM(tiny_path, threads=1), forced=forced) as served:
        served.forced = forced
        yield served


@pytest.fixture(scope="module")
def written(rich):
    """The bytes of each token of the text that stop strings are cut from."""
    return [rich.llm.tokenizer.token_bytes(token) for token in rich.forced]


def events(answer):
    """The data of a stream: lines of valid UTF-8 JSON, and the mark at the end."""
    *parts, last = answer.content.decode("utf-8").removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@given(data=st.data())
@settings(max_examples=60)
def test_a_stop_string_never_leaks(rich, client, written, data):
    whole = b"".join(written)
    text = whole.decode(errors="ignore")
    starts = st.integers(0, len(text) - 1)
    cuts = st.tuples(starts, st.integers(1, 4)).map(lambda at: text[at[0] : at[0] + at[1]])
    stops = data.draw(st.lists(cuts | st.text(min_size=1, max_size=3), min_size=1, max_size=3))
    kept, matched = first_stop(whole, tuple(stops))
    asked = {**ASKED, "max_tokens": len(written), "stop": stops, "stream": True}
    answer = client.post(f"{rich.url}/v1/completions", json=asked)
    parts = [event["choices"][0] for event in events(answer)]
    assert "".join(part["text"] for part in parts) == kept.decode(errors="replace")
    assert parts[-1]["cutaway"]["matched"] == matched
    told = [name for part in parts if part["logprobs"] for name in part["logprobs"]["tokens"]]
    # Those that lie before the stop with all their bytes.
    count, end = 0, 0
    for piece in written:
        end += len(piece)
        count += end <= len(kept)
    assert b"".join(map(_bytes, told)) == b"".join(written[:count])
    assert len(told) == (count if matched else len(written))
    seen = ""
    for part in parts:  # no token before the text that it begins
        seen += part["text"]
        offsets = part["logprobs"]["text_offset"] if part["logprobs"] else []
        assert all(offset <= len(seen) for offset in offsets)


SILENT = ("<unk>", "<s>", "</s>")


def _bytes(name):
    if name in SILENT:
        return b""
    if not name.startswith("bytes:"):
        return name.encode()
    return bytes.fromhex(name.removeprefix("bytes:").replace("\\x", ""))


@pytest.mark.parametrize("stop", [[], ["𝄢"], ["€!"]])
def test_a_character_of_several_tokens_comes_whole(tiny_path, stop):
    """Every event is valid UTF-8, and none has part of a character."""
    text = "aß€𝄞z€"
    forced = [3 + byte for byte in text.encode()]
    asked = {"prompt": "ab", "max_tokens": len(forced), "logprobs": 0, "stream": True}
    with serve(LLM(tiny_path, threads=1), forced=forced) as served:
        answer = httpx.post(f"{served.url}/v1/completions", json={**asked, "stop": stop})
    parts = [event["choices"][0] for event in events(answer)]
    assert [part["text"] for part in parts if part["text"]] == list(text)
    told = [name for part in parts if part["logprobs"] for name in part["logprobs"]["tokens"]]
    assert b"".join(map(_bytes, told)) == text.encode()
    offsets = [o for part in parts if part["logprobs"] for o in part["logprobs"]["text_offset"]]
    assert offsets == [i for i, c in enumerate(text) for _ in c.encode()]
