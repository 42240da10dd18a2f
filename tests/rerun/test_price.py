"""The price of revealing cells together: each conditional by itself, on a random model."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.rerun import price

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from support.diffusion_models import DIFFUSION, VOCAB, save

PROMPT = np.random.default_rng(3).integers(6, VOCAB, 9).tolist()


@pytest.fixture(scope="module", params=["llada", "dream", "sdar-blocks"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    save(request.param, path)
    return LLM(path), DIFFUSION[request.param]


def log2_p(llm, text, position, token_id, shift):
    row = llm.logits(text)[position - shift].astype(np.float64)
    return float((row[token_id] - np.logaddexp.reduce(row)) / np.log(2))


def by_hand(llm, wiring, made, text):
    """Of one pass, -log2 of its tokens' probabilities together, and one after the other."""
    end = len(text) if wiring.attention == "bidirectional" else made.block[1]
    seen, order = text[:end], sorted(made.revealed, key=lambda c: (-c.figure, c.position))
    together = [log2_p(llm, seen, c.position, c.token_id, wiring.shift) for c in order]
    apart = []
    for cell in order:
        apart.append(log2_p(llm, seen, cell.position, cell.token_id, wiring.shift))
        seen[cell.position] = cell.token_id
    return -sum(together), -sum(apart)


def test_it_is_what_each_token_loses_by_those_before_it(model):
    llm, wiring = model
    made = llm.denoise(PROMPT, steps=4, max_tokens=11, seed=2, temperature=1.5, ignore_eos=True)
    found = price(llm, PROMPT, made.passes)
    text = [*PROMPT, *[wiring.mask] * 11]
    for one, of in zip(made.passes, found.passes, strict=True):
        together, apart = by_hand(llm, wiring, one, list(text))
        assert of.cells == len(one.revealed)
        assert of.together == pytest.approx(together, abs=1e-6)
        assert of.apart == pytest.approx(apart, abs=1e-6)
        assert of.bound == pytest.approx(one.bound / np.log(2))
        for cell in one.revealed:
            text[cell.position] = cell.token_id
    assert any(of.cells > 1 for of in found.passes)
    assert any(abs(of.price) > 1e-3 for of in found.passes)
    assert found.price == pytest.approx(sum(of.apart - of.together for of in found.passes))


def test_one_cell_a_pass_costs_nothing(model):
    llm, _ = model
    made = llm.denoise(PROMPT, max_tokens=5, seed=2, ignore_eos=True)
    assert price(llm, PROMPT, made.passes).price == 0


def test_no_passes_have_no_price(model):
    with pytest.raises(InputError, match="no passes"):
        price(model[0], PROMPT, ())


def test_a_canvas_that_ended_early_was_as_long_as_it_began(model):
    """The blocks that no pass came to stood there masked, and were seen."""
    llm, wiring = model
    settings = {"steps": 4, "max_tokens": 24, "seed": 2, "temperature": 1.5}
    block = {"block": 4} if wiring.attention == "bidirectional" else {}
    whole = llm.denoise(PROMPT, **settings, **block, ignore_eos=True)
    made = llm.denoise(PROMPT, **settings, **block, stop_token_ids=[whole.token_ids[0]])
    assert made.passes[-1].block[1] < len(PROMPT) + 24
    text = [*PROMPT, *[wiring.mask] * 24]
    for one, of in zip(made.passes, price(llm, PROMPT, made.passes).passes, strict=True):
        together, apart = by_hand(llm, wiring, one, list(text))
        assert of.together == pytest.approx(together, abs=1e-6)
        assert of.apart == pytest.approx(apart, abs=1e-6)
        for cell in one.revealed:
            text[cell.position] = cell.token_id
