"""``cutaway imatrix``, and that what it writes is what quantising takes."""

import json

import pytest

from cutaway.files.weights import GGUFFile
from cutaway.files.weights.importance import Importance
from support.random_llama import write_tiny_llama


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "tiny.gguf"
    return write_tiny_llama(path, hidden=256, feed_forward=256, experts=4, context=600)


@pytest.fixture(scope="module")
def text(plain):
    (path := plain.with_name("text.txt")).write_text("ab ba " * 40)
    return path


def test_from_a_text_to_a_smaller_model(plain, text, tmp_path, printed):
    matrix, out = tmp_path / "importance.gguf", tmp_path / "small.gguf"
    lines = printed("imatrix", text, matrix, "-m", plain, "--chunk", 32).splitlines()
    assert lines[0].split() == ["matrices", "16"] and lines[-1] == str(matrix)
    assert "6 chunks, 192 tokens" in lines[1]
    read = Importance.read(matrix)
    assert read.datasets == (str(text),) and (read.chunks, read.chunk_size) == (6, 32)
    assert read.entries["blk.0.ffn_down_exps.weight"].sums.shape == (4, 256)
    assert printed("quantize", plain, out, "--to", "q4_k_m", "--imatrix", matrix)
    with GGUFFile(out) as file:
        assert file.metadata["quantize.imatrix.chunks_count"] == 6
    assert printed("generate", "-m", out, "ab", "--max-tokens", 2, "--seed", 1, "-q")


def test_threads_change_no_byte(plain, text, tmp_path, printed):
    made = []
    for threads in (1, 3):
        out = tmp_path / f"{threads}.gguf"
        args = ("-m", plain, "--chunk", 32, "--threads", threads, "--json")
        document = json.loads(printed("imatrix", text, out, *args))
        assert document["matrices"] == 16 and document["chunks"] == 6
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_what_cannot_be_done_is_said(plain, text, tmp_path, refused):
    out = tmp_path / "out.gguf"
    assert "a chunk 512: give a longer text" in refused("imatrix", text, out, "-m", plain)
    said = refused("imatrix", text, out, "-m", plain, "--chunk", 1 << 10)
    assert "--chunk must be at most the context, 600" in said
    assert "--chunks" in refused("imatrix", text, out, "-m", plain, "--chunks", 0)
    assert "ends in .gguf" in refused("imatrix", text, tmp_path / "out.dat", "-m", plain)
    assert list(tmp_path.iterdir()) == []
