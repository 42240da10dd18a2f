"""Tensors whose shapes do not fit one another end in one sentence."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.errors import FormatError
from support.random_llama import write_tiny_llama


def test_a_gate_of_another_shape(tmp_path):
    other = {"blk.0.ffn_gate.weight": np.ones((64, 32), np.float32)}
    path = write_tiny_llama(tmp_path / "gate.gguf", skip_tensor="blk.0.ffn_gate", vectors=other)
    with pytest.raises(FormatError, match="a gate needs two matrices of one shape"):
        LLM(path, threads=1, progress=False)


def test_embeddings_that_are_a_vector(tmp_path):
    vector = {"token_embd.weight": np.ones(32, np.float32)}
    path = write_tiny_llama(tmp_path / "vector.gguf", skip_tensor="token_embd", vectors=vector)
    with pytest.raises(FormatError, match=r"token_embd\.weight has 1 dimensions, not 2"):
        LLM(path, threads=1, progress=False)
