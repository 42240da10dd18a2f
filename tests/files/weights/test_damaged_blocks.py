"""Any bytes in the blocks of a file give a text, or one sentence."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.errors import CutawayError
from cutaway.files.weights import FORMATS_BY_ID, GGUFFile
from support.random_llama import write_tiny_llama


@pytest.mark.parametrize("name", [known.name for known in FORMATS_BY_ID.values()])
def test_any_bytes_in_the_blocks_of_a_matrix(tmp_path, name):
    path = write_tiny_llama(
        tmp_path / "t.gguf", format=name, hidden=256, feed_forward=256, heads=4, kv_heads=2,
        head_dim=64, layers=1,
    )  # fmt: skip
    with GGUFFile(path) as file:
        raw = file.raw("blk.0.ffn_down.weight")[:].tobytes()
    whole = path.read_bytes()
    at = whole.index(raw)
    rng = np.random.default_rng(len(raw))
    for share in (0.001, 1.0):
        damaged = np.frombuffer(whole, np.uint8).copy()
        hit = at + np.flatnonzero(rng.random(len(raw)) < share)
        damaged[hit] = rng.integers(0, 256, len(hit), np.uint8)
        path.write_bytes(damaged.tobytes())
        try:
            with LLM(path, threads=1, progress=False) as llm:
                assert llm.generate("a", max_tokens=2, seed=1).steps
        except CutawayError as error:
            assert "\n" not in str(error)
