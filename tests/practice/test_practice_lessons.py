"""Lessons on the inside: what they say is right is what the model did."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.practice.lessons import LESSONS, lessons, scene
from cutaway.practice.lessons.scene import TEXT
from cutaway.trace import Trace
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
        for table in [exercise.given, *(b for b in exercise.arithmetic if not isinstance(b, str))]:
            assert {len(row) for row in table.rows} == {len(table.head)}
    return found


# -- the scene ---------------------------------------------------------------------------------


def test_a_step_of_ones_own_run(here, trace, llm):
    assert here.ids == [*PROMPT, *trace.output_token_ids[:STEP]]
    assert here.look.row_hash == trace.steps[STEP].logits_hash
    assert f"{here.look.row_hash:016x}" in here.proof
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
    place = next(i for i, row in enumerate(exercise.given.rows) if row[2])
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
    from cutaway.sampling.row_hash import row_hash

    return f"{row_hash(row):016x}"[:8]


def test_a_text_too_short_to_be_changed(llm, tmp_path):
    llm.generate([7, 8], max_tokens=2, ignore_eos=True, trace=tmp_path / "run.jsonl")
    short = Trace.read(tmp_path / "run.jsonl")
    with pytest.raises(InputError, match="topic mask: the text before this step has 2 tokens"):
        lessons(scene(llm, short, 0), ["mask"])
    [exercise] = asked(scene(llm, short, 1), "mask")
    assert exercise.answer.values == (2,)
