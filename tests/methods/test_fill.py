"""Fills masks: a causal model against enumeration, a bidirectional one against transformers."""

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
    assert "exact by Bayes' rule among candidates that hold" in out
    assert main([*base, "--targets", "a,ab", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {tuple(c) for c in said["masks"][0]} == {
        ("token_id", "token_ids", "token", "text", "score")
    }
    assert {c["text"].strip() for c in said["masks"][0]} == {"a", "ab"}
    assert main(["fill", "-m", str(tiny_path), "ab", "-q"]) == 2
    assert "the text has no mask" in capsys.readouterr().err


# -- a bidirectional model, compared with transformers -----------------------------------------


@pytest.fixture(scope="module", params=["bert", "roberta", "distilbert", "modernbert"])
def both(request, tmp_path_factory):
    """(ours, transformers' pipeline)."""
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    transformers = pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    from support.random_models import edit, save
    from support.tiny_tokenizers import modern_bert, roberta, wordpiece

    folder = tmp_path_factory.mktemp(request.param)
    others = {"roberta": lambda: roberta(382), "modernbert": lambda: modern_bert(380)}
    model = save(request.param, folder, tokenizer=others.get(request.param, wordpiece))
    mask = "<mask>" if request.param == "roberta" else "[MASK]"
    edit(folder / "tokenizer_config.json", mask_token=mask)
    added = transformers.AddedToken(
        mask, lstrip=request.param in others, normalized=False, special=True
    )
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), mask_token=added
    )
    pipe = transformers.pipeline("fill-mask", model=model, tokenizer=theirs)
    return LLM(folder, backend="reference", progress=False), pipe


def is_wordpiece(llm):
    return llm.config.architecture == "bert" and llm.tokenizer.token_name(4) == "[MASK]"


def test_candidates_are_those_of_transformers(both):
    ours, pipe = both
    text = "the quick [MASK] fox"
    theirs = pipe(text.replace("[MASK]", pipe.tokenizer.mask_token), top_k=7)
    filled = ours.fill(text, top=7)
    assert filled.method == "masked"
    assert [c.token_id for c in filled.masks[0]] == [one["token"] for one in theirs]
    for mine, one in zip(filled.masks[0], theirs, strict=True):
        assert mine.score == pytest.approx(one["score"], rel=1e-3)


def test_masks_are_independent_as_in_transformers(both):
    ours, pipe = both
    own = pipe.tokenizer.mask_token
    text = f"the {own} brown [MASK] jumps"
    theirs = pipe(text.replace("[MASK]", own), top_k=3)
    filled = ours.fill(text, top=3)
    for mine, one in zip(filled.masks, theirs, strict=True):
        assert [c.token_id for c in mine] == [c["token"] for c in one]


def whole(ours, parts):
    mask = ours.tokenizer.mask_id
    ids = ours.tokenizer.encode_parts(parts)
    return ids, [i for i, token_id in enumerate(ids) if token_id == mask]


def test_masks_together_are_the_first_and_then_the_second_given_it(both):
    ours, _ = both
    mask = ours.tokenizer.mask_id
    ids, (first, second) = whole(ours, ["the ", mask, " brown ", mask, " jumps"])
    pairs = {}
    alone = softmax(ours.logits(ids)[first])
    for v in np.argsort(-alone)[:12].tolist():
        ids[first] = v
        given = softmax(ours.logits(ids)[second])
        pairs |= {(v, w): alone[v] * given[w] for w in range(len(given))}
    best = sorted(pairs, key=pairs.get, reverse=True)[:4]
    joint = ours.fill("the [MASK] brown [MASK] jumps", top=4, candidates=12).joint
    assert [tuple(c.token_id for c in one.candidates) for one in joint] == best
    for one, pair in zip(joint, best, strict=True):
        assert one.score == pytest.approx(pairs[pair], rel=1e-4)


