"""One prompt in every way: each figure by its definition, and the table that the command prints."""

import json
from itertools import combinations, pairwise
from math import log2, sqrt
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.engine.canvas import Rule, rule_of_text
from cutaway.features.experiments.compare import LOOP, compare, usual_rules
from cutaway.features.measure import svg
from cutaway.rerun import Estimate, bands, price
from cutaway.rerun.statistics import divergence, estimate, surprise

HOW = {"max_tokens": 10, "seed": 3, "temperature": 0.9}


@pytest.fixture(scope="module")
def canvas(tiny_diffusion_path):
    return LLM(tiny_diffusion_path)


@pytest.fixture(scope="module")
def done(tiny, canvas):
    return compare([tiny, canvas], "ab", **HOW)


def test_each_model_has_its_ways(tiny, canvas, done):
    rules = usual_rules(canvas, 10)
    assert rules == ("confidence", "confidence,steps=5", "threshold", "entropy-bound")
    assert [(way.model, way.way) for way in done.ways] == [
        (tiny.name, LOOP), *((canvas.name, rule) for rule in rules)
    ]  # fmt: skip
    assert (done.seed, done.judge) == (3, tiny.name)


def test_the_figures_are_those_of_the_run_by_itself(tiny, canvas, done):
    loop = tiny.generate("ab", **HOW, ignore_eos=True)
    prompt = len(loop.prompt_token_ids)
    assert done.ways[0].text == loop.text
    assert (done.ways[0].passes, done.ways[0].rows) == (10, prompt + 9)
    assert (done.ways[0].order, done.ways[0].price) == (1.0, 0.0)
    for way in done.ways[1:]:
        made = canvas.generate("ab", **HOW, ignore_eos=True, denoise=rule_of_text(way.way))
        assert (way.text, way.token_ids) == (made.text, made.token_ids)
        assert way.rows == sum(one.rows for one in made.passes)
        assert way.tokens_per_pass == 10 / len(made.passes)
        assert way.price == price(canvas, made.prompt_token_ids, made.passes).price
        assert way.order == pytest.approx(tau([step.pass_index for step in made.steps]))


def tau(passes):
    """By its definition: pairs in order less those out of it, ties left out of one side."""
    signs = [np.sign(b - a) for a, b in combinations(passes, 2)]
    return sum(signs) / sqrt(len(signs) * sum(map(abs, signs)))


def test_the_judge_reads_the_text_with_its_own_tokens(tiny, done):
    for way in done.ways:
        before = tiny.tokenize("ab")
        ids = [*before, *tiny.tokenizer.encode(way.text, goes_on=True)]
        rows = tiny.logits(ids).astype(np.float64)
        each = [np.logaddexp.reduce(row) - row[i] for row, (_, i) in zip(rows, pairwise(ids))]  # noqa: B905
        assert way.bits == pytest.approx(sum(each[len(before) - 1 :]) * log2(np.e))
        assert way.bits_per_byte == way.bits / len(way.text.encode())
        words = way.text.split()
        assert way.distinct[0] == (len({*words}) / len(words) if words else None)


def test_distinct_is_of_words_and_of_their_pairs():
    from cutaway.features.experiments.compare import _distinct

    assert _distinct("a b a b a", 1) == 2 / 5
    assert _distinct("a b a b a", 2) == 2 / 4
    assert _distinct("a", 2) is None


def test_without_a_causal_model_there_is_no_judge(tiny, canvas):
    done = compare([canvas], "ab", rules=["left", "mask-predict,steps=4"], **HOW)
    assert done.judge is None
    assert [way.bits for way in done.ways] == [None, None]
    assert done.ways[0].order == 1.0
    judged = compare([canvas], "ab", rules=["left"], judge=tiny, **HOW)
    assert judged.judge == tiny.name
    assert judged.ways[0].bits > 0


