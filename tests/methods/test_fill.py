"""Fills masks with a causal model, by Bayes' rule: compared with enumeration."""

import json

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from support.random_llama import write_tiny_llama
from support.shares import softmax


def enumerated(llm, before, behind, candidates):
    """p(v | rest) of each candidate, from logits of every whole text."""
    found = {}
    for ids in candidates:
        text = [*before, *ids, *behind]
        rows = llm.logits(text)
        first = len(before) - 1
        chances = (softmax(rows[i])[text[i + 1]] for i in range(first, len(text) - 1))
        found[ids] = float(np.prod([*chances]))
    return found


def text_tokens(llm, *, spaced):
    for i in range(llm.tokenizer.vocab_size):
        data = llm.tokenizer.token_bytes(i)
        if data and (data.startswith(b" ") or not spaced):
            yield (i,)


@pytest.mark.parametrize(
    ("text", "before", "behind", "spaced"),
    [
        ("ab[MASK]ba a", "ab", "ba a", False),
        ("ab ba [MASK] ab", "ab ba", " ab", True),
        ("a[MASK]", "a", "", False),
        ("ab " * 20 + "[MASK] a", "ab " * 19 + "ab", " a", True),
    ],
)
def test_bayes_over_all_candidates_is_every_whole_text_enumerated(
    tiny, text, before, behind, spaced
):
    encode = tiny.tokenizer.encode
    start, end = encode(before), encode(behind, goes_on=True)
    every = enumerated(tiny, start, end, text_tokens(tiny, spaced=spaced))
    total = sum(every.values())
    filled = tiny.fill(text, top=1000, candidates=1000)
    assert filled.method == "bayes"
    [found] = filled.masks
    assert {c.token_ids for c in found} == set(every)
    assert [c.score for c in found] == sorted((c.score for c in found), reverse=True)
    for one in found:
        assert one.score == pytest.approx(every[one.token_ids] / total, rel=1e-4)
    prior = softmax(tiny.logits(start)[-1])
    assert filled.covered == pytest.approx(sum(prior[i] for (i,) in every))


def test_bayes_over_some_candidates_is_exact_among_these(tiny):
    encode = tiny.tokenizer.encode
    start, end = encode("ab"), encode("ba ab", goes_on=True)
    prior = tiny.logits(start)[-1]
    likeliest = [i for i in np.argsort(-prior, kind="stable") if tiny.tokenizer.token_bytes(int(i))]
    some = enumerated(tiny, start, end, [(int(i),) for i in likeliest[:7]])
    filled = tiny.fill("ab[MASK]ba ab", top=3, candidates=7)
    best = sorted(some, key=some.get, reverse=True)[:3]
    assert [c.token_ids for c in filled.masks[0]] == best
    for one in filled.masks[0]:
        assert one.score == pytest.approx(some[one.token_ids] / sum(some.values()), rel=1e-4)
    assert filled.covered == pytest.approx(softmax(prior)[likeliest[:7]].sum())


def test_targets_of_several_tokens_are_scored_whole(tiny):
    encode = tiny.tokenizer.encode
    start, end = encode("ab"), encode("ba", goes_on=True)
    targets = ["a", "xyz", "ab"]
    pieces = [tuple(encode(t, goes_on=True)) for t in targets]
    assert max(map(len, pieces)) > 2
    considered = {*text_tokens(tiny, spaced=False), *pieces}
    every = enumerated(tiny, start, end, considered)
    filled = tiny.fill("ab[MASK]ba", targets=targets, candidates=1000)
    assert {c.token_ids for c in filled.masks[0]} == set(pieces)
    for one in filled.masks[0]:
        assert one.score == pytest.approx(
            every[one.token_ids] / sum(every.values()), rel=1e-4, abs=1e-12
        )
    assert {c.token_id is None for c in filled.masks[0]} == {True, False}


def test_a_target_that_is_given_twice_counts_once(tiny):
    once = tiny.fill("ab [MASK] ba", targets=["xyz"], candidates=3)
    assert tiny.fill("ab [MASK] ba", targets=["xyz", " xyz"], candidates=3) == once


