"""Attention in whole texts: rows add up to 1; what does not give the run's numbers is refused."""

import numpy as np
import pytest

from cutaway import LLM, CutawayError, InputError
from cutaway.compute.model.ops.attention import Attend
from cutaway.features.inside.texts import text_attention
from support.random_llama import write_tiny_late, write_tiny_ranker

QUERY, DOCUMENT = "ab ba", "b ab bb"


@pytest.fixture(params=[write_tiny_late, write_tiny_ranker])
def ranker(request, tmp_path):
    with LLM(request.param(tmp_path / "ranker.gguf"), threads=1) as llm:
        yield llm


def test_rows_add_up_to_1_and_causal_ones_read_nothing_after_them(ranker):
    found = text_attention(ranker, QUERY, DOCUMENT)
    assert len(found) == (2 if ranker.model.pooling.late else 1)
    for one in found:
        tokens = len(one.token_ids)
        assert one.weights.shape == (2, 6, tokens, tokens)
        assert one.weights.sum(axis=-1) == pytest.approx(np.ones((2, 6, tokens)), abs=1e-6)
        assert not np.triu(one.weights, 1).any()
        assert one.mean == pytest.approx(one.weights.mean(axis=(0, 1)), abs=1e-6)


def test_a_row_is_that_of_the_text_up_to_it(ranker):
    whole = text_attention(ranker, QUERY, DOCUMENT)[-1]
    less = text_attention(ranker, QUERY, DOCUMENT.removesuffix(" bb"))[-1]
    same = len(less.token_ids)
    assert whole.token_ids[:same] == less.token_ids
    # NumPy computes them, whose sums may go in another order where there are more rows.
    assert whole.weights[:, :, :same, :same] == pytest.approx(less.weights, rel=1e-5, abs=1e-9)


def test_no_weights_are_shown_that_do_not_give_the_run(ranker, monkeypatch):
    right = Attend.compute
    monkeypatch.setattr(Attend, "compute", lambda *given: right(*given) * 0)
    with pytest.raises(CutawayError, match="the weights of layer 0 do not give its heads' outputs"):
        text_attention(ranker, QUERY, DOCUMENT)


def test_a_model_that_writes_is_looked_into_step_by_step(tiny_path):
    with (
        LLM(tiny_path, progress=False) as llm,
        pytest.raises(InputError, match="'cutaway trace inside' shows each step"),
    ):
        text_attention(llm, "ab", "ba")
