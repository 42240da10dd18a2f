"""Every solution and every figure of its arithmetic, against the sampler by definition."""

import io
import re
from dataclasses import replace
from itertools import accumulate
from math import exp, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.engine.canvas import Rule
from cutaway.errors import InputError
from cutaway.features.practice import BITS, SHARE, Numbers, TokenAnswer
from cutaway.features.practice.cells import (
    SAMPLE_CELLS,
    THRESHOLD,
    cell_exercises,
    cells_of_trace,
    reveal_cells,
)
from cutaway.features.practice.exercises import Table, comparison, exercises
from cutaway.features.practice.start import SAMPLE, WAYS, draws, outcome
from cutaway.sampling import (
    CompiledChain,
    History,
    Observe,
    RowDraw,
    SamplingParams,
    build_chain,
    derive_seed,
    sample,
)  # fmt: skip
from cutaway.trace import Trace
from support.practice_brute import QUICK, entropy, pick, shares, solutions, start_of

logits = st.lists(st.integers(-400, 400).map(lambda n: n / 100), min_size=2, max_size=6).map(
    lambda zs: [float(np.float32(z)) for z in zs]
)
starts = st.builds(start_of, logits, st.integers(0, 2**64 - 1), st.integers(0, 10_000))


def test_the_samples_luck_makes_the_ways_differ():
    drawn = [row[1] for row in comparison(SAMPLE).rows]
    assert drawn == ["mat", "‹eos›", "sofa", "roof", "mat", "‹eos›"]


@settings(max_examples=30)
@given(starts)
def test_every_solution_is_that_on_paper(start):
    for exercise, right in zip(exercises(start, QUICK), solutions(start), strict=True):
        assert exercise.answer.judge(exercise.answer.solution).right, exercise.question
        if isinstance(right, str):
            assert exercise.answer.solution == right, exercise.question
        else:
            assert exercise.answer.values == pytest.approx(right, rel=1e-6), exercise.question


@settings(max_examples=60)
@given(starts, st.sampled_from(sorted(WAYS)))
def test_every_way_draws_and_keeps_what_it_does_on_paper(start, way):
    made = outcome(start, **WAYS[way])
    assert made.pick == pick(start, **WAYS[way])
    if way != "greedy":
        right = shares(start, **WAYS[way])
        assert list(made.shares) == list(right)  # the likeliest first
        assert made.shares == pytest.approx(right, rel=1e-6)
        assert max(made.scores, key=made.scores.__getitem__) == made.pick
        whole = shares(start)
        lost = 1 - sum(whole[row] for row in right)
        assert made.removed_mass == pytest.approx(lost, abs=1e-9)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(20))
def test_the_native_sampler_does_the_same(way, seed):
    params = SamplingParams(**({"temperature": 1, "top_p": 1} | WAYS[way]))
    chain = CompiledChain(build_chain(params), params, ())
    draw = RowDraw(chain, History(), seed, SAMPLE.position, Observe(top=6))
    [done] = sample(np.array([SAMPLE.logits], np.float32), [draw])
    made = outcome(replace(SAMPLE, seed=seed), **WAYS[way])
    assert made.pick == done.sampled_id
    stay = [c for c in done.observed.candidates if c.removed_by is None]
    assert list(made.shares) == [c.id for c in stay]
    assert list(made.shares.values()) == pytest.approx(
        [np.exp(c.final_logprob) for c in stay], rel=1e-12
    )


def test_a_thousand_draws_are_the_first_of_a_thousand_samples():
    by_hand = [0] * 6
    for n in range(200):
        by_hand[pick(replace(SAMPLE, seed=derive_seed(SAMPLE.seed, n)))] += 1
    assert draws(SAMPLE, 200) == tuple(by_hand)


def cells(table, head):
    at = table.head.index(head)
    return {row[1]: row[at].replace("−", "-") for row in table.rows}


def shown(start, topic, column, block):
    """A column of a table of the arithmetic, by row; then what its last line says."""
    found = cells(next(iter(exercises(start, [topic]))).arithmetic[block], column)
    return [float(found[name]) for name in start.names], found.get("sum")


@settings(max_examples=30)
@given(starts)
def test_softmax_is_explained_as_on_paper(start):
    below = [z - max(start.logits) for z in start.logits]
    p = shares(start)
    for column, figures, digits in [
        ("z", start.logits, 2), ("−largest", below, 2), ("exp", list(map(exp, below)), 3),
        ("p", [p[row] for row in range(len(p))], 3),
    ]:  # fmt: skip
        off = 0.51 * 10**-digits
        assert shown(start, "softmax", column, 1)[0] == pytest.approx(figures, abs=off)
    assert float(shown(start, "softmax", "exp", 1)[1]) == pytest.approx(
        sum(map(exp, below)), abs=0.00051
    )


@settings(max_examples=30)
@given(starts)
def test_entropy_is_explained_as_on_paper(start):
    p = [shares(start)[row] for row in range(len(start.names))]
    parts, total = shown(start, "entropy", "p × bits", 1)
    assert shown(start, "entropy", "bits", 1)[0] == pytest.approx([-log2(x) for x in p], abs=0.0051)
    assert parts == pytest.approx([-x * log2(x) for x in p], abs=0.00051)
    assert float(total) == pytest.approx(entropy(start), abs=0.00051)


