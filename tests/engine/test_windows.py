"""What is kept of the layers that see a window: enough for what is usual, no more than is said."""

from dataclasses import replace

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway.compute.backends import KVGroup, KVLayout
from cutaway.engine import RunParams, StopParams
from cutaway.engine.memory.windows import windows_of
from cutaway.sampling import SamplingParams
from support.engine_mock import (
    MockRequest,
    check,
    forget_cached,
    make_engine,
    read_written,
    run_to_end,
)
from support.mock_backend import narrow, noise
from support.random_llama import write_tiny_llama
from support.ways import new_engine, open_llm, repeating

BLOCK, WINDOW = 4, 10
LONG = StopParams(max_tokens=40, ignore_eos=True)


def engine_of(model=noise, **more):
    return make_engine(
        model, context=400, kv_blocks=200, block=BLOCK, window=WINDOW, rows=8, **more
    )


def prompt_of(seed, length):
    return tuple(noise((seed, length, i)).argmax() % 256 for i in range(length))


def cached(engine, prompt, stops=LONG, **more):
    """Write it; how many tokens of it were there before, and what was written."""
    run = MockRequest(prompt, stops=stops, **more).finish(engine)
    return run.sequence.num_cached_tokens, run.written.token_ids


def whole(length):
    return length // BLOCK * BLOCK


# -- what is found again -----------------------------------------------------------------------


def test_the_next_turn_of_a_chat_goes_on_where_the_last_one_ended():
    engine, text = engine_of(), prompt_of(0, 50)
    for turn in range(4):
        before = len(text) if turn else 0
        found, answer = cached(engine, text := text + prompt_of(turn, 11 if turn else 0))
        assert found == whole(max(before - 1, 0))
        text += answer


def test_a_prompt_is_found_again_however_long_the_answer_was():
    engine, prompt = engine_of(), prompt_of(1, 61)
    for count in range(3):
        assert cached(engine, prompt)[0] == (60 if count else 0)


@pytest.mark.parametrize(("at_once", "found"), [(1, 44), (3, 46)])
def test_samples_share_the_first_ones_windows_or_find_the_prompt_when_it_has_ended(at_once, found):
    engine, prompt = engine_of(max_num_seqs=at_once), prompt_of(2, 47)
    samples = engine.add(MockRequest(prompt, SamplingParams(seed=1), LONG).to_request(), 3)
    run_to_end(engine)
    assert [s.num_cached_tokens for s in samples] == [0, found, found]


def test_a_beginning_that_texts_share_is_kept_once_two_have_shown_where_they_part():
    engine, system = engine_of(), prompt_of(3, 40)
    ends = [prompt_of(seed, 30) for seed in (4, 5, 6, 7)]
    assert [cached(engine, system + end)[0] for end in ends] == [0, 0, 40, 40]


def test_a_text_that_was_preempted_goes_on_where_it_was():
    engine = engine_of()
    sequence = MockRequest(prompt_of(8, 30), stops=LONG).add_to(engine)
    for _ in range(30):
        engine.step()
    computed, rows = sequence.num_computed_tokens, sum(engine.backend.runs)
    engine.scheduler.preempt(sequence)
    engine.step()
    assert sum(engine.backend.runs) - rows <= BLOCK + 1
    assert sequence.num_computed_tokens == computed + 1


def test_nothing_is_kept_without_a_prefix_cache():
    engine = engine_of(prefix_cache=False)
    cached(engine, prompt_of(9, 60))
    engine.step()
    engine.settle_blocks()
    assert not engine.backend.windows


def test_the_naive_loop_computes_the_same():
    prompt = prompt_of(10, 33)
    texts = [
        cached(engine_of(narrow), prompt, run=RunParams(kv_cache=kv_cache))[1]
        for kv_cache in (True, False)
    ]
    assert texts[0] == texts[1]


# -- how much memory that takes ----------------------------------------------------------------


@pytest.mark.parametrize("length", [20, 100, 300])
def test_a_text_takes_its_window_and_the_rows_of_a_step_however_long_it_is(length):
    """Blocks of 4: 8 rows, the 9 tokens that the first sees before it, a block to find it by."""
    engine = engine_of()
    cached(engine, prompt_of(11, length), StopParams(max_tokens=2))
    assert engine.backend.most_windows <= 6


