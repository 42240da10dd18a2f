"""Plans of replicas, and what is said where these cannot be started."""

import signal
import sys
from contextlib import closing, nullcontext
from socket import socket

import pytest

from cutaway.base.resources import usable_cores
from cutaway.errors import InputError
from cutaway.features.cluster.launch import _own_signals, _reason, launched
from cutaway.features.cluster.plan import MAX_RUNNING, MAX_WAITING, Plan, read_replicas


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
    assert Plan.of("1", None, {}, {}).cores == cores
    assert Plan.of(f"1..{cores}", None, {}, {}).cores == 1
    assert Plan.of(f"{2 * cores}", None, {}, {}).cores == 1
    assert Plan.of("2", 3, {}, {}).cores == 3


def test_what_is_a_path_here_is_one_everywhere(tmp_path, monkeypatch):
    (tmp_path / "draft.gguf").touch()
    monkeypatch.chdir(tmp_path)
    plan = Plan.of("1", 1, {"model": "draft.gguf"}, {"speculate": "draft:draft.gguf"})
    assert plan.model["model"] == str(tmp_path / "draft.gguf")
    assert plan.draft == f"draft:{tmp_path / 'draft.gguf'}"
    assert Plan.of("1", 1, {"model": "smollm2"}, {"speculate": "ngram"}).model == {
        "model": "smollm2"
    }
    assert Plan.of("1", 1, {}, {"speculate": "ngram"}).draft is None


def check_refused(plan, sentence, address=None):
    with pytest.raises(InputError, match=sentence), launched(plan, address):
        pass


def test_more_cores_than_there_are_is_refused_before_anything_is_started(tiny_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # which would be another sentence
    plan = Plan.of("2", len(usable_cores()), {"model": str(tiny_path)}, {})
    check_refused(plan, r"--replicas 2 with --cores \d+ need \d+ cores, and this")


def test_without_ray_the_sentence_says_what_to_install(tiny_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    plan = Plan.of("1", 1, {"model": str(tiny_path)}, {})
    check_refused(plan, r"--replicas needs ray: pip install 'cutaway\[ray\]'")


def test_an_address_where_nobody_listens_is_refused_at_once(tiny_path):
    plan = Plan.of("1", 1, {"model": str(tiny_path)}, {})
    with closing(socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        check_refused(plan, f"--address {address}: no Ray cluster answers there", address)


@pytest.mark.parametrize("address", ["", "here", "host:", ":80", "host:0", "host:x", "ray://h:1"])
def test_what_is_no_address_is_refused(address, tiny_path):
    plan = Plan.of("1", 1, {"model": str(tiny_path)}, {})
    check_refused(plan, "--address must be auto or HOST:PORT, not", address)


@pytest.mark.parametrize("cores", [0, -1, 1.5])
def test_cores_that_cannot_be_are_refused(cores):
    with pytest.raises(InputError, match="cores must be"):
        Plan.of("1", cores, {}, {})


def test_a_replica_with_more_threads_than_cores_is_refused():
    with pytest.raises(InputError, match="threads must be at most the 2 cores of a replica"):
        Plan.of("1", 2, {"threads": 3}, {})


def test_a_replica_is_sent_more_than_it_has_room_for():
    """Or nobody would be told that the queue is full: they would wait where nobody counts them."""
    assert Plan().most_calls > MAX_RUNNING + MAX_WAITING
    assert Plan(model={"max_num_seqs": 2, "max_waiting": 0}).most_calls > 2


def test_what_the_server_fails_with_is_not_told_of_its_replicas(tiny_path, monkeypatch):
    serve = pytest.importorskip("ray.serve", reason="needs ray: pip install '.[test-ray]'")
    monkeypatch.setattr("cutaway.features.cluster.launch._ray", lambda *_: nullcontext("127.0.0.1"))
    monkeypatch.setattr(serve, "run", lambda *_, **__: None)
    plan = Plan.of(1, 1, {"model": str(tiny_path)}, {})
    with pytest.raises(RuntimeError, match=r"^its own$"), launched(plan, progress=False):
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
