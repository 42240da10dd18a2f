"""Token healing: the text begins with the bytes that were taken back, and shows what is new."""

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import ConstraintParams, FinishReason, RunParams, StopParams
from cutaway.engine.constraint import allows
from cutaway.errors import InputError
from cutaway.sampling import SamplingParams
from cutaway.text.grammar.compiler import GrammarCompiler
from support.engine_mock import MockRequest, make_engine
from support.mock_backend import END, VOCAB, Words, noise

PIECES = [*map("".join, product("ab1", repeat=2)), *map("".join, product("ab1", repeat=3))]


def pieces(token_id):
    """Bytes below 128, then words of two and three letters; the end has no bytes."""
    if token_id == END or token_id - 128 >= len(PIECES):
        return b""
    return bytes([token_id]) if token_id < 128 else PIECES[token_id - 128].encode()


class PieceWords(Words):
    def token_bytes(self, token_id):
        return pieces(token_id)

    def encode(self, text, *, goes_on=False):
        return [*text.encode()]


COMPILER = GrammarCompiler(PieceWords())
IDS = {pieces(i): i for i in range(256) if pieces(i)}


def write(taken, seed=0, run=None, max_tokens=8, **constraint):
    engine = make_engine(noise, pieces=pieces)
    engine.grammars = lambda: COMPILER
    asked = ConstraintParams(heal=IDS[taken], **constraint)
    stops = StopParams(max_tokens=max_tokens, stop=("bb",))
    params, how = SamplingParams(seed=seed, temperature=2), RunParams(**run or {})
    one = MockRequest((1, 2), params, stops, how, constraint=asked).finish(engine)
    return b"".join(map(pieces, one.token_ids)), one.text, one.token_ids, one.end


RUNS = st.sampled_from([{}, {"speculate": "ngram"}, {"speculate": "jacobi"}, {"kv_cache": False}])


@settings(max_examples=60)
@given(taken=st.sampled_from([*IDS]), seed=st.integers(0, 99), run=RUNS)
def test_the_text_goes_on_from_what_was_taken_back(taken, seed, run):
    written, text, ids, ended = write(taken, seed, run)
    assert written.startswith(taken)
    new = written[len(taken) :].decode("utf-8", "replace")
    assert text == new.partition("bb")[0]
    assert ended.usage.prompt_tokens == 2 and ended.usage.completion_tokens == len(ids)
    assert (ended.reason == FinishReason.STOP_STRING) is ("bb" in new)
    assert ids == write(taken, seed)[2]


@pytest.mark.parametrize("taken", [b"a", b"ab", b"b1a", b"x"])
def test_the_first_token_is_any_that_begins_so(taken):
    constraint = ConstraintParams(heal=IDS[taken])
    mask = constraint.make(make_engine(pieces=pieces).vocabulary, frozenset({END})).mask()
    may = {pieces(i) for i in range(VOCAB) if allows(mask, i)}
    begun = {data for data in IDS if taken.startswith(data) or data.startswith(taken)}
    assert may == begun


@settings(max_examples=60)
@given(taken=st.sampled_from([b"a", b"ab", b"1", b"b1a"]), seed=st.integers(0, 99), run=RUNS)
def test_a_grammar_and_a_check_see_what_is_new(taken, seed, run):
    class NoOnes:
        def allows(self, text, token):
            assert text == b"" or text[:1] in b"ab"
            return b"1" not in text + token

    _, text, _, ended = write(taken, seed, run, 20, regex="[ab][ab1]{2,4}x", check=NoOnes())
    assert ended.error is None
    assert ended.reason == FinishReason.STOP_STRING or re.fullmatch("[ab]{3,5}x", text)
    bad = write(taken, seed, run, bad_words=["b", "1"])[1]
    assert not {*"b1"} & {*bad}


def test_the_engine_wants_to_know_which_token():
    with pytest.raises(InputError, match="heal: pass the id of the trimmed"):
        MockRequest((1, 2), constraint=ConstraintParams(heal=True)).add_to(make_engine())
    with pytest.raises(InputError, match="heal"):
        MockRequest((1, 2), constraint=ConstraintParams(heal=5000)).add_to(make_engine())
    with pytest.raises(InputError, match="heal: true, false or a token id"):
        ConstraintParams(heal="yes")
