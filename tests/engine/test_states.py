"""What is kept of recurrent states: enough for what is usual, no more than is said."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute.backends import KVGroup, KVLayout, StateGroup
from cutaway.engine import RunParams, StopParams
from cutaway.engine.canvas.rule import Rule
from cutaway.engine.decoders.denoise import Denoise
from cutaway.errors import InputError, ReplayError
from cutaway.features.measure.verify import checks
from cutaway.sampling import SamplingParams
from support.engine_definition import write_by_definition
from support.engine_mock import MockRequest, check, make_engine, read_written, run_to_end
from support.mock_backend import narrow, noise
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35
from support.random_rwkv7 import write_tiny_rwkv7
from support.ways import new_engine, open_llm, repeating

BLOCK = 4
LONG = StopParams(max_tokens=40, ignore_eos=True)


def engine_of(model=noise, **more):
    return make_engine(
        model, **{"context": 400, "kv_blocks": 200, "block": BLOCK, "rows": 8} | more,
        has_state=True,
    )  # fmt: skip


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


@pytest.mark.parametrize("length", range(60, 64))
def test_a_text_that_goes_on_after_a_prompt_reads_its_whole_blocks_no_more(length):
    """As where a chat's next turn renders the answer in other words than it was written."""
    engine, prompt = engine_of(), prompt_of(1, length)
    cached(engine, prompt)
    assert cached(engine, prompt + prompt_of(2, 20))[0] == 60


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_samples_go_on_from_the_first_one_s_last_whole_block(prefix_cache):
    engine, prompt = engine_of(prefix_cache=prefix_cache), prompt_of(2, 47)
    samples = engine.add(MockRequest(prompt, SamplingParams(seed=1), LONG).to_request(), 3)
    run_to_end(engine)
    assert [s.num_cached_tokens for s in samples] == [0, 44, 44]


def test_a_beginning_that_texts_share_is_kept_once_two_have_shown_where_they_part():
    engine, system = engine_of(), prompt_of(3, 40)
    ends = [prompt_of(seed, 30) for seed in (4, 5, 6, 7)]
    assert [cached(engine, system + end)[0] for end in ends] == [0, 0, 40, 40]


@pytest.mark.parametrize("rows", [8, 30, 400])
def test_of_texts_that_come_together_what_they_share_is_read_once(rows):
    engine, system = engine_of(rows=rows), prompt_of(3, 40)
    asked = [MockRequest(system + prompt_of(seed, 20), stops=LONG) for seed in (4, 5, 6)]
    sequences = [request.add_to(engine) for request in asked]
    events = run_to_end(engine)
    read = sum(engine.backend.runs) - 3 * 39  # and 39 tokens of each text, written one by one
    assert read == 40 + 3 * 20
    alone = [request.finish(engine_of(rows=rows)).written for request in asked]
    assert [read_written(sequence, events) for sequence in sequences] == alone


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
    engine.settle_blocks()
    assert not engine.backend.states


def test_a_long_prompt_leaves_states_on_its_way():
    engine = engine_of(kv_blocks=500, context=2000, rows=100)
    cached(engine, prompt := prompt_of(10, 1300))
    assert cached(engine, prompt[:1100])[0] == 1024


@pytest.mark.parametrize("rows", [1, 3, 8, 64])
def test_the_naive_loop_computes_the_same(rows):
    texts = [
        cached(engine_of(narrow, rows=rows), prompt_of(10, 33), run=RunParams(kv_cache=kv_cache))[1]
        for kv_cache in (True, False)
    ]
    assert texts[0] == texts[1]


def test_a_replay_that_goes_wrong_in_the_middle_of_a_step_says_so():
    """The state after its rows is that of tokens that were not drawn."""
    request = MockRequest(prompt_of(11, 20), SamplingParams(seed=2), LONG)
    ids = list(cached(engine_of(), request.prompt, params=request.params)[1])
    ids[9] = (ids[9] + 1) % 250
    engine = engine_of(rows=30)
    run = replace(request, run=RunParams(replay=tuple(ids))).finish(engine)
    assert isinstance(run.sequence.error, ReplayError)
    assert "token 10 is" in str(run.sequence.error)


# -- how much memory that takes ----------------------------------------------------------------


def test_all_together_stay_within_what_is_said():
    engine = engine_of()
    most = engine.blocks.states.max_unread
    assert most == 8
    for seed in range(30):
        cached(engine, prompt_of(seed, 60), StopParams(max_tokens=30, ignore_eos=True))
        engine.step()
        check(engine)
        assert engine.blocks.states.num_stored <= most
    assert engine.backend.most_states <= most + 2


def test_many_texts_take_their_own_states():
    engine = engine_of()
    for seed in range(12):
        MockRequest(prompt_of(seed, 20), stops=StopParams(max_tokens=15)).add_to(engine)
    run_to_end(engine)
    assert 8 < engine.backend.most_states <= 8 + 2 * 12


