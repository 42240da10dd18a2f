"""Folders of Inkling 2 whose numbers are halves, or whose tensors do not fit their config."""

import numpy as np
import pytest

from cutaway import LLM, FormatError

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from safetensors.numpy import load_file, save_file

from support.random_models import IDS, logits, save

QUERIES = "model.llm.middle_cycle_cross_pass_queries"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_queries_of_messages_may_be_halves(tmp_path, dtype):
    model = save("inkling2", tmp_path, dtype=dtype)
    ours = LLM(tmp_path, backend="reference").logits(IDS[:30])
    assert np.abs(ours - logits(model, IDS[:30])).max() < 1e-3


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        (QUERIES, (6, 64), r"has the shape \(6, 64\); it must be \(4, 64\): two rows for each of"),
        (QUERIES, (4, 32), r"has the shape \(4, 32\); it must be \(4, 64\)"),
        (QUERIES, (3, 64), r"has the shape \(3, 64\); it must be \(4, 64\)"),
        ("model.llm.layers.1.attn.v_sconv.weight_proj", (16, 64), "16 rows.* 2 key-value heads"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_refused(tmp_path, name, shape, sentence):
    save("inkling2", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file) | {name: np.ones(shape, np.float32)}, file)
    with pytest.raises(FormatError, match=sentence):
        LLM(tmp_path, backend="reference")
