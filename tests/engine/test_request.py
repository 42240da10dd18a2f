"""What a request may ask: what is refused, in one sentence that names the field, with nothing left.

Tokens that are given and steps that are looked at change nothing that is computed. A seed says
which text, and is always told.
"""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import FinishReason, Request, RunParams, StopParams
from cutaway.errors import InputError
from cutaway.sampling import History, Observe, SamplingParams, build_chain
from cutaway.sampling.chain import run_stages
from cutaway.sampling.definitions import Context
from cutaway.sampling.observe import observe
from support.engine_definition import write_by_definition
from support.engine_mock import (
    GREEDY,
    MockRequest,
    add,
    make_engine,
    read_written,
    run_to_end,
    score,
    steps_of,
)
from support.mock_backend import END, VOCAB, narrow, noise

STOPS = StopParams(max_tokens=4)


@contextmanager
def refused(sentence):
    with pytest.raises(InputError) as refusal:
        yield
    assert str(refusal.value).startswith(sentence)


@pytest.mark.parametrize(
    ("stops", "sentence"),
    [
        ({"max_tokens": -1}, "max_tokens must be 0 or more, not -1"),
        ({"max_tokens": 2.0}, "max_tokens must be a whole number, 0 or more, not 2.0"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"max_tokens": None}, "max_tokens must be a whole number"),
        ({"stop": ""}, "stop must not hold an empty string"),
        ({"stop": ("a", "")}, "stop must not hold an empty string"),
        ({"stop": 5}, "stop must be a string or a list of strings, not 5"),
        ({"stop": None}, "stop must be a string or a list of strings, not None"),
        ({"stop": b"a"}, "stop must be a string or a list of strings, not b'a'"),
        ({"stop": ("a", 5)}, "stop must be a string or a list of strings"),
        ({"stop": {"a": 1}}, "stop must be a string or a list of strings"),
        ({"stop": "a\ud800"}, "stop must be whole characters"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids: a token id must be 0 or more, not -1"),
        ({"stop_token_ids": (1.0,)}, "stop_token_ids: a token id must be a whole number"),
        ({"stop_token_ids": "ab"}, "stop_token_ids must be a list of token ids, not 'ab'"),
        ({"stop_token_ids": (True,)}, "stop_token_ids: a token id must be a whole number"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, not 5"),
        ({"stop_token_ids": None}, "stop_token_ids must be a list of token ids, not None"),
        ({"ignore_eos": 1}, "ignore_eos must be true or false, not 1"),
        ({"ignore_eos": "no"}, "ignore_eos must be true or false, not 'no'"),
    ],
)
def test_stop_params_name_the_field(stops, sentence):
    with refused(sentence):
        StopParams(**stops)


def refuse(prompt=(1,), params=GREEDY, stops=STOPS, **sizes):
    engine = make_engine(**({"context": 16} | sizes))
    try:
        add(engine, prompt, params, stops)
    finally:
        assert not engine.waiting
        assert engine.blocks.free == engine.blocks.count


def bias(token_id):
    return SamplingParams(logit_bias={token_id: 1.0})


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"stops": StopParams(max_tokens=0)}, "max_tokens must be 1 or more to write"),
        ({"prompt": [1] * 16}, "prompt has 16 tokens, and this model's maximum"),
        ({"prompt": [1, VOCAB]}, f"prompt: token id {VOCAB} is not between 0 and {VOCAB - 1}"),
        ({"prompt": [-1]}, "prompt: token id -1 is not between"),
        ({"prompt": [2**40]}, f"prompt: token id {2**40} is not between"),
        ({"prompt": [1.5]}, "prompt must be token ids"),
        ({"prompt": "12"}, "prompt must be token ids"),
        ({"prompt": [None]}, "prompt must be token ids"),
        ({"prompt": 5}, "prompt must be token ids"),
        ({"params": bias(VOCAB)}, f"logit_bias: token id {VOCAB} is not between"),
        ({"stops": StopParams(stop_token_ids=(VOCAB,))}, f"stop_token_ids: token id {VOCAB} is"),
        (
            {"prompt": [1] * 30, "stops": StopParams(max_tokens=99), "context": 99, "kv_blocks": 2},
            "prompt and max_tokens need 4 KV blocks of 32 tokens; there are 2",
        ),
    ],
)
def test_add_names_the_field_and_queues_nothing(asked, sentence):
    with refused(sentence):
        refuse(**asked)


