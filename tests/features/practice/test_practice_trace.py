"""A step of a recorded run as a starting point."""

from dataclasses import replace

import numpy as np
import pytest

from cutaway import LLM
from cutaway.errors import InputError
from cutaway.features.practice.exercises import comparison, exercises
from cutaway.features.practice.start import from_trace
from cutaway.trace import Token, Trace
from support.random_llama import write_tiny_llama


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(str(write_tiny_llama(tmp_path_factory.mktemp("practice") / "tiny.gguf")), threads=1)


@pytest.fixture(scope="module")
def record(llm, tmp_path_factory):
    """Records a run, and reads it again."""

    def made(**options):
        path = tmp_path_factory.mktemp("traces") / "run.trace"
        llm.generate("ab", trace=path, **({"max_tokens": 12, "seed": 3} | options))
        return Trace.read(path)

    return made


@pytest.fixture(scope="module")
def trace(record):
    return record(temperature=1.5, top_p=1.0)


def test_the_six_likeliest_as_the_model_sees_them(llm, trace):
    ids = [*trace.head.prompt_token_ids, *trace.output_token_ids]
    rows = llm.logits(ids)[len(trace.head.prompt_token_ids) - 1 :]
    for step in trace.steps:
        start, row = from_trace(trace, step.index), rows[step.index].astype(np.float64)
        best = [int(i) for i in np.argsort(-row, kind="stable")[:6]]
        if step.sampled_id not in best:
            best[-1] = step.sampled_id
        assert list(start.token_ids) == best
        assert list(start.logits) == [row[i] for i in best]
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert start.left_out == pytest.approx(1 - p[best].sum(), abs=1e-6)


def test_the_luck_is_that_of_the_run(trace):
    for step in trace.steps:
        start = from_trace(trace, step.index)
        recorded = {candidate.id: candidate.luck for candidate in step.observed.candidates}
        assert [start.luck[row] for row in range(6)] == [recorded[i] for i in start.token_ids]
        assert step.sampled_id in start.token_ids


def test_the_last_row_of_the_comparison_is_the_run(trace):
    step = trace.steps[4]
    way, drawn = comparison(from_trace(trace, 4)).rows[-1]
    assert way == "your run, all tokens: temperature 1.5"
    assert drawn == trace.name_of(step.sampled_id).replace(" ", "␣")


@pytest.mark.parametrize(
    ("options", "chain"),
    [({"temperature": 0}, "greedy"), ({"temperature": 1, "top_p": 1}, "pure sampling"),
     ({"temperature": 0.7, "top_k": 40, "top_p": 1, "repetition_penalty": 1.2},
      "penalties → temperature 0.7 → top-k 40"),
     ({"temperature": 0, "logit_bias": {5: 1}}, "logit-bias → greedy")],
)  # fmt: skip
def test_the_chain_in_words(record, options, chain):
    assert from_trace(record(max_tokens=2, **options), 1).run.chain == chain


def test_the_text_ends_before_the_step(trace):
    before = "ab" + "".join(step.text for step in trace.steps[:5])
    assert from_trace(trace, 0).text == "ab"
    assert from_trace(trace, 5).text.startswith("ab")
    assert len(from_trace(trace, 5).text) <= 4 * len(before)  # no more than escapes


def test_where_no_step_is_named_it_is_the_most_uncertain(trace):
    most = max(range(len(trace.steps)), key=lambda n: trace.steps[n].observed.entropy)
    assert from_trace(trace) == from_trace(trace, most)


@pytest.mark.parametrize("index", [12, -1, 10**9])
def test_a_step_that_is_not_there(trace, index):
    with pytest.raises(InputError, match=f"step must be one of this trace's, 0 to 11, not {index}"):
        from_trace(trace, index)


def test_a_trace_without_steps(trace):
    with pytest.raises(InputError, match="this trace has no steps"):
        from_trace(replace(trace, steps=()))


def test_a_step_that_kept_too_little(trace):
    seen = trace.steps[0].observed
    step = trace.steps[0]._replace(observed=seen._replace(candidates=seen.candidates[:1]))
    with pytest.raises(InputError, match="step 0 keeps 1 token: record the trace with more"):
        from_trace(replace(trace, steps=(step,)))


def test_tokens_are_shown_so_that_one_sees_them(trace):
    step = trace.steps[0]
    odd = [b" a b", b"\n", b"", b"\x1b[31m", "é日".encode(), b"abcdefghijklmnop"]
    ids = [candidate.id for candidate in sorted(step.observed.candidates, key=lambda c: c.rank)]
    six = step._replace(sampled_id=ids[0])
    tokens = {**trace.tokens} | {i: Token(i, text) for i, text in zip(ids, odd, strict=False)}
    start = from_trace(replace(trace, steps=(six,), tokens=tokens), 0)
    assert start.names == ("␣a␣b", "\\n", "(empty)", "\\x1b[31m", "é日", "abcdefghijk…")


def test_a_forced_token_is_not_what_the_run_drew(record):
    trace = record(temperature=1.0, top_p=1.0, forced=(5, 5, 5))
    assert any(step.sampled_id != step.token_id for step in trace.steps)
    for step in trace.steps[:3]:
        run = from_trace(trace, step.index).run
        assert run.drawn == trace.name_of(step.sampled_id).replace(" ", "␣") != ""


def test_every_step_can_be_practised(trace):
    for step in trace.steps:
        start = from_trace(trace, step.index)
        assert exercises(start, ["sampling"])[0].answer.solution in start.names