def test_the_budget_is_a_share_of_the_memory_of_keys_and_values():
    layout = KVLayout(32, (KVGroup((2, 5), 0, "F16", 4096),), StateGroup((0, 1), "F32", 1 << 20))
    assert layout.kept_states(1024) == 8  # the least
    assert layout.kept_states(131072) == 512  # two for each 512 tokens
    assert layout.bytes_stored(1024) == 1024 * 4096 + 10 * (1 << 20)
    assert str(layout).endswith("; a state of layers 0-1 in F32, 1048576 bytes")
    large = layout._replace(state=StateGroup((0, 1), "F32", 20 << 20))
    assert large.kept_states(131072) == 25  # as much memory as keys and values


def test_the_card_of_a_model_says_what_states_take(tmp_path, capsys):
    path = write_tiny_qwen35(tmp_path / "tiny.gguf")
    assert main(["models", "show", str(path)]) == 0
    said = capsys.readouterr().out
    assert "2 of 4 layers have a recurrent one" in said
    assert "131.1 kB of keys and values, 512 bytes a token" in said
    assert "209.9 kB of recurrent states, 21.0 kB each, 8 kept for later texts" in said
    assert main(["models", "show", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"]["nbytes"] == 20992


# -- what cannot be --------------------------------------------------------------------------------


def test_a_canvas_is_refused():
    request = MockRequest(prompt_of(0, 9), decoder=Denoise(Rule(block=1)))
    with pytest.raises(InputError, match="layers of this model have a recurrent state"):
        request.add_to(engine_of())


def test_a_draft_model_with_a_state_is_refused(tmp_path):
    target = write_tiny_llama(tmp_path / "target.gguf", context=256)
    llm = LLM(target, progress=False)
    draft = write_tiny_lfm2(tmp_path / "draft.gguf")
    with pytest.raises(InputError, match="which a draft model cannot have; name another"):
        llm.generate("a", speculate=f"draft:{draft}", max_tokens=2)


# -- a real model ------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[write_tiny_lfm2, write_tiny_qwen35, write_tiny_granite_hybrid, write_tiny_rwkv7],
)
def path(tmp_path_factory, request):
    return request.param(tmp_path_factory.mktemp("states") / "tiny.gguf", context=1024)


def test_verify_finds_every_bit_the_same(path):
    def load(tier, threads):
        return open_llm(path, threads, 32).backend

    found = list(checks(load, list(repeating(3, 60, 90)), ["generic"], (1, 2)))
    assert len(found) > 20
    assert all(each.passed for each in found), [each for each in found if not each.passed]


def write_long_texts(llm, run, rows, count):
    """Write a long text, which is found from the second time on; check blocks after each step."""
    request = MockRequest(
        repeating(1, 90, 500), SamplingParams(seed=3), StopParams(max_tokens=40, ignore_eos=True),
        run,
    )  # fmt: skip
    engine, texts = new_engine(llm, rows=rows), []
    for _ in range(count):
        sequence, events = request.add_to(engine), []
        while not engine.is_idle:
            events += engine.step()
            check(engine)
        texts.append(read_written(sequence, events))
    return texts


@pytest.fixture(scope="module")
def naive_texts(path):
    """The same long text where every step computes it from its first token."""
    llm = open_llm(path, 2, 40)
    run = RunParams(kv_cache=False)
    return write_long_texts(llm, run, 64, 1) + write_long_texts(llm, run, 7, 1)


@pytest.mark.parametrize("speculate", ["off", "ngram", "jacobi"])
def test_a_long_text_is_that_of_the_naive_loop(path, naive_texts, speculate):
    llm, run = open_llm(path, 2, 40), RunParams(speculate=speculate)
    texts = naive_texts + write_long_texts(llm, run, 64, 2) + write_long_texts(llm, run, 7, 2)
    assert len(set(texts)) == 1
    assert len(texts[0].token_ids) == 40


def test_a_saved_prefix_goes_on_with_the_same_bits(path, tmp_path):
    prompt, options = list(repeating(5, 70, 200)), {"max_tokens": 12, "seed": 1, "logprobs": 2}
    llm = LLM(path, progress=False)
    plain = llm.generate(prompt, **options)
    saved = llm.save_prefix(tmp_path / "a.prefix", prompt)
    assert saved.cached_tokens == 192
    other = LLM(path, progress=False, threads=1)
    assert other.restore_prefix(tmp_path / "a.prefix").cached_tokens == 192
    again = other.generate(prompt, **options)
    assert (again.fingerprint, again.usage.cached_tokens) == (plain.fingerprint, 192)


def test_definition_of_the_mock_is_the_engine_s():
    """The mock reads what was before a step from states alone."""
    request = MockRequest(prompt_of(1, 30), SamplingParams(seed=5), StopParams(max_tokens=20))
    assert request.finish(engine_of(narrow)).written == write_by_definition(
        request, narrow, context=400
    )
