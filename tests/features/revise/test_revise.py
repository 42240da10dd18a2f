"""Revising a draft with a model: what is on record. The rules have their own."""

from collections import Counter
from itertools import count, pairwise, product
from math import exp, log

import numpy as np
import pytest

from cutaway import LLM, AsyncLLM, InputError
from cutaway.base.progress import silent
from cutaway.features.revise import rules
from cutaway.features.revise.revise import RevisionSettings, _plan, _Revision
from cutaway.features.revise.rules import Better, Gibbs, Metropolis, PlaceReader, RevisedText
from cutaway.methods.causal import ScoredText
from support.random_llama import write_tiny_llama
from support.revise_table import ALLOWED, TOKENS, Table
from support.revised import DRAFT, logprobs, revise


@pytest.mark.parametrize(
    ("rule", "more"), [("gibbs", {}), ("better", {}), ("metropolis", {"span": 2})]
)
def test_what_is_on_record_follows_from_logits(tiny, rule, more):
    done = revise(tiny, rule, sweeps=3, **more)
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
    done = revise(tiny, draft="ab a", share=0.01, candidates=1000, power=2.0)
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
    done = revise(tiny, "better", draft="ab ab", surprise="leave_one_out", candidates=5)
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
    done = revise(tiny, "metropolis", draft="x" * 100, share=share, stopped=lambda: True)
    assert (done.planned, len(done.draft_token_ids)) == (tried, 100)


def test_the_draft_is_what_the_loop_writes(tiny):
    written = tiny.generate("ab", seed=4, max_tokens=9, temperature=0.9)
    done = tiny.revise("ab", seed=4, max_tokens=9, temperature=0.9, sweeps=2)
    assert done.draft_token_ids == written.token_ids
    assert revise(tiny, draft=list(written.token_ids), prompt=[*written.prompt_token_ids]).draft


def test_a_token_that_adds_no_text_stays(tiny):
    end = min(tiny.tokenizer.end_ids)
    ids = [*tiny.tokenizer.encode("abba", goes_on=True), end]
    for rule in ("gibbs", "metropolis"):
        done = revise(tiny, rule, draft=ids, share=1.0, sweeps=2)
        assert done.token_ids[-1] == end
        assert done.surprises[-1] is None
        ends = {trial.position + len(trial.was) for trial in done.trials}
        assert max(ends) == len(done.prompt_token_ids) + len(ids) - 1


def test_where_nothing_is_before_a_draft_its_first_token_stays(tiny_path, tmp_path):
    metadata = {"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": None}
    with LLM(write_tiny_llama(tmp_path / "t.gguf", metadata=metadata)) as llm:
        done = revise(llm, prompt="", share=1.0)
        assert done.surprises[0] is None
        assert {t.position for t in done.trials} == {*range(1, len(done.token_ids))}
        assert done.prompt_token_ids == ()
    with LLM(tiny_path, progress=False) as llm:
        done = revise(llm, prompt="", share=1.0)
        assert done.prompt_token_ids == (llm.tokenizer.bos_id,)
        assert None not in done.surprises
        assert done.draft == DRAFT


def same(one, other):
    return one.trials == other.trials and one.to_dict() | {"cost": 0} == other.to_dict() | {
        "cost": 0
    }


@pytest.mark.parametrize("rule", ["gibbs", "metropolis"])
def test_the_same_seed_is_the_same_revision_whatever_else_runs(tiny, tiny_path, rule):
    alone = revise(tiny, rule)
    with tiny.stream("ab ba", seed=1, max_tokens=60) as beside:
        next(beside)
        assert same(revise(tiny, rule), alone)
    for more in ({"threads": 1}, {"prefix_cache": False}, {"kv_tokens": 64, "context": 64}):
        with LLM(tiny_path, progress=False, **more) as other:
            assert same(revise(other, rule), alone)
    assert not same(revise(tiny, rule, seed=4), alone)
    assert tiny.engine.is_idle


def test_a_seed_that_was_not_given_is_chosen_and_told(tiny):
    done = revise(tiny, seed=None)
    assert same(revise(tiny, seed=done.seed), done)


def test_a_trial_that_is_stopped_is_not_on_record(tiny):
    whole, kept = revise(tiny, sweeps=4), {}
    for after in (0, 1, 7, 20):
        asked = count()
        done = revise(tiny, sweeps=4, stopped=lambda n=after, asked=asked: next(asked) >= n)
        assert done.trials == whole.trials[: len(done.trials)]
        assert done.planned == whole.planned
        for one, following in pairwise(done.trials):
            assert following.logprob_before in (one.logprob_before, one.logprob_after)
        kept[after] = len(done.trials)
    assert kept[0] == 0 < kept[20] < whole.planned
    assert tiny.engine.is_idle


