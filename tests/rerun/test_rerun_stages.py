"""Runs with a chain of their own, XTC and DRY: recorded, replayed, and the same with drafts."""

import pytest

from cutaway import LLM
from cutaway.errors import InputError
from cutaway.rerun import replay
from cutaway.trace import Trace

CHAIN = ["dry", "min_p", "typical", "temperature", "xtc"]
GIVEN = {
    "chain": CHAIN, "dry_multiplier": 0.8, "dry_allowed_length": 1, "min_p": 0.001,
    "typical_p": 0.95, "temperature": 1.3, "xtc_probability": 0.5, "xtc_threshold": 0.01,
    "seed": 5, "max_tokens": 40, "ignore_eos": True,
}  # fmt: skip


def test_a_chain_is_recorded_and_replayed(tiny, tmp_path):
    path = tmp_path / "run.jsonl"
    done = tiny.generate("abab", **GIVEN, trace=path)
    trace = Trace.read(path)
    assert [stage["stage"] for stage in trace.head.chain] == CHAIN
    assert [stage["stage"] for stage in done.chain] == CHAIN
    assert trace.head.params["chain"] == CHAIN
    assert "breakers" not in trace.head.chain[0]
    replayed = replay(tiny, trace)
    assert replayed.same
    assert replayed.fingerprint == done.fingerprint


@pytest.mark.parametrize("speculate", ["ngram"])
def test_drafts_change_no_token(tiny, speculate):
    plain = tiny.generate("abab" * 8, **GIVEN)
    drafted = tiny.generate("abab" * 8, **GIVEN, speculate=speculate)
    assert (drafted.token_ids, drafted.fingerprint) == (plain.token_ids, plain.fingerprint)


def test_breakers_are_texts_or_ids(tiny):
    parsed = tiny.parse_options(
        {"dry_multiplier": 1, "dry_breakers": ["a", 3]}
    ).sampling.dry_breakers
    assert 3 in parsed
    named = [i for i in parsed if i != 3]
    assert named == [i for i in range(264) if b"a" in tiny.tokenizer.token_bytes(i)]
    assert tiny.parse_options({}).sampling.dry_breakers == ()
    assert tiny.parse_options({"dry_multiplier": 1}).sampling.dry_breakers  # newline, colon, …
    with pytest.raises(InputError, match="dry_breakers: an empty string"):
        tiny.parse_options({"dry_multiplier": 1, "dry_breakers": [""]})
    with pytest.raises(InputError, match="dry_breakers must be token ids"):
        tiny.parse_options({"dry_breakers": "abc"})


@pytest.mark.parametrize("words", [["a"], ["ab", "b "], ["é", "\n", ":"], ["aaa", "aa", "zzzz"]])
def test_breakers_are_the_tokens_that_contain_a_text(words):
    llm = LLM("toy-writer", progress=False)
    token_bytes = llm.tokenizer.token_bytes
    found = llm.parse_options({"dry_breakers": words}).sampling.dry_breakers
    wanted = [word.encode() for word in words]
    ids = range(llm.tokenizer.vocab_size)
    assert list(found) == [i for i in ids if any(word in token_bytes(i) for word in wanted)]


def test_breakers_are_limited_and_looked_for_at_once(tiny, monkeypatch):
    many = [chr(256 + i) for i in range(1700)]
    with pytest.raises(InputError, match="dry_breakers have 10000 bytes; at most 4096 in all"):
        tiny.parse_options({"dry_breakers": [f"{i:05}" for i in range(2000)]})
    tiny.parse_options({"dry_breakers": many})
    asked = []
    monkeypatch.setattr(type(tiny.tokenizer), "token_bytes", lambda self, i: asked.append(i))
    tiny.parse_options({"dry_breakers": many})
    tiny.parse_options({"dry_breakers": many[1:]})
    assert not asked, "the vocabulary is read once"