def test_an_encoder_writes_too(tiny, tmp_path_factory):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    from support import random_models, tiny_tokenizers

    path = tmp_path_factory.mktemp("bert")
    random_models.save("bert", path, tokenizer=tiny_tokenizers.wordpiece)
    bert = LLM(path)
    done = compare([tiny, bert], "ab", **HOW)
    assert [way.way for way in done.ways] == [LOOP, "confidence", "mask-predict,steps=10"]
    made = bert.generate("ab", **HOW, ignore_eos=True, denoise=rule_of_text(done.ways[2].way))
    assert done.ways[2].token_ids == made.token_ids
    assert all(way.bits > 0 for way in done.ways)


def test_noise_and_likeliest_tokens_have_no_price(canvas):
    rules = ["diffusion-gemma,max_passes=3", "diffusion-gemma,max_passes=3,start=mask"]
    ways = compare([canvas], "ab", rules=[*rules, "threshold"], **HOW).ways
    assert [way.price is None for way in ways] == [True, True, False]


def test_progress_is_reported_to_the_end(tiny, canvas):
    reports = []
    compare([tiny, canvas], "ab", **HOW, progress=lambda *one: reports.append(one))
    assert reports[-1] == ("judging", 50, 50)
    writing = [done for what, done, total in reports if what == "writing" and total == 50]
    assert writing == sorted(writing)
    assert writing[-1] == 50


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rules": ["no-such"]}, "rule must be one of"),
        ({"rules": ["llada,pace=3"]}, "unknown setting 'pace'; known: block"),
        ({"rules": ["llada,steps=x"]}, "steps must be a whole number, not 'x'"),
        ({"rules": ["llada,draws-first=1"]}, "draws_first must be true or false, not '1'"),
        ({"rules": []}, "rules must name at least one"),
        ({"max_tokens": 0}, "max_tokens must be 1 or more"),
        ({"denoise": True}, "denoise: every way has one text"),
        ({"llms": []}, "name one or more"),
    ],
)
def test_what_cannot_be_compared(canvas, given, words):
    with pytest.raises(InputError, match=words):
        compare(**{"llms": [canvas], "prompt": "ab"} | given)


def test_a_judge_is_causal(canvas):
    with pytest.raises(InputError, match=r"judge: .* is bidirectional"):
        compare([canvas], "ab", judge=canvas)


def test_a_judge_needs_a_token_before_the_text(tiny, canvas, monkeypatch):
    monkeypatch.setattr(tiny.tokenizer, "add_bos", False)
    with pytest.raises(InputError, match="prompt is empty and the judge has no begin token"):
        compare([canvas], "", judge=tiny)


def test_a_rule_on_one_line():
    assert rule_of_text("left") == Rule(order="left")
    line = "confidence, steps=4,draws-first=true,order-temperature=0.5,block=2"
    assert rule_of_text(line) == Rule(steps=4, draws_first=True, order_temperature=0.5, block=2)


# -- the command ---------------------------------------------------------------------------------


@pytest.fixture
def command(folder, tiny, tiny_diffusion_path, capsys):
    def run(*args):
        models = ("-m", str(folder / "tiny.gguf"), "-m", str(tiny_diffusion_path))
        code = main(["compare", "ab", *models, "--seed", "3", "--max-tokens", "10", *args])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_command_prints_the_table_and_every_text(command, done):
    code, out, err = command("--temperature", "0.9")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"seed 3, judged by {done.judge}"
    assert lines[2].split()[:4] == ["model", "way", "passes", "rows"]
    for line, way in zip(lines[3:], done.ways, strict=False):
        found = line.removeprefix(way.model).strip().removeprefix(way.way).split()
        assert found[:2] == [str(way.passes), str(way.rows)]
        assert found[3:6] == ["10", f"{way.tokens_per_pass:.2f}", f"{way.bits:.1f}"]
        assert found[-1] == f"{way.price:+.2f}"
    for way in done.ways:
        assert f"{way.model}, {way.way}:\n" in out


def test_its_document_is_that_of_python(command, done):
    document = json.loads(command("--temperature", "0.9", "--json")[1])
    expected = json.loads(json.dumps(done.to_dict()))
    for way in (*document["ways"], *expected["ways"]):
        del way["ms"]
    assert document == expected


