"""Weights in a file on a disk: the same bits, as much memory as is kept, nothing left."""

import os
import resource
import shutil
import subprocess
import sys
from errno import EDQUOT, ENOSPC
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM, InputError
from cutaway.base import offload, resources
from cutaway.base.offload import Offload, Reads
from cutaway.base.resources import Memory, file_system
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from support.random_llama import write_tiny_llama

PROMPTS = [[3, 4, 5], list(range(3, 60)), [7]]


@pytest.fixture
def folder(tmp_path):
    if file_system(tmp_path) in ("tmpfs", "ramfs"):
        pytest.skip("temporary files are in memory here")
    (made := tmp_path / "disk").mkdir()
    return made


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "tiny.gguf", "Q8_0")


def write(path, format, **options):
    shape = {"hidden": 256, "feed_forward": 512, "heads": 8, "head_dim": 32}
    return write_tiny_llama(path, format=format, **shape, **options)


def room(free):
    return SimpleNamespace(free=free)


def keep(monkeypatch, nbytes):
    monkeypatch.setattr(Offload, "room", property(lambda _self: nbytes))


def written(path, **options):
    """Fingerprints of a batch, and the bits of logits."""
    with LLM(path, kv_tokens=512, progress=False, **options) as llm:
        done = llm.generate(PROMPTS, max_tokens=12, seed=5, temperature=1, ignore_eos=True)
        return [each.fingerprint for each in done], llm.logits(PROMPTS[1]).tobytes()


# -- the same bits -------------------------------------------------------------------------------


@pytest.mark.each_choice
@pytest.mark.parametrize("kept", [0, 300_000, 900_000, 1 << 40])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("format", "tied"), [("Q8_0", False), ("Q4_K", True), ("F16", False)])
def test_the_bits_are_those_of_weights_in_memory(
    tmp_path, folder, monkeypatch, format, tied, threads, kept
):
    path = write(tmp_path / "m.gguf", format, tied=tied)
    keep(monkeypatch, kept)
    assert written(path, threads=threads, offload_folder=folder) == written(path, threads=1)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kept", [0, 1 << 40])
def test_a_prompt_whose_rows_are_dealt_has_them_too(path, folder, monkeypatch, kept):
    keep(monkeypatch, kept)
    ids = [3 + i % 200 for i in range(120)] * 2

    def logits(**options):
        with LLM(path, threads=1, progress=False, context=128, **options) as llm:
            return llm.logits(ids[:120]).tobytes()

    assert logits(offload_folder=folder) == logits()


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_experts_that_are_chosen_often_stay_and_change_no_bit(tmp_path, folder, monkeypatch, share):
    path = write(tmp_path / "m.gguf", "Q4_0", experts=8)
    monkeypatch.setattr(Reads, "kept_share", lambda *_: share)
    assert written(path, offload_folder=folder) == written(path)
    with LLM(path, offload_folder=folder, progress=False) as llm:
        llm.generate(PROMPTS, max_tokens=12, seed=5, temperature=1, ignore_eos=True)
        record = llm.backend.kept_experts
    assert len(record) == (0 if share == 1 else 2)
    for i, (chosen, found, read) in enumerate(record):
        rows = sum(map(len, PROMPTS)) + 3 * 11  # the last token of each is not computed
        assert sum(chosen) == 2 * rows if i == 0 else sum(chosen) <= 2 * rows
        assert (found > 0) == (share > 0)
        assert read > 0


def test_the_experts_that_are_kept_are_those_chosen_most_often(tmp_path, folder, monkeypatch):
    path = write(tmp_path / "m.gguf", "Q4_0", experts=8)
    monkeypatch.setattr(Reads, "kept_share", lambda *_: 0.5)  # four of eight
    with LLM(path, offload_folder=folder, progress=False) as llm:
        before = [0, 0]
        for _ in range(3):  # the same tokens, the same few experts: found, once they are kept
            llm.logits([5])
            chosen, found, read = llm.backend.kept_experts[0]
            before.append(read)
        assert before[-1] == before[-2] == sum(count > 0 for count in chosen) == 2
        assert found == 4


# -- memory --------------------------------------------------------------------------------------


def mapped(folder):
    """What the system says of the one file that is mapped from the folder, in kB by name."""
    found, here = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            here = f"{folder}/" in line
            found += [{}] * here
        elif here and rest[-1:] == ["kB"]:
            found[-1] = found[-1] | {name[:-1]: int(rest[0])}
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("share", [0.5, 1])
def test_what_lies_beside_an_expert_is_not_read_with_it(tmp_path, folder, monkeypatch, share):
    path = write(tmp_path / "m.gguf", "Q4_0", experts=8)
    monkeypatch.setattr(Reads, "kept_share", lambda *_: share)
    with LLM(path, offload_folder=folder, progress=False):
        parts = Path("/proc/self/smaps").read_text().split("VmFlags:")
    flags = [
        after.splitlines()[0].split() for part, after in pairwise(parts) if str(folder) in part
    ]
    assert flags
    assert any("rr" in each for each in flags) is (share < 1)  # read at random: not ahead