def test_all_together_stay_within_what_is_said():
    """Two windows for each context that fits: 4 contexts, 2 of 4 blocks each."""
    engine = make_engine(context=200, kv_blocks=200, block=BLOCK, window=WINDOW, rows=8)
    most = engine.blocks.windows.max_stored
    assert most == 4 * 2 * 4
    for seed in range(30):
        cached(engine, prompt_of(seed, 60), StopParams(max_tokens=30, ignore_eos=True))
        assert len(engine.backend.windows) <= engine.backend.most_windows <= most
    assert engine.backend.most_windows == most


def test_more_texts_than_that_take_their_own_windows():
    engine = make_engine(context=200, kv_blocks=50, block=BLOCK, window=WINDOW, rows=8)
    assert engine.blocks.windows.max_stored == 8
    for seed in range(5):
        MockRequest(prompt_of(seed, 20), stops=StopParams(max_tokens=15)).add_to(engine)
    run_to_end(engine)
    assert 8 < engine.backend.most_windows <= 5 * 6


def test_gemma_3_270m_keeps_less_than_120_mb_at_32k():
    """18 layers of one KV head of 256 numbers, of which 3 see all; 604 MB where nothing goes."""
    layout = KVLayout(
        32, (KVGroup((5, 11, 17), 0, "F16", 3 * 1024), KVGroup((0,), 512, "F16", 15 * 1024))
    )
    windows = windows_of(layout, 1024, 32768, 512)
    whole_bytes, window_bytes = (32 * group.bytes_per_token for group in layout.groups)
    assert windows.max_stored == 34
    assert 1024 * (whole_bytes + window_bytes) == 603_979_776
    assert 1024 * whole_bytes + windows.max_stored * window_bytes == 117_374_976


# -- a real model ------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0, 3])
@pytest.mark.parametrize("speculate", ["off", "ngram", "jacobi"])
def test_a_long_text_is_that_of_a_model_that_keeps_all(tmp_path, every, speculate):
    """Bits and all: the prompt is ten windows long."""
    metadata = {
        "llama.attention.sliding_window": 70, "llama.attention.sliding_window_pattern": every
    }  # fmt: skip
    path = write_tiny_llama(
        tmp_path / "tiny.gguf", hidden=64, heads=4, layers=6, context=1024, metadata=metadata
    )
    request = MockRequest(
        repeating(1, 90, 700), SamplingParams(seed=3), StopParams(max_tokens=150, ignore_eos=True),
        RunParams(speculate=speculate),
    )  # fmt: skip
    llm, texts, held = open_llm(path, 2, 40), [], []
    for keeps_all in (False, True, False):
        engine = new_engine(llm, rows=64)
        if keeps_all:
            engine.blocks.windows = None
        for _ in range(2):  # computed, then found
            sequence, events = request.add_to(engine), []
            while not engine.is_idle:
                events += engine.step()
                held.append(llm.backend._runner.window_blocks)
                check(engine)
            texts.append(read_written(sequence, events))
        forget_cached(engine.blocks)
        llm.backend.copy_windows([(block, -1) for block in range(40)])
        most, held = max(held), []
        assert (most > 20) if keeps_all else (most <= 2 * (-(-70 // 32) + 1)), most
    assert len(set(texts)) == 1
    assert len(texts[0].token_ids) == 150


def test_a_window_wider_than_the_context_keeps_all(tmp_path):
    metadata = {"llama.attention.sliding_window": 4096}
    path = write_tiny_llama(tmp_path / "tiny.gguf", context=128, metadata=metadata)
    engine = new_engine(open_llm(path, 1, 8))
    request = MockRequest(repeating(1, 9, 90), stops=StopParams(max_tokens=30, ignore_eos=True))
    first = request.add_to(engine)
    while not engine.is_idle:
        engine.step()
    again = replace(request, stops=StopParams(max_tokens=1)).add_to(engine)
    while not engine.is_idle:
        engine.step()
    assert (first.memory.num_out_of_window, again.num_cached_tokens) == (0, 64)
