"""A look at any step of any run is of the row that ran, and disturbs nobody."""

import os
from dataclasses import replace

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM, CutawayError, InputError
from cutaway.compute.backends.cpu import tiers
from cutaway.features.inside.lens import nearest
from cutaway.features.inside.look import inside
from cutaway.features.inside.summary import TERM_LEVELS, heads, page_arrays
from cutaway.trace import Trace
from support.block_integrity import check_blocks
from support.engine_mock import forget_cached
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 8, "kv_heads": 2, "head_dim": 20, "hidden": 64, "feed_forward": 96, "layers": 3}
WINDOWS = {"llama.attention.sliding_window": 40, "llama.attention.sliding_window_pattern": 3}
MODELS = {
    "F32": {"format": "F32"},
    "Q8_0": {"format": "Q8_0"},
    "windows": {"format": "Q8_0", "metadata": WINDOWS},
    "codes": {"format": "Q8_0", "metadata": WINDOWS},
}
KV = {"codes": "q8_0"}
PROMPT = np.random.default_rng(0).integers(3, 260, 50).tolist()
STEPS = 70
OPTIONS = {"max_tokens": STEPS, "temperature": 0.8, "seed": 5, "ignore_eos": True}
FEW = {"logit_bias": dict.fromkeys(range(70, 74), 9.0)}  # tokens that can be guessed
WAYS = {
    "alone": {},
    "guessed": FEW | {"speculate": "ngram"},
    "drafted": FEW,  # by another model
    "naive": {"kv_cache": False},
}


class Made(dict):
    """Short enough to be shown where a test fails."""

    def __repr__(self):
        return "…"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("look")
    return {
        name: write_tiny_llama(folder / f"{name}.gguf", **SHAPE, context=256, **more)
        for name, more in MODELS.items()
    }


@pytest.fixture(scope="module")
def traces(paths, tmp_path_factory, free_drafts):
    """By model and way; each was written beside others, that began alike or not."""
    folder, made = tmp_path_factory.mktemp("traces"), Made()
    for name, path in paths.items():
        llm = LLM(path, threads=2, kv=KV.get(name, "f16"))
        llm.load_draft(f"draft:{paths['F32']}")
        others = [llm.stream(PROMPT[:n] + [9] * n, **OPTIONS) for n in (3, 40)]
        for way, more in WAYS.items():
            drafts = {"speculate": f"draft:{paths['F32']}"} if way == "drafted" else {}
            file = folder / f"{name}-{way}.jsonl"
            llm.generate(PROMPT, **OPTIONS | more | drafts, trace=file)
            made[name, way] = Trace.read(file)
        assert any(step.source == "draft" for step in made[name, "drafted"].steps)
        for other in others:
            other.close()
    return made


@pytest.fixture(scope="module")
def llms(paths):
    """By model and tier, with and without a prefix cache, and little memory."""
    made = Made()
    for name, path in paths.items():
        for threads, tier in enumerate(tiers(), start=1):
            os.environ["CUTAWAY_ISA"] = tier
            try:
                how = {"threads": threads, "prefix_cache": tier != "avx2", "kv_tokens": 160}
                made[name, tier] = LLM(path, **how, kv=KV.get(name, "f16"))
            finally:
                del os.environ["CUTAWAY_ISA"]
    return made


@given(
    name=st.sampled_from([*MODELS]), way=st.sampled_from([*WAYS]), tier=st.sampled_from(tiers()),
    step=st.integers(0, STEPS - 1), cold=st.booleans(),
)  # fmt: skip
@settings(max_examples=60)
def test_every_row_is_the_one_on_record(llms, traces, name, way, tier, step, cold):
    llm, trace = llms[name, tier], traces[name, way]
    if cold:
        forget_cached(llm.engine.blocks)
    look = inside(llm, trace, step)
    assert look.is_as_run
    assert look.row_hash == trace.steps[step].logits_hash
    assert look.weights.shape == (3, 8, len(PROMPT) + step)
    found, lens = look.logit_attribution(), look.lens(1)
    assert sum(found.parts.values()) + found.rounding == pytest.approx(found.total, abs=1e-4)
    assert lens.drawn[-1] == trace.steps[step].sampled_id
    check_blocks(llm.engine.blocks, [])  # nobody holds anything
    assert llm.engine.is_idle


