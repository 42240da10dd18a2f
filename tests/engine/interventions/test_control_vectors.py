"""Control vectors as repeng writes them, added after their layers."""

import gguf
import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.cli.main import main
from cutaway.engine.interventions import add
from cutaway.engine.interventions.intervention import control_vector
from support.random_llama import write_tiny_llama

VECTORS = {layer: np.random.default_rng(layer).normal(size=32) for layer in (1, 2)}
HOW = {"max_tokens": 8, "seed": 1}


def write(path, vectors=VECTORS, architecture="controlvector", name="direction.{}"):
    """As repeng's export_gguf does."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", len(vectors))
    for layer, vector in vectors.items():
        writer.add_tensor(name.format(layer), vector.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", layers=3)


def test_a_file_is_what_is_added_after_each_layer(path, tmp_path):
    made = control_vector(write(tmp_path / "v.gguf", dict(reversed(VECTORS.items()))), 2.5)
    assert made == tuple(add(f"L{layer}", VECTORS[layer], 2.5) for layer in (1, 2))
    with LLM(path) as llm:
        plain = llm.generate("ab", **HOW)
        none = llm.generate("ab", interventions=control_vector(tmp_path / "v.gguf", 0), **HOW)
        some = llm.generate("ab", interventions=made, **HOW)
        assert plain.fingerprint == none.fingerprint != some.fingerprint
        wide = control_vector(write(tmp_path / "w.gguf", {1: np.ones(31)}))
        with pytest.raises(InputError, match="L1 has 32 numbers, not 31"):
            llm.generate("ab", interventions=wide)
        deep = control_vector(write(tmp_path / "d.gguf", {3: np.ones(32)}))
        with pytest.raises(InputError, match="no L3"):
            llm.generate("ab", interventions=deep)


def test_on_the_command_line(path, tmp_path, capsys):
    file, run = write(tmp_path / "v.gguf"), ["generate", "ab", "-m", str(path), "-q", "--json"]
    run += ["--seed", "1", "--max-tokens", "8"]
    found = []
    for more in ([], [f"{file}"], [f"{file}:1"], [f"{file}:0"]):
        assert main([*run, *(x for one in more for x in ("--control-vector", one))]) == 0
        found.append(capsys.readouterr().out.split('"fingerprint": "')[1][:16])
    assert found[0] == found[3] != found[1] == found[2]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [({"architecture": "llama"}, "no control vector"), ({"name": "blk.{}"}, "no control vector"),
     ({"vectors": {}}, "no control vector")],
)  # fmt: skip
def test_what_is_none(tmp_path, how, sentence):
    with pytest.raises(InputError, match=sentence):
        control_vector(write(tmp_path / "v.gguf", **how))


def test_no_file(tmp_path):
    (tmp_path / "v.gguf").write_text("nothing")
    with pytest.raises(FormatError, match="not a GGUF file"):
        control_vector(tmp_path / "v.gguf")
    with pytest.raises(InputError, match=r"w\.gguf"):
        control_vector(tmp_path / "w.gguf")
