"""What is computed again of a run whose prompt was read to both sides has the hashes on record."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute.loading.open import open_model
from cutaway.features.evidence.receipt import Receipt
from cutaway.features.evidence.receipt_check import check_all, check_some
from cutaway.features.evidence.signing_keys import PrivateKey
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.look import inside
from cutaway.features.inside.steps import unrecorded_trace
from cutaway.features.page.folder import check_causal
from cutaway.features.practice.lessons import lessons, scene
from cutaway.rerun import branch, diff_models, logits, replay
from cutaway.sampling.observe import row_hash
from cutaway.trace import Trace
from cutaway.trace.write import end_of
from support.random_hrm import write_tiny_hrm

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

PROMPT = [*range(20, 65)]
STEP = 3


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_hrm(tmp_path_factory.mktemp("run") / "tiny.gguf")


@pytest.fixture
def run(path, tmp_path):
    llm, file = LLM(path), tmp_path / "run.jsonl"
    llm.generate(PROMPT, max_tokens=6, temperature=0.9, seed=4, ignore_eos=True, trace=file)
    return LLM(path), Trace.read(file)


def test_its_logits_and_its_replay_are_those_on_record(run):
    llm, trace = run
    assert len(logits(llm, trace)) == 6
    assert replay(llm, trace).same


def test_a_step_is_looked_into_as_it_was(run):
    llm, trace = run
    look = inside(llm, trace, STEP)
    assert look.is_as_run
    assert look.weights.shape[-1] == len(PROMPT) + STEP
    attribution = look.logit_attribution()
    whole = sum(attribution.parts.values()) + attribution.bias + attribution.rounding
    assert whole == pytest.approx(attribution.total, abs=1e-4)
    text = unrecorded_trace(llm, PROMPT, trace.output_token_ids, STEP)
    assert text.steps[STEP].logits_hash == trace.steps[STEP].logits_hash


def test_its_receipt_holds(path, tmp_path):
    llm = LLM(path)
    with llm.stream(PROMPT, max_tokens=6, seed=4, ignore_eos=True) as stream:
        assert len([*stream]) == 6
    key = PrivateKey.create(tmp_path / "key.pem")
    receipt = Receipt.sign_run(stream.head(), stream.steps, end_of(stream.ended), key)
    assert check_all(llm, receipt).mismatch is None
    assert check_some(llm, receipt, 3, seed=1).mismatch is None


@pytest.mark.parametrize("how", ["delete", "other"])
def test_a_part_that_is_left_out_is_left_out_of_the_prompt(run, how):
    """Each row is that of a run with the shorter prompt, or with the other tokens."""
    llm, trace = run
    done = ablate(llm, trace, STEP, how=how)
    assert len(done.parts) > 40
    for part in (min(done.parts, key=lambda p: p.start), max(done.parts, key=lambda p: p.start)):
        ids = [*done.token_ids[: part.start], *part.instead, *done.token_ids[part.stop :]]
        is_shorter = how == "delete" and part.start < len(PROMPT)
        row = llm.logits(ids, len(ids) - 1, prompt_tokens=len(PROMPT) - is_shorter)[0]
        wide = row.astype(np.float64)
        logprob = wide[done.token] - np.logaddexp.reduce(wide)
        assert part.logprob == pytest.approx(logprob, abs=1e-9)


def test_what_a_run_cannot_be_asked_is_refused(run, path):
    llm, trace = run
    with pytest.raises(InputError, match="how: this model reads its prompt to both sides"):
        ablate(llm, trace, STEP, how="knock_out")
    for topic in ("mask", "induction"):
        with pytest.raises(InputError, match=f"topic {topic}: this model reads its prompt to bo"):
            lessons(scene(llm, trace, STEP), [topic])
    with open_model(path), pytest.raises(InputError, match="a page without a server does not"):
        check_causal(llm.model)


def test_a_branch_and_what_its_mistake_costs(run, tmp_path):
    """The fork's rows are read after the same prompt."""
    llm, trace = run
    other = branch(llm, trace, STEP, 77, trace=tmp_path / "fork.jsonl")
    fork = diff_models(llm, trace, Trace.read(tmp_path / "fork.jsonl"))
    assert fork.at == STEP
    ids = [*PROMPT, *other.token_ids[:STEP]]
    row = llm.logits(ids, len(ids) - 1, prompt_tokens=len(PROMPT))[0]
    assert row_hash(row) == trace.steps[STEP].logits_hash
