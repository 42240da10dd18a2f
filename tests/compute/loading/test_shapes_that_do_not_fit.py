"""Tensors whose shapes do not fit one another end in one sentence, whichever backend computes."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute.backends.cpu import emit
from cutaway.errors import FormatError
from support.random_lfm2 import write_tiny_lfm2
from support.random_llama import write_tiny_llama


def written(path, backend="cpu"):
    with LLM(path, backend=backend, progress=False) as llm:
        return llm.generate("ab", max_tokens=2, temperature=0).token_ids


def of_experts(path, **keys):
    """Four of a layer, and what the file says of their choice."""
    metadata = {f"llama.expert_{name}": value for name, value in keys.items()}
    return write_tiny_llama(path, experts=4, metadata=metadata)


def with_another(path, tensor, shape, **more):
    other = {f"{tensor}.weight": np.ones(shape, np.float32)}
    return write_tiny_llama(path, skip_tensor=tensor, vectors=other, **more)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (
            lambda p: with_another(p, "blk.0.ffn_gate", (64, 32)),
            r"blk.0.ffn_gate \(64\) is no gate of blk.0.ffn_up \(96\)",
        ),
        (
            lambda p: with_another(p, "blk.0.ffn_gate_exps", (4, 64, 32), experts=4),
            r"ffn_gate_exps.weight has shape \(4, 64, 32\), not \(4, 96, 32\)",
        ),
        (
            lambda p: with_another(p, "blk.0.ffn_gate_exps", (3, 96, 32), experts=4),
            r"ffn_gate_exps.weight has shape \(3, 96, 32\), not \(4, 96, 32\)",
        ),
        (
            lambda p: with_another(p, "blk.0.ffn_gate_inp", (3, 32), experts=4),
            "blk.0.: 4 experts, and scores for 3",
        ),
        (
            lambda p: of_experts(p, count=8, used_count=6),
            "blk.0.: 6 of 4 experts cannot be chosen from 1 of 1 groups",
        ),
        (
            lambda p: of_experts(p, count=8, group_count=4, group_used_count=2),
            "blk.0.: 2 of 4 experts cannot be chosen from 2 of 4 groups",
        ),
        (
            lambda p: of_experts(p, group_count=2, group_used_count=3),
            "blk.0.: 2 of 4 experts cannot be chosen from 3 of 2 groups",
        ),
        (
            lambda p: of_experts(p, group_count=3, group_used_count=2),
            "blk.0.: 2 of 4 experts cannot be chosen from 2 of 3 groups",
        ),
        (
            lambda p: of_experts(p, used_count=3, group_count=2, group_used_count=1),
            "blk.0.: 3 of 4 experts cannot be chosen from 1 of 2 groups",
        ),
        (lambda p: write_tiny_lfm2(p, taps=1), "weights of 1 tokens, not of 2 or more"),
    ],
)
def test_a_file_is_refused(write, sentence, backend, tmp_path):
    path = write(tmp_path / "odd.gguf")
    with pytest.raises(FormatError, match=sentence):
        LLM(path, backend=backend, progress=False)


def test_what_one_backend_lacks_the_other_has(tmp_path):
    assert written(write_tiny_lfm2(tmp_path / "16.gguf", taps=16))
    path = write_tiny_lfm2(tmp_path / "17.gguf", taps=17)
    with pytest.raises(FormatError, match="convolutions over 17 tokens are not supported here"):
        written(path)
    assert len(written(path, "reference")) == 2


def test_whatever_else_the_plan_refuses_is_a_sentence_too(tmp_path, monkeypatch):
    monkeypatch.setattr(emit, "_MOST_TAPS", 99)
    path = write_tiny_lfm2(tmp_path / "17.gguf", taps=17)
    with pytest.raises(FormatError, match=r"tensors do not fit .* a convolution has 2 to 16"):
        written(path)


def test_embeddings_that_are_a_vector(tmp_path):
    vector = {"token_embd.weight": np.ones(32, np.float32)}
    path = write_tiny_llama(tmp_path / "vector.gguf", skip_tensor="token_embd", vectors=vector)
    with pytest.raises(FormatError, match=r"token_embd\.weight has 1 dimensions, not 2"):
        LLM(path, threads=1, progress=False)
