"""Canvases of noise: beside transformers' own sampler with equal luck, in company, and recorded."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.engine import Denoise, Pass, StopParams
from cutaway.engine.canvas import RULES, ForcedCell, Rule, read_rule, with_usual
from cutaway.engine.decoders import pass_cells
from cutaway.errors import InputError
from cutaway.sampling import Observe, SamplingParams, gumbel
from cutaway.sampling.luck import noise_tokens, place_of
from support.engine_mock import MockRequest, make_engine, read_written, run_to_end
from support.mock_backend import AT, VOCAB, noise

PROMPT = (5, 6, 7, 9)
PLAIN = SamplingParams(temperature=1.0, top_p=1.0, seed=3)
DRIFTS = replace(RULES["diffusion-gemma"], entropy_bound=9.0, max_passes=7)
"""On ``noise`` few cells are kept, other ones in each pass, and no block ends early."""
SETTLES = replace(
    DRIFTS, entropy_bound=1.0, max_passes=24, stability_threshold=2, confidence_threshold=0.5
)


class CountedCells(tuple):
    """Forced cells that count how often they are gone through."""

    times = 0

    def __iter__(self):
        type(self).times += 1
        return super().__iter__()


def settling(tokens):
    """Logits that grow sharper the more tokens at even positions are right: those of 10 × place."""
    text, place = (tokens[:-2], tokens[-1]) if AT in tokens else (tokens, len(tokens) - 1)
    right = sum(token == 10 * i % VOCAB for i, token in enumerate(text) if i % 2 == 0)
    logits = noise((place, right))
    logits[10 * place % VOCAB] += 4 + 2 * right
    return logits


def canvas(rule, cells=12, params=PLAIN, prompt=PROMPT, **more):
    decoder = Denoise(rule, None)
    stops = StopParams(max_tokens=cells, ignore_eos=True)
    return MockRequest(prompt, params, stops, decoder=decoder, **more)


def seeing(model=noise, **more):
    return make_engine(model, context=128, attention="bidirectional", tells_places=True, **more)


def passes_of(events, sequence):
    return [e for e in events if isinstance(e, Pass) and e.id == sequence.id]


def denoised(request, model):
    engine = seeing(model)
    sequence = request.add_to(engine)
    events = run_to_end(engine)
    return read_written(sequence, events), passes_of(events, sequence)


def drawn_noise(seed, first, cells, index):
    return noise_tokens(seed, [place_of(first + i, index) for i in range(cells)], VOCAB)


# -- as transformers denoises ----------------------------------------------------------------------


def by_transformers(rule, cells, seed, model):
    """Return the tokens of each pass's input, which cells each pass accepts, and the text."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    theirs = pytest.importorskip(
        "transformers.models.diffusion_gemma.generation_diffusion_gemma",
        reason="needs a transformers that has DiffusionGemma",
    )
    passes, first = rule.max_passes, len(PROMPT)
    sampler = theirs.EntropyBoundSampler(
        theirs.EntropyBoundSamplerConfig(rule.entropy_bound), cells, VOCAB, passes
    )
    warp = theirs.LinearTemperatureScheduleLogitsProcessor(rule.t_min, rule.t_max, passes)
    stop = theirs.StableAndConfidentStoppingCriteria(
        rule.stability_threshold, rule.confidence_threshold
    )
    index, read, accepted = 0, [], []
    sampler.initialize_canvas = lambda *_: torch.tensor([drawn_noise(seed, first, cells, index)])
    tokens, ids = sampler.initialize_canvas(), np.arange(VOCAB)
    for left in reversed(range(1, passes + 1)):
        text = [*PROMPT, *tokens[0].tolist()]
        rows = [model((*text, AT, i) if i < len(text) - 1 else tuple(text))
                for i in range(first, len(text))]  # fmt: skip
        logits = warp(None, torch.from_numpy(np.array(rows))[None], left)
        luck = [gumbel(seed, place_of(first + i, index), ids) for i in range(cells)]
        drawn = (logits.double() + torch.from_numpy(np.array(luck))).argmax(-1)
        read.append(tokens[0].tolist())
        kept = sampler.accept_canvas(tokens, drawn, logits, left)
        accepted.append(sampler.accepted_token_mask[0].nonzero()[:, 0].tolist())
        index += 1
        tokens, likeliest = sampler.renoise_canvas(kept, left), logits.argmax(-1)
        if stop(likeliest, logits):
            break
    return read, accepted, likeliest[0].tolist()


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("rule", "model"), [(DRIFTS, noise), (SETTLES, settling)])
def test_a_run_makes_transformers_choices_with_the_same_luck(rule, model, seed):
    read, accepted, text = by_transformers(rule, 12, seed, model)
    written, passes = denoised(canvas(rule, params=replace(PLAIN, seed=seed)), model)
    assert [[cell.read for cell in p.cells] for p in passes] == read
    kept = [[i for i, cell in enumerate(p.cells) if cell.now is not None] for p in passes[:-1]]
    assert kept == accepted[:-1]
    assert list(written.token_ids) == text == [cell.now for cell in passes[-1].cells]
    assert (len(passes) < rule.max_passes) == (rule is SETTLES)


