"""Memory and threads that cannot be had: one sentence, and the same bits once they can."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cutaway
from support.random_llama import write_tiny_llama

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")

BEGIN = """
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


def run_program(path, body, **environment):
    """It must end with 0 and say nothing on standard error; what it printed."""
    package = str(Path(cutaway.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", BEGIN.format(path=str(path)) + body],
        capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": package} | environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


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
    run_program(q8_path, body)


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
    run_program(q8_path, body)


def test_a_tokenizer_is_read_where_no_thread_can_be_had(q8_path):
    body = """
import threading
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
assert write(load(1)) == whole
"""
    run_program(q8_path, body)


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
    assert int(run_program(path, EACH.format(shim=shim), LD_PRELOAD=shim)) > 20
