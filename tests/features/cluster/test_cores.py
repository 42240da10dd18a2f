import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress

import pytest

from cutaway.base.resources import usable_cores
from cutaway.errors import InputError
from cutaway.features.cluster import cores

# Claims, tells which, and keeps them until its input ends; a child of its own may stay behind.
CHILD = """
import os, subprocess, sys
from pathlib import Path
from cutaway.features.cluster.cores import claim
from cutaway.errors import InputError
folder, count, child = Path(sys.argv[1]), int(sys.argv[2]), len(sys.argv) > 3
try:
    made = claim(count, folder)
except InputError as error:
    print(error, flush=True)
    sys.exit(2)
made.pin()
if child:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(*made.cores, "|", *os.sched_getaffinity(0), flush=True)
sys.stdin.read()
"""
ALL = sorted(usable_cores())
several = pytest.mark.skipif(len(ALL) < 2, reason="needs two processors")


@pytest.fixture
def start(tmp_path):
    with ExitStack() as stack:

        def started(count, *more, limit=()):
            argv = [*limit, sys.executable, "-c", CHILD, str(tmp_path), str(count), *more]
            child = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip

            def end():
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)  # what it started, too
                child.communicate()

            stack.callback(end)
            child.line = child.stdout.readline().strip()
            return child

        yield started


def claimed(child):
    own, pinned = (sorted(map(int, part.split())) for part in child.line.split("|"))
    assert own == pinned
    return own


def test_every_core_is_one_processs_and_the_next_one_is_refused_in_a_sentence(start):
    children = [start(1) for _ in ALL]
    assert sorted(core for child in children for core in claimed(child)) == ALL
    refused = start(1)
    assert refused.wait() == 2
    assert refused.line == (
        f"cores: 1 are wanted, and 0 of the {len(ALL)} that this process may use are free: take "
        "fewer, or end what runs on the others"
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_releases_its_cores_even_if_a_child_lives_on(start, how):
    first = start(len(ALL), "child")
    assert claimed(first) == ALL
    assert start(1).wait() == 2
    first.send_signal(how)
    first.wait()
    assert claimed(start(len(ALL))) == ALL


def test_all_or_none(start, tmp_path):
    with pytest.raises(InputError, match=f"cores: {len(ALL) + 1} are wanted, and {len(ALL)} of"):
        cores.claim(len(ALL) + 1, tmp_path)
    assert claimed(start(len(ALL))) == ALL


@several
def test_only_what_the_process_may_use(start):
    last = ALL[-1]
    assert claimed(start(1, limit=("taskset", "-c", str(last)))) == [last]
    assert claimed(start(len(ALL) - 1)) == ALL[:-1]
    assert start(1, limit=("taskset", "-c", str(last))).wait() == 2


@several
def test_what_is_released_can_be_had_again_and_two_claims_of_one_process_are_two(tmp_path):
    with cores.claim(1, tmp_path) as first, cores.claim(len(ALL) - 1, tmp_path) as rest:
        assert sorted((*first.cores, *rest.cores)) == ALL
        with pytest.raises(InputError, match="cores: 1 are wanted, and 0 of"):
            cores.claim(1, tmp_path)
    with cores.claim(len(ALL), tmp_path) as every:
        assert list(every.cores) == ALL


def test_many_that_want_more_than_half_at_once_are_not_all_refused(start):
    """Each would hold a part of what another needs, if they took cores side by side."""
    most = len(ALL) // 2 + 1
    children = [start(most) for _ in range(3)]
    assert [child.line.startswith("cores:") for child in children].count(False) == 1


def test_a_waiting_claim_gets_cores_as_soon_as_they_are_released(start, tmp_path):
    first = start(len(ALL))
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(cores.claim, len(ALL), tmp_path, patience_s=60)
        assert not wait([waiting], 0.3).done
        first.kill()
        with waiting.result() as claimed:
            assert list(claimed.cores) == ALL


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cores.os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InputError, match="another user: remove it"):
        cores.claim(1, tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    monkeypatch.undo()
    with pytest.raises(InputError, match="another user: remove it"):
        cores.claim(1, link)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "two"])
def test_a_count_that_is_none_is_refused(count, tmp_path):
    with pytest.raises(InputError, match="cores must be"):
        cores.claim(count, tmp_path)