def test_pages_that_are_not_kept_are_dropped_after_each_step(path, folder, monkeypatch):
    size = {}
    for kept in (0, 1 << 40):
        keep(monkeypatch, kept)
        with LLM(path, offload_folder=folder, progress=False) as llm:
            llm.generate("a", max_tokens=4, ignore_eos=True)
            size[kept] = mapped(folder)
    for figures in size.values():
        assert figures["Size"] > 1000
        assert figures["Anonymous"] == figures["Swap"] == 0  # not memory that only swap could free
    assert size[0]["Rss"] < 0.3 * size[0]["Size"]  # the embedding, and the pages at edges
    assert size[1 << 40]["Rss"] > 0.7 * size[0]["Size"]


def test_kept_is_what_is_free_less_keys_and_values_and_some_to_spare(folder):
    def kept(free, reserved):
        return Offload(folder, reserved, print, Memory(free, "this machine")).room

    assert kept(8000, 1000) == 6000
    assert kept(8000, 7000) == kept(8000, 9000) == 0
    assert Offload(folder, 1, print, None).room > 1 << 50


def test_swap_is_no_memory_to_keep_a_file_in(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "_ROOT", tmp_path)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 500 kB\nSwapFree: 20 kB\n")
    assert resources.free_memory(swap=False) == Memory(500 * 1024, "this machine")


# -- messages --------------------------------------------------------------------------------


def told(path, folder, capsys, *, progress=True):
    LoadedModel(
        path, Setup(context=64, kv_tokens=64, offload_folder=folder), progress=progress
    ).close()
    return capsys.readouterr().err


def test_one_line_says_beforehand_what_will_happen(path, folder, capsys, monkeypatch):
    free = Memory(1_000_000, "its container")
    monkeypatch.setattr(offload, "free_memory", lambda swap: free)
    monkeypatch.setattr(offload, "_read_speed", lambda *_: 1e6)
    assert told(path, folder, capsys) == (
        f"tiny: 1 MB of weights go into a file in {folder}: 1 MB of its container are free, of "
        "which 32.8 kB are for keys and values (kv_tokens) and 842.2 kB for weights; each token "
        "reads up to 489.5 kB from the file, and the disk allows about 2 tokens a second\n"
    )
    assert told(path, folder, capsys, progress=False) == ""
    free = Memory(1 << 40, "this machine")
    assert told(path, folder, capsys).endswith(
        "stay in memory, too, while no other program needs it\n"
    )


def test_how_fast_the_disk_reads_is_measured(path, folder, capsys, monkeypatch):
    monkeypatch.setattr(offload, "free_memory", lambda swap: Memory(9, "this machine"))
    assert told(path, folder, capsys).endswith(" tokens a second\n")


def test_of_experts_a_step_reads_a_part(folder, monkeypatch):
    monkeypatch.setattr(offload, "_read_speed", lambda *_: 1e4)
    said = []
    reads = Reads(size=5000, always=800, experts=4000, active=500)
    for kept, share, left in (0, 0, 1300), (600, 0, 900), (3000, 0.5, 250), (9000, 1, 0):
        assert (reads.kept_share(kept), reads.from_file(kept)) == (share, left)
    keep(monkeypatch, 3000)
    with Offload(folder, 0, said.append, Memory(9, "this machine")).open(reads):
        assert said[0].endswith(
            "each token reads about 0.2 kB from the file, and the disk allows about 40 tokens a "
            "second, more where it is often the same experts"
        )


def test_a_model_that_does_not_fit_runs_so_and_the_refusal_says_it(path, folder, monkeypatch):
    small = Memory(9000, "this machine")
    monkeypatch.setattr("cutaway.compute.loading.weights.free_memory", lambda: small)
    with pytest.raises(InputError, match="--offload-folder DIR"):
        LLM(path, progress=False)
    monkeypatch.setattr(offload, "free_memory", lambda swap: small)
    assert written(path, offload_folder=folder)


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "there is no such folder; make it first"),
        ("file", "it is not a folder; name one"),
        ("a\0b", "there is no such folder; make it first"),
        ("n" * 300, "it cannot be a folder's name: File name too long"),
    ],
)
def test_what_is_no_folder_is_refused_before_a_model_is_fetched(tmp_path, name, why):
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught:
        LLM("hf:no/such:model.gguf", offload_folder=tmp_path / name)
    assert why in str(caught.value)
    assert str(caught.value).startswith("offload_folder ")