def test_the_last_token_id_and_the_longest_prompt_are_accepted():
    engine, last = make_engine(context=16), VOCAB - 1
    stops = StopParams(stop_token_ids=(last,))
    sequence = add(engine, [last] * 15, SamplingParams(logit_bias={last: -100.0}), stops)
    run_to_end(engine)
    assert sequence.finish_reason == FinishReason.CONTEXT_FULL


@pytest.mark.parametrize("prompt", [[1, 2], (1, 2), iter([1, 2]), np.array([1, 2])])
def test_a_prompt_may_be_any_iterable_of_whole_numbers(prompt):
    sequence = add(make_engine(), prompt, GREEDY, STOPS)
    assert sequence.prompt_token_ids == (1, 2)
    assert {type(token_id) for token_id in sequence.prompt_token_ids} == {int}


@pytest.mark.parametrize(
    ("token_ids", "sentence"),
    [
        ((), "token_ids must hold 1 to 16 ids, not 0"),
        ((1,) * 17, "token_ids must hold 1 to 16 ids, not 17"),
        ((1, VOCAB), f"token_ids: token id {VOCAB} is not between"),
        ((-1,), "token_ids: token id -1 is not between"),
    ],
)
def test_score_names_the_field(token_ids, sentence):
    with refused(sentence):
        score(make_engine(context=16), token_ids)


def test_a_refused_request_does_not_disturb_the_company():
    engine = make_engine()
    sequence = add(engine, [1], GREEDY, STOPS)
    with pytest.raises(InputError):
        add(engine, [], GREEDY, STOPS)
    run_to_end(engine)
    assert sequence.finish_reason == FinishReason.MAX_TOKENS


# -- what is given and looked at -------------------------------------------------------------------


SAMPLED = SamplingParams(temperature=3, top_p=0.95, top_k=30, repetition_penalty=1.3, seed=4)
PROMPT = tuple(b"a prompt")
LONG = StopParams(max_tokens=40, ignore_eos=True)
DRAWN = MockRequest(PROMPT, SAMPLED, LONG)


def force(request, forced, **run):
    return replace(request, run=RunParams(forced=tuple(forced), **run))


def steps(request, engine=None):
    return request.finish(engine).steps


# -- forced ------------------------------------------------------------------------------------