def test_the_temperature_falls_from_t_max_towards_t_min():
    rule = replace(DRIFTS, max_passes=4, t_max=1.0, t_min=0.2)
    assert [rule.temperature(i, 4) for i in range(4)] == pytest.approx([1.0, 0.8, 0.6, 0.4])
    params = replace(PLAIN, temperature=0.5)
    request = canvas(rule, params=params, observe=Observe(top=VOCAB, after_chain=True))
    _, passes = denoised(request, noise)
    for index, made in enumerate(passes):
        seen = made.cells[0].observed
        (a, b), ids = seen.after_chain[:2], {c.id: c.logit for c in seen.candidates}
        temperature = 0.5 * rule.temperature(index, 4)
        assert a[1] - b[1] == pytest.approx((ids[a[0]] - ids[b[0]]) / temperature, rel=1e-5)


# -- noise -----------------------------------------------------------------------------------------


def test_noise_is_a_function_of_seed_position_and_pass():
    places = [place_of(position, index) for position in range(40) for index in range(50)]
    tokens = noise_tokens(7, places, VOCAB)
    assert tokens == [noise_tokens(7, [place], VOCAB)[0] for place in places]
    assert tokens != noise_tokens(8, places, VOCAB)
    assert {*tokens} <= {*range(VOCAB)} and len({*tokens}) == VOCAB
    counts = np.bincount(noise_tokens(7, [*range(26000)], 26), minlength=26)
    assert abs(counts - 1000).max() < 150  # five standard deviations
    assert max(noise_tokens(7, places, 2**31)) > 2**30


@pytest.mark.parametrize("start", ["mask", "noise"])
def test_masks_and_noise_are_two_values_of_one_setting(start):
    """With one rule, cells that it does not choose go back to the mask, or to other noise."""
    rule = replace(DRIFTS, start=start)
    engine = seeing()
    sequence = replace(canvas(rule), decoder=Denoise(rule, 0)).add_to(engine)
    made = passes_of(run_to_end(engine), sequence)
    for before, after in pairwise(made):
        gone = [cell.position for cell in after.cells if cell.was is not None and cell.now is None]
        assert gone == list(after.masked_again)
        assert [cell.was for cell in after.cells] == [cell.now for cell in before.cells]
        for cell in after.cells:
            is_noise = start == "noise" and cell.was is None
            other = drawn_noise(3, cell.position, 1, after.index)[0] if is_noise else cell.was
            assert cell.read == (other if start == "noise" else None)
    assert any(p.masked_again for p in made)


def test_blocks_are_denoised_one_after_the_other():
    rule = replace(DRIFTS, block=5, max_passes=3)
    written, passes = denoised(canvas(rule, cells=12), noise)
    assert [p.block for p in passes] == [(4, 9)] * 3 + [(9, 14)] * 3 + [(14, 16)] * 3
    assert [p.index for p in passes] == [*range(9)] == [p.redraw for p in passes]
    assert len(written.token_ids) == 12


def test_a_cell_that_is_forced_holds_its_token():
    rule = replace(DRIFTS, forced_cells=((0, 3, 77), (6, 5, 88)))
    written, passes = denoised(canvas(rule), noise)
    assert passes[0].cells[3].now == 77 and written.token_ids[5] == 88


# -- the same bits ---------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.data())
def test_company_changes_no_bit(data):
    """Neighbours, few KV blocks, few rows: the passes are those of the canvas alone."""
    kv_blocks, rows = data.draw(st.sampled_from([5, 7, 40])), data.draw(st.sampled_from([64, 256]))
    engine = seeing(kv_blocks=kv_blocks, rows=rows)
    asked, sequences, events = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        rule = data.draw(st.sampled_from([DRIFTS, replace(DRIFTS, block=4), RULES["confidence"]]))
        params = replace(PLAIN, seed=data.draw(st.integers(0, 3)))
        cells = data.draw(st.integers(1, 15))
        request = canvas(rule, cells, params, tuple(range(7, 7 + data.draw(st.integers(1, 40)))))
        asked.append(replace(request, decoder=Denoise(rule, 0)))
        sequences.append(asked[-1].add_to(engine))
        for _ in range(data.draw(st.integers(0, 3))):
            events += engine.step()
    events = run_to_end(engine, events)
    for request, sequence in zip(asked, sequences, strict=True):
        alone = seeing()
        only = request.add_to(alone)
        expected = run_to_end(alone)
        assert read_written(sequence, events) == read_written(only, expected)
        bare = [[p._replace(id=0, phases=None) for p in passes_of(of, s)]
                for of, s in ((events, sequence), (expected, only))]  # fmt: skip
        assert bare[0] == bare[1]


