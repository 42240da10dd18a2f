"""A text is held without its last row, which is then computed by itself, whatever runs beside."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import PinPrefix, Request, StopParams
from cutaway.engine.loop.pinned import is_ready, read_row
from cutaway.errors import InputError
from support.engine_mock import MockRequest, check, forget_cached, make_engine
from support.mock_backend import narrow

BLOCK = 4
TEXTS = st.lists(st.sampled_from([*b"ab"]), min_size=1, max_size=40).map(tuple)
LONG = StopParams(max_tokens=20, ignore_eos=True)


def hold(engine, tokens):
    [sequence] = engine.add(Request(prompt_token_ids=tokens, decoder=PinPrefix()))
    return sequence


def step(engine):
    engine.step()
    check(engine)


def read(engine, sequence):
    row = read_row(engine, sequence, [], {})
    check(engine)
    return row.logits


@given(
    text=TEXTS, others=st.lists(TEXTS, max_size=3), rows=st.integers(1, 20),
    kv_blocks=st.integers(20, 40), cache=st.booleans(), before=st.integers(0, 6),
    window=st.sampled_from([0, 5, 9]),
)  # fmt: skip
def test_the_row_is_the_models_own_beside_others(
    text, others, rows, kv_blocks, cache, before, window
):
    """And they write what they would have written alone."""
    policy = {"rows": rows, "prefix_cache": cache, "max_num_seqs": min(rows, 8), "window": window}
    alone = [MockRequest(other, stops=LONG).run_on(make_engine(narrow)) for other in others]
    engine = make_engine(narrow, block=BLOCK, kv_blocks=kv_blocks, **policy)
    running = [MockRequest(other, stops=LONG).add_to(engine) for other in others]
    for _ in range(before):
        step(engine)
    sequence = hold(engine, text)
    while not is_ready(sequence):
        step(engine)
    step(engine)  # it waits, however long nobody comes
    if is_ready(sequence):  # unless its memory went to an older text
        for _ in range(2):
            np.testing.assert_array_equal(read(engine, sequence), narrow(text))
    engine.abort(sequence)
    check(engine)
    while not engine.is_idle:
        step(engine)
    assert engine.blocks.free == engine.blocks.count
    assert [tuple(s.output_token_ids) for s in running] == [one.token_ids for one in alone]


def test_what_was_computed_is_found_again():
    engine = make_engine(block=BLOCK)
    for cached, computed in ((0, [10]), (8, [10, 2])):
        sequence = hold(engine, tuple(range(11)))
        while not is_ready(sequence):
            engine.step()
        assert (sequence.num_cached_tokens, engine.backend.runs) == (cached, computed)
        engine.abort(sequence)


@pytest.mark.parametrize("tokens", [(), (7,) * 65, (9999,)])
def test_what_the_model_cannot_read(tokens):
    with pytest.raises(InputError, match="token_ids"):
        hold(make_engine(), tokens)


@given(
    text=st.lists(st.sampled_from([*b"ab"]), min_size=40, max_size=40).map(tuple),
    looks=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=12),
    window=st.sampled_from([0, 5, 9]), cache=st.booleans(),
)  # fmt: skip
def test_one_after_another_on_what_is_left_of_the_windows(text, looks, window, cache):
    """The cache may have a block without its window, which the next to compute it brings back."""
    engine = make_engine(narrow, block=BLOCK, kv_blocks=12, window=window, prefix_cache=cache)
    for length, cold in looks:
        if cold:
            forget_cached(engine.blocks)
        sequence = hold(engine, text[:length])
        while not is_ready(sequence):
            step(engine)
        np.testing.assert_array_equal(read(engine, sequence), narrow(text[:length]))
        engine.abort(sequence)
        check(engine)
