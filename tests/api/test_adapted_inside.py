"""A look into a model with an adapter: logit attribution includes its low-rank products."""

import pytest

from cutaway import LLM
from cutaway.features.inside import inside
from cutaway.trace import Trace
from support.adapters import LAYER, adapter_of
from support.random_llama import write_tiny_llama


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_pushes_add_up(tmp_path, backend, format):
    model = write_tiny_llama(tmp_path / "tiny.gguf", head_dim=16, hidden=64, format=format)
    lora = adapter_of(model, tmp_path / "poet.gguf", names=(*LAYER, "output"))
    with LLM(model, lora=lora, backend=backend) as llm:
        assert llm.name == "tiny+poet"
        llm.generate([1, 20, 7, 99], max_tokens=4, seed=1, trace=tmp_path / "run.jsonl")
        look = inside(llm, Trace.read(tmp_path / "run.jsonl"), 3)
        assert look.is_as_run or backend == "reference"
        found = look.logit_attribution()
    whole = sum(found.parts.values()) + found.bias + found.rounding
    assert whole == pytest.approx(found.total, abs=1e-4)
    assert (found.rounding != 0) == (format == "Q8_0" and backend == "cpu")
