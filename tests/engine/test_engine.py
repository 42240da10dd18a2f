"""Who is in a step, in which order, on which blocks, and what it costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import FinishReason, RunParams, StopParams
from cutaway.sampling import Observe, SamplingParams, logprob
from support.engine_definition import write_by_definition
from support.engine_mock import (
    GREEDY,
    MockRequest,
    end_of,
    make_engine,
    read_written,
    run_to_end,
    steps_of,
)  # fmt: skip
from support.mock_backend import narrow, noise

NO_CACHE = RunParams(kv_cache=False)
FIVE = StopParams(max_tokens=5, ignore_eos=True)
SAMPLED = SamplingParams(temperature=3, top_p=1, seed=4)
PROMPT = tuple(b"a prompt of twenty-five b")


def request(prompt=PROMPT, params=SAMPLED, stops=FIVE, **kwargs):
    return MockRequest(tuple(prompt), params, stops, **kwargs)


def alone(asked, model=noise, context=64):
    return write_by_definition(asked, model, context=context)


# -- the same text whatever happens ------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 40), st.integers(1, 9), st.booleans())),
    st.integers(1, 9),
)
def test_arrivals_at_any_time_write_the_same_as_alone(arrivals, rows):
    """Each arrival: the step at which it comes, prompt and output lengths, kv_cache."""
    asked = [
        request(
            (PROMPT * 2)[:length], SamplingParams(temperature=2, seed=i), StopParams(max_tokens=n),
            run=RunParams(kv_cache=cache),
        )
        for i, (_, length, n, cache) in enumerate(arrivals)
    ]  # fmt: skip
    engine = make_engine(narrow, kv_blocks=16, rows=rows, block=8)
    steps, sequences = [], {}
    for now in range(13):
        for i, arrival in enumerate(arrivals):
            if arrival[0] == now:
                sequences[i] = asked[i].add_to(engine)
        steps += engine.step()
    run_to_end(engine, steps)
    for i, sequence in sequences.items():
        assert read_written(sequence, steps) == alone(asked[i], narrow)


@pytest.mark.parametrize("rows", range(1, 8))
@pytest.mark.parametrize("kv_cache", [True, False])
def test_prompts_in_chunks_write_the_same(rows, kv_cache):
    asked = request(run=RunParams(kv_cache=kv_cache))
    engine = make_engine(rows=rows)
    assert asked.run_on(engine) == alone(asked)
    assert max(engine.backend.runs) == rows


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_without_the_cache_tokens_and_fingerprints_are_the_same(params):
    cached, uncached = request(params=params), request(params=params, run=NO_CACHE)
    assert uncached.run_on(make_engine()) == cached.run_on(make_engine())


def test_a_text_over_several_real_blocks_is_the_definition():
    asked = request(PROMPT * 5, stops=StopParams(max_tokens=60))
    assert asked.run_on(make_engine(context=256)) == alone(asked, context=256)


def test_blocks_full_of_an_earlier_text_are_harmless():
    engine = make_engine(kv_blocks=1)
    first, second = request(b"other tokens"), request(b"hi")
    first.run_on(engine)
    assert second.run_on(engine) == alone(second)


# -- the rows of a step ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "rows"), [(RunParams(), [25, 1, 1, 1, 1]), (NO_CACHE, [25, 26, 27, 28, 29])]
)
def test_the_cache_computes_every_token_once_and_the_last_never(run, rows):
    engine = make_engine()
    request(run=run).run_on(engine)
    assert engine.backend.runs == rows


def test_a_step_with_nobody_computes_nothing():
    engine = make_engine()
    assert engine.step() == []
    assert engine.backend.runs == []


def test_a_chunk_that_does_not_end_the_prompt_draws_nothing():
    engine = make_engine(rows=10)
    sequence = request().add_to(engine)
    assert [len(steps_of(engine.step())) for _ in range(4)] == [0, 0, 1, 1]
    assert engine.backend.runs == [10, 10, 5, 1]
    assert sequence.num_computed_tokens == 26


def test_a_long_prompt_does_not_hold_up_who_already_writes():
    engine = make_engine(rows=4)
    writer = request(b"abc").add_to(engine)
    engine.step()
    newcomer = request().add_to(engine)
    steps = [steps_of(engine.step()) for _ in range(4)]
    assert [[s.id for s in step] for step in steps] == [[writer.id]] * 4
    assert newcomer.num_computed_tokens == 12


def test_a_short_prompt_is_read_beside_a_long_one():
    """A chat waits for a step, and not for all of a prompt that fills the context."""
    engine = make_engine(context=512, kv_blocks=64, rows=64)
    long = request(bytes(range(200)) * 2).add_to(engine)
    engine.step()
    short = [request(b"%d chats" % i, SamplingParams(seed=i)).add_to(engine) for i in range(3)]
    engine.step()
    assert all(len(one.output_token_ids) == 1 for one in short)
    assert long.num_computed_tokens == 64 + (64 - 3 * len(b"0 chats"))


def test_the_oldest_prompt_has_half_of_a_step():
    """However many shorter ones come in each."""
    engine = make_engine(context=512, kv_blocks=200, rows=64, max_num_seqs=30)
    long = request(bytes(range(200)) * 2).add_to(engine)
    for number in range(9):
        for i in range(5):
            request(b"%d %d and a little more" % (number, i), SamplingParams(seed=i)).add_to(engine)
        before = long.num_computed_tokens
        room = 64 - len([s for s in engine.running if s.output_token_ids])
        engine.step()
        assert long.num_computed_tokens - before >= min(room // 2, 400 - before)


def test_short_prompts_that_begin_as_a_long_one_wait_for_its_block():
    engine = make_engine(context=512, kv_blocks=64, rows=128)
    beginning = bytes(range(64))
    long = request(beginning + bytes(range(200)) + bytes(range(100))).add_to(engine)
    short = request(beginning + b"a chat", SamplingParams(seed=1)).add_to(engine)
    engine.step()
    assert (long.num_computed_tokens, short.num_computed_tokens) == (128, 0)
    engine.step()
    assert len(short.output_token_ids) == 1
    assert engine.backend.runs[1] == 128


def test_steps_come_oldest_first_and_end_together():
    engine = make_engine()
    sequences = [request(b"abc", SamplingParams(seed=i)).add_to(engine) for i in range(20)]
    for _ in range(5):
        assert [step.id for step in steps_of(engine.step())] == [s.id for s in sequences]
    assert not engine.running


def test_a_step_tells_what_happened():
    engine, prompt = make_engine(), (1, 2, 3)
    params = SamplingParams(temperature=2, top_k=7, top_p=1, seed=9)
    MockRequest((0,), GREEDY, FIVE).add_to(engine)
    sequence = MockRequest(prompt, params, FIVE, observe=Observe(stages=True)).add_to(engine)
    events = run_to_end(engine)
    steps = steps_of(events, sequence)
    tokens = (*prompt, *sequence.output_token_ids)
    assert [s.index for s in steps] == [0, 1, 2, 3, 4]
    assert [s.position for s in steps] == [3, 4, 5, 6, 7]
    assert [s.token_id for s in steps] == sequence.output_token_ids
    assert [s.logprob for s in steps] == [
        logprob(noise(tokens[:n]), tokens[n]) for n in range(3, 8)
    ]
    assert [s.survivors for s in steps] == [7] * 5
    assert {tuple(r.stage.name for r in s.observed.stages) for s in steps} == {
        ("temperature", "top_k")
    }
    assert steps[-1].fingerprint == sequence.fingerprint
    ended = end_of(events, sequence)
    assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.MAX_TOKENS, 5)
    assert ended.fingerprint == sequence.fingerprint


def test_observing_changes_nothing():
    assert request(observe=Observe(stages=True)).finish().written == alone(request())


# -- the queue ---------------------------------------------------------------------------------


def test_who_finds_no_blocks_waits_and_nobody_overtakes():
    engine = make_engine(kv_blocks=3)
    long, longer, short = (request(b"a" * n).add_to(engine) for n in (50, 59, 1))
    engine.step()
    assert (engine.running, list(engine.waiting)) == ([long], [longer, short])
    assert engine.blocks.free == 1, "short would have fitted, and waits for its turn"
    for _ in range(4):
        engine.step()
    engine.step()
    assert engine.running[0] == longer


def test_all_who_queue_finish_and_write_the_same():
    engine = make_engine(kv_blocks=2)
    asked = [request(PROMPT[: 3 * n + 1] * 2) for n in range(8)]
    sequences = [r.add_to(engine) for r in asked]
    steps = run_to_end(engine)
    assert [read_written(s, steps) for s in sequences] == [alone(r) for r in asked]
    assert engine.blocks.free == 2


def test_a_sequence_holds_blocks_for_what_is_known_of_its_text():
    engine = make_engine(context=256)
    sequence = request(PROMPT, stops=StopParams(max_tokens=40, ignore_eos=True)).add_to(engine)
    assert sequence.memory.blocks == []
    engine.step()
    assert len(sequence.memory.blocks) == 1
    for _ in range(7):
        engine.step()
    assert (len(sequence), len(sequence.memory.blocks)) == (33, 1)
    engine.step()
    assert (len(sequence), len(sequence.memory.blocks)) == (34, 2)


# -- abort -------------------------------------------------------------------------------------


def aborted_after(steps: int):
    """An engine of two blocks: the first sequence aborted after that many steps of 10 rows."""
    engine = make_engine(kv_blocks=2, rows=10)
    first, second = request(PROMPT * 2).add_to(engine), request().add_to(engine)
    for _ in range(steps):
        engine.step()
    return engine, first, second


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 8], ids=lambda n: f"after {n} steps")
def test_abort_frees_the_blocks_at_once_in_every_phase(steps):
    """Not admitted yet, in the middle of the prompt, and while writing."""
    engine, first, second = aborted_after(steps)
    assert first.finish_reason is None
    engine.abort(first)
    assert engine.blocks.free == 2
    assert first.finish_reason == FinishReason.ABORTED
    assert first.memory.blocks == []
    assert read_written(second, run_to_end(engine)) == alone(request())
    assert engine.blocks.free == 2


def test_abort_in_the_queue_leaves_the_others_in_order():
    engine, first, second = aborted_after(3)
    third = request(b"third").add_to(engine)
    engine.abort(second)
    assert (engine.running, list(engine.waiting)) == ([first], [third])
    assert engine.blocks.free == 0
    engine.take_events()
    steps = run_to_end(engine)
    assert second.id not in {step.id for step in steps}
    assert read_written(third, steps) == alone(request(b"third"))


@pytest.mark.parametrize("steps", [0, 2, 6])
def test_aborting_twice_is_as_aborting_once(steps):
    engine, first, second = aborted_after(steps)
    engine.abort(first)
    engine.abort(first)
    assert engine.blocks.free == 2
    assert read_written(second, run_to_end(engine)) == alone(request())


def test_aborting_what_has_finished_changes_nothing():
    engine = make_engine()
    sequence = request().finish(engine).sequence
    engine.abort(sequence)
    assert sequence.finish_reason == FinishReason.MAX_TOKENS
    assert engine.blocks.free == engine.blocks.count


def test_nobody_leaves_in_vain():
    """Who matters less stays where the newcomer could not come in even so."""
    engine = make_engine(narrow, kv_blocks=10, block=8)
    long = StopParams(max_tokens=30, ignore_eos=True)
    equals = [request(PROMPT[:24], stops=long).add_to(engine) for _ in range(2)]
    less = request(PROMPT[:3], stops=FIVE, run=RunParams(priority=1)).add_to(engine)
    engine.step()
    assert engine.running == [*equals, less]
    newcomer = request(tuple(reversed(PROMPT * 2))[:48]).add_to(engine)
    for _ in range(4):
        assert less.id in {step.id for step in steps_of(engine.step())}
    assert less.finish_reason
    assert engine.scheduler.preemptions == 0
    assert newcomer in engine.waiting
    run_to_end(engine)
    assert newcomer.finish_reason


def test_of_equal_prompts_that_come_together_the_first_is_read():
    asked = [request(PROMPT * 4, SamplingParams(temperature=2, seed=i)) for i in range(6)]
    engine = make_engine(context=128, rows=10, block=4)
    sequences = [one.add_to(engine) for one in asked]
    events = run_to_end(engine)
    for one, sequence in zip(asked, sequences, strict=True):
        assert read_written(sequence, events) == alone(one, context=128)
    once, beside, ends = 100, 10, 6 * (4 + 5)  # beside: the step that ends it has rows of the next
    assert sum(engine.backend.runs) <= once + beside + ends


def test_who_wants_no_cache_finds_nothing_and_leaves_nothing():
    engine = make_engine(block=4)
    for cached, cache_prompt in ((0, False), (0, True), (0, False), (8, True)):
        asked = MockRequest(tuple(range(11)), run=RunParams(cache_prompt=cache_prompt))
        sequence = asked.add_to(engine)
        run_to_end(engine)
        assert sequence.num_cached_tokens == cached
    prompt, run = tuple(range(20, 31)), RunParams(cache_prompt=False)
    samples = engine.add(MockRequest(prompt, stops=FIVE, run=run).to_request(), 2)
    run_to_end(engine)
    assert [one.num_cached_tokens for one in samples] == [0, 10]  # of each other they have it
