"""Lessons on the inside: what they say is right is what the model did."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.features.inside.ablate import ablate
from cutaway.features.practice.exercises import number
from cutaway.features.practice.lessons import LESSONS, lessons, scene
from cutaway.features.practice.lessons.attention import CHOICES, judge_loss, repeat_name
from cutaway.features.practice.lessons.attention import TEXT as NAMES
from cutaway.features.practice.lessons.scene import TEXT
from cutaway.features.practice.lessons.ways import TEXT as WAYS_TEXT
from cutaway.features.practice.lessons.ways import ways
from cutaway.trace import Trace
from cutaway.trace.figures import percent
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96, "layers": 3}
PROMPT = np.random.default_rng(0).integers(3, 260, 20).tolist()
STEP = 4


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = tmp_path_factory.mktemp("lessons") / "tiny.gguf"
    return LLM(write_tiny_llama(path, **SHAPE, format="Q8_0", context=512))


@pytest.fixture(scope="module")
def trace(llm, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    llm.generate(PROMPT, seed=3, max_tokens=8, ignore_eos=True, trace=path)
    return Trace.read(path)


@pytest.fixture(scope="module")
def here(llm, trace):
    return scene(llm, trace, STEP)


def asked(here, topic):
    found = lessons(here, [topic])
    assert {exercise.topic for exercise in found} == {topic}
    for exercise in found:
        assert exercise.answer.judge(exercise.answer.solution).right
        assert exercise.hint.endswith((".", "?"))
        for table in [
            exercise.given_table,
            *(b for b in exercise.arithmetic if not isinstance(b, str)),
        ]:
            assert {len(row) for row in table.rows} == {len(table.head)}
    return found


# -- the scene ---------------------------------------------------------------------------------


def test_a_step_of_ones_own_run(here, trace, llm):
    assert here.ids == [*PROMPT, *trace.output_token_ids[:STEP]]
    assert here.look.row_hash == trace.steps[STEP].logits_hash
    assert f"{here.look.row_hash:016x}" in here.introduction
    entropies = [step.observed.entropy for step in trace.steps]
    assert scene(llm, trace).index == np.argmax(entropies)
    with pytest.raises(InputError, match="0 to 7"):
        scene(llm, trace, 8)


def test_the_sample_run_has_its_own_luck(llm):
    sample = scene(llm)
    assert sample.ids == llm.tokenize(TEXT)
    for seed in range(5):
        drawn = llm.generate(TEXT, seed=seed, max_tokens=1, ignore_eos=True).token_ids
        assert (scene(llm, seed=seed).look.step.token_id,) == drawn
    assert sample.look.lens(1).drawn[-1] == sample.look.step.token_id


def test_an_unknown_topic(here):
    with pytest.raises(InputError, match=f"topic must be one of {', '.join(LESSONS)}, not 'x'"):
        lessons(here, ["mask", "x"])


# -- the causal mask ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 7])
def test_no_earlier_row_moves(llm, trace, step):
    """By the rows themselves; the answer is what the lesson counted, of hashes."""
    there = scene(llm, trace, step)
    [exercise] = asked(there, "mask")
    ids, rows = there.ids, exercise.arithmetic[0].rows
    place = next(i for i, row in enumerate(exercise.given_table.rows) if row[2])
    first = len(ids) - len(rows)
    before = llm.logits(ids, first)
    assert [row[2] for row in rows] == [f"{_hash(row)}" for row in before]
    assert [row[2] == row[3] for row in rows] == [i < place for i in range(len(rows))]
    assert exercise.answer.values == (len(rows) - place,)
    before[place - 1][ids[first + place]] = -np.inf
    other = int(before[place - 1].argmax())
    after = llm.logits([*ids[: first + place], other, *ids[first + place + 1 :]], first)
    assert [row[3] for row in rows] == [f"{_hash(row)}" for row in after]


def _hash(row):
    from cutaway.sampling.observe import row_hash

    return f"{row_hash(row):016x}"[:8]


def test_a_text_too_short_to_be_changed(llm, tmp_path):
    llm.generate([7, 8], max_tokens=2, ignore_eos=True, trace=tmp_path / "run.jsonl")
    short = Trace.read(tmp_path / "run.jsonl")
    with pytest.raises(InputError, match="topic mask: the text before this step has 2 tokens"):
        lessons(scene(llm, short, 0), ["mask"])
    [exercise] = asked(scene(llm, short, 1), "mask")
    assert exercise.answer.values == (2,)


# -- who looked at whom ------------------------------------------------------------------------


def test_weight_attribution_and_loss(here, llm, trace):
    looked, missed = asked(here, "attention")
    places = [int(row[2]) for row in looked.given_table.rows]
    assert places == sorted(places)
    weight = here.look.weights.mean(axis=(0, 1))
    assert places[looked.answer.row] == weight.argmax()
    done = ablate(llm, trace, STEP)
    worst = max(done.parts, key=lambda part: part.effect)
    assert places[missed.answer.row] == worst.start
    attribution = here.attribution.positions.sum(axis=(0, 1))
    assert np.abs(attribution).argmax() in places
    shown = missed.arithmetic[0].rows
    effect = {part.start: part.effect for part in done.parts}
    assert [row[4] for row in shown] == [number(effect[i], sign=True) for i in places]
    assert [row[3] for row in shown] == [number(attribution[i], sign=True) for i in places]
    drawn = {part.start: here.name(part.drawn) for part in done.parts}
    assert [row[5] for row in shown] == [drawn[i] for i in places]


def test_one_token_looks_at_itself(llm, tmp_path):
    llm.generate([7], max_tokens=1, ignore_eos=True, trace=tmp_path / "run.jsonl")
    with pytest.raises(InputError, match="needs 2"):
        lessons(scene(llm, Trace.read(tmp_path / "run.jsonl"), 0), ["attention"])


# -- where the answer appears ------------------------------------------------------------------


@pytest.mark.parametrize("step", range(8))
def test_the_head_on_the_stream_after_each_layer(llm, trace, step):
    there = scene(llm, trace, step)
    [exercise] = asked(there, "lens")
    names = [there.look.names[i] for i in _streams(there)]
    rows = llm.head(np.stack([there.look.tensor(name) for name in names]))
    best = rows.argmax(axis=1)
    shown = exercise.arithmetic[0].rows
    assert [row[0] for row in shown] == ["0", "1", "2", "3"]
    assert [row[1] for row in shown] == [there.name(int(token)) for token in best]
    [settled] = exercise.answer.values
    assert (best[int(settled) :] == best[-1]).all()
    assert settled == 0 or best[int(settled) - 1] != best[-1]
    came = there.look.step.token_id
    assert [int(row[3]) for row in shown] == [1 + int((row > row[came]).sum()) for row in rows]
    assert shown[-1][4] == there.token
    assert {row[:3] for row in exercise.given_table.rows} <= {row[:3] for row in shown[:-1]}


def _streams(there):
    """The places of the embedding and of what each layer's MLP is added to, in the graph."""
    names = there.look.names
    return [0] + [
        max(i for i, n in enumerate(names) if n.startswith(f"blk.{k}.")) for k in range(3)
    ]


