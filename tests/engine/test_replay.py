"""Texts that go on where they were cut: bit for bit the text that was never cut."""

import pickle
import re
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.engine import (
    Autoregressive,
    ConstraintParams,
    Denoise,
    Ended,
    FinishReason,
    RunParams,
    Scored,
    Step,
    StopParams,
)  # fmt: skip
from cutaway.engine.canvas import Rule
from cutaway.errors import InputError, ReplayError
from cutaway.sampling import SamplingParams, derive_seed
from support.engine_mock import MockRequest, make_engine, run_to_end
from support.engine_requests import OBSERVES, RUNS, STOPS, often_wrong
from support.examples import few_or_many
from support.mock_backend import END, LETTERS, VOCAB, narrow

CONTEXT = 40
PROMPT = tuple(b"ab aab ")
DRAWN = SamplingParams(temperature=1.5, repetition_penalty=1.2, seed=4)
LONG = StopParams(max_tokens=30, ignore_eos=True)
TEXT = MockRequest(PROMPT, DRAWN, LONG)


class Even:
    """A check that comes to dead ends: after bb, nothing passes."""

    def allows(self, text, token):
        return b"bb" not in text and b"aaa" not in text + token


CONSTRAINTS = [
    ConstraintParams(),
    ConstraintParams(bad_words=("aba", "é"), min_tokens=5),
    ConstraintParams(allowed_token_ids=(*b"abc", END)),
    ConstraintParams(regex="(ab|ba|aa(é|bbbb))+!"),
    ConstraintParams(check=Even()),
    ConstraintParams(regex="[ab]{12,30}", check=Even()),
    ConstraintParams(heal=ord("a")),
]
DECODERS = [
    Autoregressive(),
    Autoregressive(),
    Denoise(Rule(order="left", block=1)),
    Denoise(Rule(order="margin", block=4, steps=2), 0, (5,)),
]


@st.composite
def texts(draw, decoders=DECODERS):
    """A request of any kind, of a canvas without what only the loop has."""
    sampling = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0, 0.7, 3]),
        top_p=st.sampled_from([1, 0.9]),
        repetition_penalty=st.sampled_from([1.0, 1.5]),
        presence_penalty=st.sampled_from([0, 0.5]),
        seed=st.integers(0, 99),
    )
    prompt = draw(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=12))
    request = MockRequest(
        tuple(prompt), draw(sampling), draw(STOPS), draw(RUNS), draw(OBSERVES),
        draw(st.sampled_from(CONSTRAINTS)), draw(st.sampled_from(decoders)),
    )  # fmt: skip
    if request.constraint.source:
        request = replace(request, stops=replace(request.stops, ignore_eos=False))
    if isinstance(request.decoder, Denoise):
        cells = min(request.stops.max_tokens, 16)
        request = replace(
            request, constraint=ConstraintParams(), run=RunParams(),
            observe=replace(request.observe, prompt_top=0),
            stops=replace(request.stops, max_tokens=cells),
        )  # fmt: skip
    return request


def engine_for(request, **given):
    sees_all = isinstance(request.decoder, Denoise) and request.decoder.suffix_ids
    attention = "bidirectional" if sees_all else "causal"
    return make_engine(narrow, context=CONTEXT, draft=often_wrong, attention=attention, **given)


def run(request, engine=None, company=()):
    """What is heard of a request: (steps, scores, end), but for how it was computed."""
    engine = engine or engine_for(request)
    others = [one.add_to(engine) for one in company[::2]]
    sequence = request.add_to(engine)
    others += [one.add_to(engine) for one in company[1::2]]
    events = [e for e in run_to_end(engine) if e.id == sequence.id]
    steps = [plain(e) for e in events if isinstance(e, Step)]
    scores = [row for e in events if isinstance(e, Scored) for row in e.rows]
    [end] = [e for e in events if isinstance(e, Ended)]
    usage = end.usage._replace(cached_tokens=0)
    return steps, scores, end._replace(id=0, speculation=None, usage=usage, error=str(end.error))


def plain(step):
    return step._replace(id=0, source="", phases=None)


def resumed(request, ids, **given):
    return replace(request, run=replace(request.run, replay=tuple(ids), **given))


