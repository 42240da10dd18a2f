"""Decoders side by side: a canvas from the left has the loop's bits; scoring goes along."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.engine import Autoregressive, Denoise, FinishReason, Request, Score, Scored, StopParams
from cutaway.engine.canvas import Rule
from cutaway.sampling import Observe, SamplingParams
from support.engine_mock import MockRequest, make_engine, run_to_end, written
from support.mock_backend import noise


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_canvas_on_the_native_backend_has_the_autoregressive_bits(tiny_path, temperature):
    with LLM(tiny_path, threads=2, progress=False) as llm:
        prompt = tuple(llm.tokenize("ab ba ab"))
        sampling = SamplingParams(temperature=temperature, seed=5, top_p=1)
        stops = StopParams(max_tokens=24, ignore_eos=True)
        texts = []
        for decoder in (Autoregressive(), Denoise(Rule(order="left", block=1))):
            request = Request(
                prompt_token_ids=prompt, sampling=sampling, stopping=stops, decoder=decoder
            )
            [sequence], events = llm.engine.add(request), []
            while not llm.engine.is_idle:
                events += llm.engine.step()
            texts.append(written(sequence, events))
        assert texts[0] == texts[1]
        assert len(texts[0].token_ids) == 24


# -- scoring -----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 255), min_size=1, max_size=60).map(tuple),
    st.data(),
    st.integers(1, 30),
)
def test_scores_come_beside_running_texts_and_change_none(prompt, data, rows):
    start = data.draw(st.integers(0, len(prompt) - 1))
    neighbour = MockRequest(tuple(b"abc"), SamplingParams(seed=1), StopParams(max_tokens=9))
    alone = neighbour.run_on(make_engine(noise))
    engine = make_engine(noise, rows=rows + 1)
    beside = neighbour.add_to(engine)
    observe = Observe(prompt_top=2)
    [scored] = engine.add(
        Request(prompt_token_ids=prompt, decoder=Score(logits_from=start), observe=observe)
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
    engine.add(Request(prompt_token_ids=(5,) * 64, decoder=Score(logits_from=63)))
    run_to_end(engine)
    with pytest.raises(Exception, match="1 to 64"):
        engine.add(Request(prompt_token_ids=(5,) * 65, decoder=Score(logits_from=0)))