@settings(max_examples=30)
@given(starts)
def test_top_p_is_explained_as_on_paper(start):
    p, kept = shares(start), list(shares(start, top_p=0.9))
    table = exercises(start, ["top-p"])[0].arithmetic[0]
    sums = [float(figure) for figure in cells(table, "sum").values()]
    assert sums == pytest.approx(list(accumulate(p.values())), abs=0.00051)
    assert list(cells(table, "")) == [start.names[row] for row in p]  # the likeliest first
    assert list(cells(table, "").values()) == [
        *["stays"] * (len(kept) - 1), "crosses, stays", *["removed"] * (len(p) - len(kept))
    ]  # fmt: skip


@settings(max_examples=30)
@given(starts)
def test_every_draw_is_explained_as_on_paper(start):
    for exercise in exercises(start, ["sampling", "top-k", "top-p", "temperature"]):
        for table in (block for block in exercise.arithmetic if isinstance(block, Table)):
            if "luck" not in table.head:
                continue
            drawn = [name for name, fate in cells(table, "").items() if fate == "drawn"]
            assert drawn == [exercise.answer.solution]
            luck = [float(figure) for figure in cells(table, "luck").values()]
            assert luck == pytest.approx(list(start.luck.values()), abs=0.0051)
            z, total = table.head[2], table.head[4]
            for name, figure in cells(table, z).items():
                if figure == "–":
                    assert (cells(table, total)[name], cells(table, "")[name]) == ("–", "removed")
                else:
                    both = float(figure) + float(cells(table, "luck")[name])
                    assert float(cells(table, total)[name]) == pytest.approx(both, abs=0.0151)


@settings(max_examples=30)
@given(starts)
def test_what_is_said_to_have_changed_has(start):
    pure, met = start.names[pick(start)], 0
    for exercise in exercises(start, QUICK):
        said = exercise.arithmetic[-1]
        if isinstance(said, str) and said.startswith("Pure sampling drew"):
            met += 1
            now = exercise.answer.solution
            assert pure in said
            assert said.endswith("too.") == (now == pure)
            if "removed" in said:
                k, p = (2, 1.0) if exercise.topic == "top-k" else (0, 0.9)
                assert start.names.index(pure) not in shares(start, top_k=k, top_p=p)
    assert met


def test_no_figure_is_a_negative_zero():
    asked = exercises(start_of([0.0, -0.001, 0.001]))
    tables = [table for each in asked for table in (each.given_table, *each.arithmetic)]
    rows = [row for table in tables if isinstance(table, Table) for row in table.rows]
    assert len(rows) > 20
    assert not any(re.fullmatch(r"[−-]0\.0+", cell) for row in rows for cell in row)


@pytest.mark.parametrize("seed", [0, 2, 35])
def test_the_thousand_are_judged_by_what_chance_does(seed):
    """Bars and answers are right within two standard errors of what theory says."""
    [exercise] = exercises(replace(SAMPLE, seed=seed), ["thousand"])
    expected = [1000 * shares(SAMPLE)[row] for row in range(6)]
    spread = [2 * (n * (1 - n / 1000)) ** 0.5 for n in expected]
    table, said = exercise.arithmetic[:2]
    drawn = [int(count) for count in cells(table, "drawn").values()]
    assert sum(drawn) == 1000
    assert table.bars == tuple(count / 1000 for count in drawn)
    assert np.array(table.spans) * 1000 == pytest.approx(
        np.array([(n - s, n + s) for n, s in zip(expected, spread, strict=True)])
    )
    rows = zip(drawn, expected, spread, strict=True)
    assert said.endswith(f"Here it keeps {sum(abs(c - n) <= s for c, n, s in rows)} of 6.")
    assert exercise.answer.values == pytest.approx(expected[:1])
    for count in (446, 446 + spread[0] - 1, 446 - spread[0] + 1):
        assert exercise.answer.judge(f"{count:.0f}").right
    assert not exercise.answer.judge("500").right
    assert exercise.answer.judge("45%").right


def test_topics_are_asked_in_the_order_of_the_lesson():
    asked = [exercise.topic for exercise in exercises(SAMPLE, ["top-k", "greedy"])]
    assert asked == ["greedy", "top-k", "top-k"]
    with pytest.raises(InputError, match=r"topic must be one of softmax, entropy, .*, not 'door'"):
        exercises(SAMPLE, ["greedy", "door"])


# -- what a person may write, and what is said to it -----------------------------------------------


PAIR = Numbers((0.622459, 0.377541), ("mat", "sofa"), SHARE)
ONE = Numbers((1.9993,), ("entropy",), BITS)
NAMES = ("mat", "␣mat", "Roof", "‹eos›", "3", "␣")