@pytest.mark.parametrize("value", ["", 3, True, b""])
def test_what_is_no_name_is_refused(value):
    with pytest.raises(InputError, match="offload_folder must be a folder's name"):
        Setup(offload_folder=value)


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser may write anywhere
    with pytest.raises(InputError, match="it cannot be written to; name another folder"):
        Setup(offload_folder=tmp_path)


def test_a_folder_in_memory_is_refused(tmp_path):
    shared = Path("/dev/shm")
    if not shared.is_dir() or file_system(shared) != "tmpfs":
        pytest.skip("no folder is in memory here")
    with pytest.raises(InputError, match=r"it is memory \(tmpfs\); name a folder on a disk"):
        Setup(offload_folder=shared)


def test_the_reference_is_refused(path, folder):
    with pytest.raises(InputError, match="offload_folder cannot be set for the reference backend"):
        LLM(path, backend="reference", offload_folder=folder, progress=False)


def failing(error):
    def fail(*_):
        raise OSError(error, os.strerror(error))

    return fail


@pytest.mark.parametrize("call", ["posix_fallocate", "fsync"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ENOSPC, "the weights take 1 MB, and .* are free there; make room or name another folder"),
        (EDQUOT, "cannot be written into a file there: Disk quota exceeded; name another folder"),
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    path, folder, monkeypatch, call, error, said
):
    descriptors = set(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(os, call, failing(error))
    with pytest.raises(InputError, match=said):
        LLM(path, offload_folder=folder, progress=False)
    assert list(folder.iterdir()) == []
    assert set(Path("/proc/self/fd").iterdir()) == descriptors


def test_too_little_room_is_seen_before_anything_is_written(path, folder, monkeypatch):
    monkeypatch.setattr(offload, "disk_usage", lambda _: room(12_288))
    monkeypatch.setattr(os, "posix_fallocate", None)
    with pytest.raises(InputError, match=r"and 12.3 kB are free there"):
        LLM(path, offload_folder=folder, progress=False)


def test_a_write_that_fails_half_way_is_told(path, folder, monkeypatch):
    """A real error of the native write: no file may be so large."""
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(InputError, match="cannot be written into a file there: File too large"):
            LLM(path, offload_folder=folder, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_disk_that_is_full(path, folder, monkeypatch):
    """A small file system, which only the superuser can have."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    monkeypatch.setattr(offload, "file_system", lambda _: "ext4")
    try:
        for is_told in (True, False):  # that the system tells, and that it does not
            if not is_told:
                monkeypatch.setattr(offload, "disk_usage", lambda _: room(1 << 60))
                monkeypatch.setattr(os, "posix_fallocate", lambda *_: None)
            with pytest.raises(InputError, match="the weights take 1 MB, and "):
                LLM(path, offload_folder=folder, progress=False)
            assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", folder], check=True)


# -- while it runs -------------------------------------------------------------------------------


def test_the_folder_may_go_while_it_runs(path, folder, monkeypatch):
    keep(monkeypatch, 0)
    expected = written(path)
    with LLM(path, kv_tokens=512, offload_folder=folder, progress=False) as llm:
        shutil.rmtree(folder)
        done = llm.generate(PROMPTS, max_tokens=12, seed=5, temperature=1, ignore_eos=True)
        assert [each.fingerprint for each in done] == expected[0]


def test_a_forked_child_and_its_parent_read_the_same_file(path, folder):
    body = f"""
import os, sys
from pathlib import Path
from types import SimpleNamespace
from cutaway import LLM
from cutaway.base.offload import Offload
Offload.room = property(lambda _self: 0)
llm = LLM({str(path)!r}, threads=2, offload_folder={str(folder)!r}, progress=False)
ids = list(range(3, 60))
expected = llm.logits(ids).tobytes()
child = os.fork()
for _ in range(5):
    assert llm.logits(ids).tobytes() == expected
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert llm.logits(ids).tobytes() == expected
"""
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_option_of_the_command(path, folder):
    command = [
        sys.executable, "-m", "cutaway", "generate", "-m", path, "a", "--max-tokens", "4",
        "--seed", "1", "--ignore-eos",
    ]  # fmt: skip
    there = subprocess.run([*command, "--offload-folder", folder], capture_output=True, check=True)
    assert b"of weights go into a file in" in there.stderr
    assert there.stdout == subprocess.run(command, capture_output=True, check=True).stdout
