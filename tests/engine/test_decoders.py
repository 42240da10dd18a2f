"""Decoders: a canvas from the left has the loop's bits; scoring goes along; none minds company.

What a token sees is a number of the model.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.engine import (
    Autoregressive,
    Denoise,
    FinishReason,
    Pass,
    Request,
    RunParams,
    Score,
    Scored,
    StopParams,
)
from cutaway.engine.canvas import RULES, Figures, Rule, make_canvas
from cutaway.engine.limits import last_seen
from cutaway.errors import InputError
from cutaway.sampling import (
    CompiledChain,
    History,
    Observe,
    RowDraw,
    SamplingParams,
    build_chain,
    sample,
)
from cutaway.sampling.fixed_math import exp
from cutaway.sampling.observe import START, chain_hash
from support.engine_mock import GREEDY, MockRequest, make_engine, read_written, run_to_end
from support.mock_backend import AT, END, VOCAB, narrow, noise


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
            texts.append(read_written(sequence, events))
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
    assert read_written(beside, events) == alone


def test_a_scored_prompt_may_fill_the_context_and_no_more():
    engine = make_engine(noise, context=64)
    engine.add(Request(prompt_token_ids=(5,) * 64, decoder=Score(logits_from=63)))
    run_to_end(engine)
    with pytest.raises(Exception, match="1 to 64"):
        engine.add(Request(prompt_token_ids=(5,) * 65, decoder=Score(logits_from=0)))


# -- canvases --------------------------------------------------------------------------------------


MASK = 0
LEFT = Rule(order="left", block=1)
DRAWN = SamplingParams(temperature=0.8, top_p=0.9, seed=11)


def canvas(rule=Rule(), prompt=(5, 6, 7), cells=12, params=DRAWN, behind=()):  # noqa: B008
    decoder = Denoise(rule, MASK, behind)
    return MockRequest(prompt, params, StopParams(max_tokens=cells), decoder=decoder)


def seeing(attention="bidirectional", model=noise, **more):
    """An engine whose model is told what each row attends to."""
    return make_engine(model, attention=attention, tells_places=True, **more)


def passes_of(events, sequence):
    return [e for e in events if isinstance(e, Pass) and e.id == sequence.id]


# -- the loop is a special case ----------------------------------------------------------------


@given(
    st.lists(st.integers(1, 255), min_size=1, max_size=40),
    st.sampled_from([GREEDY, DRAWN, SamplingParams(temperature=1.3, repetition_penalty=1.2)]),
    st.integers(1, 20),
    st.sampled_from([noise, narrow]),
)
def test_one_cell_at_a_time_from_the_left_is_the_loop(prompt, params, cells, model):
    params, stops = replace(params, seed=3), StopParams(max_tokens=cells)
    loop = MockRequest(tuple(prompt), params, stops, decoder=Autoregressive())
    cellwise = replace(loop, decoder=Denoise(LEFT))
    assert cellwise.run_on(make_engine(model)) == loop.run_on(make_engine(model))


def test_the_two_run_together_and_share_what_is_computed():
    engine = make_engine(noise)
    prompt = tuple(range(1, 41))
    loop = MockRequest(prompt, GREEDY, StopParams(max_tokens=9))
    first = loop.run_on(engine)
    sequences = [replace(loop, decoder=Denoise(LEFT)).add_to(engine), loop.add_to(engine)]
    events = run_to_end(engine)
    assert [read_written(s, events) for s in sequences] == [first, first]
    assert all(s.num_cached_tokens == 32 for s in sequences)


# -- against the definition --------------------------------------------------------------------


def by_definition(request, model, attention, *, shift=False):
    """(token ids, the cells that each pass revealed, the last fingerprint), without an engine."""
    rule, params = request.decoder.rule, request.params
    prompt, behind = list(request.prompt), list(request.decoder.suffix_ids)
    chain = CompiledChain(build_chain(params, constrained=True), params, prompt)
    mask = ~np.zeros(-(-VOCAB // 32), np.uint32)
    mask[0] &= ~np.uint32(1 << MASK)
    block = attention if isinstance(attention, int) else None
    cells = make_canvas(rule, len(prompt), request.stops.max_tokens, block)
    reveals, fingerprint, masks = [], START, [MASK] * len(cells.cells)
    while not cells.is_full:
        end = len(prompt) + (cells.span[1] if block else len(cells.cells))
        text = [*prompt, *cells.token_ids(masks)][:end] + behind
        drawn = []
        history = [c.sampled.token_id for c in cells.cells if c.sampled]
        for cell in cells.next_cells:
            row = len(prompt) + cell - shift
            limit = last_seen(attention, row, len(text))
            seen = tuple(text[: limit + 1])
            logits = model((*seen, AT, row) if limit != row else seen)
            redraw = cells.index if rule.noise == "fresh" else 0
            draw = RowDraw(
                chain, History(prompt, history), params.seed, len(prompt) + cell,
                Observe(top=3, after_chain=True), None, mask, redraw,
            )  # fmt: skip
            drawn += sample(logits[None], [draw])
        of = figures(drawn, len(prompt), cells.next_cells, rule)
        masked = {*cells.masked}
        index = cells.index
        cells.reveal(drawn, of, params.seed)
        for one in drawn:
            fingerprint = chain_hash(fingerprint, one.logits_hash)
        reveals.append((index, sorted(masked - {*cells.masked})))
        if cells.is_done:
            cells.next_block()
    return cells.token_ids(masks), reveals, fingerprint


def figures(drawn, first, asked, rule):
    best = np.array([likely(one, rule) for one in drawn])
    own = [one.observed.final_logprob if rule.after_chain else one.logprob for one in drawn]
    return Figures(
        np.array(asked) + first, exp(np.array(own)), exp(best[:, 0]), exp(best[:, 1]),
        np.array([one.observed.entropy for one in drawn]),
    )  # fmt: skip


def likely(one, rule):
    seen = one.observed
    if rule.after_chain:
        return [*(p for _, p in seen.after_chain), -np.inf][:2]
    return [c.logit - seen.log_sum_exp for c in seen.candidates if c.id != MASK][:2]


RULED = [
    Rule(),
    Rule(order="margin", steps=5),
    Rule(order="entropy", entropy_bound=4.0, noise="fresh"),
    Rule(order="random", steps=7, schedule="cosine", draws_first=True, noise="fresh"),
    Rule(threshold=0.02, block=5),
    Rule(factor=1.9, draws_first=True, block=4),
    Rule(steps=4, remask="lowest", draws_first=True),
    Rule(order="random", steps=9, schedule="linear", remask="sigma", remask_rate=0.5),
    Rule(threshold=0.02, remask="edit", edit_threshold=0.01, noise="fresh"),
    Rule(order="margin", after_chain=True, order_temperature=0.3, steps=5, schedule="dream"),
]
STORED = [
    Rule(cache="prefix", block=5, steps=7),
    Rule(cache="dual", block=4, threshold=0.02),
    Rule(cache="dual", draws_first=True, noise="fresh"),
    Rule(cache="prefix", threshold=0.02, remask="edit", edit_threshold=0.01),
]
"""The mock stores tokens and nothing that is made of them, so that these are exact on it."""
ATTENTION = [("bidirectional", False), ("bidirectional", True), (4, False), (8, True), (32, False),
             (5, False)]  # fmt: skip


def rules_for(attention):
    if attention == "bidirectional":
        return [*RULED, *STORED]
    return [replace(rule, block=None) for rule in RULED]


@settings(max_examples=40)
@given(st.data())
def test_any_rule_and_sight_in_any_company_is_the_definition(data):
    """Neighbours that decode and read long prompts, few KV blocks, few rows, a warm cache."""
    attention, shift = data.draw(st.sampled_from(ATTENTION))
    rows = data.draw(st.sampled_from([32, 128, 512]))
    kv_blocks = data.draw(st.sampled_from([5, 7, 40]))
    engine = seeing(attention, context=128, kv_blocks=kv_blocks, shift=shift, rows=rows,
                    max_prefill_rows_while_decoding=16)  # fmt: skip
    prompts = [tuple(range(7, 7 + n)) for n in (1, 3, 30, 45)]
    asked, sequences, events = [], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        rule = data.draw(st.sampled_from(rules_for(attention)))
        params = data.draw(st.sampled_from([GREEDY, DRAWN, SamplingParams(temperature=2.0)]))
        params = replace(params, seed=data.draw(st.integers(0, 3)))
        behind = (9, 8) if attention == "bidirectional" and data.draw(st.booleans()) else ()
        cells = data.draw(st.integers(1, 17))
        asked.append(canvas(rule, data.draw(st.sampled_from(prompts)), cells, params, behind))
        sequences.append(asked[-1].add_to(engine))
        for _ in range(data.draw(st.integers(0, 3))):
            events += engine.step()
    events = run_to_end(engine, events)
    for request, sequence in zip(asked, sequences, strict=True):
        token_ids, reveals, fingerprint = by_definition(request, noise, attention, shift=shift)
        made = passes_of(events, sequence)
        first = len(request.prompt)
        got = [(p.index, sorted(c.position - first for c in p.revealed)) for p in made]
        text = read_written(sequence, events).token_ids
        assert text == tuple(token_ids[: len(text)])
        assert len(text) == len(token_ids) or text[-1] == END
        assert got == reveals[: len(got)]
        if len(text) == len(token_ids):
            assert made[-1].fingerprint == fingerprint


def forcing(*cell):
    return Rule(forced_cells=(cell,))


# -- what cannot be ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attention", "change", "words"),
    [
        ("causal", {}, "writes from left to right"),
        ("bidirectional", {"decoder": Denoise(Rule())}, "names no mask token"),
        (8, {"decoder": Denoise(Rule(block=4), MASK)}, "blocks have 8 tokens"),
        (8, {"decoder": Denoise(Rule(), MASK, (3,))}, "suffix: "),
        (8, {"decoder": Denoise(Rule(cache="dual"), MASK)}, "is kept exactly"),
        ("bidirectional", {"stops": StopParams(max_tokens=0)}, "how many cells"),
        ("bidirectional", {"prompt": tuple(range(1, 60))}, "maximum context length is 64"),
        ("bidirectional", {"run": RunParams(forced=(1,))}, "forced needs a text"),
        ("bidirectional", {"run": RunParams(speculate="ngram")}, "speculate needs a text"),
        ("bidirectional", {"observe": Observe(prompt_top=1)}, "prompt_logprobs needs a text"),
        ("bidirectional", {"decoder": Denoise(forcing(0, 12, 1), MASK)}, "the canvas has 12 cells"),
        ("bidirectional", {"decoder": Denoise(forcing(0, 1, 999), MASK)}, "999"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(attention, change, words):
    engine = seeing(attention)
    with pytest.raises(InputError, match=words):
        replace(canvas(), **change).add_to(engine)
    assert engine.is_idle


def test_a_model_without_a_head_has_no_canvas():
    engine = seeing()
    engine.limits = replace(engine.limits, has_head=False)
    with pytest.raises(InputError, match="no head that predicts tokens"):
        canvas().add_to(engine)


# -- what happens on the way -------------------------------------------------------------------


def test_a_forced_cell_changes_nothing_before_its_pass():
    free, forced = canvas().finish(seeing()), canvas(forcing(4, 9, 77)).finish(seeing())
    before, after = (passes_of(one.events, one.sequence) for one in (free, forced))
    plain = [[p._replace(id=0, phases=None) for p in made[:4]] for made in (before, after)]
    assert plain[0] == plain[1]
    [cell] = [c for c in after[4].cells if c.position == 12]
    assert (cell.token_id, cell.now) == (77, 77)
    assert forced.steps[9].source == "forced"
    assert forced.steps[9].sampled_id != 77
    assert before[5].fingerprint != after[5].fingerprint


@pytest.mark.parametrize("attention", ["bidirectional", 4])
def test_a_forced_cell_of_another_block_ends_the_text_with_an_error(attention):
    rule = Rule(block=None if attention == 4 else 4, forced_cells=((2, 9, 77),))
    sequence = canvas(rule).finish(seeing(attention)).sequence
    assert sequence.finish_reason == FinishReason.ERROR
    assert "give another" in str(sequence.error)


def test_the_mask_is_never_drawn():
    def likes_the_mask(tokens):
        logits = noise(tokens)
        logits[MASK] += 50
        return logits

    assert MASK not in canvas().finish(seeing(model=likes_the_mask)).token_ids


def test_a_text_that_is_seen_whole_does_not_wait_for_those_that_decode():
    """Longer than what may be read beside a text that is being written, which never ends."""
    engine = seeing(context=512, max_prefill_rows_while_decoding=16)
    engine.limits = replace(engine.limits, attention="causal")
    endless = StopParams(max_tokens=400, ignore_eos=True)
    first = MockRequest((1, 2), GREEDY, endless).add_to(engine)
    engine.limits = replace(engine.limits, attention="bidirectional")
    whole = canvas(prompt=tuple(range(1, 101))).add_to(engine)
    while not whole.finish_reason:
        engine.step()
    assert whole.finish_reason == FinishReason.MAX_TOKENS
    assert not first.finish_reason
    engine.abort(first)


def test_a_block_is_text_when_it_is_finished():
    engine = seeing()
    sequence = canvas(Rule(block=4)).add_to(engine)
    kinds = []
    while not sequence.finish_reason:
        kinds += [type(event).__name__[0] for event in engine.step()]
    assert "".join(kinds) == "S" + 3 * "PPPPSSSS" + "E"


def test_samples_of_one_prompt_have_luck_of_their_own():
    engine = seeing()
    sequences = engine.add(canvas().to_request(), 3)
    events = run_to_end(engine)
    texts = {read_written(s, events).token_ids for s in sequences}
    assert len(texts) == 3
    alone = canvas(params=replace(DRAWN, seed=sequences[2].seed)).run_on(seeing())
    assert alone == read_written(sequences[2], events)


@pytest.mark.parametrize("prompt", [3, 45])
def test_samples_of_a_prompt_wait_for_its_blocks_alone(prompt):
    """What is shared of it is computed in a step; the block that it ends in is never shared."""
    engine = seeing(8, context=128)
    engine.add(canvas(prompt=tuple(range(1, prompt + 1))).to_request(), 3)
    other = canvas().add_to(engine)
    for _ in range(3):
        engine.step()
    assert len(engine.running) == 4
    assert other.num_cached_tokens is not None
    assert [s.num_cached_tokens for s in engine.running] == [0, *[prompt // 8 * 8] * 2, 0]
    run_to_end(engine)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_by_name_ends(name):
    reason = canvas(RULES[name], cells=24).run_on(seeing()).finish_reason
    assert reason in (FinishReason.MAX_TOKENS, FinishReason.END_TOKEN)


# -- what a token sees -----------------------------------------------------------------------------


@given(st.integers(1, 40), st.sampled_from(["causal", "bidirectional", 1, 2, 4, 7, 32, 64]))
def test_the_last_position_that_a_token_sees(length, attention):
    """Written out: those whose block does not come after its own."""
    size = {"causal": 1, "bidirectional": length}.get(attention, attention)
    for row in range(length):
        seen = [p for p in range(length) if p // size <= row // size]
        assert [*range(last_seen(attention, row, length) + 1)] == seen
