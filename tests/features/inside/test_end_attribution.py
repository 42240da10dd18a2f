"""``cutaway trace why -m MODEL``: the end token's logit attribution, and that it adds up."""

import json

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.cli.terminal.drawing import names_of
from cutaway.features.inside.end_attribution import end_attribution
from cutaway.features.inside.look import inside
from cutaway.trace import Trace, why
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("ending") / "tiny.gguf"
    return write_tiny_llama(path, **SHAPE, format="Q8_0", context=128)


@pytest.fixture(scope="module")
def llm(model):
    return LLM(model)


def run(llm, path, **options):
    llm.generate("ab a", seed=3, max_tokens=9, trace=path, **options)
    return Trace.read(path)


def test_a_text_that_ended_with_the_end_token(llm, tmp_path):
    end = min(llm.tokenizer.end_ids)
    trace = run(llm, tmp_path / "run.jsonl", logit_bias={end: 100.0}, min_tokens=4)
    found, last = end_attribution(llm, trace), trace.steps[-1]
    expected = inside(llm, trace, last.index).logit_attribution()
    assert (found.step, found.token, found.other) == (last.index, end, expected.rival)
    assert found.total == expected.total
    assert sum(found.parts.values()) == pytest.approx(found.total, abs=1e-5)
    assert found.parts["L0.mlp"] == expected.parts["L0.mlp"]


def test_a_text_that_went_on(llm, tmp_path):
    trace = run(llm, tmp_path / "run.jsonl", ignore_eos=True)
    found, [closest] = end_attribution(llm, trace), why(trace, 1).closest
    came = trace.steps[closest.index].token_id
    expected = inside(llm, trace, closest.index).logit_attribution(closest.token_id)
    assert (found.step, found.token, found.other) == (closest.index, closest.token_id, came)
    assert found.total == -expected.total
    assert found.parts["L1.attn"] == -expected.parts["L1.attn"]
    words = "above" if found.total > 0 else "below"
    assert f" was {abs(found.total):.3f} {words} that of {came}: " in found.sentence(str).replace(
        repr(str(came)), str(came)
    )


def test_why_says_it_where_a_model_is_named(llm, model, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    found = end_attribution(llm, run(llm, path, ignore_eos=True))
    asked = ["trace", "why", str(path)]
    assert main(asked) == 0
    assert "the logit of" not in capsys.readouterr().out
    assert main([*asked, "-m", str(model), "-q"]) == 0
    out = capsys.readouterr().out
    assert found.sentence(names_of(llm.tokenizer)) in out
    assert found.proof.startswith("recomputed bit for bit")
    assert "Attribution is not the effect" in out
    assert main([*asked, "-m", str(model), "-q", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["logit_attribution"]["total"] == found.total
