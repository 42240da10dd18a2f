"""Steps of SmolLM2 looked into: the rows on record, and what is known of one of its texts."""

import pytest

from cutaway import LLM
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.lens import nearest
from cutaway.features.inside.look import inside
from cutaway.sampling import logprob
from cutaway.trace import Trace

pytestmark = pytest.mark.model
PROMPT = "The lighthouse keeper wrote in his log that the storm had passed, and the sea was"


@pytest.fixture(scope="module")
def llm(smollm2_path):
    with LLM(smollm2_path) as llm:
        yield llm


def test_twenty_steps_are_the_rows_on_record(llm, smollm2_path, tmp_path, free_drafts):
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


# -- ablate smollm2 --------------------------------------------------------------------------------

# Weight, attribution and the effect of ablating a word are three things, on SmolLM2.


@pytest.fixture(scope="module")
def ablated_llm(smollm2_path):
    return LLM(smollm2_path, backend="cpu", context=512)


@pytest.fixture(scope="module")
def trace(ablated_llm, tmp_path_factory):
    path = tmp_path_factory.mktemp("smollm2") / "run.jsonl"
    ablated_llm.generate(PROMPT, seed=7, max_tokens=4, trace=path)
    return Trace.read(path)


def test_the_token_with_the_most_attention_has_no_effect(ablated_llm, trace):
    done = ablate(ablated_llm, trace, 0, by="word")
    name = {part.start: ablated_llm.detokenize(part.token_ids) for part in done.parts}
    assert ablated_llm.detokenize([done.token]) == " calm"
    most = {
        figure: max(done.parts, key=lambda part, figure=figure: abs(getattr(part, figure)))
        for figure in ("weight", "attribution", "effect")
    }
    assert [name[part.start] for part in most.values()] == ["The", " sea", " sea"]
    assert abs(most["weight"].effect) < 0.1 < 8 < most["effect"].effect
    assert most["effect"].drawn != done.drawn == most["weight"].drawn


@pytest.mark.parametrize("how", ["delete", "other"])
def test_each_is_the_text_without_it_alone(smollm2_path, ablated_llm, trace, how):
    alone = LLM(smollm2_path, backend="cpu", context=512, prefix_cache=False, threads=1)
    done = ablate(ablated_llm, trace, 3, by="word", how=how)
    for part in done.parts:
        text = [*done.token_ids[: part.start], *part.instead, *done.token_ids[part.stop :]]
        row = alone.logits(text, len(text) - 1)[0]
        assert (part.logprob, part.rival_logprob) == (
            logprob(row, done.token), logprob(row, done.rival)
        )  # fmt: skip
