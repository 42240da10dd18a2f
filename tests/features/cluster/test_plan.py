"""Plans of replicas, and what is said where these cannot be started."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, nullcontext, suppress
from socket import socket

import pytest

from cutaway.base.resources import usable_cores
from cutaway.errors import InputError
from cutaway.features.cluster.launch import _own_signals, _reason, launch
from cutaway.features.cluster.plan import MAX_RUNNING, MAX_WAITING, Plan, claim, read_replicas


@pytest.mark.parametrize(
    ("given", "read"), [("1", (1, 1)), (2, (2, 2)), ("1..8", (1, 8)), ("3..3", (3, 3))]
)
def test_how_many(given, read):
    assert read_replicas(given) == read


@pytest.mark.parametrize(
    ("sentence", "refused"),
    [
        ("a number such as 2, or a range",
         ["", "two", "1.5", "-1", "1..", "..2", "1...3", "1..x", None]),
        ("1 to 4096, and the first", ["0", "0..2", "3..2", "4097", "1..4097"]),
    ],
)  # fmt: skip
def test_replicas_that_cannot_be_are_refused(sentence, refused):
    for given in refused:
        with pytest.raises(InputError, match=f"--replicas must be {sentence}"):
            read_replicas(given)


def test_each_has_its_share_of_the_cores_where_nobody_says_how_many():
    cores = len(usable_cores())
    assert Plan.from_arguments("1", None, {}, {}).cores == cores
    assert Plan.from_arguments(f"1..{cores}", None, {}, {}).cores == 1
    assert Plan.from_arguments(f"{2 * cores}", None, {}, {}).cores == 1
    assert Plan.from_arguments("2", 3, {}, {}).cores == 3


def test_what_is_a_path_here_is_one_everywhere(tmp_path, monkeypatch):
    (tmp_path / "draft.gguf").touch()
    monkeypatch.chdir(tmp_path)
    keywords = {"model": "draft.gguf", "cache_dir": "prompts"}
    plan = Plan.from_arguments("1", 1, keywords, {"speculate": "draft:draft.gguf"})
    assert plan.model["model"] == str(tmp_path / "draft.gguf")
    assert plan.model["cache_dir"] == str(tmp_path / "prompts")
    assert plan.draft == f"draft:{tmp_path / 'draft.gguf'}"
    assert Plan.from_arguments("1", 1, {"model": "smollm2"}, {"speculate": "ngram"}).model == {
        "model": "smollm2"
    }
    assert Plan.from_arguments("1", 1, {}, {"speculate": "ngram"}).draft is None


def check_refused(plan, sentence, address=None):
    with pytest.raises(InputError, match=sentence), launch(plan, address):
        pass


def test_more_cores_than_there_are_is_refused_before_anything_is_started(tiny_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # which would be another sentence
    plan = Plan.from_arguments("2", len(usable_cores()), {"model": str(tiny_path)}, {})
    check_refused(plan, r"--replicas 2 with --cores \d+ need \d+ cores, and this")


def test_without_ray_the_sentence_says_what_to_install(tiny_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    plan = Plan.from_arguments("1", 1, {"model": str(tiny_path)}, {})
    check_refused(plan, r"--replicas needs ray: pip install 'cutaway\[ray\]'")


def test_an_address_where_nobody_listens_is_refused_at_once(tiny_path):
    plan = Plan.from_arguments("1", 1, {"model": str(tiny_path)}, {})
    with closing(socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        check_refused(plan, f"--address {address}: no Ray cluster answers there", address)


@pytest.mark.parametrize("address", ["", "here", "host:", ":80", "host:0", "host:x", "ray://h:1"])
def test_what_is_no_address_is_refused(address, tiny_path):
    plan = Plan.from_arguments("1", 1, {"model": str(tiny_path)}, {})
    check_refused(plan, "--address must be auto or HOST:PORT, not", address)


@pytest.mark.parametrize("cores", [0, -1, 1.5])
def test_cores_that_cannot_be_are_refused(cores):
    with pytest.raises(InputError, match="cores must be"):
        Plan.from_arguments("1", cores, {}, {})


def test_a_replica_with_more_threads_than_cores_is_refused():
    with pytest.raises(InputError, match="threads must be at most the 2 cores of a replica"):
        Plan.from_arguments("1", 2, {"threads": 3}, {})


def test_a_replica_is_sent_more_than_it_has_room_for():
    """Or nobody would be told that the queue is full: they would wait where nobody counts them."""
    assert Plan().most_calls > MAX_RUNNING + MAX_WAITING
    assert Plan(model={"max_num_seqs": 2, "max_waiting": 0}).most_calls > 2


def test_what_the_server_fails_with_is_not_told_of_its_replicas(tiny_path, monkeypatch):
    serve = pytest.importorskip("ray.serve", reason="needs ray: pip install '.[test-ray]'")
    monkeypatch.setattr("cutaway.features.cluster.launch._ray", lambda *_: nullcontext("127.0.0.1"))
    monkeypatch.setattr(serve, "run", lambda *_, **__: None)
    plan = Plan.from_arguments(1, 1, {"model": str(tiny_path)}, {})
    with pytest.raises(RuntimeError, match=r"^its own$"), launch(plan, progress=False):
        raise RuntimeError("its own")


# -- what is said where replicas cannot be started, and who hears signals while they start ---------


REPORT = """Deploying application cutaway-1 failed: Failed to update the deployments ['Engine'].
Traceback (most recent call last):
  File "x.py", line 1, in y
