"""Steps of SmolLM2 looked into: the rows on record, and what is known of one of its texts."""

import pytest

from cutaway import LLM
from cutaway.features.inside.lens import nearest
from cutaway.features.inside.look import inside
from cutaway.trace import Trace

pytestmark = pytest.mark.model
PROMPT = "The lighthouse keeper wrote in his log that the storm had passed, and the sea was"


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path) as llm:
        yield llm


def test_twenty_steps_are_the_rows_on_record(llm, smollm2_path, tmp_path):
    """Of a run with a draft model and a neighbour, which this model's prefix cache never saw."""
    llm.load_draft(f"draft:{smollm2_path}")
    with llm.stream("Another text", seed=1, max_tokens=80, ignore_eos=True):
        llm.generate(
            PROMPT, seed=7, max_tokens=60, ignore_eos=True, speculate=f"draft:{smollm2_path}",
            trace=tmp_path / "run.jsonl",
        )  # fmt: skip
    trace = Trace.read(tmp_path / "run.jsonl")
    assert sum(step.source == "draft" for step in trace.steps) >= 3
    with LLM(smollm2_path, threads=1) as other:
        for step in range(0, 60, 3):
            look = inside(other, trace, step)
            assert look.row_hash == trace.steps[step].logits_hash
            assert look.lens(1).drawn[-1] == trace.steps[step].sampled_id


def test_near_to_calm_is_calmness(llm):
    [calm] = llm.tokenizer.encode(" calm")
    names = [llm.tokenizer.token_name(int(i)) for i in nearest(llm, calm, 4).ids]
    assert names == [" calmness", " calmer", " calming", " serene"]
