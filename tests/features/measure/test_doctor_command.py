"""``cutaway doctor`` as a person runs it."""

import json
import signal

import pytest

from cutaway.cli.main import main
from cutaway.compute.loading.open import open_model
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
SMALL = ["--window", "64", "--tokens", "100", "--draws", "4", "--draw-tokens", "6"]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("ab ba abba b a " * 12)
    base = write_tiny_llama(tmp_path / "base.gguf", **SHAPE)
    return ["doctor", str(base), "--text", str(text), *SMALL]


def test_a_report(asked, capsys, tmp_path):
    code = main([
        *asked, "--formats", "q4_0,q8_0", "--kv", "q8_0,q4_0", "--svg", str(tmp_path / "map.svg"),
        "--under", "75kB", "--output", str(tmp_path / "mix.gguf"),
    ])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    for words in (
        "\nq4_0 ", "\nq8_0 ", "\nkv q8_0,q4_0 ", "  KL ", "  flips ", "  perplexity  ×", "  top 10",
        " of 4 texts of 6 tokens differ", "the worst 12 of 31", "blk.0.attn_q.weight",
        "Q4_0: KL of each alone", "Q8_0: KL", "Proposed: ", "\nmix.gguf ",
    ):  # fmt: skip
        assert words in out
    assert max(map(len, out.splitlines())) <= 100
    assert (tmp_path / "map.svg").read_text().startswith("<svg")
    with open_model(tmp_path / "mix.gguf") as file:
        assert sum(info.nbytes for info in file.tensors.values()) <= 75_000


def test_json(asked, capsys, tmp_path):
    output = ["--under", "75kB", "--output", str(tmp_path / "mix.gguf")]
    assert main([*asked, "--formats", "q4_0", "--json", *output]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["positions"] == 99
    assert [change["change"] for change in found["changes"]] == ["q4_0"]
    assert len(found["tensors"]) == 16
    assert found["mix"]["damage"]["kl"]["mean"] > 0
    assert found["mix"]["output"].endswith("mix.gguf")


def test_a_file_beside_another(asked, capsys, tmp_path):
    quant = tmp_path / "quant.gguf"
    assert main(["quantize", asked[1], str(quant), "--to", "q8_0", "-q"]) == 0
    assert main([*asked[:2], str(quant), *asked[2:], "--no-tensors", "--draws", "0"]) == 0
    out = capsys.readouterr().out
    assert "quant.gguf" in out
    assert "TENSOR" not in out
    assert "drawn" not in out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "nothing to examine"),
        (["--formats", "q9"], "--formats must be one of"),
        (["--kv", "q9"], "--kv must be one of"),
        (["--formats", "q4_0", "--under", "1MB"], "--output"),
        (["--formats", "q4_0", "--under", "big", "--output", "x.gguf"], "write a size"),
        (["--formats", "q4_0", "--under", "1MB", "--output", "x.bin"], "ends in .gguf"),
        (["--kv", "q8_0", "--under", "1MB", "--output", "x.gguf"], "--under needs"),
        (["--formats", "q4_0", "--tokens", "1"], "--tokens must be"),
        (["--formats", "q4_0", "--draw-tokens", "40"], "--draw-tokens must be between 1 and 32"),
    ],
)
def test_misuse(asked, capsys, more, words):
    assert main([*asked, *more]) == 2
    assert words in capsys.readouterr().err


def test_a_mix_that_cannot_be(asked, capsys, tmp_path):
    output = ["--under", "1kB", "--output", str(tmp_path / "mix.gguf")]
    assert main([*asked, "--formats", "q4_0", *output]) == 2
    assert "the smallest mix of these formats takes" in capsys.readouterr().err
    assert not (tmp_path / "mix.gguf").exists()


def test_ctrl_c_keeps_what_was_measured(asked, capsys, monkeypatch):
    from cutaway.features.measure.doctor.examination import Doctor

    real, count = Doctor._cost, []

    def cost(*args):
        count.append(args)
        if len(count) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(Doctor, "_cost", cost)
    assert main([*asked, "--formats", "q8_0", "--draws", "0"]) == 130
    found = capsys.readouterr()
    assert "the same command goes on" in found.err
    assert "\nq8_0 " in found.out
    assert "TENSOR" not in found.out
    assert main([*asked, "--formats", "q8_0", "--draws", "0"]) == 0
    assert "the worst 12 of 16" in capsys.readouterr().out
