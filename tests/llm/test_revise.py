"""Revising a draft with a model: what is on record, and the command. The rules have their own."""

import json
import re
import signal
from contextlib import contextmanager
from itertools import count, pairwise
from math import exp, log

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli import console
from cutaway.cli.main import main
from support.random_llama import write_tiny_llama

DRAFT = "ab ba abab a"


@pytest.fixture(scope="module")
def tiny(tiny_path):
    with LLM(tiny_path, progress=False) as llm:
        yield llm


def logprobs(llm, ids, first):
    """Of each token from one on, from logits of the whole text."""
    rows = llm.logits(ids)[first - 1 : -1].astype(np.float64)
    tops = rows.max(axis=1)
    totals = tops + np.log(np.exp(rows - tops[:, None]).sum(axis=1))
    return [float(row[v]) - z for row, v, z in zip(rows, ids[first:], totals, strict=True)]


def revised(llm, rule="gibbs", draft=DRAFT, prompt="ba", **more):
    given = {"seed": 3, "share": 0.5, "candidates": 20, "power": 1.5, **more}
    return llm.revise(prompt, draft, rule=rule, **given)


@pytest.mark.parametrize(
    ("rule", "more"), [("gibbs", {}), ("better", {}), ("metropolis", {"span": 2})]
)
def test_what_is_on_record_follows_from_logits(tiny, rule, more):
    done = revised(tiny, rule, sweeps=3, **more)
    head = tiny.tokenize("ba")
    ids = tiny.tokenizer.encode(DRAFT, goes_on=True)
    assert (done.prompt_token_ids, done.draft_token_ids) == (tuple(head), tuple(ids))
    assert (done.draft, len(done.trials)) == (DRAFT, done.planned)
    each = logprobs(tiny, [*head, *ids], len(head))
    assert done.surprises == pytest.approx([-p / log(2) for p in each], rel=1e-6)
    assert done.bits_before == pytest.approx(-sum(each) / log(2), rel=1e-6)
    worst = sorted(range(len(ids)), key=lambda i: (-done.surprises[i], i))
    order = [t.position - len(head) for t in done.trials]
    assert order == worst[: -(-len(ids) // 2)] * 3
    text = [*head, *ids]
    for index, trial in enumerate(done.trials):
        end = trial.position + len(trial.was)
        assert (trial.index, trial.was) == (index, tuple(text[trial.position : end]))
        proposed = [*text[: trial.position], *trial.proposed, *text[end:]]
        before, after = (sum(logprobs(tiny, x, len(head))) for x in (text, proposed))
        assert trial.logprob_before == pytest.approx(before, rel=1e-6)
        assert trial.logprob_after == pytest.approx(after, rel=1e-6)
        if rule == "better":
            assert trial.chance == (after > before)
        if rule == "metropolis":
            ratio = 1.5 * (after - before) + trial.reverse - trial.forward
            assert trial.chance == pytest.approx(min(1, exp(ratio)), rel=1e-4)
        if rule == "gibbs":
            assert trial.chance == 1
        assert trial.accepted == (trial.luck < trial.chance)
        text = proposed if trial.accepted else text
    assert done.token_ids == tuple(text[len(head) :]) != done.draft_token_ids
    assert tiny.detokenize([*head, *done.token_ids]) == "ba" + done.text
    assert done.bits_after == pytest.approx(
        -sum(logprobs(tiny, text, len(head))) / log(2), rel=1e-6
    )
    assert done.cost.rows > 0 < done.cost.passes


def test_gibbs_draws_from_the_conditional_of_every_whole_text(tiny):
    """All 261 tokens that add text are candidates, so that nothing else is tried."""
    head, ids = tiny.tokenize("ba"), tiny.tokenizer.encode("ab a", goes_on=True)
    done = revised(tiny, draft="ab a", share=0.01, candidates=1000, power=2.0)
    [trial] = done.trials
    at = trial.position
    adding = [v for v in range(tiny.tokenizer.vocab_size) if tiny.tokenizer.token_bytes(v)]
    text = [*head, *ids]
    whole = [[*text[:at], v, *text[at + 1 :]] for v in adding]
    weights = np.array([2.0 * sum(logprobs(tiny, text, at)) for text in whole])
    shares = np.exp(weights - weights.max())
    shares = dict(zip(adding, shares / shares.sum(), strict=True))
    assert exp(trial.forward) == pytest.approx(shares[trial.proposed[0]], rel=1e-4)
    assert exp(trial.reverse) == pytest.approx(shares[trial.was[0]], rel=1e-4)


def test_leave_one_out_is_enumerated_among_the_candidates_and_the_token_itself(tiny):
    head, ids = tiny.tokenize("ba"), tiny.tokenizer.encode("ab ab", goes_on=True)
    done = revised(tiny, "better", draft="ab ab", surprise="leave_one_out", candidates=5)
    for n, own in enumerate(ids):
        at, whole = len(head) + n, [*head, *ids]
        row = tiny.logits(whole[:at])[-1]
        adding = np.array([bool(tiny.tokenizer.token_bytes(v)) for v in range(len(row))])
        best = np.argsort(-np.where(adding, row, -np.inf), kind="stable")[:5].tolist()
        texts = {v: [*whole[:at], v, *whole[at + 1 :]] for v in {*best, own}}
        weights = {v: sum(logprobs(tiny, text, at)) for v, text in texts.items()}
        surprise = np.logaddexp.reduce([*weights.values()]) - weights[own]
        assert done.surprises[n] == pytest.approx(surprise / log(2), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("share", "tried"), [(0.001, 1), (0.07, 7), (0.071, 8), (1, 100)])
def test_a_share_is_of_the_tokens_rounded_up(tiny, share, tried):
    done = revised(tiny, "metropolis", draft="x" * 100, share=share, stopped=lambda: True)
    assert (done.planned, len(done.draft_token_ids)) == (tried, 100)


def test_the_draft_is_what_the_loop_writes(tiny):
    written = tiny.generate("ab", seed=4, max_tokens=9, temperature=0.9)
    done = tiny.revise("ab", seed=4, max_tokens=9, temperature=0.9, sweeps=2)
    assert done.draft_token_ids == written.token_ids
    assert revised(tiny, draft=list(written.token_ids), prompt=[*written.prompt_token_ids]).draft


def test_a_token_that_adds_no_text_stays(tiny):
    end = min(tiny.tokenizer.end_ids)
    ids = [*tiny.tokenizer.encode("abba", goes_on=True), end]
    for rule in ("gibbs", "metropolis"):
        done = revised(tiny, rule, draft=ids, share=1.0, sweeps=2)
        assert done.token_ids[-1] == end
        assert done.surprises[-1] is None
        ends = {trial.position + len(trial.was) for trial in done.trials}
        assert max(ends) == len(done.prompt_token_ids) + len(ids) - 1


def test_where_nothing_is_before_a_draft_its_first_token_stays(tiny_path, tmp_path):
    metadata = {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": None}
    with LLM(write_tiny_llama(tmp_path / "t.gguf", metadata=metadata)) as llm:
        done = revised(llm, prompt="", share=1.0)
        assert done.surprises[0] is None
        assert {t.position for t in done.trials} == {*range(1, len(done.token_ids))}
        assert done.prompt_token_ids == ()
    with LLM(tiny_path, progress=False) as llm:
        done = revised(llm, prompt="", share=1.0)
        assert done.prompt_token_ids == (llm.tokenizer.bos_id,)
        assert None not in done.surprises
        assert done.draft == DRAFT


def same(one, other):
    return one.trials == other.trials and one.to_dict() | {"cost": 0} == other.to_dict() | {
        "cost": 0
    }


@pytest.mark.parametrize("rule", ["gibbs", "metropolis"])
def test_the_same_seed_is_the_same_revision_whatever_else_runs(tiny, tiny_path, rule):
    alone = revised(tiny, rule)
    with tiny.stream("ab ba", seed=1, max_tokens=60) as beside:
        next(beside)
        assert same(revised(tiny, rule), alone)
    for more in ({"threads": 1}, {"prefix_cache": False}, {"kv_tokens": 64, "context": 64}):
        with LLM(tiny_path, progress=False, **more) as other:
            assert same(revised(other, rule), alone)
    assert not same(revised(tiny, rule, seed=4), alone)
    assert tiny.engine.is_idle


def test_a_seed_that_was_not_given_is_chosen_and_told(tiny):
    done = revised(tiny, seed=None)
    assert same(revised(tiny, seed=done.seed), done)


def test_a_trial_that_is_stopped_is_not_on_record(tiny):
    whole, kept = revised(tiny, sweeps=4), {}
    for after in (0, 1, 7, 20):
        asked = count()
        done = revised(tiny, sweeps=4, stopped=lambda n=after, asked=asked: next(asked) >= n)
        assert done.trials == whole.trials[: len(done.trials)]
        assert done.planned == whole.planned
        for one, following in pairwise(done.trials):
            assert following.logprob_before in (one.logprob_before, one.logprob_after)
        kept[after] = len(done.trials)
    assert kept[0] == 0 < kept[20] < whole.planned
    assert tiny.engine.is_idle


def test_progress_is_told(tiny):
    told = []
    done = revised(tiny, surprise="leave_one_out", progress=lambda *news: told.append(news))
    ranked = len(done.draft_token_ids)
    first = [("ranking", n, ranked) for n in range(ranked)]
    assert told == first + [("revising", n, done.planned) for n in range(done.planned + 1)]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"rule": "best"}, "rule must be one of gibbs, metropolis, better, not 'best'"),
        ({"surprise": "own"}, "surprise must be one of loop, leave_one_out"),
        ({"power": 0}, "power must be a number between 0.01 and 100, not 0"),
        ({"power": float("nan")}, "power must be a number"),
        ({"share": 0}, "share must be a number above 0 and at most 1, not 0"),
        ({"share": "all"}, "share must be a number"),
        ({"sweeps": 0}, "sweeps must be between 1 and 1000"),
        ({"candidates": 1.5}, "candidates must be a whole number"),
        ({"span": 2}, "span is for the rule metropolis"),
        ({"seed": -1}, "seed must be between 0 and"),
        ({"max_tokens": 3}, "the draft is given, so nothing is drafted: leave max_tokens out"),
        ({"draft": ""}, "the draft has no tokens"),
        ({"draft": 7}, "draft must be a string or a list of token ids, not 7"),
        ({"draft": [999]}, "draft: token id 999 is not between"),
        ({"draft": "a" * 600}, "have 604 tokens, and the context is 512: shorten them"),
        ({"prompt": "", "draft": [1]}, "nothing of the draft can be replaced"),
    ],
)
def test_what_cannot_be_revised_is_refused_in_a_sentence(tiny, more, sentence):
    with pytest.raises(InputError, match=sentence):
        revised(tiny, **more)


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def command(tiny_path, capsys):
    def run(*args):
        code = main(["revise", "-m", str(tiny_path), "ba", "--seed", "3", *args])
        return code, *capsys.readouterr()

    return run