async def test_an_event_loop_counts_the_same_cost(tiny_path):
    with LLM(tiny_path, progress=False) as llm:
        expected = llm.revise("ab", draft="abcd", seed=1)
    async with AsyncLLM(LLM(tiny_path, progress=False)) as model:
        found = await model.revise("ab", draft="abcd", seed=1)
    assert found.token_ids == expected.token_ids
    assert found.cost.passes >= expected.cost.passes > 0
    assert found.cost.rows == expected.cost.rows


def test_progress_is_told(tiny):
    told = []
    done = revise(tiny, surprise="leave_one_out", progress=lambda *news: told.append(news))
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
        (
            {"max_tokens": 3},
            "max_tokens: leave it out, since the draft is given and nothing is drafted",
        ),
        ({"draft": ""}, "the draft has no tokens"),
        ({"draft": 7}, "draft must be a string or a list of token ids, not 7"),
        ({"draft": [999]}, "draft: token id 999 is not between"),
        ({"draft": "a" * 600}, "have 604 tokens, and the context is 512: shorten them"),
        ({"prompt": "", "draft": [1]}, "nothing of the draft can be replaced"),
    ],
)
def test_what_cannot_be_revised_is_refused_in_a_sentence(tiny, more, sentence):
    with pytest.raises(InputError, match=sentence):
        revise(tiny, **more)


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


# -- what each rule leaves as it is, on a model whose every text can be enumerated -------------

HEAD = (0,)
POWERS = (1.0, 2.5)


@pytest.fixture(scope="module")
def table():
    return Table()


def text_of(table, ids):
    [logprobs] = table.score_tokens([ScoredText(ids, len(HEAD))])
    return RevisedText(ids, len(HEAD), tuple(logprobs))


def replaced(ids, position, values):
    return (*ids[:position], *values, *ids[position + len(values) :])


def softmax(x):
    shares = np.exp(x - np.max(x))
    return shares / shares.sum()


def balanced(pi, moves):
    """Whether what flows from each text to each other flows back: moves[x, y] is a chance."""
    for x in pi:
        assert sum(moves.get((x, y), 0) for y in pi) <= 1 + 1e-9
    for (x, y), chance in moves.items():
        if x != y:
            assert pi[x] * chance == pytest.approx(pi[y] * moves.get((y, x), 0), rel=1e-6)


# -- every chance of moving, exactly -----------------------------------------------------------


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("candidates", [1, 2, 4])
@pytest.mark.parametrize("position", [1, 2])
def test_gibbs_is_in_balance_with_any_number_of_candidates(
    table, monkeypatch, power, candidates, position
):
    """Each way the two draws can come out is forced; the shares are those on record."""
    pi = table.power(HEAD, 2, power)
    rule = Gibbs(PlaceReader(table, ALLOWED, candidates), power)
    moves, reached = Counter(), []
    for x in pi:
        prior = power * table.row(x[:position])[0].astype(float)
        best = sorted(TOKENS, key=lambda v: (-prior[v], v))[:candidates]
        rest = [v for v in TOKENS if v not in best]
        text = text_of(table, x)
        if not rest:
            rest, shares = [None], [1.0]
        else:
            shares = softmax(prior[rest])
        if x[position] in best:  # and from any other token to these
            reached += [(x, v) for v in TOKENS]
        for (other, r), drawn in product(zip(rest, shares, strict=True), TOKENS):
            forced = iter([[other], [drawn]] if other is not None else [[drawn]])
            monkeypatch.setattr(
                rules, "gumbel", lambda s, p, ids, forced=forced: 1e6 * np.isin(ids, next(forced))
            )
            made = rule.propose(text, position, 0)
            if made.ids == (drawn,):  # else it was not among those tried
                assert made.log_ratio == 0
                moves[x, replaced(x, position, made.ids)] += r * np.exp(made.forward)
                new = text_of(table, replaced(x, position, made.ids))
                assert made.logprobs == new.logprobs[position - 1 :]
    for x in pi:
        assert sum(moves[x, y] for y in pi) == pytest.approx(1)
    balanced(pi, moves)
    assert all(moves[x, replaced(x, position, (v,))] > 0 for x, v in reached)


def test_gibbs_over_all_tokens_is_the_conditional_enumerated(table):
    pi = table.power(HEAD, 3, 1.0)
    rule = Gibbs(PlaceReader(table, ALLOWED, 4), 1.0)
    for seed, x in enumerate(pi):
        made = rule.propose(text_of(table, x), 2, seed)
        every = {v: pi[replaced(x, 2, (v,))] for v in TOKENS}
        share = every[made.ids[0]] / sum(every.values())
        assert np.exp(made.forward) == pytest.approx(share, rel=1e-9)
        assert np.exp(made.reverse) == pytest.approx(every[x[2]] / sum(every.values()), rel=1e-9)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(("span", "position"), [(None, 1), (1, 1), (2, 2)])
