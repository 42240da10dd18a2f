"""The decoder seam: another decoder writes the autoregressive bits; scoring goes along."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.engine import Autoregressive, FinishReason, Score, Scored, StopParams
from cutaway.engine import Request as EngineRequest
from cutaway.engine.scheduled import Scheduled
from cutaway.sampling import Observe, RowDraw, SamplingParams
from support.engine_mock import GREEDY, Request, make_engine, noise, run_to_end, written

PLACEHOLDER = 1


@dataclass(frozen=True)
class Canvas(Autoregressive):
    """All cells are there from the first step, and are revealed one at a time from the left.

    The hidden cells are rows of every step, and see the whole canvas; what is revealed sees only
    what is before it, because its limit says so.
    """

    drafts = False

    def positions(self, sequence):
        return sequence.longest

    def is_decoding(self, sequence):
        return sequence.num_pending == 1

    def rows(self, sequence, room, logit_room):
        start = sequence.num_computed_tokens
        tokens = sequence.tokens(start, start + room)
        known = len(tokens)
        if start + known == len(sequence):
            hidden = min(sequence.longest - len(sequence), room - known)
            tokens += [PLACEHOLDER] * hidden
        last = start + len(tokens) - 1
        limits = [*range(start, start + known)] + [last] * (len(tokens) - known)
        wanted = known - 1 if start + known == len(sequence) else known
        return Scheduled(sequence, start, tokens, first_logit_row=wanted, limits=limits)

    def draws(self, scheduled):
        s = scheduled.sequence
        if scheduled.num_logits == 0:
            return []
        count = scheduled.num_logits
        return [RowDraw(s.chain, s.history([]), s.seed, len(s) + i) for i in range(count)]

    def commit(self, scheduled, computed):
        sequence = scheduled.sequence
        if not computed.drawn:
            sequence.num_computed_tokens += len(scheduled.token_ids)
            return []
        sequence.num_computed_tokens = len(sequence)
        return [sequence.append(computed.drawn[0], None, computed.phases)]


@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=20).map(tuple),
    st.sampled_from([0, 1.0]),
    st.integers(2, 40),
)
def test_a_canvas_from_left_to_right_writes_the_autoregressive_text(prompt, temperature, rows):
    sampling, stops = SamplingParams(temperature=temperature, seed=3), StopParams(max_tokens=12)
    request = Request(prompt, sampling, stops)
    alone = request.run_on(make_engine(noise))
    engine = make_engine(noise, rows=rows)
    others = [Request(prompt[::-1], GREEDY, stops).add_to(engine) for _ in range(2)]
    canvas = Request(prompt, sampling, stops, decoder=Canvas()).add_to(engine)
    events = run_to_end(engine)
    assert written(canvas, events) == alone
    assert written(others[0], events) == written(others[1], events)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_canvas_on_the_native_backend_has_the_autoregressive_bits(tiny_path, temperature):
    with LLM(tiny_path, threads=2, progress=False) as llm:
        prompt = tuple(llm.tokenize("ab ba ab"))
        sampling = SamplingParams(temperature=temperature, seed=5, top_p=1)
        stops = StopParams(max_tokens=24, ignore_eos=True)
        texts = []
        for decoder in (Autoregressive(), Canvas()):
            request = EngineRequest(
                prompt_token_ids=prompt, sampling=sampling, stopping=stops, decoder=decoder
            )
            [sequence] = llm.engine.add(request)
            texts.append(written(sequence, run_all(llm.engine)))
        assert texts[0] == texts[1]
        assert len(texts[0].token_ids) == 24


def run_all(engine):
    events = []
    while not engine.is_idle:
        events += engine.step()
    return events


# -- scoring -----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=60).map(tuple),
    st.data(),
    st.integers(1, 30),
)
def test_scores_come_beside_running_texts_and_change_none(prompt, data, rows):
    start = data.draw(st.integers(0, len(prompt) - 1))
    neighbour = Request(tuple(b"abc"), SamplingParams(seed=1), StopParams(max_tokens=9))
    alone = neighbour.run_on(make_engine(noise))
    engine = make_engine(noise, rows=rows + 1)
    beside = neighbour.add_to(engine)
    [scored] = engine.add(
        EngineRequest(
            prompt_token_ids=prompt, decoder=Score(logits_from=start), observe=Observe(prompt_top=2)
        )
    )
    events = run_to_end(engine)
    mine = [e for e in events if isinstance(e, Scored) and e.id == scored.id]
    logits = np.concatenate([e.logits for e in mine if e.logits is not None])
    expected = [noise(prompt[: i + 1]) for i in range(start, len(prompt))]
    assert np.array_equal(logits, np.array(expected, np.float32))
    rows_of = [row for e in mine for row in e.rows]
    assert len(rows_of) == len(prompt) - 1
    for i, row in enumerate(rows_of):
        z = noise(prompt[: i + 1]).astype(np.float64)
        assert row.logprob == pytest.approx(z[prompt[i + 1]] - np.log(np.exp(z).sum()))
    assert scored.finish_reason is FinishReason.SCORED
    assert written(beside, events) == alone


def test_a_scored_prompt_may_fill_the_context_and_no_more():
    engine = make_engine(noise, context=64)
    engine.add(EngineRequest(prompt_token_ids=(5,) * 64, decoder=Score(logits_from=63)))
    run_to_end(engine)
    with pytest.raises(Exception, match="1 to 64"):
        engine.add(EngineRequest(prompt_token_ids=(5,) * 65, decoder=Score(logits_from=0)))
