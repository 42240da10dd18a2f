"""``cutaway trace inside``: what it prints, writes and refuses."""

import json
import re

import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.features.inside.look import inside
from cutaway.files.weights.safetensors import SafetensorsFile
from cutaway.trace import Trace

STEP = 6


@pytest.fixture(scope="module")
def run(small_path, tmp_path_factory):
    """The arguments up to the step."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    LLM(small_path).generate("ab a\x1b", seed=3, max_tokens=12, trace=path, ignore_eos=True)
    return ["trace", "inside", str(path), "-m", small_path, "-q", "--step", str(STEP)]


@pytest.fixture(scope="module")
def look(small_path, run):
    return inside(LLM(small_path), Trace.read(run[2]), STEP)


@pytest.mark.parametrize(
    "more", [[], ["--rival", "7"], ["--layer", "1"], ["--tensor", "logit_rows"], ["--nearest"]]
)
def test_the_last_line_is_the_proof(run, look, said, more):
    out = said(*run, *more)
    assert out.splitlines()[-1] == f"recomputed bit for bit: row hash {look.row_hash:016x}"
    assert "\x1b" not in out


def test_the_whole_step(run, look, said):
    out, found = said(*run), look.logit_attribution()
    assert out.startswith(f"step {STEP}: ")
    assert f"its logit is {found.total:+.3f} over" in out
    assert re.search(rf"^together +{re.escape(f'{found.total:+.3f}')}$", out, re.MULTILINE)
    for words in ("Attention is not effect", "Attribution is not the effect", "until they settle"):
        assert words in out
    weight = look.weights.mean(axis=(0, 1))
    assert f"{weight.argmax():8d}" in out
    assert len([line for line in out.splitlines() if line.startswith("before")]) == 1


def test_one_head(run, look, said):
    lines = said(*run, "--layer", "1", "--head", "2").splitlines()
    assert lines[0].startswith(f"L1.H2: attribution {look.logit_attribution().heads[1, 2]:+.3f}")
    first = lines[3].split()
    assert int(first[0]) == look.weights[1, 2].argmax()
    assert first[-2] == f"{look.writes[1, 2].flat[look.weights[1, 2].argmax()]:.4f}"


def test_json(run, look, said):
    data = json.loads(said(*run, "--rival", "9", "--json"))
    found = look.logit_attribution(9)
    assert data["logit_attribution"]["parts"] == dict(found.parts)
    assert (data["row"], data["as_run"]) == (f"{look.row_hash:016x}", True)
    assert [row["rank"] for row in data["lens"]] == look.lens().rank.tolist()
    assert sum(p["weight"] for p in data["positions"]) == pytest.approx(1)
    assert sum(h["attribution"] for h in data["heads"]) == pytest.approx(found.heads.sum())
    assert "tensor" not in data
    data = json.loads(said(*run, "--json", "--tensor", "blk.1.attend"))
    assert data["tensor"] == {"blk.1.attend": look.tensor("blk.1.attend").tolist()}


def test_a_file_of_all_arrays(run, look, tmp_path, said, capsys):
    out = tmp_path / "look.safetensors"
    said(*run, "--out", str(out), "--tensor", "blk.1.attend")
    file, found = SafetensorsFile(out), look.logit_attribution()
    for name, expected in (
        ("weights", look.weights), ("writes", look.writes),
        ("attribution.positions", found.positions), ("blk.1.attend", look.tensor("blk.1.attend")),
    ):  # fmt: skip
        got = file.raw(name)[:].view(np.float32).reshape(file.info(name).shape)
        np.testing.assert_array_equal(got, expected.astype(np.float32))
    raw = out.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    about = header["__metadata__"]
    assert about["row"] == f"{look.row_hash:016x}"
    assert about["parts"].split(",") == [*found.parts]
    assert header["lens.ids"] == {
        "dtype": "I32", "shape": [3, 5], "data_offsets": header["lens.ids"]["data_offsets"]
    }  # fmt: skip
    assert main([*run, "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_reference_says_that_it_is_not_what_ran(run, said):
    out = said(*run, "--backend", "reference")
    assert "not what ran" in out.splitlines()[1]
    assert out.splitlines()[-1].endswith("is not the recorded one: another arithmetic computed it")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--head", "1"], "--head: say of which layer"),
        (["--layer", "2"], "--layer must be between 0 and 1"),
        (["--layer", "0", "--head", "4"], "--head must be between 0 and 3"),
        (["--tensor", "nothing"], "there is no 'nothing'"),
        (["--rival", "9999"], "rival must be between 0 and 263"),
        (["--rival", "no token"], "is not one token"),
        (["--layer", "0", "--json"], "--layer: the document holds all layers"),
    ],
)
def test_what_is_refused(run, capsys, more, why):
    assert main([*run, *more]) == 2
    assert why in capsys.readouterr().err
    assert main([*run[:-1], "12"]) == 2
    assert "step must be between 0 and 11" in capsys.readouterr().err


def test_the_nearest_embeddings(run, look, said, capsys):
    lines = said(*run, "--nearest").splitlines()
    document = json.loads(said(*run, "--nearest", "--json"))["nearest"]
    assert [near["token_id"] for near in document] == look.nearest().ids.tolist()
    for line, near in zip(lines[3:], document, strict=False):
        assert f"{near['cosine']:+.3f}" in line
    assert main([*run, "--nearest", "--layer", "1"]) == 2
    assert "--nearest: goes with no --tensor" in capsys.readouterr().err
