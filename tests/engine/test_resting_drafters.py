"""Drafters that rest: what they cost where their drafts do not pay, and that they wake again."""

import numpy as np
import pytest

from cutaway.engine import DraftHead, DraftModel, RunParams, StopParams, speculation
from cutaway.engine.speculation.length import (
    FROM_MODEL,
    LOSS,
    MAX_DRAFT,
    STAKE,
    DraftLength,
    StepCosts,
)
from support.engine_mock import GREEDY, MockRequest, add, make_engine, run_to_end
from support.mock_backend import VOCAB, MockBackend, noise

A, B = map(ord, "ab")
FOLLOWED, PASS, ROW, READ = 0.15, 0.3, 0.06, 0.005
"""What a followed step, a pass, a row and a token that is read late cost, in steps without."""
LENGTH, TEXT = 300, 400


def writes_a(tokens):
    logits = np.zeros(VOCAB, np.float32)
    logits[A] = 1
    return logits


def guesses_from(position):
    """Return a model that writes a from this position on, and something else before."""

    def model(tokens):
        logits = np.zeros(VOCAB, np.float32)
        logits[A if len(tokens) >= position else B] = 1
        return logits

    return model


class MockHead(DraftHead):
    """A head that drafts a from a position on; it needs to have followed the last row."""

    def __init__(self, right_from):
        super().__init__(MockBackend(16, noise), PASS)
        self.right_from, self.followed, self.drafted = right_from, 0, 0
        self._reached = dict[int, int]()

    def observe(self, scheduled, hidden):
        for entry, rows in zip(scheduled, hidden, strict=True):
            if rows is not None:
                self._reached[entry.sequence.id] = entry.start + entry.num_rows
                self.followed += len(entry.token_ids) == 1  # not a prompt

    def propose(self, draft_requests):
        drafts = []
        for sequence, count in draft_requests:
            knows = self._reached.get(sequence.id, 0) >= len(sequence) - 1
            self.drafted += count if knows else 0
            drafts.append([A if len(sequence) >= self.right_from else B] * (count if knows else 0))
        return drafts


def state_costs(monkeypatch, following):
    """Let drafts cost what the constants say, and following as much as is given."""

    def draft_costs(_, rows, drafting, drafter=None):
        followed = following if isinstance(drafter, DraftHead) else 0
        each = PASS + ROW if drafter else ROW
        return tuple(followed + each * count for count in range(MAX_DRAFT + 1))

    monkeypatch.setattr(StepCosts, "draft_costs", draft_costs)
    monkeypatch.setattr(StepCosts, "reading_cost", lambda *given: READ * given[-1])
    monkeypatch.setattr(StepCosts, "probes", lambda *_: False)


@pytest.fixture(autouse=True)
def stated_costs(monkeypatch):
    state_costs(monkeypatch, FOLLOWED)


def write(drafter, length, prompt=(5, 6), **options):
    """Write a text; return its speculation and the engine."""
    engine = make_engine(writes_a, context=1024)
    engine.speculator.draft = drafter
    request = MockRequest(
        prompt, GREEDY, StopParams(max_tokens=length, ignore_eos=True),
        RunParams(speculate=drafter.kind), **options,
    )  # fmt: skip
    finished = request.finish(engine)
    assert finished.text == "a" * length
    return finished.sequence.speculation, engine


def test_a_head_whose_drafts_are_wrong_rests_and_costs_under_two_percent():
    head = MockHead(right_from=9999)
    speculation, _ = write(head, LENGTH)
    assert speculation.accepted == 0 < speculation.proposed
    stated = FOLLOWED * head.followed + (PASS + ROW) * head.drafted
    assert speculation.cost == pytest.approx(stated)
    assert stated < 0.02 * LENGTH
    assert speculation.rested >= 0.97 * (LENGTH - 1) - head.followed
    assert speculation.rested + head.followed == sum(speculation.lengths)


def test_a_head_that_follows_for_next_to_nothing_soon_rests_no_more(monkeypatch):
    """It would miss tokens, and guess worse."""
    state_costs(monkeypatch, 0.004)
    head = MockHead(right_from=9999)
    speculation, _ = write(head, LENGTH)
    assert speculation.rested + head.followed == LENGTH - 1
    assert speculation.rested < 10  # until steps that it does not follow have been measured
    assert 0 < speculation.cost < 0.02 * LENGTH


