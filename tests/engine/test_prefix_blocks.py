"""KV blocks that leave an engine and come into another: the text goes on as if it were computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import StopParams
from cutaway.engine.loop.pinned import fill_blocks, read_blocks
from support.engine_mock import MockRequest, check, make_engine, run_to_end, written
from support.mock_backend import narrow

BLOCK = 4
TEXTS = st.lists(st.sampled_from([*b"ab"]), min_size=1, max_size=40).map(tuple)
TEXT = tuple(b"abbabbbaababbabbab")  # four blocks and a half
SIZES = [4 * BLOCK] * 16
LONG = StopParams(max_tokens=20, ignore_eos=True)


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
        assert written(sequence, events) == request.run_on(engine_with())


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
