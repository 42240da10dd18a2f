"""Vectors of texts: the rows by definition, whatever else is in the engine and how it is cut."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import Autoregressive, Embed, Embedded, Ended, FinishReason, Request, Score
from cutaway.engine.decoders.prefill import added_up
from cutaway.errors import InputError
from support.engine_mock import MockRequest, make_engine, run_to_end
from support.mock_backend import WIDTH, broken_after, noise

POOLINGS = ("mean", "cls", "last")
TEXTS = st.lists(st.integers(0, 250), min_size=1, max_size=60)


def by_definition(ids, pooling, *, sees_all=False):
    """Row after row, added in float64."""
    seen = [ids if sees_all else ids[: i + 1] for i in range(len(ids))]
    rows = [noise(tuple(one))[:WIDTH] for one in seen]
    if pooling != "mean":
        return rows[0 if pooling == "cls" else -1].astype(np.float64)
    total = np.zeros(WIDTH)
    for row in rows:
        total += row
    return total / len(ids)


def vectors(events):
    return {event.id: event.vector for event in events if isinstance(event, Embedded)}


def ask(engine, ids, pooling):
    [sequence] = engine.add(Request(prompt_token_ids=tuple(ids), decoder=Embed(pooling)))
    return sequence


@given(
    texts=st.lists(st.tuples(TEXTS, st.sampled_from(POOLINGS)), min_size=1, max_size=6),
    rows=st.integers(1, 70),
    blocks=st.integers(12, 40),
    again=st.booleans(),
)
def test_a_text_read_in_parts_among_others_has_the_vector_of_its_rows(texts, rows, blocks, again):
    """Beside those that write and are scored, with few KV blocks, and a second time from them."""
    engine = make_engine(rows=rows, kv_blocks=blocks, block=8, context=64)
    for _ in range(1 + again):
        for decoder in (Autoregressive(), Score(logits_from=0)):
            engine.add(MockRequest((1, 2, 3), decoder=decoder).asked())
        asked = [ask(engine, *text) for text in texts]
        events = run_to_end(engine)
        found = vectors(events)
        for sequence, (ids, pooling) in zip(asked, texts, strict=True):
            assert np.array_equal(found[sequence.id], by_definition(ids, pooling))
        ends = [e for e in events if isinstance(e, Ended) and e.id in found]
        assert {e.reason for e in ends} == {FinishReason.SCORED}


@given(
    texts=st.lists(st.tuples(TEXTS, st.sampled_from(POOLINGS)), min_size=1, max_size=6),
    rows=st.integers(8, 130),
)
def test_a_text_that_is_seen_as_a_whole_has_too(texts, rows):
    engine = make_engine(rows=rows, context=64, attention="bidirectional")
    asked = [ask(engine, *text) for text in texts]
    found = vectors(run_to_end(engine))
    for sequence, (ids, pooling) in zip(asked, texts, strict=True):
        assert np.array_equal(found[sequence.id], by_definition(ids, pooling, sees_all=True))


def test_the_last_row_goes_on_from_the_prefix_cache():
    engine = make_engine(block=8)
    for pooling, found in (("last", 0), ("last", 24), ("mean", 0)):
        sequence = ask(engine, range(30), pooling)
        run_to_end(engine)
        assert sequence.num_cached_tokens == found


@given(st.integers(1, 700), st.integers(2, 400), st.data())
def test_rows_add_up_in_one_order(count, width, data):
    rows = np.random.default_rng(count).normal(size=(count, width)).astype(np.float32)
    rows *= 10.0 ** np.random.default_rng(width).integers(-6, 7, size=rows.shape)
    one = np.zeros(width)
    for row in rows.astype(np.float64):
        one += row
    cut = data.draw(st.integers(0, count))
    total = None
    for part in (rows[:cut], rows[cut:]):
        total = added_up(total, part) if len(part) else total
    assert np.array_equal(total, one)


def test_a_row_that_is_not_finite_is_the_error_of_its_text():
    engine = make_engine(broken_after((1, 2), float("nan")))
    bad, good = ask(engine, (1, 2, 3), "mean"), ask(engine, (1, 3), "mean")
    events = run_to_end(engine)
    assert [*vectors(events)] == [good.id]
    assert "not finite" in str(bad.error)


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_a_text_that_cannot_be_read_is_refused(attention):
    engine = make_engine(rows=20, context=64, attention=attention)
    ask(engine, range(64), "mean")
    with pytest.raises(InputError, match="has 65 tokens, and 64 can be read"):
        ask(engine, range(65), "mean")
    with pytest.raises(InputError, match="token id 300"):
        ask(engine, [300], "mean")
    run_to_end(engine)