@st.composite
def engines(draw):
    block = draw(st.integers(1, 5))
    whole = -(-CONTEXT // block)
    return {
        "block": block, "kv_blocks": whole * draw(st.integers(1, 3)) + draw(st.integers(0, 5)),
        "rows": draw(st.sampled_from([1, 2, 5, 30])), "max_num_seqs": draw(st.integers(1, 4)),
        "max_logit_rows": draw(st.sampled_from([1, 3, 64])),
        "max_draft_rows": draw(st.integers(0, 9)), "window": draw(st.sampled_from([0, 0, 3, 20])),
        "prefix_cache": draw(st.booleans()),
    }  # fmt: skip


SPECULATE = ["off", "ngram", "jacobi", "draft"]


@few_or_many(40, 300, texts(), engines(), st.lists(texts(DECODERS[:1]), max_size=3), st.data())
def test_a_text_that_is_cut_anywhere_goes_on_as_if_it_was_not(request_, way, company, data):
    whole = run(request_)
    told = [step.token_id for step in whole[0]]
    cut = data.draw(st.integers(0, len(told)))
    again = resumed(request_, told[:cut])
    if isinstance(request_.decoder, Denoise):
        way = way | {"window": 0}
        company = company if not request_.decoder.suffix_ids else []
        way["kv_blocks"] += -(-64 // way["block"])
    else:
        again = resumed(again, told[:cut], speculate=data.draw(st.sampled_from(SPECULATE)))
    if whole[2].reason is FinishReason.ERROR:  # of this text, and not of the replay
        cut = 0
    assert run(again, engine_for(request_, **way), company) == whole


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_at_every_cut_the_rest_is_the_same(constraint):
    stops = replace(LONG, ignore_eos=constraint.source is None)
    request = replace(TEXT, constraint=constraint, stops=stops)
    whole = run(request)
    told = [step.token_id for step in whole[0]]
    assert len(told) > 9
    for cut in range(len(told) + 1):
        assert run(resumed(request, told[:cut])) == whole


def test_a_text_that_took_tokens_back_is_among_them():
    request = replace(TEXT, constraint=ConstraintParams(check=Even()))
    assert request.finish(engine_for(TEXT)).sequence.backtracker.count > 0


@few_or_many(40, 200, texts(), st.data())
def test_every_wrong_token_is_found_where_it_stands(request_, data):
    steps, _, end = run(request_)
    if end.reason is FinishReason.ERROR or len(steps) <= len(request_.run.forced):
        return
    told = [step.token_id for step in steps]
    at = data.draw(st.integers(len(request_.run.forced), len(told) - 1))
    wrong = data.draw(st.integers(0, VOCAB - 1).filter(lambda one: one != told[at]))
    rest = data.draw(st.sampled_from([told[at + 1 :], [], [7] * 3]))
    found, _, ended = run(resumed(request_, [*told[:at], wrong, *rest]))
    assert ended.reason is FinishReason.ERROR
    named = rf"replay: token {at + 1} is {told[at]} ('.*'|\".*\") when it is drawn again, "
    assert re.match(named, ended.error)
    assert f"and {wrong} " in ended.error
    assert found[: at + 1] == steps[: at + 1]
    if isinstance(request_.decoder, Autoregressive) and request_.constraint.check is None:
        assert len(found) == at + 1


def test_a_replay_that_is_longer_than_its_text_is_an_error():
    told = [step.token_id for step in run(TEXT)[0]]
    steps, _, ended = run(resumed(TEXT, [*told, 3]))
    assert (len(steps), ended.reason) == (30, FinishReason.ERROR)
    assert ended.error.startswith(
        "replay: the text ends after 30 tokens (max_tokens), and the replay has 31: other weights"
    )


def test_a_sample_of_several_goes_on_as_a_request_of_its_own():
    engine = engine_for(TEXT)
    sequences = engine.add(TEXT.to_request(), 3)
    events = run_to_end(engine)
    for i, sequence in enumerate(sequences):
        seed = derive_seed(DRAWN.seed, i)
        assert (sequence.seed, derive_seed(seed, 0)) == (seed, seed)
        steps = [plain(e) for e in events if isinstance(e, Step) and e.id == sequence.id]
        own = replace(TEXT, params=replace(DRAWN, seed=seed))
        assert run(resumed(own, [s.token_id for s in steps[:11]]))[0] == steps


def test_a_replay_is_of_one_text():
    with pytest.raises(InputError, match="replay: it is of one text, and n must be 1"):
        engine_for(TEXT).add(resumed(TEXT, [1]).to_request(), 2)


def test_forced_and_replay_must_agree():
    assert RunParams(forced=(1, 2), replay=(1,)).replay == (1,)
    with pytest.raises(InputError, match=r"replay\[1\] is 3, and forced has 2 there"):
        RunParams(forced=(1, 2), replay=(1, 3, 4))


@pytest.mark.parametrize("ids", [[-1], [VOCAB]])
def test_ids_outside_the_vocabulary_are_refused(ids):
    with pytest.raises(InputError, match=rf"replay: token id {ids[0]} is not between 0 and 256"):
        resumed(TEXT, ids).add_to(make_engine())


def test_its_error_can_be_sent_to_another_process():
    error = ReplayError("replay: token 3 …")
    assert isinstance(pickle.loads(pickle.dumps(error)), ReplayError)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# -- speed -------------------------------------------------------------------------------------

TOLD = [step.token_id for step in run(TEXT)[0]]


def rows_of(request, **policy):
    engine = engine_for(request, **policy)
    run(request, engine)
    return engine.backend.runs


@pytest.mark.parametrize("kind", ["forced", "replay"])
@pytest.mark.parametrize(
    ("policy", "rows"),
    [
        ({"max_draft_rows": 0}, [len(PROMPT) + 25]),
        ({"max_logit_rows": 8}, [len(PROMPT) + 7, 8, 8, 2]),
        ({"rows": 10}, [10, 10, 10, 2]),
    ],
)
def test_known_tokens_are_read_with_the_prompt_as_many_as_a_step_may_have(kind, policy, rows):
    known = replace(TEXT, run=RunParams(**{kind: tuple(TOLD[:25])}))
    assert rows_of(known, **policy) == [*rows, *[1] * 4]


def test_known_tokens_are_read_beside_those_that_decode_as_prompts_are():
    engine = engine_for(TEXT, max_prefill_rows_while_decoding=6, kv_blocks=99)
    first = MockRequest((9, 9), DRAWN, LONG).add_to(engine)
    engine.step()
    resumed(TEXT, TOLD[:25]).add_to(engine)
    for _ in range(6):
        engine.step()
    assert engine.backend.runs[1:] == [6, 6, 6, 6, 6, 6]
    assert len(first.output_token_ids) == 7


def test_the_naive_loop_computes_a_token_at_a_time():
    again = resumed(TEXT, TOLD[:25], kv_cache=False)
    assert rows_of(again) == [*range(len(PROMPT), len(PROMPT) + 30)]


@pytest.mark.parametrize("speculate", SPECULATE)
def test_no_replayed_token_counts_as_speculation(speculate):
    sequence = resumed(TEXT, TOLD, speculate=speculate).finish(engine_for(TEXT)).sequence
    assert sequence.speculation.proposed == 0
    assert [*sequence.output_token_ids] == TOLD


def test_replayed_tokens_say_that_they_were_drawn():
    steps = resumed(TEXT, TOLD[:25]).finish(engine_for(TEXT)).steps
    assert {step.source for step in steps} == {"sampled"}


# -- replay smollm2 --------------------------------------------------------------------------------

# On SmolLM2: a text that was cut goes on with the same bits, beside other texts and alone.


SMOLLM2_PROMPT = "The keeper wrote a line every evening, and one day"
ASKED = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.0, "top_p": 0.9, "seed": 7}
WAYS = {
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3},
    "n-gram": {"speculate": "ngram"},
    "schema": {"json_schema": {"type": "array", "items": {"type": "string"}, "minItems": 2}},
    "scores": {"logprobs": 3, "prompt_logprobs": 2},
}