# -- settings --------------------------------------------------------------------------------------


def test_a_model_s_numbers_are_those_of_its_rule():
    usual = {"rule": "diffusion-gemma", "max_passes": 9, "entropy_bound": 0.7}
    assert with_usual(True, usual) == usual
    assert with_usual("diffusion-gemma", usual) == usual
    assert with_usual({"max_passes": 3}, usual) == usual | {"max_passes": 3}
    assert with_usual("llada", usual) == "llada"
    assert with_usual(Rule(), usual) == Rule()
    by_threshold = with_usual({"threshold": 0.5}, usual)
    assert "entropy_bound" not in by_threshold and by_threshold["threshold"] == 0.5


def test_temperatures_of_passes_have_the_span_of_the_request_s():
    with pytest.raises(InputError, match="t_max"):
        Rule(t_max=0, t_min=0)
    for temperature, t_max in ((2.0, 100.0), (0.01, 0.5)):
        rule, params = replace(DRIFTS, t_max=t_max), replace(PLAIN, temperature=temperature)
        words = f"t_max {t_max:g} times the temperature {temperature:g} is {t_max * temperature:g},"
        with pytest.raises(InputError, match=words):
            canvas(rule, params=params).add_to(seeing())


def test_forced_cells_are_gone_through_once():
    """Not once for each cell of each pass."""
    forced = CountedCells(ForcedCell(p, c, 1) for p in range(3) for c in range(12))
    request = canvas(replace(DRIFTS, max_passes=3))
    object.__setattr__(request.decoder.rule, "forced_cells", forced)
    _, passes = denoised(request, noise)
    assert len(passes) == 3 and all(cell.token_id == 1 for cell in passes[0].cells)
    assert forced.times < 6


def test_rows_are_blended_a_few_at_a_time():
    chances, sizes = np.stack([noise((n, 3)) for n in range(70)]), []
    blends = pass_cells.blend_rows(lambda part: sizes.append(len(part)) or part, chances)
    assert (blends == chances).all() and max(sizes) < 70


def test_a_last_draw_that_fails_ends_its_text_and_no_other(monkeypatch):
    failing = ValueError("no draw")
    monkeypatch.setattr(pass_cells, "sample", lambda logits, _: [failing] * len(logits))
    engine = seeing()
    other = MockRequest(PROMPT, PLAIN, decoder=Denoise(Rule(start="noise"), None))
    broken, whole = canvas(DRIFTS).add_to(engine), other.add_to(engine)
    run_to_end(engine)
    assert broken.error is failing
    assert whole.error is None and whole.finish_reason == "max_tokens"


def test_a_model_of_noise_says_that_its_canvas_begins_as_noise():
    with pytest.raises(InputError, match=r"start is mask, and .* begins as noise, or it names no"):
        canvas(replace(DRIFTS, start="mask")).add_to(seeing())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"t_min": None}, "t_max needs t_min"),
        ({"t_max": 0.3}, "t_max must be at least t_min"),
        ({"confidence_threshold": None}, "stability_threshold needs confidence_threshold"),
        ({"entropy_bound": None}, "needs threshold, factor or entropy_bound"),
        ({"remask": "none"}, "max_passes: only with remask 'unchosen'"),
        ({"cache": "prefix"}, "cache: a canvas of noise is computed exactly"),
    ],
)
def test_settings_that_do_nothing_alone_are_refused(changed, words):
    with pytest.raises(InputError, match=words):
        canvas(replace(DRIFTS, **changed)).add_to(seeing())


@pytest.mark.parametrize("changed", [{"remask": "edit"}, {"remask": "none"}, {"steps": 4}])
def test_another_remask_leaves_out_the_settings_of_unchosen(changed):
    usual = {"rule": "diffusion-gemma", "max_passes": 9, "stability_threshold": 2}
    for value in (with_usual(changed, usual), {"rule": "diffusion-gemma"} | changed):
        rule = read_rule(value)
        rule.check_whole()
        assert rule.remask == changed.get("remask", "none")
        assert rule.max_passes is rule.stability_threshold is rule.confidence_threshold is None
    with pytest.raises(InputError, match="max_passes: only with remask 'unchosen'"):
        read_rule(with_usual(changed | {"max_passes": 3}, usual)).check_whole()
    assert read_rule({"rule": "mask-predict", "steps": 4}).remask == "lowest"


def test_how_often_a_block_is_gone_over_must_be_said():
    with pytest.raises(InputError, match="max_passes: with remask 'unchosen'"):
        Rule(remask="unchosen", threshold=0.9)
