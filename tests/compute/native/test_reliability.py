"""Forks, signals, shutdown and missing threads: clean ends, and the same bits."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cutaway
from support.random_llama import write_tiny_llama


@pytest.fixture(scope="module")
def slow_path(tmp_path_factory):
    """Wide enough that one step of 512 rows takes a while."""
    return write_tiny_llama(
        tmp_path_factory.mktemp("slow") / "slow.gguf", heads=16, kv_heads=16, head_dim=64,
        hidden=512, feed_forward=1024, layers=6, context=8192, format="F16",
    )  # fmt: skip


def run_clean(path, body):
    """Run a program that begins with `llm`, a model, and `ids`."""
    run_program(BEGIN.format(path=str(path)) + body)


def run_program(code):
    """It must end with 0 and say nothing."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, env=environment(), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def environment():
    import cutaway

    package = str(Path(cutaway.__file__).parents[1])
    return os.environ | {"PYTHONPATH": package}


BEGIN = """
import os, sys, threading, time
import numpy as np
from cutaway import LLM
ids = list(range(3, 63))
def load(threads=3):
    return LLM({path!r}, backend="cpu", threads=threads, progress=False)
llm = load()
before = llm.logits(ids).view(np.uint32)
def same():
    assert np.array_equal(llm.logits(ids).view(np.uint32), before)
def wait_for(child, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(child, 9)
    sys.exit("the child hangs")
"""


@pytest.mark.parametrize("pause", [0, 0.2])
def test_a_forked_child_and_its_parent_go_on(q8_path, pause):
    """After a pause the workers sleep on a condition variable, whose copy knows ghosts."""
    body = f"""
time.sleep({pause})
child = os.fork()
for _ in range(4):
    same()
    time.sleep(0.02)  # workers fall asleep: they must wake again
if child:
    wait_for(child)
    same()
"""
    run_clean(q8_path, body)


def test_a_child_s_child_and_a_child_that_computes_nothing(q8_path):
    body = """
if not (child := os.fork()):
    if not (grandchild := os.fork()):
        same()
        sys.exit()
    same()
    wait_for(grandchild)
    sys.exit()
wait_for(child)
if not (child := os.fork()):
    del llm  # never run here: its threads are the parent's
    sys.exit()
wait_for(child)
same()
"""
    run_clean(q8_path, body)


def test_a_fork_while_another_thread_computes(q8_path):
    body = """
stop = threading.Event()
other = load(2)
def work():
    while not stop.is_set():
        other.logits(ids)
thread = threading.Thread(target=work)
thread.start()
for _ in range(5):
    if not (child := os.fork()):
        same()
        os._exit(0)
    wait_for(child)
    same()
stop.set()
thread.join()
"""
    run_clean(q8_path, body)


def test_shutdown_with_live_models_and_threads(q8_path):
    body = """
keep = [load(n) for n in (1, 2, 3, 5)]
for model in keep:
    model.logits(ids)
cycle = [keep, llm]
cycle.append(cycle)
stream = llm.stream([5, 6], max_tokens=50)
next(stream)
"""
    started = time.monotonic()
    run_clean(q8_path, body)
    assert time.monotonic() - started < 10


def test_shutdown_while_a_daemon_thread_computes(q8_path):
    body = """
def work():
    while True:
        llm.logits(ids)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    run_clean(q8_path, body)


def test_shutdown_after_a_fork_in_both(q8_path):
    body = """
child = os.fork()
if child:
    wait_for(child)
"""
    run_clean(q8_path, body)


def test_more_threads_than_the_system_gives(q8_path):
    """The first run tells; later runs tell again, or work, and none waits for ever."""
    body = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
many = load(400)
limits = resource.getrlimit(resource.RLIMIT_AS)
few = (used + 600_000_000, limits[1])  # each thread wants 8 MB for its stack
resource.setrlimit(resource.RLIMIT_AS, few)
for _ in range(2):
    try:
        many.logits(ids)
    except (RuntimeError, MemoryError):
        pass
    else:
        sys.exit("400 threads fit into 600 MB")
resource.setrlimit(resource.RLIMIT_AS, limits)  # what failed may have left no room for anything
same()
"""
    run_clean(q8_path, body)


@pytest.mark.parametrize("threads", [1, 3])
def test_another_library_s_rounding_mode_changes_no_bit(q8_path, threads):
    """Upwards in the calling thread alone; and it is left as it was."""
    body = f"""
import ctypes
libm = ctypes.CDLL("libm.so.6")
upwards = 0x800 if os.uname().machine == "x86_64" else 0x400000
other = load({threads})
assert libm.fesetround(upwards) == 0
again = other.logits(ids).view(np.uint32)
assert libm.fegetround() == upwards
libm.fesetround(0)
assert np.array_equal(again, before)
same()
"""
    run_clean(q8_path, body)


def interrupted(command, *, after=0.0):
    """Start, wait for the line "ready", send SIGINT; returns (exit code, seconds it took)."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(after)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=20)
    finally:
        process.kill()
    return process.returncode, time.monotonic() - sent


LONG = """
from cutaway import LLM
llm = LLM({path!r}, backend="cpu", threads={threads}, progress=False)
print("ready", flush=True)
for _ in range(50):
    llm.logits([5] * 4000)
"""


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_ctrl_c_in_the_middle_of_a_step(slow_path, threads):
    """Python's own end: killed by SIGINT, which a shell shows as 130."""
    code = LONG.format(path=str(slow_path), threads=threads)
    returned, seconds = interrupted([sys.executable, "-c", code], after=0.3)
    assert returned == -signal.SIGINT
    assert seconds < 10


