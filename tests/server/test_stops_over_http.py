"""Stop strings are told to nobody: not in the text, nor among its tokens' log-probabilities."""

import json

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from support.engine_definition import first_stop
from support.served import serve

ASKED = {
    "prompt": "ab", "ignore_eos": True, "logprobs": 0, "return_token_ids": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def client():
    with httpx.Client(timeout=30) as client:
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