def test_a_target_of_several_pieces_is_scored_from_left_to_right(both):
    ours, _ = both
    mask = ours.tokenizer.mask_id
    space = "" if is_wordpiece(ours) else " "
    pieces = ours.tokenizer.encode(f"{space}foxes", goes_on=True)
    assert len(pieces) > 1
    expected = 1.0
    for n, piece in enumerate(pieces):
        cells = [*pieces[:n], *[mask] * (len(pieces) - n)]
        ids, (place, *_) = whole(ours, ["the quick", *cells, " jumps"])
        expected *= softmax(ours.logits(ids)[place])[piece]
    filled = ours.fill("the quick [MASK] jumps", targets=["foxes", "the"])
    scores = {c.text.strip(): c.score for c in filled.masks[0]}
    assert scores["foxes"] == pytest.approx(expected, rel=1e-4)
    the = ours.tokenizer.encode(f"{space}the", goes_on=True)
    [every] = ours.fill("the quick [MASK] jumps", top=1000).masks
    [one] = (c for c in every if [*c.token_ids] == the)
    assert scores["the"] == pytest.approx(one.score, rel=1e-4)


def test_a_word_without_tokens_is_no_target(both):
    ours, _ = both
    if not is_wordpiece(ours):
        pytest.skip("a tokenizer of bytes has tokens for every word")
    with pytest.raises(InputError, match="the model has no tokens for 'the 🎉'"):
        ours.fill("the [MASK]", targets=["the 🎉"])


@pytest.mark.parametrize("metric", ["original", "word_l2r"])
def test_pseudo_likelihood_is_each_token_s_while_it_is_masked(both, metric):
    ours, pipe = both
    text, mask = "the foxes' lazy dogs jumped 12 times", ours.tokenizer.mask_id
    said = pipe.tokenizer(text)
    whole, words = said["input_ids"], said.word_ids()
    assert max(map(words.count, {*words} - {None})) > 1
    expected = []
    for i, word in enumerate(words):
        if word is not None:
            hides = [j for j in range(i, len(words)) if words[j] == word]
            hidden = hides if metric == "word_l2r" else [i]
            ids = [mask if j in hidden else token_id for j, token_id in enumerate(whole)]
            expected.append(np.log(softmax(ours.logits(ids)[i])[whole[i]]))
    found = ours.pseudo_likelihood(text, metric)
    assert [*found.token_ids] == [i for i, w in zip(whole, words, strict=True) if w is not None]
    assert found.logprobs == pytest.approx(expected, rel=1e-4)
    assert found.total == pytest.approx(sum(expected), rel=1e-4)


def test_the_command_scores_a_text(both, tiny_path, capsys):
    ours, _ = both
    base = ["fill", "-m", str(ours.model.path), "--backend", "reference", "the foxes jump", "-q"]
    scored = ours.pseudo_likelihood("the foxes jump", "original")
    assert main([*base, "--score", "original", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(scored.to_dict()))
    assert main([*base, "--score", "original"]) == 0
    *rows, empty, last = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + len(scored.token_ids)
    assert rows[1].split()[0] == f"{-scored.logprobs[0] / np.log(2):.2f}"
    assert (empty, last.split()[-1]) == ("", "(original)")
    for args, sentence in (
        ([*base, "--score", "best"], "metric must be one of original, word_l2r"),
        ([*base, "--score", "original", "--targets", "a"], "without --targets: leave one out"),
        (["fill", "-m", str(tiny_path), "ab", "--score", "original"], "likelihood says"),
    ):
        assert main(args) == 2
        assert sentence in capsys.readouterr().err


def test_pseudo_likelihood_is_refused_where_it_is_none(both, tiny):
    ours, _ = both
    for ask, sentence in (
        (lambda: ours.pseudo_likelihood(""), "the text has no tokens"),
        (lambda: ours.pseudo_likelihood("a", "holistic"), "metric must be one of original, word_l"),
        (lambda: tiny.pseudo_likelihood("a"), "likelihood says"),
    ):
        with pytest.raises(InputError, match=sentence):
            ask()


def test_every_pair_of_marks_may_stand_anywhere(both):
    ours, _ = both
    for text, count in (("[MASK]", 1), ("[MASK][MASK]", 2), (" [MASK] a [MASK] [MASK]", 3)):
        filled = ours.fill(text, top=1, candidates=2)
        assert len(filled.masks) == count
        assert len(filled.joint) == (count > 1)
