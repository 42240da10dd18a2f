"""A vector that a file has as a matrix of one row."""

from cutaway import LLM
from support.fuzz.gguf_parts import Parts
from support.random_rwkv7 import write_tiny_rwkv7


def test_a_norm_s_bias_of_one_row_is_a_vector(tmp_path):
    """As its weights may be, which have a row for each head."""
    path, other = write_tiny_rwkv7(tmp_path / "rwkv7.gguf"), tmp_path / "other.gguf"
    parts = Parts.read(path.read_bytes())
    bias = next(tensor for tensor in parts.tensors if tensor.name == b"blk.1.attn_norm_2.bias")
    bias.dims.append(1)
    other.write_bytes(parts.write())
    texts = []
    for file in (path, other):
        with LLM(file, threads=1, progress=False) as llm:
            texts.append(llm.generate("ab", max_tokens=4, ignore_eos=True, seed=3).fingerprint)
    assert texts[0] == texts[1]