# -- induction ---------------------------------------------------------------------------------


def test_what_followed_the_first_time(here, llm):
    [exercise] = asked(here, "induction")
    there, follower = repeat_name(llm)
    ids = there.ids
    assert ids[follower] == there.look.step.token_id
    assert ids[follower - 1] == ids[-1]
    assert llm.tokenize(NAMES)[: len(ids) + 1] == [*ids, ids[follower]]
    places = [j + 1 for j in range(len(ids) - 1) if ids[j] == ids[-1] and j + 1 < len(ids) - 1]
    induction = there.look.weights[:, :, places].sum(axis=2)
    layer, head = np.unravel_index(induction.argmax(), induction.shape)
    weight = there.look.weights[layer, head]
    assert exercise.answer.row == weight.argmax()
    assert f"L{layer}.H{head}" in exercise.question
    assert [row[2] for row in exercise.arithmetic[0].rows] == [percent(float(w)) for w in weight]
    best = np.sort(induction.ravel())[::-1][:5]
    assert [row[3] for row in exercise.arithmetic[1].rows] == [percent(float(w)) for w in best]
    done = llm.generate(
        ids, interventions=[f"knock_out {follower}"], max_tokens=1, logprobs=1000, ignore_eos=True
    )
    hidden = dict(done.logprobs[0].model)[ids[follower]]
    assert percent(float(np.exp(hidden))) in exercise.arithmetic[-1]


# -- cut it ------------------------------------------------------------------------------------


def test_an_attribution_beside_the_effect_of_an_ablation(here, llm):
    [exercise] = asked(here, "cut")
    found, rows = here.attribution, exercise.arithmetic[0].rows
    assert float(rows[0][1]) == pytest.approx(found.heads.max(), abs=0.006)
    pair = found.token, found.rival
    for row in rows[:2]:
        for column, where in ((2, f" at {len(here.ids) - 1}"), (3, "")):
            change = f"{row[0]} x 0{where}"
            done = llm.generate(here.ids, interventions=[change], max_tokens=1, logprobs=300)
            a, b = (dict(done.logprobs[0].model)[token] for token in pair)
            assert row[column] == number(found.total - (a - b), sign=True)
    attribution, lost = (float(cell.replace("−", "-")) for cell in rows[0][1:3])
    assert exercise.answer.names[exercise.answer.row] == CHOICES[judge_loss(attribution, lost)]