def test_several_masks_together_are_every_pair_enumerated(tiny):
    """Nothing is behind the second, so that one text each gives a whole row of pairs."""
    encode = tiny.tokenizer.encode
    start, middle = encode("ab"), encode("ba", goes_on=True)
    first, pairs = softmax(tiny.logits(start)[-1]), {}
    tokens = [i for (i,) in text_tokens(tiny, spaced=False)]
    for v in tokens:
        rows = tiny.logits([*start, v, *middle], len(start))
        p = first[v] * np.prod([softmax(row)[t] for row, t in zip(rows, middle, strict=False)])
        last = softmax(rows[-1])
        pairs |= {(v, w): p * last[w] for w in tokens}
    filled = tiny.fill("ab[MASK]ba[MASK]", top=4, candidates=1000)
    best = sorted(pairs, key=pairs.get, reverse=True)[:4]
    assert [tuple(c.token_id for c in one.candidates) for one in filled.joint] == best
    for one, pair in zip(filled.joint, best, strict=True):
        assert one.score / filled.joint[0].score == pytest.approx(
            pairs[pair] / pairs[best[0]], rel=1e-4
        )
    assert len(filled.masks) == 2
    assert all(sum(c.score for c in mask) <= 1 + 1e-9 for mask in filled.masks)


def test_filling_in_goes_on_beside_texts_and_leaves_the_model_as_it_was(tiny):
    text = tiny.generate("ab ba", seed=1, max_tokens=12)
    stream = tiny.stream("ab ba", seed=1, max_tokens=12)
    next(stream)
    beside = tiny.fill("ab ba [MASK] ab")
    assert stream.finish().fingerprint == text.fingerprint
    assert tiny.fill("ab ba [MASK] ab") == beside
    assert tiny.engine.is_idle


@pytest.mark.model
def test_the_capital_of_france(smollm2_path):
    with LLM(smollm2_path, progress=False) as llm:
        filled = llm.fill("Paris is the [MASK] of France.", targets=["capital", "largest city"])
        assert filled.masks[0][0].text == " capital"
        assert filled.masks[0][0].score > 0.9
        assert 0.3 < filled.covered < 1


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        ({"text": "ab"}, r"no mask: write \[MASK\] where"),
        ({"text": 3}, "text must be a string"),
        ({"text": "a[MASK]", "top": 0}, "top must be between 1 and 1000"),
        ({"text": "a[MASK]", "candidates": 0}, "candidates must be between 1 and 1000"),
        ({"text": "a[MASK]", "targets": "ab"}, "targets must be a list of texts"),
        ({"text": "a[MASK]", "targets": ["a", ""]}, "targets must be a list of texts"),
        ({"text": "a[MASK]b[MASK]", "targets": ["a"]}, "only one mask can have them"),
        (
            {"text": "a" * 600 + "[MASK]"},
            "602 tokens with what is filled in, and the context is 512",
        ),
    ],
)
def test_what_cannot_be_filled_in_is_refused_in_a_sentence(tiny, ask, sentence):
    with pytest.raises(InputError, match=sentence):
        tiny.fill(**ask)


def test_something_must_be_before_the_mask_or_a_begin_token(tiny, tmp_path):
    assert tiny.fill("[MASK]ab").masks[0]
    metadata = {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": None}
    with (
        LLM(write_tiny_llama(tmp_path / "t.gguf", metadata=metadata)) as llm,
        pytest.raises(InputError, match="nothing is before the mask"),
    ):
        llm.fill("[MASK]ab")


def test_the_command_prints_tables_and_json(tiny_path, capsys):
    base = ["fill", "-m", str(tiny_path), "ab ba [MASK] ab", "-q", "--candidates", "20"]
    assert main([*base, "--top", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mask\n")
    assert "by Bayes' rule, among candidates that are" in out
    assert main([*base, "--targets", "a,ab", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {tuple(c) for c in said["masks"][0]} == {
        ("token_id", "token_ids", "token", "text", "score")
    }
    assert {c["text"].strip() for c in said["masks"][0]} == {"a", "ab"}
    assert main(["fill", "-m", str(tiny_path), "ab", "-q"]) == 2
    assert "the text has no mask" in capsys.readouterr().err