@pytest.mark.parametrize("name", MODELS)
def test_a_page_has_the_scores_whose_softmax_are_the_weights(llms, traces, name):
    look = inside(llms[name, tiers()[0]], traces[name, "alone"], 9)
    arrays = page_arrays(look, look.logit_attribution(), None)
    whole = np.log(np.exp(look.scores).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(np.exp(look.scores - whole), look.weights, atol=1e-12)
    weights = np.exp(arrays["looked.scores"] - whole)
    np.testing.assert_allclose(weights, arrays["looked.weights"], rtol=1e-5)
    terms = (arrays["looked.terms"].astype(float) - TERM_LEVELS) / TERM_LEVELS
    assert (np.abs(terms).max(axis=-1) == 1).all()
    for layer in look.attending:
        exact = look.score_terms(layer, arrays["looked.positions"][layer])
        np.testing.assert_allclose(exact.sum(axis=-1), arrays["looked.scores"][layer], rtol=1e-5)
        most = arrays["looked.most"][layer][..., None]
        assert (np.abs(terms[layer] * most - exact) <= 0.5001 * most / TERM_LEVELS).all()


def test_positions_that_a_layer_does_not_read_have_no_score(llms, traces):
    look = inside(llms["windows", tiers()[0]], traces["windows", "alone"], 9)
    assert max(look.first_seen) > 0
    for layer, first in enumerate(look.first_seen):
        assert np.isneginf(look.scores[layer, :, :first]).all()
        assert np.isfinite(look.scores[layer, :, first:]).all()


def test_texts_that_are_written_meanwhile_are_not_changed(paths, traces):
    llm = LLM(paths["Q8_0"], threads=2)
    alone = llm.generate(PROMPT[:20], **OPTIONS).fingerprint
    stream = llm.stream(PROMPT[:20], **OPTIONS)
    for i, _ in enumerate(stream):
        if i % 7 == 0:
            inside(llm, traces["Q8_0", "alone"], i)
    assert stream.completion().fingerprint == alone


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_text_of_one_token(paths, tmp_path, backend):
    llm = LLM(paths["F32"], backend=backend)
    llm.generate([7], **OPTIONS | {"max_tokens": 1}, trace=tmp_path / "run.jsonl")
    look = inside(llm, Trace.read(tmp_path / "run.jsonl"), 0)
    assert look.is_as_run
    np.testing.assert_array_equal(look.weights, np.ones((3, 8, 1)))
    assert look.sinks.all()
    assert look.logit_attribution().total != 0


def test_the_reference_says_that_it_is_not_what_ran(paths, traces):
    look = inside(LLM(paths["F32"], backend="reference"), traces["F32", "alone"], 3)
    assert not look.is_as_run
    assert look.lens().drawn is None
    exact = inside(LLM(paths["F32"]), traces["F32", "alone"], 3)
    np.testing.assert_allclose(look.weights, exact.weights, atol=0.02)
    assert np.abs(look.weights - exact.weights).max() > 0
    with pytest.raises(InputError, match="other weights than the trace"):
        inside(LLM(paths["Q8_0"], backend="reference"), traces["F32", "alone"], 3)


def test_another_model_is_refused(paths, traces):
    with pytest.raises(CutawayError, match="the logits of step 4 are not those on record"):
        inside(LLM(paths["Q8_0"]), traces["F32", "alone"], 3)


def test_draws_that_cannot_be_repeated_are_left_out(paths, tmp_path):
    llm = LLM(paths["F32"])
    llm.generate("ab", trace=tmp_path / "run.jsonl", processors=[lambda _, row: row], max_tokens=2)
    assert inside(llm, Trace.read(tmp_path / "run.jsonl"), 1).lens().drawn is None


@pytest.mark.parametrize(
    "more",
    [
        {"regex": "(ab|b)( a[0-9]?){2,9}!"}, {"forced": (259, 260)}, {"xtc_probability": 0.5},
        {"repetition_penalty": 1.3, "top_k": 40, "min_tokens": 3}, {"temperature": 0},
    ],
)  # fmt: skip
def test_the_same_chain_luck_and_constraint_draw_again(paths, tmp_path, more):
    llm = LLM(paths["F32"])
    options = {"max_tokens": 12, "seed": 5, "temperature": 1.0} | more
    llm.generate("ab", trace=tmp_path / "run.jsonl", **options)
    trace = Trace.read(tmp_path / "run.jsonl")
    for step in trace.steps:
        drawn = inside(llm, trace, step.index).lens(1).drawn
        assert drawn is not None
        assert drawn[-1] == step.sampled_id


def test_what_cannot_be_asked(paths, traces):
    llm, trace = LLM(paths["F32"]), traces["F32", "alone"]
    for step in (-1, STEPS, "3"):
        with pytest.raises(InputError, match="step"):
            inside(llm, trace, step)
    with pytest.raises(InputError, match="no steps"):
        inside(llm, replace(trace, steps=(), end=None), 0)
    look = inside(llm, trace, 0)
    with pytest.raises(InputError, match="the token of the step"):
        look.logit_attribution(look.step.token_id)
    for rival in (-1, 264, "no such token"):
        with pytest.raises(InputError):
            look.logit_attribution(rival)
    with pytest.raises(InputError, match=r"no 'attn_norm'; some are blk\.0\.attn_norm"):
        look.tensor("attn_norm")
    assert look.tensor("blk.1.attn_output").shape == (64,)
    with pytest.raises(InputError, match="top"):
        look.lens(0)


def test_a_lens_knows_where_the_answer_settled(paths, traces):
    look = inside(LLM(paths["F32"]), traces["F32", "alone"], 9)
    lens = look.lens()
    is_first = lens.rank == 1
    if is_first[-1]:
        assert is_first[lens.settled :].all()
        assert lens.settled == 0 or not is_first[lens.settled - 1]
    assert (lens.drawn[lens.draw_settled :] == lens.drawn[-1]).all()
    assert lens.ids.shape == lens.logprobs.shape == (4, 5)


def test_a_head_that_looks_behind_an_earlier_place_of_its_token(paths, traces):
    """By brute force, over all heads of a text that repeats itself."""
    trace = traces["F32", "guessed"]
    for step in (20, 40, 69):
        look = inside(LLM(paths["F32"]), trace, step)
        ids, last = look.token_ids, len(look.token_ids) - 1
        for head in heads(look, look.logit_attribution()):
            weight = look.weights[head.layer, head.head]
            same = sum(weight[j] for j in range(last) if ids[j] == ids[last])
            after = sum(weight[j + 1] for j in range(last - 1) if ids[j] == ids[last])
            assert (head.same, head.induction) == pytest.approx((same, after))
            assert head.previous == weight[-2]
            assert 0 <= head.entropy <= 1 + 1e-9


@pytest.mark.parametrize("name", ["F32", "Q8_0"])
def test_the_nearest_embeddings_by_brute_force(paths, traces, name, monkeypatch):
    monkeypatch.setattr("cutaway.features.inside.lens._AT_ONCE", 64 * 50)  # the table in pieces
    llm = LLM(paths[name])
    table = llm.backend.weight("token_embd.weight").astype(float)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    for token in (0, 7, len(table) - 1):
        found, cosine = nearest(llm, token, top=9), unit @ unit[token]
        order = [i for i in np.argsort(-cosine) if i != token][:9]
        assert found.ids.tolist() == order
        np.testing.assert_allclose(found.cosine, cosine[order], atol=1e-6)
    look = inside(llm, traces[name, "alone"], 5)
    assert look.nearest(3).ids.tolist() == nearest(llm, look.token_ids[-1], 3).ids.tolist()
    for wrong in ({"token": len(table)}, {"token": 1, "top": 0}):
        with pytest.raises(InputError, match=r"token|top"):
            nearest(llm, **wrong)


# -- a model made by hand: its head that looks back a token, and its one that copies, are found ----
# Each of 16 tokens is a direction. The first layer's head writes the direction of the token before
# into a place of its own; the second's looks for that place with the direction of the token
# here, and writes the token there: after a second "x" comes what came after the first.


TOKENS, HIDDEN, DIM = 16, 64, 32
HERE, BEFORE, ONE = slice(0, 16), slice(16, 32), 32  # places in the stream
TURNED, PLAIN = 16, slice(16, 32)  # of a head's numbers, how many have a position, and the rest
FIRST_ID = 3


def weights():
    """By tensor: of the norms ones, of all that is not named zeros."""
    code, turn = np.eye(TOKENS), 10000.0 ** (-np.arange(8) / 8)
    embedding = np.zeros((264, HIDDEN))
    embedding[FIRST_ID : FIRST_ID + TOKENS, HERE], embedding[:, ONE] = code, 1
    key, query, value, copy = (np.zeros((2 * DIM, HIDDEN)) for _ in range(4))
    key[0:TURNED:2, ONE] = 5
    query[0:TURNED:2, ONE], query[1:TURNED:2, ONE] = 5 * np.cos(turn), -5 * np.sin(turn)
    value[PLAIN, HERE] = code
    copy[BEFORE, PLAIN] = 0.2 * code  # of the stream, (HIDDEN, 2 * DIM)
    look_for, offer, write = (np.zeros((2 * DIM, HIDDEN)) for _ in range(3))
    look_for[PLAIN, HERE], offer[PLAIN, BEFORE] = 5 * code, 5 * code
    write[HERE, PLAIN] = code
    return {
        "token_embd": embedding, "output": 4 * embedding * (np.arange(HIDDEN) < TOKENS),
        "blk.0.attn_q": query, "blk.0.attn_k": key, "blk.0.attn_v": value,
        "blk.0.attn_output": copy, "blk.1.attn_q": look_for, "blk.1.attn_k": offer,
        "blk.1.attn_v": value, "blk.1.attn_output": write,
    }  # fmt: skip


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    path = tmp_path_factory.mktemp("induction") / "by-hand.gguf"
    sizes = {"heads": 2, "kv_heads": 2, "head_dim": DIM, "hidden": HIDDEN, "layers": 2}
    write_tiny_llama(path, **sizes, metadata={"llama.rope.dimension_count": TURNED})
    made = weights()
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        name = tensor.name.removesuffix(".weight")
        tensor.data[...] = made.get(name, 1.0 if name.endswith("norm") else 0.0)
    return LLM(path)


@pytest.mark.parametrize("length", [2, 5, 8, 11])  # not 1: position 0 has none before it but itself
def test_the_heads_are_found_by_their_weights_and_attributions(by_hand, tmp_path, length):
    order = np.random.default_rng(length).permutation(TOKENS)[:12] + FIRST_ID
    prompt, expected = [*order.tolist(), *order[:length].tolist()], int(order[length])
    done = by_hand.generate(prompt, temperature=0, max_tokens=1, trace=tmp_path / "run.jsonl")
    assert [*done.token_ids] == [expected]
    look = inside(by_hand, Trace.read(tmp_path / "run.jsonl"), 0)
    found = look.logit_attribution()
    by_name = {(head.layer, head.head): head for head in heads(look, found)}
    assert by_name[0, 0].previous > 0.95
    assert by_name[1, 0].induction > 0.95
    assert max(h.induction for place, h in by_name.items() if place != (1, 0)) < 0.2
    assert max(h.previous for place, h in by_name.items() if place != (0, 0)) < 0.2
    assert max(found.parts, key=lambda name: abs(found.parts[name])) == "L1.attn"
    assert found.positions[1, 0].argmax() == length  # where it stood before
    assert found.heads[1, 0] > 0.95 * found.total
    assert look.lens(1).ids[:, 0].tolist() == [prompt[-1], prompt[-1], expected]
