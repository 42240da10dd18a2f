"""Fills masks with a bidirectional model: compared with transformers."""

import json

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from support.shares import softmax


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