def test_ctrl_c_in_the_command_line(slow_path):
    """A prefill of many steps: the command ends after the one that is being computed."""
    code = (
        "import sys; from cutaway.cli.main import main; print('ready', flush=True); "
        f"sys.exit(main(['generate', 'a' * 7900, '-m', {str(slow_path)!r}, '--threads', '2']))"
    )
    returned, seconds = interrupted([sys.executable, "-c", code], after=1.0)
    assert returned == 130
    assert seconds < 10


def test_a_step_that_was_interrupted_can_be_taken_again(slow_path):
    """KeyboardInterrupt comes between steps; the model still computes the same bits."""
    code = f"""
import numpy as np, os, signal, threading
from cutaway import LLM
llm = LLM({str(slow_path)!r}, backend="cpu", threads=2, progress=False)
before = llm.logits(list(range(3, 203)))
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for _ in range(50):
        llm.logits([5] * 4000)
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    pass
assert np.array_equal(llm.logits(list(range(3, 203))).view("u4"), before.view("u4"))
"""
    run_program(code)


# -- out of memory ---------------------------------------------------------------------------------

# Memory and threads that cannot be had: one sentence, and the same bits once they can.


BEGIN_WITHIN = """
import os, resource, sys
from cutaway import LLM, CutawayError
ids = [token % 40 + 3 for token in range(57)]
def write(llm):
    options = dict(max_tokens=4, ignore_eos=True, seed=3, repetition_penalty=1.1)
    return llm.generate(ids, **options).token_ids
def load(threads=3, **more):
    return LLM({path!r}, backend="cpu", threads=threads, progress=False, **more)
whole = write(load())
limits = resource.getrlimit(resource.RLIMIT_AS)
def leave(nbytes):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, limits[1]))
def refused(llm):
    try:
        write(llm)
    except CutawayError as error:
        return type(error).__name__, str(error)
    sys.exit("it was not refused")
"""


def run_within(path, body, **environment):
    """It must end with 0 and say nothing on standard error; what it printed."""
    package = str(Path(cutaway.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", BEGIN_WITHIN.format(path=str(path)) + body],
        capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": package} | environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_memory_that_ends_at_the_first_step(q8_path):
    """Its keys and values are 16 MB a thousand tokens; once there is memory, it goes on."""
    body = """
llm = load(1, kv_tokens=500_000)
leave(10_000_000)
told = {refused(llm) for _ in range(3)}
resource.setrlimit(resource.RLIMIT_AS, limits)
assert told == {(
    "OutOfMemoryError",
    "there is not enough memory to compute this: lower kv_tokens or context, or free some",
)}, told
assert write(llm) == whole
"""
    run_within(q8_path, body)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_threads_that_cannot_be_started(q8_path):
    """Each wants address space for its stack, more than the model takes."""
    body = """
leave(60_000_000)
told = set()
for _ in range(2):
    try:
        load(64)
    except CutawayError as error:
        told.add(str(error))
resource.setrlimit(resource.RLIMIT_AS, limits)
assert told == {(
    "the system has no more threads: lower threads (--threads), or raise its limit (ulimit -u, "
    "pids.max)"
)}, told
assert write(load(64)) == whole
"""
    run_within(q8_path, body)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_a_tokenizer_is_read_where_no_thread_can_be_had(q8_path):
    body = """
import threading
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
assert write(load(1)) == whole
"""
    run_within(q8_path, body)


SHIM = """
#include <atomic>
#include <cstdlib>
#include <new>
static std::atomic<long> seen{0}, failing{-1};
extern "C" void fail_at(long n) { seen = 0, failing = n; }
extern "C" long count() { return seen; }
void* operator new(std::size_t n) {
  if (seen++ == failing) throw std::bad_alloc();
  if (void* p = malloc(n)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t n) { return operator new(n); }
void operator delete(void* p) noexcept { free(p); }
void operator delete[](void* p) noexcept { free(p); }
void operator delete(void* p, std::size_t) noexcept { free(p); }
void operator delete[](void* p, std::size_t) noexcept { free(p); }
"""

EACH = """
import ctypes, faulthandler
shim = ctypes.CDLL({shim!r})
llm, other = load(), load()
shim.fail_at(-1)
write(llm)
count = shim.count()
for n in range(count):
    if not os.fork():
        faulthandler.dump_traceback_later(20, exit=True)  # a thread waits for one that failed
        shim.fail_at(n)
        try:
            assert write(other) == whole
        except CutawayError as error:
            assert type(error).__name__ == "OutOfMemoryError", error
        shim.fail_at(-1)
        assert write(other) == whole
        os._exit(0)
    _, status = os.wait()
    assert status == 0, f"allocation {{n}} of {{count}}: {{status}}"
print(count)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
@pytest.mark.parametrize("experts", [0, 4])
def test_each_allocation_of_a_text_may_fail(tmp_path, experts):
    """The first text of a model, in a process for each allocation, then the text again."""
    (tmp_path / "shim.cpp").write_text(SHIM)
    shim = str(tmp_path / "shim.so")
    subprocess.run(["g++", "-fPIC", "-shared", "-o", shim, tmp_path / "shim.cpp"], check=True)
    path = write_tiny_llama(
        tmp_path / "tiny.gguf", heads=4, kv_heads=4, head_dim=64, hidden=128, feed_forward=128,
        format="Q8_0", experts=experts,
    )  # fmt: skip
    assert int(run_within(path, EACH.format(shim=shim), LD_PRELOAD=shim)) > 20