def test_a_head_wakes_where_its_drafts_come_true():
    before, _ = write(MockHead(right_from=9999), TEXT)
    head = MockHead(right_from=TEXT // 2)
    after, engine = write(head, TEXT)
    assert after.accepted > 100
    assert after.rested < before.rested - 100
    assert len(engine.backend.runs) == TEXT - after.accepted


def test_steps_that_nobody_follows_are_measured_where_drafts_pay_too(monkeypatch):
    """Each costs a head two steps: it is not read, and the next one is followed before a draft."""
    asked = []
    monkeypatch.setattr(StepCosts, "probes", lambda *_: not asked.append(1) and not len(asked) % 10)
    drafts, engine = write(MockHead(right_from=0), LENGTH)
    probes = len(asked) // 10
    assert 0 < probes < drafts.lengths[0] <= 2 * probes + 1
    assert engine.speculator.costs.is_measured(1) == (probes >= 3)


def test_what_choosing_takes_is_part_of_a_step_and_what_passes_take_is_not(monkeypatch):
    looks = iter(range(10_000))
    monkeypatch.setattr(speculation, "perf_counter", lambda: float(next(looks)))
    steps = []
    monkeypatch.setattr(StepCosts, "learn_step", lambda _, rows, *step: steps.append((rows, *step)))
    write(MockHead(right_from=0), 40)
    assert {round(seconds) for _, seconds, _ in steps} == {2}


def test_a_draft_model_that_is_wrong_reads_little_of_the_text():
    backend = MockBackend(64, guesses_from(9999))
    speculation, _ = write(DraftModel(backend, 1024, PASS), LENGTH)
    read = sum(backend.runs)
    assert speculation.accepted == 0 < speculation.proposed
    assert (PASS + ROW) * speculation.proposed < speculation.cost < 0.02 * LENGTH
    assert read < LENGTH
    assert speculation.rested > 0.97 * LENGTH


def test_a_draft_model_reads_what_it_missed_at_once_and_goes_on():
    backend = MockBackend(64, guesses_from(TEXT // 2))
    speculation, engine = write(DraftModel(backend, 1024, PASS), TEXT)
    assert speculation.accepted > 80
    assert max(backend.runs) > 16
    assert len(engine.backend.runs) == TEXT - speculation.accepted


@pytest.mark.parametrize("length", [8, 200])
def test_a_draft_model_reads_a_prompt_that_its_drafts_can_pay_back(length):
    """1,000 tokens cost five steps, which eight tokens cannot save."""
    backend = MockBackend(64, guesses_from(0))
    prompt = tuple(range(1, 201)) * 4
    speculation, _ = write(DraftModel(backend, 1024, PASS), length, prompt)
    assert (speculation.accepted > 0) == (length == 200)
    assert bool(backend.runs) == (length == 200)


@pytest.mark.parametrize("right_from", [0, 9999])
def test_a_draft_model_that_rested_in_company_wakes_where_the_rest_of_the_text_pays(
    monkeypatch, right_from
):
    """What it missed, 150 tokens, costs more steps than a text may stake."""
    dear, cheap = ([step * count for count in range(MAX_DRAFT + 1)] for step in (2.0, PASS + ROW))
    monkeypatch.setattr(StepCosts, "draft_costs", lambda _, rows, *__: dear if rows > 1 else cheap)
    monkeypatch.setattr(StepCosts, "reading_cost", lambda *given: 0.05 * given[-1])
    engine = make_engine(writes_a, context=1024)
    engine.speculator.draft = DraftModel(MockBackend(64, guesses_from(right_from)), 1024, PASS)
    whole, part = (StopParams(max_tokens=n, ignore_eos=True) for n in (TEXT, 150))
    drafted = add(engine, (5, 6), GREEDY, whole, RunParams(speculate="draft"))
    add(engine, (7, 8), GREEDY, part)
    run_to_end(engine)
    speculation = drafted.speculation
    assert (speculation.accepted > 80) == (right_from == 0)
    assert speculation.cost < 0.05 * 160 + STAKE + LOSS * TEXT + speculation.accepted


def test_a_drafter_that_would_not_pay_even_if_right_is_not_asked(monkeypatch):
    costs = tuple(1.01 * count for count in range(MAX_DRAFT + 1))
    monkeypatch.setattr(StepCosts, "draft_costs", lambda *_: costs)
    backend = MockBackend(64, guesses_from(0))
    speculation, _ = write(DraftModel(backend, 1024, PASS), LENGTH)
    assert not backend.runs
    assert (speculation.cost, speculation.rested) == (0, LENGTH - 1)


def test_texts_that_a_head_follows_share_a_run_with_others():
    """Two runs would read all weights twice."""
    engine = make_engine(writes_a, context=256)
    engine.speculator.draft = head = MockHead(right_from=0)
    stops = StopParams(max_tokens=40, ignore_eos=True)
    drafted = add(engine, (5, 6), GREEDY, stops, RunParams(speculate="mtp"))
    add(engine, (7, 8), GREEDY, stops)
    run_to_end(engine)
    assert drafted.speculation.accepted > 20
    assert head.followed > 0
    assert len(engine.backend.runs) == engine.steps


def test_a_rest_lasts_its_pause_whatever_drafts_cost():
    drafts, costs = DraftLength(FROM_MODEL), [0.0] + [0.36] * MAX_DRAFT
    while drafts.propose(0, 9, costs):
        drafts.learn(0, 9, 0, 0.36)
    rested = 0
    while drafts.sleeps():
        drafts.learn(0, 0, 0, 0.0)
        rested += 1
    assert rested > 4
    assert not drafts.propose(0, 0, costs)
    assert not drafts.sleeps()  # a step that had no room for drafts is no rest
