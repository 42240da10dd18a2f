"""`cache_salt`: the prefix cache is shared by texts of one salt, and the bits are the same."""

import pickle
from itertools import combinations, product

import pytest

from cutaway import LLM, InputError
from cutaway.engine import Request, RunParams
from cutaway.features.cluster.prompt_blocks import read_prompt
from cutaway.requests.options import parse_options
from cutaway.trace import Trace
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35

WINDOWS = {"llama.attention.sliding_window": 56, "llama.attention.sliding_window_pattern": 2}
PROMPT = tuple(i % 7 + 70 for i in range(75))
ASKED = {"seed": 3, "temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
SECRET = "kestrel-of-one-client"


@pytest.fixture(scope="module", params=["llama", "windows", "lfm2", "granite hybrid", "qwen35"])
def path(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("salted") / "tiny.gguf"
    return {
        "llama": lambda: write_tiny_llama(place, context=256),
        "windows": lambda: write_tiny_llama(place, context=256, metadata=WINDOWS),
        "lfm2": lambda: write_tiny_lfm2(place),
        "granite hybrid": lambda: write_tiny_granite_hybrid(place),
        "qwen35": lambda: write_tiny_qwen35(place),
    }[request.param]()


@pytest.fixture
def llm(path):
    with LLM(path, threads=1, context=256, progress=False) as llm:
        yield llm


@pytest.fixture
def plain(tmp_path):
    with LLM(write_tiny_llama(tmp_path / "tiny.gguf", context=256), progress=False) as llm:
        yield llm


def cached(llm, salt, prompt=PROMPT, **more):
    return llm.generate(prompt, cache_salt=salt, **ASKED | more).usage.cached_tokens


@pytest.mark.parametrize("speculate", ["off", "ngram", "jacobi"])
def test_only_who_has_the_salt_finds_what_was_read_with_it(llm, speculate):
    first = llm.generate(PROMPT, cache_salt="a", speculate=speculate, **ASKED)
    for salt, found in (("b", 0), (None, 0), ("a", 64), ("b", 64), (None, 64)):
        done = llm.generate(PROMPT, cache_salt=salt, speculate=speculate, **ASKED)
        assert done.usage.cached_tokens == found, salt
        assert (done.token_ids, done.fingerprint) == (first.token_ids, first.fingerprint)


def test_texts_beside_each_other_share_by_salt_too(llm):
    salts = ["a", "b", "a", None]
    streams = [llm.stream(PROMPT, cache_salt=salt, **ASKED) for salt in salts]
    for stream in streams:
        stream.finish()
    assert {stream.fingerprint for stream in streams} == {llm.generate(PROMPT, **ASKED).fingerprint}
    assert [stream.usage().cached_tokens for stream in streams[:2]] == [0, 0]
    assert streams[3].usage().cached_tokens == 0


def test_samples_of_one_request_share(plain):
    each = plain.generate(PROMPT, cache_salt="a", n=3, **ASKED)
    assert [one.usage.cached_tokens for one in each] == [0, 74, 74]


def test_a_guess_is_no_longer_answered(plain):
    """A client guesses what another has asked, block by block."""
    asked, other = PROMPT, (*PROMPT[:40], *PROMPT[:35])
    assert cached(plain, None, asked) == 0
    assert [cached(plain, None, guess) for guess in (asked, other)] == [64, 32]
    assert cached(plain, SECRET, asked[::-1]) == 0
    assert [cached(plain, None, guess) for guess in (asked[::-1], other[::-1])] == [0, 0]


@pytest.mark.parametrize("cache_prompt", [True, False])
def test_a_text_before_a_suffix_leaves_nothing_to_others(plain, cache_prompt):
    salt = SECRET if cache_prompt else None
    more = ASKED | {"suffix": " ba", "cache_prompt": cache_prompt}
    done = plain.generate(PROMPT, cache_salt=salt, **more)
    assert done.between.method == "bayes"
    assert cached(plain, None) == 0
    assert plain.generate(PROMPT, **ASKED | {"suffix": " ba"}).fingerprint == done.fingerprint


def test_a_saved_prefix_is_of_its_salt(llm, tmp_path):
    place = tmp_path / "text.prefix"
    saved = llm.save_prefix(place, PROMPT, cache_salt=SECRET)
    assert SECRET.encode() not in place.read_bytes()
    assert [saved.cached_tokens, cached(llm, None), cached(llm, SECRET)] == [64, 0, 64]
    with LLM(llm.model.path, threads=1, context=256, progress=False) as another:
        assert another.restore_prefix(place, cache_salt="b").cached_tokens == 64
        assert [cached(another, salt) for salt in (SECRET, None, "b")] == [0, 0, 64]


def test_no_record_has_it(plain, tmp_path):
    place = tmp_path / "run.jsonl"
    done = plain.generate(PROMPT, cache_salt=SECRET, trace=place, **ASKED)
    options = parse_options({"cache_salt": SECRET})
    assert "cache_salt" not in Trace.read(place).head.params
    shown = (place.read_text(), repr(done.to_dict()), repr(options), repr(options.request((1,))))
    assert not [text for text in shown if SECRET in text]


@pytest.mark.parametrize("bad", ["", "x" * 257, 7, b"x", ["x"], True])
def test_a_bad_one_gets_a_sentence_that_does_not_show_it(plain, bad):
    with pytest.raises(InputError, match=r"^cache_salt must be a text of 1 to 256 characters, not"):
        plain.generate(PROMPT, cache_salt=bad)
    with pytest.raises(InputError) as refused:
        plain.generate(PROMPT, cache_salt=SECRET * 20)
    assert SECRET not in str(refused.value)


def test_no_salt_makes_the_name_of_another():
    texts = [None, "a", "', 'a", "\udc80", "None", "x" * 256]
    named = [
        Request(prompt_token_ids=PROMPT, adapter=adapter, run=RunParams(cache_salt=salt))
        for adapter, salt in product(["", "a", "None"], texts)
    ]
    for one, other in combinations(named, 2):
        assert one.salt != other.salt
        assert read_prompt(one).keys != read_prompt(other).keys
    assert all(pickle.loads(pickle.dumps(one)).salt == one.salt for one in named)