def test_a_rule_that_is_none_is_refused_before_a_model_is_loaded(capsys):
    assert main(["compare", "ab", "-m", "/nowhere.gguf", "--rule", "edit,edit-threshold=high"]) == 2
    assert capsys.readouterr().err == (
        "cutaway: error: --rule 'edit,edit-threshold=high': edit_threshold must be a number, not "
        "'high'\n"
    )


# -- curves ----------------------------------------------------------------------------------------

# The figures of the experiments against their definitions.


ROWS = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(size=(2, 3, 7)).astype(np.float32) * 5
)


def probabilities(row):
    weights = [np.exp(float(z) - float(max(row))) for z in row]
    return [w / sum(weights) for w in weights]


@given(ROWS)
def test_divergence_is_the_sum_that_defines_it(rows):
    for of, under, got in zip(*rows, divergence(*rows), strict=True):
        p, q = probabilities(of), probabilities(under)
        expected = sum(a * log2(a / b) for a, b in zip(p, q, strict=True))
        assert got == pytest.approx(expected, abs=1e-9)


@given(ROWS)
def test_a_row_does_not_diverge_from_itself_or_from_itself_shifted(rows):
    assert divergence(rows[0], rows[0]).tolist() == [0, 0, 0]
    np.testing.assert_allclose(divergence(rows[0], rows[0] + np.float32(3)), 0, atol=1e-6)


@given(ROWS)
def test_surprise_is_minus_log2_p(rows):
    expected = [-log2(probabilities(row)[i]) for row, i in zip(rows[0], (6, 0, 3), strict=True)]
    assert surprise(rows[0], (6, 0, 3)) == pytest.approx(expected)


@given(st.integers(1, 300))
def test_bands_contain_every_position_once_and_double(length):
    every = bands(length)
    assert [i for band in every for i in range(length)[band]] == list(range(length))
    widths = [band.stop - band.start for band in every]
    assert widths[:1] == [1]
    assert all(b in (1, 2 * a) for a, b in pairwise(widths[1:-1]))


def test_an_estimate_contains_the_mean_and_is_the_same_each_time():
    values = np.random.default_rng(1).normal(3, 1, 100)
    once = estimate(values)
    assert once == estimate(values)
    assert once.low < once.mean == values.mean() < once.high
    # of a mean of 100, 95 % lies within about two tenths of the deviation
    assert once.high - once.low == pytest.approx(2 * 1.96 * values.std() / 10, rel=0.1)


def test_a_constant_is_certain():
    flat = estimate(np.full(5, 2.5))
    assert (flat.low, flat.mean, flat.high) == (2.5, 2.5, 2.5)


# -- the drawing: all of it inside, bits upwards, names as they are ----------------------------

BITS = st.floats(-30, 30)


def points(drawing):
    root = ElementTree.fromstring(drawing)
    for line in root.iterfind(".//{*}polyline"):
        yield [tuple(map(float, point.split(","))) for point in line.get("points").split()]


@given(st.integers(1, 200), st.data())
def test_points_are_inside_from_left_to_right_and_more_bits_are_higher(length, data):
    parts = bands(length)
    row = st.lists(BITS, min_size=len(parts), max_size=len(parts))
    curves = {name: [Estimate(v, v - 1, v + 1) for v in data.draw(row)] for name in "ab"}
    drawn = list(points(svg.chart("title", "tokens", parts, curves)))
    assert [len(line) for line in drawn] == [len(parts)] * 2
    for line, curve in zip(drawn, curves.values(), strict=True):
        assert all(0 <= x <= 720 and 0 <= y <= 360 for x, y in line)
        xs = [x for x, _ in line]
        assert xs == sorted(set(xs))
        by_bits = sorted(zip((e.mean for e in curve), (y for _, y in line), strict=True))
        heights = [-y for _, y in by_bits]
        assert heights == sorted(heights)


def test_names_are_text():
    drawing = svg.chart("<b>", "&", bands(3), {"<script>": [Estimate(1, 1, 1)] * 3})
    shown = [element.text for element in ElementTree.fromstring(drawing).iter()]
    assert {"<b>", "&", "<script>"} <= set(shown)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"--svg: .* cannot be written: Is a directory"):
        svg.write(str(tmp_path), "")