def test_the_command_shows_both_texts_side_by_side(tiny, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, err = command("--draft", DRAFT, "--trials", "--share", "0.5")
    done = tiny.revise("ba", DRAFT, seed=3, share=0.5)
    assert code == 0
    both, _, table = out.partition("\n\n")
    head, *lines = both.splitlines()
    assert head.split() == ["draft", "│", "revision"]
    left, right = ("".join(line.split(" │ ")[i].strip() for line in lines) for i in (0, 1))
    changed = [p for p in done.pieces(tiny.tokenizer) if p.changed]
    assert changed
    assert left.count("‹") == right.count("›") == len(changed)
    assert left.replace(" ", "").count("ab") <= DRAFT.count("ab")
    assert len(table.splitlines()) == 1 + len(done.trials)
    assert max(map(len, lines)) <= 60
    assert f"{len(done.trials)} trials" in err
    assert "seed 3]" in err
    assert "\x1b" not in out + err


def test_json_has_every_trial(tiny, command):
    code, out, err = command(
        "--draft", DRAFT, "--json", "-q", "--rule", "metropolis", "--span", "2"
    )
    done = tiny.revise("ba", DRAFT, seed=3, rule="metropolis", span=2)
    said = json.loads(out)
    assert (code, err) == (0, "")
    assert said | {"cost": 0} == json.loads(json.dumps(done.to_dict())) | {"cost": 0}
    assert {"was", "proposed", "now", "accepted", "luck"} <= {*said["trials"][0]}


def test_ctrl_c_keeps_what_there_is(tiny, command, monkeypatch):
    @contextmanager
    def interrupted(**_):
        def report(what, done, total):
            if done == 2:
                signal.raise_signal(signal.SIGINT)

        yield report

    whole = tiny.revise("ba", DRAFT, seed=3, sweeps=3)
    monkeypatch.setattr(console, "progress", interrupted)
    code, out, err = command("--draft", DRAFT, "--sweeps", "3", "--trials")
    assert code == 0
    assert f"[2 of {whole.planned} trials" in err
    assert len(out.partition("\n\n")[2].splitlines()) == 1 + 2


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--rule", "best"], "rule must be one of"),
        (["--draft", "ab", "--top-p", "0.5"], "leave top_p out"),
        (["--share", "much"], "--share must be a number"),
    ],
)
def test_the_command_refuses_in_a_sentence(command, args, sentence):
    code, _, err = command(*args)
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_prompt_or_a_draft_is_needed(tiny_path, capsys):
    assert main(["revise", "-m", str(tiny_path)]) == 2
    assert "give a prompt to write a draft from" in capsys.readouterr().err


# -- a model that knows English ----------------------------------------------------------------


@pytest.mark.model
def test_a_word_that_does_not_belong_is_found_and_repaired(smollm2_path):
    """Of a fluent sentence one word is replaced; it is the most surprising, and goes."""
    draft = "The Earth moves around the banana once a year."
    with LLM(smollm2_path, progress=False) as llm:
        for rule in ("gibbs", "better"):
            done = llm.revise("", draft, rule=rule, share=0.01, seed=1)
            [trial] = done.trials
            assert trial.was_text == " banana"
            assert trial.accepted
            assert done.text == "The Earth moves around the Sun once a year."
            assert done.bits_before - done.bits_after > 10


# -- whole words, by a model that sees what is behind them -------------------------------------

QUICK = "ab The quick brown quick fox, ab!"


@pytest.fixture(scope="module", params=["bert", "roberta"])
def filler_folder(request, tmp_path_factory):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
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


def test_the_command_takes_a_filler(tiny, filler_folder, command):
    asked = ["--draft", QUICK, "--rule", "better", "--filler", str(filler_folder), "--json"]
    _, out, err = command(*asked)
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