@given(
    st.integers(0, 45), st.integers(0, 20), st.integers(1, 9),
    st.sampled_from(["off", "ngram", "jacobi", "draft"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=40)
def test_forcing_what_would_be_drawn_gives_equal_fingerprints(count, guess, rows, guesses, cache):
    alone = DRAWN.run_on(make_engine())
    again = force(DRAWN, alone.token_ids[:count], speculate=guesses, kv_cache=cache)
    engine = make_engine(draft=noise, max_draft_rows=guess, rows=rows, block=4)
    assert again.run_on(engine) == alone


def test_forced_tokens_are_read_as_a_prompt_is():
    engine = make_engine(max_logit_rows=16)
    forced = force(DRAWN, range(40))
    assert forced.run_on(engine).token_ids == tuple(range(40))
    assert engine.backend.runs == [len(PROMPT) + 15, 16, 8]


def test_forced_tokens_survive_preemption():
    engine = make_engine(kv_blocks=16, block=4, max_logit_rows=9)
    asked = [
        force(MockRequest((i, *PROMPT), SAMPLED, LONG), range(i, i + 30), priority=2 - i)
        for i in range(3)
    ]
    sequences, steps = [], []
    for request in asked:  # each sends away the one before it, amid its forced tokens
        sequences.append(request.add_to(engine))
        steps += engine.step()
    assert [0 < len(steps_of(steps, s)) < 30 for s in sequences] == [True] * 3
    run_to_end(engine, steps)
    assert engine.scheduler.preemptions > 0
    for request, sequence in zip(asked, sequences, strict=True):
        assert read_written(sequence, steps) == write_by_definition(request, noise, context=64)


@given(st.lists(st.sampled_from([*b"ab", *"é".encode(), END]), max_size=30), st.data())
def test_stops_hold_for_forced_tokens(forced, data):
    stops = data.draw(
        st.builds(
            StopParams,
            max_tokens=st.integers(1, 30),
            stop=st.sampled_from([(), ("ab",), ("éa", "bb")]),
            stop_token_ids=st.sampled_from([(), (ord("b"),)]),
            ignore_eos=st.booleans(),
        )
    )
    request = force(MockRequest(PROMPT, SAMPLED, stops), forced)
    assert request.run_on(make_engine(narrow)) == write_by_definition(request, narrow, context=64)


def test_more_forced_tokens_than_max_tokens_end_there():
    wrote = force(MockRequest(PROMPT, stops=StopParams(max_tokens=3)), b"abcdef").finish().written
    assert (wrote.text, wrote.finish_reason) == ("abc", FinishReason.MAX_TOKENS)


def test_a_context_that_is_full_ends_forced_tokens():
    request = force(MockRequest(PROMPT, stops=StopParams(max_tokens=99)), [97] * 99)
    wrote = request.run_on(make_engine(context=20))
    assert (wrote.text, wrote.finish_reason) == ("a" * 12, FinishReason.CONTEXT_FULL)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_a_forced_step_tells_what_would_have_been_drawn(params):
    drawn = MockRequest(PROMPT, params, LONG).run_on(make_engine()).token_ids
    other = (drawn[0], drawn[1], (drawn[2] + 1) % 256)
    taken = steps(force(MockRequest(PROMPT, params, LONG), other))
    assert [step.token_id for step in taken[:3]] == list(other)
    assert [step.sampled_id for step in taken[:3]] == list(drawn[:3])
    assert all(step.sampled_id == step.token_id for step in taken[3:])
    free = "sampled" if params.temperature else "greedy"
    assert [step.source for step in taken] == ["forced"] * 3 + [free] * 37


def test_a_token_that_was_guessed_says_so():
    taken = steps(replace(DRAWN, run=RunParams(speculate="draft")), make_engine(draft=noise))
    assert {step.source for step in taken} == {"sampled", "draft"}
    assert all(step.sampled_id == step.token_id for step in taken)


def test_forced_tokens_are_no_guesses():
    engine = make_engine()
    sequence = force(DRAWN, range(30), speculate="ngram").add_to(engine)
    while sequence.is_forced:
        engine.step()
    assert sequence.speculation.proposed == 0


@pytest.mark.parametrize("name", ["forced", "track"])
@pytest.mark.parametrize("ids", [[-1], [VOCAB]])
def test_ids_outside_the_vocabulary_are_refused(name, ids):
    asked = {"run": RunParams(forced=ids)} if name == "forced" else {"observe": Observe(track=ids)}
    with pytest.raises(InputError, match=rf"{name}: token id {ids[0]} is not between 0 and 256"):
        MockRequest(PROMPT, **asked).add_to(make_engine())


@pytest.mark.parametrize(("make", "name"), [(RunParams, "forced"), (Observe, "track")])
@pytest.mark.parametrize("ids", [3, "ab", [1.5], [True], [None]])
def test_what_is_no_list_of_ids_is_refused(make, name, ids):
    with pytest.raises(InputError, match=f"{name} must be token ids"):
        make(**{name: ids})


# -- observed ----------------------------------------------------------------------------------


@given(st.sampled_from([GREEDY, SAMPLED]), st.integers(0, 5), st.integers(0, 3), st.integers(1, 9))
@settings(max_examples=40)
def test_an_observed_step_is_its_definition(params, count, top, rows):
    wanted = Observe(top=top, track=(END, 3), stages=True, after_chain=True)
    request = force(MockRequest(PROMPT, params, LONG, observe=wanted), range(count))
    tokens = list(PROMPT)
    for step in steps(request, make_engine(rows=rows, block=4)):
        history = History(PROMPT, tokens[len(PROMPT) :])
        chain = build_chain(params)
        states = run_stages(chain, noise(tuple(tokens)), Context(history))
        luck = (params.seed, len(tokens)) if params.temperature else None
        seen = observe(wanted, chain, states, step.token_id, luck)
        assert step.observed == seen
        tokens.append(step.token_id)


@pytest.mark.parametrize("wanted", [Observe(top=20, track=(END,)), Observe(track=(1, 2))])
@pytest.mark.parametrize("speculate", ["off", "ngram", "jacobi"])
def test_observing_changes_nothing(wanted, speculate):
    seen = replace(DRAWN, run=RunParams(speculate=speculate), observe=wanted)
    assert seen.run_on(make_engine()) == DRAWN.run_on(make_engine())
    assert all(step.observed for step in steps(seen))


def test_a_step_is_not_observed_unless_asked():
    assert not any(step.observed for step in steps(DRAWN))


def test_the_phases_of_a_step_are_those_of_all_its_tokens(monkeypatch):
    ticks = iter(range(100, 10_000, 7))
    monkeypatch.setattr("cutaway.engine.loop.engine.perf_counter", lambda: float(next(ticks)))
    engine = make_engine(rows=len(PROMPT), max_logit_rows=16)
    force(DRAWN, range(16)).add_to(engine)
    first, second = steps_of(engine.step()), steps_of(engine.step())
    assert (len(first), len(second)) == (1, 8)
    for step in first + second:
        phases = step.phases
        assert (phases.schedule + phases.draft, phases.run) == (7.0, 7.0)
        assert phases.sample == 14.0  # what is to be drawn before the run, and the draws after it
    assert len({id(step.phases) for step in second}) == 1
    assert first[0].phases is not second[0].phases


# -- seeds -----------------------------------------------------------------------------------------


TWELVE_TOKENS = StopParams(max_tokens=12, ignore_eos=True)


def sampled(seed, temperature=1.5):
    params = SamplingParams(temperature=temperature, top_p=1, seed=seed)
    return MockRequest(tuple(b"luck"), params, TWELVE_TOKENS)


@pytest.mark.parametrize(("one", "other"), [((11,), (11,)), ((1, 0), (2, 0))])
def test_the_same_seed_or_none_that_is_needed_gives_the_same_text(one, other):
    assert sampled(*one).run_on(make_engine()) == sampled(*other).run_on(make_engine())


@pytest.mark.parametrize("other", [0, 12, 11 + 2**32, 2**64 - 1])
def test_another_seed_gives_another_text(other):
    ours, theirs = (sampled(seed).run_on(make_engine()) for seed in (11, other))
    assert ours.token_ids != theirs.token_ids
    assert ours.fingerprints[0] == theirs.fingerprints[0], "the first logits know no seed"


def test_samples_share_what_was_checked():
    """Each would check as many biases as there are tokens."""
    params = SamplingParams(logit_bias={1: 2.0, 3: 4.0}, seed=5)
    first, second = Request(prompt_token_ids=(1,), sampling=params).samples(2)
    assert first.sampling.seed == 5 != second.sampling.seed
    assert first.sampling.logit_bias is second.sampling.logit_bias is params.logit_bias


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_a_seed_that_was_given_is_told(seed):
    assert sampled(seed).add_to(make_engine()).seed == seed


def test_a_seed_that_was_not_given_is_chosen_told_and_reproduces():
    one = sampled(None).finish()
    assert type(one.sequence.seed) is int
    assert sampled(one.sequence.seed).run_on(make_engine()) == one.written


def test_chosen_seeds_differ():
    engine = make_engine(noise)
    assert len({sampled(None).add_to(engine).seed for _ in range(20)}) == 20


def test_luck_does_not_depend_on_who_else_draws():
    engine = make_engine()
    twins = [sampled(11).add_to(engine) for _ in range(3)]
    steps = run_to_end(engine)
    alone = sampled(11).run_on(make_engine())
    assert [read_written(twin, steps) for twin in twins] == [alone] * 3


@pytest.mark.parametrize("seed", [None, 0, 2**64 - 1])
def test_who_knows_the_first_sample_of_a_request_knows_what_the_engine_makes_of_it(seed):
    every = sampled(seed).to_request().samples(3)
    assert [s.request for s in make_engine().add(every[0], 3)] == every
    assert len({request.sampling.seed for request in every}) == 3
