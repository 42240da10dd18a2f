"""``cutaway verify``: the table, the JSON, the exit code; and that it finds what is wrong."""

import json

import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.errors import InputError
from cutaway.features.measure.verify import Sample, checks, differing_bits, text_of
from support.native_plans import TIERS
from support.random_llama import write_tiny_llama


@pytest.fixture(scope="module")
def q8_path(tmp_path_factory):
    """In Q8_0, with a context of 256 tokens."""
    shape = {"heads": 8, "kv_heads": 4, "head_dim": 16, "hidden": 64, "feed_forward": 96}
    path = tmp_path_factory.mktemp("q8") / "tiny.gguf"
    return write_tiny_llama(path, **shape, format="Q8_0", context=256)


def test_the_table(q8_path, capsys):
    assert main(["verify", "-m", str(q8_path), "--threads", "1,2"]) == 0
    out, err = capsys.readouterr()
    assert "half a minute to a few minutes" in err and err.count("\n") == 1
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "VARIED"
    zeros = [line for line in lines[1:-2] if line.endswith(" 0")]
    assert len(zeros) == len(lines) - 4  # the header, the control, a blank line, the verdict
    assert sum("as it must" in line for line in lines) == 1
    assert "the same bits" in lines[-1]
    for tier in TIERS[1:]:
        assert any(tier in line for line in lines)


def test_quiet_says_nothing(q8_path, capsys):
    assert main(["verify", "-m", str(q8_path), "--threads", "1", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_the_json(q8_path, capsys):
    assert main(["verify", "-m", str(q8_path), "--threads", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True
    assert document["instruction_sets"] == list(TIERS)
    assert document["threads"] == [1]
    for check in document["checks"]:
        assert check["rows"] > 0
        assert (check["differing"] > 0) == check["control"]


class Forgetful:
    """A backend whose bits depend on how many rows come at once."""

    def __init__(self, backend):
        self.backend, self.kv_blocks = backend, backend.kv_blocks
        self.read_block, self.write_block = backend.read_block, backend.write_block
        self.read_state, self.write_state = backend.read_state, backend.write_state

    def run(self, batch):
        logits = self.backend.run(batch)
        if len(batch.tokens) == 7 and len(logits):
            logits[0, 5] = np.nextafter(logits[0, 5], np.float32(np.inf))
        return logits


def failing(kind, q8_path, ids):
    """The checks that fail with a backend of this kind."""
    done = checks(lambda *_: kind(LLM(q8_path, kv_tokens=256).backend), ids, TIERS[:1], [1])
    return [check for check in done if not check.passed]


def test_a_wrong_backend_is_found(q8_path):
    wrong = failing(Forgetful, q8_path, range(3, 99))
    assert ("rows per call", "7") in {(check.varied, check.value) for check in wrong}
    assert ("rows per call", "8") not in {(check.varied, check.value) for check in wrong}
    assert all(check.differing >= 1 for check in wrong)


def test_a_bit_of_a_saved_block_that_is_lost_is_found(q8_path):
    class Lossy(Forgetful):
        def __init__(self, backend):
            super().__init__(backend)
            self.read_block = self.read_wrongly

        def read_wrongly(self, block):
            pieces = [piece.copy() for piece in self.backend.read_block(block)]
            pieces[0][2] ^= 0x40
            return pieces

        def run(self, batch):
            return self.backend.run(batch)

    wrong = failing(Lossy, q8_path, range(3, 99))
    assert [check.value for check in wrong] == ["saved, put elsewhere"]


def test_the_exit_code_where_bits_differ(q8_path, capsys, monkeypatch):
    import cutaway.features.measure.verify_command as face

    def forgetful(load, *more):
        return checks(lambda *asked: Forgetful(load(*asked)), *more)

    monkeypatch.setattr(face, "checks", forgetful)
    assert main(["verify", "-m", str(q8_path), "--threads", "1"]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "FAILED" in out


def test_a_control_that_does_not_differ_fails(q8_path):
    class Constant(Forgetful):
        def run(self, batch):
            return np.zeros((len(batch.logit_rows), 264), np.float32)

    assert [check.varied for check in failing(Constant, q8_path, [3, 4])] == ["control"]


def test_differing_bits():
    a = np.array([[1.0, 2.0], [0.0, 3.0]], np.float32)
    b = a.copy()
    assert differing_bits(a, b) == 0
    b[1, 0] = -0.0  # equal as numbers, one bit apart
    assert differing_bits(a, b) == 1
    with pytest.raises(ValueError, match="cannot be compared"):
        differing_bits(a, b[:1])


def test_logits_of_the_positions_asked_for(q8_path):
    llm = LLM(q8_path)
    text = Sample(range(3, 43), [1, 0], frozenset({0, 17, 39}))
    assert differing_bits(text.run(llm.backend, [5]), llm.logits(range(3, 43))[[0, 17, 39]]) == 0


def test_a_context_that_is_too_small():
    with pytest.raises(InputError, match="at least 64 tokens"):
        text_of([1, 2], 63)
    assert len(text_of([1, 2], 64)) == 32


@pytest.mark.parametrize("counts", ["", "0", "1,x", "1,,2", "9999", "-1"])
def test_thread_counts_that_cannot_be(counts, capsys):
    assert main(["verify", f"--threads={counts}"]) == 2
    assert "write numbers from 1 to 1024 with commas" in capsys.readouterr().err


def test_help_has_examples(capsys):
    assert main(["verify", "--help"]) == 0
    assert "cutaway verify --json" in capsys.readouterr().out


def test_a_model_that_sees_all_is_not_cut(capsys):
    assert main(["verify", "-m", "toy-canvas", "--threads", "1,2", "--json", "-q"]) == 0
    varied = {check["varied"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert varied >= {"neighbours", "KV blocks", "threads", "control"}
    assert not varied & {"rows per call", "chunk boundaries"}


@pytest.mark.parametrize(("attention", "cuts"), [(4, [4, 4, 8]), (8, [3, 9, 1])])
def test_a_model_of_blocks_is_cut_between_them(q8_path, attention, cuts):
    backend = LLM(q8_path, kv_tokens=256).backend
    text = Sample(range(3, 73), range(3), attention=attention)
    whole = text.run(backend)
    assert np.array_equal(text.run(backend, cuts), whole)
    assert not np.array_equal(Sample(range(3, 73), range(3)).run(backend), whole)
