"""Pinned texts: the last row by itself, and KV blocks that go from one engine into another.

A row is computed whatever runs beside; with the blocks of another a text goes on as if they were
computed.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import PinPrefix, Request, StopParams
from cutaway.engine.loop.pinned import fill_blocks, is_ready, read_blocks, read_row
from cutaway.errors import InputError
from support.engine_mock import (
    MockRequest,
    check,
    forget_cached,
    make_engine,
    read_written,
    run_to_end,
)
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


# -- KV blocks of another engine -------------------------------------------------------------------


TEXT = tuple(b"abbabbbaababbabbab")  # four blocks and a half
SIZES = [4 * BLOCK] * 16


def engine_with(*prompts, kv_blocks=32, window=0):
    """An engine that has read these; a token is written after each."""
    engine = make_engine(narrow, block=BLOCK, kv_blocks=kv_blocks, window=window)
    for prompt in prompts:
        MockRequest(prompt, stops=StopParams(max_tokens=1)).run_on(engine)
    return engine


def taken(engine, text, most=3):
    """The bytes of its blocks, in as many calls as it takes."""
    found = []

    def read(place, memory):
        assert place == len(found)
        found.append(b"".join(piece.tobytes() for piece in memory))

    before = -1
    while len(found) > before:
        before = len(found)
        assert read_blocks(engine, text, before, most, read) == len(found)
        check(engine)
    return found


def fill_from(blocks):
    def fill(place, memory):
        at = 0
        for piece in memory:
            piece[:] = bytearray(blocks[place][at : at + piece.nbytes])
            at += piece.nbytes

    return fill


@given(
    prompt=TEXTS, other=TEXTS, kv_blocks=st.integers(12, 20), most=st.integers(1, 5),
    window=st.sampled_from([0, 0, 1, 4, 7, 9, 30]), both=st.booleans(),
)  # fmt: skip
def test_a_text_goes_on_from_the_blocks_of_another_engine(
    prompt, other, kv_blocks, most, window, both
):
    """Whether or not that engine has read the text before, and freed its windows."""
    blocks = taken(engine_with(other, prompt, window=window), prompt, most)
    assert len(blocks) == len(prompt) // BLOCK
    read = [prompt, other] if both else [other]
    engine, before, done = engine_with(*read, kv_blocks=kv_blocks, window=window), -1, 0
    if window:
        engine.blocks.windows.trim(10**6)
    sizes = [len(block) for block in blocks]
    while done > before:
        before, done = done, fill_blocks(engine, prompt, sizes, most, fill_from(blocks))
        check(engine)
    assert done == len(blocks)
    request = MockRequest(prompt, stops=StopParams(max_tokens=4, ignore_eos=True))
    run = request.finish(engine)
    assert run.written == request.run_on(engine_with())
    assert run.sequence.num_cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK


def test_a_file_that_lacks_a_window_is_not_gone_on_from():
    blocks = [block[: 4 * BLOCK] for block in taken(engine_with(TEXT, window=9), TEXT)]
    engine = engine_with(window=9)
    fill_blocks(engine, TEXT, [len(block) for block in blocks], 9, fill_from(blocks))
    check(engine)
    request = MockRequest(TEXT, stops=LONG)
    run = request.finish(engine)
    assert run.written == request.run_on(engine_with())
    assert run.sequence.num_cached_tokens == 0


@given(st.lists(st.tuples(TEXTS, st.integers(0, 6), st.integers(1, 3)), max_size=6))
def test_blocks_come_and_go_between_the_steps_of_others(turns):
    """Whoever writes meanwhile writes the same, and whatever is found is right."""
    engine, requests, events = make_engine(narrow, block=BLOCK, kv_blocks=18), [], []
    for text, steps, most in turns:
        request = MockRequest(text, stops=LONG)
        requests.append((request, request.add_to(engine)))
        for _ in range(steps):
            events += engine.step()
        blocks = taken(engine_with(text[::-1]), text[::-1])
        assert fill_blocks(engine, text[::-1], SIZES, most, fill_from(blocks)) <= len(blocks)
        check(engine)
        for place, block in enumerate(taken(engine, text)):
            assert block == bytes_of(text[place * BLOCK : (place + 1) * BLOCK])
    run_to_end(engine, events)
    for request, sequence in requests:
        assert read_written(sequence, events) == request.run_on(engine_with())


def bytes_of(tokens):
    """A block as the mock keeps it."""
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def test_what_is_in_a_block_is_what_the_text_goes_on_from():
    """So the tests above see wrong blocks."""
    engine, request = engine_with(), MockRequest(TEXT, stops=LONG)
    assert fill_blocks(engine, TEXT, SIZES, 9, fill_from([bytes_of(b"bbbb")] * 4)) == 4
    assert request.run_on(engine) != request.run_on(engine_with())


def test_blocks_after_one_that_cannot_be_filled_are_not_there():
    engine, blocks = engine_with(), taken(engine_with(TEXT), TEXT)

    def fill(place, memory):
        memory[0][:] = 7
        if place == 2:
            raise OSError("the disk is gone")
        fill_from(blocks)(place, memory)

    with pytest.raises(OSError, match="gone"):
        fill_blocks(engine, TEXT, SIZES, 9, fill)
    check(engine)
    assert engine.blocks.free == engine.blocks.count
    assert taken(engine, TEXT) == blocks[:2]


def test_what_is_there_already_is_not_filled_again():
    engine, places = engine_with(TEXT[:9]), []
    blocks = taken(engine_with(TEXT), TEXT)

    def fill(place, memory):
        places.append(place)
        fill_from(blocks)(place, memory)

    assert fill_blocks(engine, TEXT, SIZES, 1, fill) == 3
    assert fill_blocks(engine, TEXT, SIZES, 9, fill) == 4
    assert fill_blocks(engine, TEXT, SIZES, 9, fill) == 4
    assert places == [2, 3]
    assert taken(engine, TEXT) == blocks


def test_nothing_is_taken_from_those_who_write():
    engine = engine_with(kv_blocks=6)
    sequence = MockRequest((ord("a"),) * 18, stops=StopParams(max_tokens=2)).add_to(engine)
    engine.step()
    assert engine.blocks.free == 1
    blocks = taken(engine_with(TEXT), TEXT)
    assert fill_blocks(engine, TEXT, SIZES, 9, fill_from(blocks)) == 1
    assert fill_blocks(engine, TEXT, SIZES, 9, fill_from(blocks)) == 1
    check(engine)
    run_to_end(engine)
    assert sequence.finish_reason
