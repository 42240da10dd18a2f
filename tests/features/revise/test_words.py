"""Revising whole words, as a model proposes them that sees what is behind them."""

import json
import re
from math import log

import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from support.revised import logprobs

QUICK = "ab The quick brown quick fox, ab!"


@pytest.fixture(scope="module", params=["bert", "roberta"])
def filler_folder(request, tmp_path_factory):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    from support.random_models import edit, save
    from support.tiny_tokenizers import roberta, wordpiece

    folder = tmp_path_factory.mktemp(request.param)
    kind, size = (roberta, 382) if request.param == "roberta" else (wordpiece, None)
    save(request.param, folder, tokenizer=lambda: kind(size) if size else kind())
    mask = "<mask>" if request.param == "roberta" else "[MASK]"
    edit(folder / "tokenizer_config.json", mask_token=mask)
    return folder


@pytest.fixture(scope="module")
def filler(filler_folder):
    with LLM(filler_folder, backend="reference", progress=False) as llm:
        yield llm


def of_words(llm, filler, draft=QUICK, **more):
    given = {"rule": "better", "share": 1.0, "candidates": 4, **more}
    return llm.revise("ba", draft, filler=filler, **given)


def test_a_word_is_replaced_by_the_filler_s_best_if_the_judge_agrees(tiny, filler):
    done = of_words(tiny, filler, sweeps=2)
    words = re.findall(r"\w+", QUICK)
    assert len(re.findall(r"\w+", done.text)) == len(words)
    assert sum(s is not None for s in done.surprises) == len(words)
    assert done.planned == len(done.trials) == 2 * len(words)
    assert done.settings["filler"] == filler.name
    head, text = list(done.prompt_token_ids), list(done.draft_token_ids)
    for trial in done.trials:
        at = trial.position - len(head)
        assert tuple(text[at : at + len(trial.was)]) == trial.was
        new = [*text[:at], *trial.proposed, *text[at + len(trial.was) :]]
        if trial.proposed:
            old, tried = (re.findall(r"\w+|\W+", tiny.detokenize(ids)) for ids in (text, new))
            assert len(old) == len(tried)
            [(was, word)] = [(a, b) for a, b in zip(old, tried, strict=True) if a != b]
            assert (was[0].isupper(), was != word) == (word[0].isupper(), True)
            bits = [sum(logprobs(tiny, [*head, *ids], len(head))) for ids in (text, new)]
            assert bits == pytest.approx([trial.logprob_before, trial.logprob_after], rel=1e-6)
        assert trial.accepted == (trial.logprob_after > trial.logprob_before)
        text = new if trial.accepted else text
    assert tuple(text) == done.token_ids
    assert any(trial.accepted for trial in done.trials)
    told = [*done.pieces(tiny.tokenizer)]
    assert "".join(piece.was for piece in told) == QUICK
    assert "".join(piece.now for piece in told) == done.text


def test_the_filler_s_best_words_are_those_that_are_considered(tiny, filler):
    """Each of them in turn, as a text that is read by itself."""
    done = of_words(tiny, filler, share=0.01, candidates=3)
    [trial] = done.trials
    head, ids = done.prompt_token_ids, done.draft_token_ids
    at = trial.position - len(head)
    for word in re.finditer(r"\w+", QUICK):
        masked = f"{QUICK[: word.start()]}[MASK]{QUICK[word.end() :]}"
        best = filler.fill(masked, top=1000).masks[0]
        fits = [c.token[1:] for c in best if re.fullmatch(r" \w+", c.token)]
        if word[0][0].isupper():
            fits = [fit.capitalize() for fit in fits]
        fits = [fit for fit in dict.fromkeys(fits) if fit != word[0]][:3]
        texts = [QUICK[: word.start()] + fit + QUICK[word.end() :] for fit in fits]
        each = ([*head, *tiny.tokenizer.encode(one, goes_on=True)] for one in texts)
        judged = {tiny.detokenize(text): sum(logprobs(tiny, text, len(head))) for text in each}
        tried = tiny.detokenize([*head, *ids[:at], *trial.proposed, *ids[at + len(trial.was) :]])
        if tried in judged:
            assert judged[tried] == max(judged.values())
            assert trial.logprob_after == pytest.approx(judged[tried], rel=1e-6)
            return
    pytest.fail("none of the filler's words was tried")


def test_words_are_ranked_by_either_model(tiny, filler):
    by_judge, by_filler = (
        of_words(tiny, filler, surprise=name) for name in ("loop", "leave_one_out")
    )
    first = {}
    for word in re.finditer(r"\w+", QUICK):
        masked = f"{QUICK[: word.start()]}[MASK]{QUICK[word.end() :]}"
        [[one]] = filler.fill(masked, targets=[word[0]]).masks
        first[len(first)] = -log(one.score) / log(2)
    told = [s for s in by_filler.surprises if s is not None]
    assert told == pytest.approx([*first.values()], rel=1e-6)
    head = len(by_judge.prompt_token_ids)
    ids = [*by_judge.prompt_token_ids, *by_judge.draft_token_ids]
    each = [-p / log(2) for p in logprobs(tiny, ids, head)]
    at = by_judge.draft.index("brown")  # a byte is a token here, but for a, b, ab and " a"
    place = next(i for i in range(len(each)) if len(tiny.detokenize(ids[head : head + i + 1])) > at)
    assert by_judge.surprises[place] == pytest.approx(sum(each[place : place + 5]), rel=1e-5)


def test_the_end_of_a_draft_stays_behind_its_words(tiny, filler):
    end = min(tiny.tokenizer.end_ids)
    ids = [*tiny.tokenizer.encode(" quick fox", goes_on=True), end]
    assert of_words(tiny, filler, draft=ids).token_ids[-1] == end
    with pytest.raises(InputError, match="without special tokens in it"):
        of_words(tiny, filler, draft=[end, *ids])


def test_the_command_takes_a_filler(tiny, tiny_path, filler_folder, capsys):
    asked = ["--draft", QUICK, "--rule", "better", "--filler", str(filler_folder), "--json"]
    assert main(["revise", "-m", str(tiny_path), "ba", "--seed", "3", *asked]) == 0
    out, err = capsys.readouterr()
    with LLM(filler_folder, progress=False) as filler:
        done = tiny.revise("ba", QUICK, rule="better", filler=filler, seed=3)
    assert json.loads(out)["token_ids"] == list(done.token_ids)
    assert "trials, " in err


def test_what_a_filler_cannot_do_is_refused(tiny, filler):
    for more, sentence in (
        ({"rule": "gibbs"}, "filler is for the rule better"),
        ({"draft": "quick [MASK]"}, r"must not have \[MASK\] in it"),
        ({"draft": "?!"}, "nothing of the draft can be replaced"),
    ):
        with pytest.raises(InputError, match=sentence):
            of_words(tiny, filler, **more)
    with pytest.raises(InputError, match="filler must be an LLM, not 'bert'"):
        of_words(tiny, "bert")
    with pytest.raises(InputError, match="filler must be a model that sees a text as a whole"):
        of_words(tiny, tiny)