@pytest.fixture(scope="module")
def llm():
    with LLM("smollm2", progress=False) as llm:
        yield llm


@pytest.mark.model
@pytest.mark.parametrize("way", WAYS)
def test_a_text_that_was_cut_has_the_bits_of_the_whole(llm, way):
    asked = ASKED | WAYS[way]
    if way == "schema":
        asked |= {"ignore_eos": False}
    whole = llm.generate(SMOLLM2_PROMPT, **asked)
    with llm.stream("Another text beside it", max_tokens=200, seed=1) as beside:
        next(beside)
        for cut in (1, 17, len(whole.token_ids) - 1, len(whole.token_ids)):
            again = llm.generate(SMOLLM2_PROMPT, **asked, replay=whole.token_ids[:cut])
            assert (again.text, again.fingerprint) == (whole.text, whole.fingerprint)
            assert (again.logprobs, again.finish_reason) == (whole.logprobs, whole.finish_reason)


@pytest.mark.model
def test_another_seed_is_found_where_its_text_parts(llm):
    whole = llm.generate(SMOLLM2_PROMPT, **ASKED)
    other = llm.generate(SMOLLM2_PROMPT, **ASKED | {"seed": 8})
    pairs = zip(whole.token_ids, other.token_ids, strict=True)
    at = next(i for i, (one, two) in enumerate(pairs) if one != two)
    with pytest.raises(ReplayError, match=f"replay: token {at + 1} is {other.token_ids[at]} "):
        llm.generate(SMOLLM2_PROMPT, **ASKED | {"seed": 8}, replay=whole.token_ids)