def test_lessons_on_a_changed_run(llm, tmp_path):
    """It stays changed: the row before any change of a lesson's is the one on record."""
    options = {"seed": 3, "max_tokens": 4, "ignore_eos": True, "interventions": ["L1.H1 x 0"]}
    llm.generate(PROMPT, trace=tmp_path / "run.jsonl", **options)
    there = scene(llm, Trace.read(tmp_path / "run.jsonl"), 3)
    [exercise] = asked(there, "mask")
    assert exercise.arithmetic[0].rows[-1][2] == f"{there.look.row_hash:016x}"[:8]
    [exercise] = asked(there, "cut")
    assert "L1.H1" not in [row[0] for row in exercise.arithmetic[0].rows if row[1] != "+0.00"]
    [row, *_] = exercise.arithmetic[0].rows
    interventions = ["L1.H1 x 0", f"{row[0]} x 0"]
    done = llm.generate(there.ids, interventions=interventions, max_tokens=1, logprobs=300)
    a, b = (
        dict(done.logprobs[0].model)[i] for i in (there.attribution.token, there.attribution.rival)
    )
    assert row[3] == number(there.attribution.total - (a - b), sign=True)


@pytest.mark.parametrize(
    ("lost", "choice"),
    [(2, 0), (1.26, 0), (1.2, 1), (0.8, 1), (0.7, 2), (0.06, 2), (0.04, 3), (0, 3), (-1, 3)],
)
def test_how_much_is_lost(lost, choice):
    assert judge_loss(0.5, 0.5 * lost) == choice


def test_a_model_without_experts(here):
    with pytest.raises(InputError, match="topic experts: tiny has none"):
        lessons(here, ["experts"])


@pytest.mark.model
def test_heads_that_repeat_a_name(smollm2_path):
    here = scene(LLM(smollm2_path, context=256))
    [exercise] = asked(here, "induction")
    there, follower = repeat_name(here.llm)
    assert exercise.answer.row == follower
    assert exercise.answer.solution == there.token
    weights = [float(row[2].removesuffix("%")) for row in exercise.arithmetic[1].rows]
    assert min(weights) > 50


# -- three ways to write: every figure is that of the engine's own runs ----------------------------


SETTINGS = {"seed": 1, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def canvas(tiny_diffusion_path):
    return LLM(tiny_diffusion_path, threads=1, progress=False)


@pytest.fixture(scope="module")
def left(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


def test_of_a_canvas(canvas):
    direction, mistake, latency = ways(canvas).exercises
    done = canvas.generate(WAYS_TEXT, denoise="confidence", **SETTINGS)
    came = {c.position: m.index for m in done.passes for c in m.cells if c.now is not None}
    order = [came[position] for position in sorted(came)]
    late = sum(any(later < one for later in order[i:]) for i, one in enumerate(order))
    assert direction.answer.values == (late,)
    assert latency.answer.values == (sum(made.rows for made in done.passes),)
    [wrong] = canvas.tokenizer.encode("Z")[-1:]
    kept = 0
    for rule, at in (("left", 3), ({"steps": 6}, 0), ({"rule": "mask-predict", "steps": 6}, 0)):
        settings = {"rule": rule} if isinstance(rule, str) else rule
        forced = settings | {"forced_cells": [(at, 3, wrong)]}
        ids = canvas.generate(WAYS_TEXT, denoise=forced, **SETTINGS).token_ids
        kept += ids[3] == wrong
    assert mistake.answer.values == (kept,)
    assert kept >= 2  # a rule that masks nothing again keeps what is there


def test_of_a_model_that_sees_the_past(left):
    mistake, latency = ways(left).exercises
    assert mistake.answer.values == (0,)
    assert latency.answer.values == (len(left.tokenize(WAYS_TEXT)) + SETTINGS["max_tokens"] - 1,)
    done = left.generate(WAYS_TEXT, **SETTINGS)
    assert f"is the same, {done.fingerprint}." in latency.arithmetic[-1]


@pytest.mark.parametrize("fixture", ["tiny_path", "tiny_diffusion_path"])
def test_the_command_shows_the_ways(capsys, request, fixture):
    path = request.getfixturevalue(fixture)
    assert main(["practice", "ways", "--answers", "-m", str(path)]) == 0
    assert "Latency." in capsys.readouterr().out


def test_a_model_of_noise_has_no_ways_and_is_told_which_do():
    sentence = "topic ways: this model writes from noise, without masks: take a bidirectional one"
    with (
        LLM("toy-noise", threads=1, progress=False) as noise,
        pytest.raises(InputError, match=sentence),
    ):
        ways(noise)
