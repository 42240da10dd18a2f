"""A prompt that is read to both sides: in one step, shared by its equals, the same bits always."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM, FormatError, InputError
from cutaway.cli import model_card
from cutaway.compute.loading.info import ModelInfo
from cutaway.engine import ConstraintParams, RunParams, StopParams
from cutaway.engine.canvas import read_rule
from cutaway.engine.events import Started
from cutaway.features.revise.rules import Loop
from cutaway.methods.causal import adding_text
from cutaway.methods.prefix import check_prefix
from cutaway.methods.rows import GivenText
from cutaway.sampling import SamplingParams
from support.engine_mock import MockRequest, make_engine, run_to_end
from support.random_hrm import write_tiny_hrm
from support.random_llama import write_tiny_llama
from support.ways import Alone, Trial, Way, new_draft, new_engine, open_llm, repeating

KV_BLOCKS = 18
PROMPT = repeating(0, 20, 75)
NEIGHBOURS = (repeating(1, 5, 5), repeating(2, 7, 41))
STOPS = StopParams(max_tokens=24, ignore_eos=True)
FEW = dict.fromkeys(range(70, 74), 12.0)  # a text of few words repeats itself: drafts are right
LUCK = SamplingParams(temperature=1, top_p=1, logit_bias=FEW, seed=7)
GRAMMAR = ConstraintParams(regex="(ab|a b)*")
WAYS = [
    Way(*values)
    for values in product(
        ("alone", "beside", "late"), ("cold", "warm", "evicted"), (False, True),
        ("off", "ngram", "jacobi", "draft"), (1, 3),
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_hrm(tmp_path_factory.mktemp("prefix") / "tiny.gguf")


@pytest.fixture(scope="module")
def causal_path(tmp_path_factory):
    return write_tiny_hrm(tmp_path_factory.mktemp("causal") / "tiny.gguf", prefix_lm=False)


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "context": 256}
    path = write_tiny_llama(tmp_path_factory.mktemp("draft") / "tiny.gguf", **shape)
    return {"draft": new_draft(open_llm(path, 1, KV_BLOCKS))}


@pytest.mark.parametrize(
    ("threads", "rows", "ways"),
    [
        (2, 33, WAYS[::7]), (1, 7, WAYS[3::7]),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in ((1, 512, WAYS[1::3]), (3, 7, WAYS[2::3]))),
    ],
)  # fmt: skip
def test_no_way_of_writing_changes_a_text(path, drafts, threads, rows, ways):
    """A prompt of 75 tokens is longer than a step of 7 or 33, and is read in one step."""
    alone = Alone(new_engine(open_llm(path, 1, KV_BLOCKS)))
    engine = new_engine(open_llm(path, threads, KV_BLOCKS), rows=rows)
    trial = Trial(engine, drafts, PROMPT, NEIGHBOURS, cached=PROMPT)
    for way, constraint in product(ways, (ConstraintParams(), GRAMMAR)):
        trial.constraint = constraint
        trial.stops = replace(STOPS, ignore_eos=constraint is not GRAMMAR)
        counts = trial.write(way, LUCK)
        for request, wrote in trial.texts():
            assert wrote == alone.write(request), (way, constraint)
        assert (counts["preempted"] > 0) == way.preempted, (way, constraint)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_prompt_s_first_token_sees_its_last(path, causal_path, backend):
    """What is written depends on it; a text without a prompt is read from left to right."""
    ours, causal = (LLM(p, backend=backend) for p in (path, causal_path))
    assert [llm.config.attention for llm in (ours, causal)] == ["prefix-lm", "causal"]
    wrote = ours.generate(PROMPT, max_tokens=8, temperature=0, ignore_eos=True)
    ids, last = [*PROMPT, *wrote.token_ids[:-1]], len(PROMPT) - 1
    rows = ours.logits(ids, last, prompt_tokens=len(PROMPT))
    assert tuple(rows.argmax(1)) == wrote.token_ids
    text = ours.logits(ids, last)
    assert np.array_equal(text, causal.logits(ids, last, prompt_tokens=len(PROMPT)))
    assert np.abs(rows - text).max() > 1
    one = ours.logits(ids[:9], prompt_tokens=1)  # a prompt of one token sees itself alone
    assert np.array_equal(one, ours.logits(ids[:9]))


def test_a_prompt_is_never_cut_and_what_follows_may_be():
    engine = make_engine(attention="prefix-lm", rows=20, context=128)
    forced = RunParams(forced=PROMPT[:24])
    MockRequest(PROMPT, LUCK, STOPS, forced).add_to(engine)
    run_to_end(engine)
    assert engine.backend.runs == [len(PROMPT), 20, 3]


def test_only_the_same_prompt_shares_blocks(path):
    """Not one that goes on, nor the text itself; another salt shares nothing."""
    llm = LLM(path)
    options = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}

    def cached(prompt, **more):
        return llm.generate(prompt, **options, **more).usage.cached_tokens

    assert [cached(PROMPT), cached(PROMPT)] == [0, 64]
    assert [cached((*PROMPT, 5)), cached(PROMPT[:-1])] == [0, 0]
    assert [cached(PROMPT, cache_salt="a"), cached(PROMPT, cache_salt="a")] == [0, 64]
    llm.logits(PROMPT)
    assert cached(PROMPT) == 64
    likely = llm.score(PROMPT, [[7, 8], [9]])
    assert len(likely) == 2


def test_another_process_finds_the_same_prompt_alone(path, tmp_path):
    """On the disk, where a block's name has its salt's, too."""
    options = {"max_tokens": 4, "seed": 3, "ignore_eos": True}
    store = {"cache_dir": tmp_path / "cache", "cache_size": 2**24}
    with LLM(path, **store) as llm:
        wrote = llm.generate(PROMPT, **options)
    with LLM(path, **store) as llm:
        same, longer = llm.generate(PROMPT, **options), llm.generate((*PROMPT, 7), **options)
    assert same.fingerprint == wrote.fingerprint
    assert [same.usage.cached_tokens, longer.usage.cached_tokens] == [64, 0]


def test_equal_prompts_that_come_together_are_read_once():
    engine = make_engine(attention="prefix-lm", rows=40, block=4, context=64)
    for seed in range(3):
        MockRequest((9,) * 30, replace(LUCK, seed=seed), StopParams(max_tokens=2)).add_to(engine)
    started = [e for e in run_to_end(engine, []) if isinstance(e, Started)]
    assert sorted(event.cached_tokens for event in started) == [0, 0, 0]
    assert engine.backend.runs == [30, 1 + 2 + 2, 2]  # whole blocks have 28 of a prompt's tokens


def test_an_answer_s_likelihood_is_what_it_is_drawn_with(path):
    """To the bit, however the answers are scored."""
    llm = LLM(path)
    wrote = llm.generate(PROMPT, max_tokens=6, temperature=1, seed=2, ignore_eos=True, logprobs=1)
    likely, other = llm.score(PROMPT, [wrote.token_ids, [*wrote.token_ids[:3], 9]])
    assert likely.logprobs == tuple(step.logprob for step in wrote.steps)
    assert other.logprobs[:3] == likely.logprobs[:3]


@pytest.mark.parametrize("before", [1, 9])
def test_a_text_longer_than_a_window_is_read_from_left_to_right(path, causal_path, before):
    """The context of a window is a part of the text, and no prompt."""
    ours, causal = (
        LLM(p).likelihood(PROMPT, window=32, before=before) for p in (path, causal_path)
    )
    assert ours.logprobs == causal.logprobs
    assert len(ours.logprobs) == len(PROMPT) - 1


def test_the_tensors_of_a_text_are_those_of_its_rows(path):
    """With its prompt read to both sides; a later row changes no row of the prompt."""
    llm, ids = LLM(path), (*PROMPT, 5, 6)
    names = [llm.graph.attends[-1].out.name]
    [text] = llm.tensors(ids, names, prompt_tokens=75).values()
    for end in (75, 76, 77):
        row = llm.row(ids[:end], names, {}, prompt_tokens=75).tensors
        assert np.array_equal(text[end - 1], row[names[0]])
    [prompt] = llm.tensors(PROMPT, names, prompt_tokens=75).values()
    assert np.array_equal(prompt, text[:75])
    [causal] = llm.tensors(ids, names).values()
    assert (causal[:74] != text[:74]).any(axis=1).all()


def test_a_revision_draws_and_scores_after_the_same_prompt(path):
    """A draft that goes on is no part of the prompt."""
    llm, draft = LLM(path), repeating(3, 6, 9)
    model = Loop(llm, adding_text(llm.tokenizer), len(PROMPT))
    drawn = model.draw_tokens((*PROMPT, *draft), 4, 0.0, seed=1)
    rows = llm.logits([*PROMPT, *draft, *drawn[:-1]], 83, prompt_tokens=len(PROMPT))
    text_only = np.where(adding_text(llm.tokenizer), rows, -np.inf)
    assert drawn == tuple(text_only.argmax(1))
    [likely] = llm.score(PROMPT, [draft])
    done = llm.revise(PROMPT, draft, rule="metropolis", share=0.1, seed=5)
    assert done.bits_before == pytest.approx(-likely.total / np.log(2))


def test_what_is_weighed_before_a_suffix_is_what_the_model_writes(path):
    """The suffix is scored after the prompt and a text, and the prompt was read to both sides."""
    llm = LLM(path)
    wrote = llm.generate(PROMPT, suffix="abba", max_tokens=5, seed=3)
    suffix = llm.tokenizer.encode("abba", goes_on=True)
    [likely] = llm.score([*PROMPT], [[*wrote.token_ids, *suffix]])
    assert wrote.between.logprob == pytest.approx(sum(likely.logprobs[-len(suffix) :]))


def test_the_last_rows_of_texts_are_their_logits(path):
    llm = LLM(path)
    texts = [GivenText((*PROMPT, 5, 6), None, n) for n in (0, 70, 75, 77)]
    rows = dict(llm.last_rows(texts[2], texts))
    assert len({row.tobytes() for row in rows.values()}) == 4
    for i, (ids, _, n) in enumerate(texts):
        assert np.array_equal(rows[i], llm.logits(ids, len(ids) - 1, prompt_tokens=n)[0])
        assert np.array_equal(rows[i], llm.row(ids, [], {}, prompt_tokens=n).logits)


def test_what_a_prompt_read_to_both_sides_has_no_meaning_for_is_refused(path, tmp_path):
    llm, short = LLM(path), PROMPT[:40]
    for refused, sentence in (
        (lambda: llm.generate(short, prompt_logprobs=1), "prompt_logprobs: .* max_tokens 0"),
        (lambda: llm.generate(short, denoise=read_rule({"block": 1})), "denoise: .* leave it out"),
        (lambda: llm.generate(short, interventions=["knock_out 3"]), "interventions: .* leave "),
        (lambda: llm.save_prefix(tmp_path / "a.prefix", short), "prompt: this model reads it to"),
        (lambda: check_prefix(llm, tmp_path / "a.prefix"), "prompt: this model reads it to"),
        (lambda: llm.logits(short, 3, prompt_tokens=40), "start must be between 39 and 39"),
        (lambda: llm.logits(short, 3, prompt_tokens=41), "prompt_tokens must be between 0 and 40"),
    ):
        with pytest.raises(InputError, match=sentence):
            refused()
    assert len(llm.generate(short, max_tokens=0, prompt_logprobs=1).prompt_logprobs) == 39


def test_the_card_says_what_a_prompt_sees(path, causal_path):
    for file, says in ((path, True), (causal_path, False)):
        rows = [*model_card._rows(ModelInfo.read(file), 64)]
        assert (("", "causal, but a prompt sees all of itself") in rows) == says


def test_windows_are_refused(tmp_path):
    path = write_tiny_hrm(tmp_path / "tiny.gguf", window=8)
    with pytest.raises(FormatError, match="prefix_lm is true, and layers have windows"):
        LLM(path)
