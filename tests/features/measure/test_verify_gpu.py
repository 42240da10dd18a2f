"""``cutaway verify --backend gpu``: what a person can send of a GPU, and the exit code."""

import json

import pytest

from cutaway.cli.main import main
from cutaway.compute.backends.gpu import adapters, shaders
from cutaway.errors import CutawayError

pytest.importorskip("wgpu", reason="needs wgpu: pip install '.[gpu]'")


@pytest.fixture(autouse=True)
def gpu():
    try:
        adapters.open_first()
    except CutawayError as error:
        pytest.skip(str(error))


def test_the_json(tiny_path, capsys):
    assert main(["verify", "--backend", "gpu", "-m", str(tiny_path), "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"]
    assert {"name", "driver", "api", "wgpu", "fused", "flushes"} <= document["device"].keys()
    parts = {row["part"] for row in document["comparisons"]}
    assert parts == {"arithmetic", "steps", "ops"}
    assert all(row["passed"] for row in document["comparisons"])


def test_a_kernel_with_other_bits_is_named_and_the_exit_code_is_1(tiny_path, capsys, monkeypatch):
    text = shaders.text

    def wrong(*way):
        return text(*way).replace("var y = sum;", "var y = sum * 1.0000001;")

    monkeypatch.setattr("cutaway.compute.backends.gpu.shaders.text", wrong)
    assert main(["verify", "--backend", "gpu", "-m", str(tiny_path)]) == 1
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    lines = out.splitlines()
    assert lines[0].startswith("GPU       ")
    wrong_lines = [line.split()[:2] for line in lines if "WRONG" in line]
    assert ["ops", "linear"] in wrong_lines
    assert ["ops", "embed"] not in wrong_lines
    assert "please send this table" in lines[-1]


def test_what_it_does_not_take_is_refused(tiny_path, tmp_path, capsys):
    folder = ["--offload-folder", str(tmp_path)]
    assert main(["verify", "--backend", "gpu", "-m", str(tiny_path), *folder]) == 2
    assert "--offload-folder cannot be set for the gpu backend" in capsys.readouterr().err