@pytest.mark.parametrize(
    "text",
    ["0.622 0.378", ".62 .38", "0.622, 0.378", "0.622,0.378", "0,622 0,378", "0,622; 0,378",
     "62% 38%", "62.2 % 37.8 %", "62 38", "62.2, 37.8", " .622\t.378 "],
)  # fmt: skip
def test_figures_may_be_written_in_many_ways(text):
    assert PAIR.judge(text).right


@pytest.mark.parametrize("text", ["0.6 0.4", "0.378 0.622", "-.62 -.38"])
def test_figures_that_are_off(text):
    assert not PAIR.judge(text).right


def test_the_wrong_figure_is_named_but_not_its_value():
    assert PAIR.judge(".622 .4").remark == "1 of 2 are right; look at sofa."
    assert PAIR.judge("0.1 0.1").remark == "Not quite."


@pytest.mark.parametrize(
    "text",
    ["0.622", "1 2 3", "a b", "0.622 b", "0..6 1", "%", "1/2 1/2", "nan nan",
     "inf 0.378", "0.6_2 0.378"],
)  # fmt: skip
def test_what_is_no_figure_is_answered_with_an_example(text):
    with pytest.raises(InputError, match="write 2 numbers with spaces between, each like "):
        PAIR.judge(text)


def test_bits():
    assert ONE.judge("2").right and ONE.judge("2 bits").right and ONE.judge("1,98").right
    assert not ONE.judge("1.39").right  # nats
    with pytest.raises(InputError, match=r"write one number, like 1\.5"):
        ONE.judge("200%")


@pytest.mark.parametrize(
    ("text", "row"),
    [("mat", 0), ("␣mat", 1), ("roof", 2), ("ROOF ", 2), ("eos", 3), ("<EOS>", 3), ("3", 4),
     ("#3", 2), ("1", 0), ("6", 5), ("_", 5)],
)  # fmt: skip
def test_a_token_is_named_by_its_text_or_its_number(text, row):
    assert [n for n in range(6) if TokenAnswer(NAMES, n).judge(text).right] == [row]


@pytest.mark.parametrize("text", ["door", "7", "0", "-1", "MAT", "99", "²"])
def test_what_is_no_token_is_answered_with_the_choices(text):
    with pytest.raises(InputError, match="write a token of the table, or its number, 1 to 6"):
        TokenAnswer(NAMES, 0).judge(text)


@given(st.text(max_size=20))
def test_any_text_is_judged_or_refused(text):
    for answer in (PAIR, ONE, TokenAnswer(NAMES, 0)):
        try:
            answer.judge(text)
        except InputError as error:
            assert str(error).startswith("write ")


# -- the next cell of a canvas by hand: right is what the rule says of these figures ---------------


ANSWERS = ("cat", "sat", "on", "warm", "4")


@pytest.fixture(scope="module")
def canvas(tiny_diffusion_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("cells") / "canvas.jsonl"
    llm = LLM(tiny_diffusion_path, threads=1, progress=False)
    llm.generate("ab", denoise={"steps": 4}, max_tokens=12, seed=3, trace=path)
    return path


def test_each_rule_reveals_another_cell():
    asked = cell_exercises(SAMPLE_CELLS)
    assert tuple(one.answer.solution for one in asked[:4]) == ANSWERS[:4]
    assert len({*ANSWERS}) == len(ANSWERS)


@pytest.mark.parametrize("index", [None, 0, 5, 11])
def test_the_cells_of_a_run_are_judged_as_their_figures_say(canvas, index):
    trace = Trace.read(canvas)
    cells = cells_of_trace(trace, index)
    made = trace.passes[cells.made]
    if index is not None:
        assert cells.made == trace.steps[index].pass_index
    masked = [c for c in made.cells if c.was is None]
    best = max(range(len(cells.p)), key=lambda i: cells.p[i])
    assert reveal_cells(cells, Rule())[0] == [best]
    assert max(cells.p) == pytest.approx(max(c.figure for c in masked))
    margins = [a - b for a, b in zip(cells.p, cells.second, strict=True)]
    assert reveal_cells(cells, Rule(order="margin"))[0] == [margins.index(max(margins))]
    sure = [i for i, p in enumerate(cells.p) if p >= THRESHOLD] or [best]
    assert reveal_cells(cells, Rule(threshold=THRESHOLD))[0] == sure
    for exercise in cell_exercises(cells):
        assert exercise.answer.judge(exercise.answer.solution).right


def test_a_run_from_left_to_right_has_no_cells(tiny_path, tmp_path):
    run = tmp_path / "run.jsonl"
    LLM(tiny_path, threads=1).generate("ab", max_tokens=2, trace=run)
    with pytest.raises(InputError, match="this trace is of no canvas"):
        cells_of_trace(Trace.read(run))


def test_the_command_asks_and_judges(capsys, monkeypatch, canvas):
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*ANSWERS, "0"]) + "\n"))
    assert main(["practice", "cells"]) == 0
    said = capsys.readouterr().out
    assert said.count("Right.") == 5
    assert "Of 6: 5 right, 1 missed." in said
    assert main(["practice", "cells", "--answers", "--from", str(canvas), "--step", "5"]) == 0
    assert "of your run" in capsys.readouterr().out