def test_metropolis_accepts_by_the_ratio_enumerated(table, monkeypatch, power, span, position):
    pi = table.power(HEAD, 2, power)
    rule, moves = Metropolis(table, ALLOWED, power, span), Counter()
    count = min(span or 2, 3 - position)
    for x in pi:
        for values in product(TOKENS, repeat=count):
            asked = []

            def draw_tokens(head, count, temperature, seed, values=values, asked=asked):
                asked.append((head, count, temperature))
                return values

            monkeypatch.setattr(table, "draw_tokens", draw_tokens)
            made = rule.propose(text_of(table, x), position, 0)
            assert asked == [(x[:position], count, 1 / power)]
            q = 1.0
            for i, v in enumerate(values):
                z = table.row((*x[:position], *values[:i]))[0][TOKENS] / np.float32(1 / power)
                q *= softmax(z.astype(float))[TOKENS.index(v)]
            assert np.exp(made.forward) == pytest.approx(q, rel=1e-6)
            y = replaced(x, position, values)
            assert made.logprobs == text_of(table, y).logprobs[position - 1 :]
            moves[x, y] += q * min(1.0, float(np.exp(made.log_ratio)))
    balanced(pi, moves)


def test_metropolis_at_power_1_takes_every_suffix_that_the_model_draws(monkeypatch):
    """Where all tokens add text there is nothing to put right."""
    table, everything = Table(), np.ones_like(ALLOWED)
    rule = Metropolis(table, everything, 1.0, None)
    for seed in range(20):
        made = rule.propose(text_of(table, (0, 1, 3, 4)), 2, seed)
        assert made.log_ratio == pytest.approx(0, abs=1e-9)


def test_metropolis_replaces_nothing_that_adds_no_text(table):
    rule = Metropolis(table, ALLOWED, 2.0, None)
    made = rule.propose(text_of(table, (0, 1, 3, 2, 4)), 1, 3)
    assert len(made.ids) == 2


def test_better_climbs_to_a_text_that_no_single_candidate_makes_likelier(table):
    pi = table.power(HEAD, 3, 1.0)
    for x in [*pi][::5]:
        text, before = text_of(table, x), -np.inf
        rule = Better(PlaceReader(table, ALLOWED, 4))
        while text.logprob > before:
            before = text.logprob
            for position in (3, 1, 2):
                made = rule.propose(text, position, 0)
                best = max(pi[replaced(text.ids, position, (v,))] for v in TOKENS)
                assert (made.log_ratio == 0) == (best > pi[text.ids] * (1 + 1e-9))
                if made.log_ratio == 0:
                    assert pi[text.accept(made).ids] == best
                    text = text.accept(made)
        neighbours = [replaced(text.ids, i, (v,)) for i in (1, 2, 3) for v in TOKENS]
        assert pi[text.ids] == max(pi[y] for y in neighbours)


# -- many sweeps, with the luck of a seed ------------------------------------------------------


def swept(table, rule, power, *, sweeps, candidates=2, span=None, seed=5):
    how = RevisionSettings(rule, 1.0, sweeps, candidates, power, span, "loop", None, seed)
    start = text_of(table, (0, 1, 1))
    revision = _Revision(_plan(table, ALLOWED, how, start), how, silent)
    last = revision.run(start)
    return [*(tried.text for tried in revision.trials), last]


@pytest.mark.parametrize(
    ("rule", "more"),
    [("gibbs", {"candidates": 2}), ("gibbs", {"candidates": 4}), ("metropolis", {})],
)
def test_the_histogram_of_many_sweeps_is_the_model_s_own(table, rule, more):
    """Total variation from the enumerated distribution; from that of a uniform one it is 0.4."""
    pi = table.power(HEAD, 2, 1.0)
    texts = swept(table, rule, 1.0, sweeps=800, **more)
    seen = Counter(text.ids for text in texts)
    assert {*seen} <= {*pi}
    assert sum(abs(seen[x] / len(texts) - pi[x]) for x in pi) / 2 < 0.08
    for text in texts[-3:]:  # log-probabilities are kept up to date
        assert text == text_of(table, text.ids)


def test_the_same_seed_tries_the_same(table):
    for rule in ("gibbs", "metropolis"):
        one, two, other = (
            [text.ids for text in swept(table, rule, 1.0, sweeps=20, seed=s)] for s in (1, 1, 2)
        )
        assert one == two != other


def test_a_trial_s_luck_does_not_depend_on_how_many_come_after(table):
    few, many = (swept(table, "gibbs", 1.0, sweeps=n) for n in (3, 9))
    assert many[:6] == few[:6]
