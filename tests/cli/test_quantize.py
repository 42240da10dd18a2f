"""``cutaway quantize``, ``--quantize`` and ``LLM(quantize=…)``: the same weights, the same bits."""

import asyncio
import io
import json
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest

from cutaway import LLM, AsyncLLM
from cutaway.base.progress import Bar
from cutaway.cli.main import main
from cutaway.errors import InputError
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.importance import ColumnSums, Importance
from cutaway.trace import Trace
from support.random_llama import write_tiny_llama

FORMATS = ["q8_0", "q6_k", "q4_k_m", "q3_k_s", "q2_k", "q4_1", "q4_0"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Rows of 256 in most matrices, of 96 and 48 in two: those fit into 32s alone, or neither."""
    path = tmp_path_factory.mktemp("plain") / "tiny.gguf"
    return write_tiny_llama(path, hidden=256, feed_forward=96, context=256)


@pytest.fixture(scope="module")
def written(plain):
    """The model in each format, as ``cutaway quantize`` writes it."""
    paths = {to: plain.with_name(f"tiny-{to}.gguf") for to in FORMATS}
    for to, path in paths.items():
        assert main(["quantize", str(plain), str(path), "--to", to, "-q"]) == 0
    return paths


def run(llm):
    return llm.generate("ab ab", seed=1, max_tokens=8, temperature=1, ignore_eos=True)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("to", FORMATS)
def test_quantised_at_load_or_in_a_file_the_bits_are_the_same(plain, written, to, backend):
    loaded, stored = LLM(plain, quantize=to, backend=backend), LLM(written[to], backend=backend)
    ids = np.arange(3, 60)
    assert np.array_equal(loaded.logits(ids).view(np.uint32), stored.logits(ids).view(np.uint32))
    fingerprint = run(loaded).fingerprint
    assert fingerprint == run(stored).fingerprint != run(LLM(plain, backend=backend)).fingerprint


def test_threads_change_no_bit(plain):
    one, three = (run(LLM(plain, quantize="q6_k", threads=n)).fingerprint for n in (1, 3))
    assert one == three


def test_weights_survive_the_way_back(plain, written, tmp_path):
    out = tmp_path / "wide.gguf"
    assert main(["quantize", str(written["q4_0"]), str(out), "--to", "f32"]) == 0
    with GGUFFile(written["q4_0"]) as before, GGUFFile(out) as after:
        assert {info.format for info in after.tensors.values()} == {"F32"}
        for name in before.tensors:
            assert np.array_equal(before.dequantize(name), after.dequantize(name))


def test_a_model_that_is_quantised_while_loading_is_another_model(plain, tmp_path):
    weights = {}
    for quantize in (None, "q8_0", "q4_0"):
        llm, trace = LLM(plain, quantize=quantize), tmp_path / f"{quantize}.jsonl"
        made = llm.generate("ab", seed=1, max_tokens=2, trace=str(trace))
        head = Trace.read(trace).head
        weights[quantize] = head.weights
        assert made.model == head.model == (f"tiny+{quantize}" if quantize else "tiny")
        assert llm.model.identity.tokenizer == LLM(plain).model.identity.tokenizer
    assert len(set(weights.values())) == 3
    assert main(["trace", "replay", str(trace), "-m", str(plain), "--quantize", "q4_0"]) == 0


def test_the_asynchronous_face_takes_it_too(plain, written):
    async def text():
        async with AsyncLLM(LLM(plain, quantize="q4_1"), seed=1, max_tokens=4) as llm:
            return (await llm.generate("ab")).fingerprint

    stored = LLM(written["q4_1"]).generate("ab", seed=1, max_tokens=4)
    assert asyncio.run(text()) == stored.fingerprint


@pytest.mark.parametrize("quantize", ["q3_k", "Q8_0", "", True, 8])
def test_other_formats_are_refused_before_anything_is_loaded(quantize):
    with pytest.raises(InputError, match=r"quantize must be one of q8_0, q6_k, .*q2_k, not"):
        LLM("no such model", quantize=quantize)


def test_a_quantised_file_is_refused_at_load(written, refused):
    with pytest.raises(InputError, match=r"quantised already \(Q8_0\).*: leave quantize out"):
        LLM(written["q8_0"], quantize="q4_0")
    said = refused("generate", "-m", written["q8_0"], "ab", "--quantize", "q8_0")
    assert "leave quantize out" in said


def test_the_option_of_generate_and_show(plain, written, cutaway, printed, refused):
    args = ["ab", "--seed", "1", "--max-tokens", "4", "--json"]
    both = ([plain, "--quantize", "q6_k"], [written["q6_k"]])
    prints = {json.loads(cutaway("generate", "-m", *one, *args).out)["fingerprint"] for one in both}
    assert len(prints) == 1
    loaded, stored = (json.loads(printed("models", "show", *one, "--json")) for one in both)
    assert loaded["formats"] == stored["formats"]
    assert loaded["memory"] == stored["memory"]
    assert refused("models", "--quantize", "q6_k")
    assert refused("models", "show", plain, "--quantize", "q3_k")


# -- the command -----------------------------------------------------------------------------------


def test_the_table(plain, tmp_path, printed):
    out = tmp_path / "out.gguf"
    lines = printed("quantize", plain, out, "--to", "q6_k").splitlines()
    assert lines[0].split() == ["BEFORE", "AFTER"]
    assert lines[1].split()[:3] == ["F32", "21", "tensors,"] and " 5 tensors, " in lines[1]
    assert lines[2].split()[:4] == ["Q6_K", "-", "12", "tensors,"]
    assert lines[3].split()[:4] == ["Q8_0", "-", "2", "tensors,"]
    assert lines[4].split()[:4] == ["F16", "-", "2", "tensors,"]
    assert lines[5].split()[0] == "file"
    assert lines[-2] == str(out) and lines[-1].startswith("4 tensors are stored as F16 or Q8_0")


def test_the_document(plain, tmp_path, printed):
    out = tmp_path / "out.gguf"
    args = ["--to", "q4_1", "--threads", "3", "--json"]
    document = json.loads(printed("quantize", plain, out, *args))
    assert (document["input"], document["output"]) == (str(plain), str(out))
    assert document["before"]["file_bytes"] == plain.stat().st_size
    assert document["after"]["file_bytes"] == out.stat().st_size
    counts = {name: stored["tensors"] for name, stored in document["after"]["formats"].items()}
    assert counts == {"Q4_1": 13, "Q6_K": 1, "F32": 5, "F16": 2}
    unfit = {f"blk.{i}.attn_output.weight": "F16" for i in range(2)}  # rows of 48
    assert document["unfit"] == unfit


def test_quantised_weights_need_an_option(written, tmp_path, printed, refused):
    args = ["quantize", written["q8_0"], tmp_path / "out.gguf", "--to", "q4_0"]
    error = refused(*args)
    assert "quantised already (Q8_0)" in error and "--requ" in error
    assert list(tmp_path.iterdir()) == []
    assert printed(*args, "--requantize")
    assert printed("models", "show", tmp_path / "out.gguf")


def test_names_that_cannot_be_written(plain, tmp_path, printed, refused):
    def refusal(out, *more, to="q8_0"):
        return refused("quantize", plain, out, "--to", to, *more)

    (there := tmp_path / "there.gguf").write_bytes(b"something")
    assert "exists; name a new file, or add --force" in refusal(there)
    assert there.read_bytes() == b"something"
    assert "ends in .gguf" in refusal(tmp_path / "model.bin")
    assert "there is no folder" in refusal(tmp_path / "none" / "out.gguf")
    (tmp_path / "folder.gguf").mkdir()
    assert "not a regular file" in refusal(tmp_path / "folder.gguf", "--force")
    assert "--to must be one of" in refusal(tmp_path / "out.gguf", to="q3_k")
    assert "--threads" in refusal(tmp_path / "out.gguf", "--threads", "0")
    (link := tmp_path / "link.gguf").symlink_to(plain)
    before = plain.read_bytes()
    assert "OUT is IN" in refusal(plain, "--force") and "OUT is IN" in refusal(link, "--force")
    assert plain.read_bytes() == before
    assert printed("quantize", plain, there, "--to", "q8_0", "--force", "-q") == ""
    assert there.stat().st_size > 1000


def test_a_full_disk_leaves_nothing(plain, tmp_path):
    command = [sys.executable, "-m", "cutaway", "quantize", str(plain)]
    done = subprocess.run(
        [*command, str(tmp_path / "out.gguf"), "--to", "bf16"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr and list(tmp_path.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("after, shown", [(0, True), (1000, False)])
def test_a_bar_is_drawn_only_for_what_takes_long(monkeypatch, after, shown):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Bar("quantising", 10, after=after) as bar:
        bar.update(10)
    assert ("100% of 0.0 kB" in terminal.getvalue()) == shown == bool(terminal.getvalue())


def heard():
    """Whatever started these tests may ignore signals, as nohup does: here they count."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


SLOW = """
import os, signal, sys
from cutaway.cli.main import main
from cutaway.files.weights.quantised import QuantisedFile

number, at, *args = sys.argv[1:]
raw, seen = QuantisedFile.raw, []

def slow(self, name):
    seen.append(name)
    if len(seen) == int(at):
        os.kill(os.getpid(), int(number))
    return raw(self, name)

QuantisedFile.raw = slow
code = main(["quantize", *args])
print(len(seen))
sys.exit(code)
"""


def interrupted(plain, out, number, at, *args):
    """A run that gets a signal before its at-th tensor."""
    return subprocess.run(
        [sys.executable, "-c", SLOW, str(int(number)), str(at), str(plain), str(out), *args],
        preexec_fn=heard,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_what_a_signal_interrupts_goes_on(plain, written, tmp_path, name, code):
    number, out = getattr(signal, name), tmp_path / "out.gguf"
    args = ("--to", "q4_k_m")
    done = interrupted(plain, out, number, 4, *args)
    assert done.returncode == code and "the same command continues" in done.stderr
    assert "Traceback" not in done.stderr and not out.exists()
    again = interrupted(plain, out, 0, 0, *args)
    assert again.returncode == 0 and "continuing after" in again.stderr
    assert int(again.stdout.split()[-1]) == 21 - 3  # the others were there
    assert out.read_bytes() == written["q4_k_m"].read_bytes()
    assert list(tmp_path.iterdir()) == [out]


def test_a_killed_run_goes_on_and_pieces_that_were_lost_are_written_again(plain, written, tmp_path):
    out, args = tmp_path / "out.gguf", ("--to", "q4_k_m", "-q")
    assert interrupted(plain, out, signal.SIGKILL, 9, *args).returncode == -signal.SIGKILL
    [part] = (path for path in tmp_path.glob(".*.part") if path.stat().st_size > 10_000)
    with part.open("r+b") as file:  # as a disk may be after a power failure
        file.seek(-1000, 2)
        file.write(bytes(1000))
    again = interrupted(plain, out, 0, 0, *args)
    assert again.returncode == 0 and 21 - 8 < int(again.stdout.split()[-1]) < 21
    assert out.read_bytes() == written["q4_k_m"].read_bytes()
    assert list(tmp_path.iterdir()) == [out]


def test_only_the_same_is_gone_on_with(plain, tmp_path):
    out = tmp_path / "out.gguf"
    interrupted(plain, out, signal.SIGINT, 9, "--to", "q4_k_m")
    other = interrupted(plain, out, 0, 0, "--to", "q4_k_s")
    assert other.returncode == 0 and "continuing after" not in other.stderr
    assert int(other.stdout.split()[-1]) == 21


def test_before_anything_is_written_nothing_is_left(plain, tmp_path):
    done = interrupted(plain, tmp_path / "out.gguf", signal.SIGINT, 1, "--to", "q8_0")
    assert done.returncode == 130 and done.stderr == "" and list(tmp_path.iterdir()) == []


# -- importance ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def importance(plain):
    """What an importance matrix of the model might say; two matrices are not in it."""
    with GGUFFile(plain) as file:
        rng, entries = np.random.default_rng(0), {}
        for name, info in file.tensors.items():
            if name.startswith("blk.") and len(info.shape) > 1:
                sums = rng.random((1, info.shape[-1]), np.float32)
                entries[name] = ColumnSums(sums, np.array([3], np.float32))
    path = plain.with_name("importance.gguf")
    Importance(entries, ("a text",), 7, 512).write(path)
    return path


def test_an_importance_matrix_is_taken(plain, importance, written, tmp_path, printed):
    out = tmp_path / "out.gguf"
    args = ("quantize", plain, out, "--to", "q4_k_m", "--imatrix", importance)
    lines = printed(*args).splitlines()
    said = "without importance, since the matrix lacks them: token_embd.weight, output.weight"
    assert lines[-1] == said
    with GGUFFile(out) as file, GGUFFile(written["q4_k_m"]) as plainly:
        assert file.metadata["quantize.imatrix.file"] == "importance.gguf"
        assert file.metadata["quantize.imatrix.dataset"] == "a text"
        for name in ("blk.0.attn_q.weight", "output.weight"):
            same = np.array_equal(file.raw(name)[:], plainly.raw(name)[:])
            assert same == (name == "output.weight")
    document = json.loads(printed(*args, "--force", "--json"))
    assert document["imatrix"] == str(importance)
    assert document["without_importance"] == ["token_embd.weight", "output.weight"]


def test_another_models_importance_is_refused(plain, importance, tmp_path, refused):
    def refusal(model, weights):
        out = tmp_path / "out.gguf"
        return refused("quantize", model, out, "--to", "q4_k_m", "--imatrix", weights)

    other = write_tiny_llama(tmp_path / "other.gguf", hidden=512)
    assert "has 256 columns here and 512 in the model" in refusal(other, importance)
    ones = ColumnSums(np.ones((1, 8), np.float32), np.ones(1, np.float32))
    Importance({"none.weight": ones}, (), 1, 512).write(strange := tmp_path / "strange.gguf")
    assert "no entry is called as a tensor of the model" in refusal(plain, strange)
    assert "this is no importance matrix" in refusal(plain, plain)
    assert "there is no such file" in refusal(plain, tmp_path / "none.gguf")


# -- ``cutaway imatrix``, and that what it writes is what quantising takes -------------------------


@pytest.fixture(scope="module")
def weighed(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "tiny.gguf"
    return write_tiny_llama(path, hidden=256, feed_forward=256, experts=4, context=600)


@pytest.fixture(scope="module")
def text(weighed):
    (path := weighed.with_name("text.txt")).write_text("ab ba " * 40)
    return path


def test_from_a_text_to_a_smaller_model(weighed, text, tmp_path, printed):
    matrix, out = tmp_path / "importance.gguf", tmp_path / "small.gguf"
    lines = printed("imatrix", text, matrix, "-m", weighed, "--chunk", 32).splitlines()
    assert lines[0].split() == ["matrices", "16"] and lines[-1] == str(matrix)
    assert "6 chunks, 192 tokens" in lines[1]
    read = Importance.read(matrix)
    assert read.datasets == (str(text),) and (read.chunks, read.chunk_size) == (6, 32)
    assert read.entries["blk.0.ffn_down_exps.weight"].sums.shape == (4, 256)
    assert printed("quantize", weighed, out, "--to", "q4_k_m", "--imatrix", matrix)
    with GGUFFile(out) as file:
        assert file.metadata["quantize.imatrix.chunks_count"] == 6
    assert printed("generate", "-m", out, "ab", "--max-tokens", 2, "--seed", 1, "-q")


def test_threads_change_no_byte(weighed, text, tmp_path, printed):
    made = []
    for threads in (1, 3):
        out = tmp_path / f"{threads}.gguf"
        args = ("-m", weighed, "--chunk", 32, "--threads", threads, "--json")
        document = json.loads(printed("imatrix", text, out, *args))
        assert document["matrices"] == 16 and document["chunks"] == 6
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_what_cannot_be_done_is_said(weighed, text, tmp_path, refused):
    out = tmp_path / "out.gguf"
    assert "a chunk 512: give a longer text" in refused("imatrix", text, out, "-m", weighed)
    said = refused("imatrix", text, out, "-m", weighed, "--chunk", 1 << 10)
    assert "--chunk must be at most the context, 600" in said
    assert "--chunks" in refused("imatrix", text, out, "-m", weighed, "--chunks", 0)
    assert "ends in .gguf" in refused("imatrix", text, tmp_path / "out.dat", "-m", weighed)
    assert list(tmp_path.iterdir()) == []