cutaway.errors.FormatError: m.gguf is truncated: download it again
The above exception was the direct cause of the following exception:
ray.exceptions.RayTaskError"""


def test_of_a_report_with_tracebacks_our_own_sentence_is_told():
    assert _reason(REPORT) == "m.gguf is truncated: download it again"
    assert _reason("a\nb: no more\n") == "b: no more"


def rays(number, _frame):
    sys.exit(number)


def test_a_signal_ends_as_it_did_although_ray_has_a_handler_of_its_own():
    def ours(_number, _frame):
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, ours)
    try:
        with _own_signals():
            signal.signal(signal.SIGTERM, rays)
        assert signal.getsignal(signal.SIGTERM) is ours
        with pytest.raises(SystemExit) as left, _own_signals():
            signal.signal(signal.SIGTERM, rays)
            signal.raise_signal(signal.SIGTERM)
        assert left.value.code == 0
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


# -- cores -----------------------------------------------------------------------------------------

# cores


# Claims, tells which, and keeps them until its input ends; a child of its own may stay behind.
CHILD = """
import os, subprocess, sys
from pathlib import Path
from cutaway.features.cluster.plan import claim
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
        claim(len(ALL) + 1, tmp_path)
    assert claimed(start(len(ALL))) == ALL


@several
def test_only_what_the_process_may_use(start):
    last = ALL[-1]
    assert claimed(start(1, limit=("taskset", "-c", str(last)))) == [last]
    assert claimed(start(len(ALL) - 1)) == ALL[:-1]
    assert start(1, limit=("taskset", "-c", str(last))).wait() == 2


@several
def test_what_is_released_can_be_had_again_and_two_claims_of_one_process_are_two(tmp_path):
    with claim(1, tmp_path) as first, claim(len(ALL) - 1, tmp_path) as rest:
        assert sorted((*first.cores, *rest.cores)) == ALL
        with pytest.raises(InputError, match="cores: 1 are wanted, and 0 of"):
            claim(1, tmp_path)
    with claim(len(ALL), tmp_path) as every:
        assert list(every.cores) == ALL


def test_many_that_want_more_than_half_at_once_are_not_all_refused(start):
    """Each would hold a part of what another needs, if they took cores side by side."""
    most = len(ALL) // 2 + 1
    children = [start(most) for _ in range(3)]
    assert [child.line.startswith("cores:") for child in children].count(False) == 1


def test_a_waiting_claim_gets_cores_as_soon_as_they_are_released(start, tmp_path):
    first = start(len(ALL))
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(claim, len(ALL), tmp_path, patience_s=60)
        assert not wait([waiting], 0.3).done
        first.kill()
        with waiting.result() as claimed:
            assert list(claimed.cores) == ALL


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(InputError, match="another user: remove it"):
        claim(1, tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    monkeypatch.undo()
    with pytest.raises(InputError, match="another user: remove it"):
        claim(1, link)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "two"])
def test_a_count_that_is_none_is_refused(count, tmp_path):
    with pytest.raises(InputError, match="cores must be"):
        claim(count, tmp_path)
