"""One model and several threads, owners and processes; and the API misused at random."""

import copy
import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cutaway
from cutaway import LLM, AsyncLLM, InputError
from support import misuse
from support.misuse import fault

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")


OPTIONS = {"max_tokens": 24, "temperature": 1.0, "ignore_eos": True}
PROMPTS = ["ab", "b", "aab", "ab" * 20]


@pytest.fixture
def llm(tiny_path):
    with LLM(tiny_path, threads=2, progress=False) as opened:
        yield opened


def bits(completion):
    return completion.token_ids, completion.text, completion.fingerprint


def alone(path, requests):
    """Each by itself, on a model that nobody else uses."""
    with LLM(path, threads=1, progress=False) as llm:
        return [bits(llm.generate(prompt, seed=seed, **OPTIONS)) for prompt, seed in requests]


def test_eight_threads_write_what_each_writes_alone(llm, tiny_path):
    requests = [(PROMPTS[i % 4], i) for i in range(64)]

    def write(request):
        prompt, seed = request
        if seed % 3 == 0:
            with llm.stream(prompt, seed=seed, **OPTIONS) as stream:
                return bits(stream.finish())
        return bits(llm.generate(prompt, seed=seed, **OPTIONS))

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(write, requests, timeout=300))
    assert texts == alone(tiny_path, requests)
    assert llm.engine.blocks.free == llm.engine.blocks.count


def test_threads_that_leave_read_score_and_err_do_not_disturb_the_others(llm, tiny_path):
    requests = [(PROMPTS[i % 4], i) for i in range(24)]
    expected = llm.logits([5, 6, 7]).tolist()

    def disturb(i):
        if i % 4 == 0:
            assert llm.logits([5, 6, 7]).tolist() == expected
        elif i % 4 == 1:
            next(llm.stream("ab", **OPTIONS))  # dropped
        elif i % 4 == 2:
            with pytest.raises(InputError):
                llm.generate("ab", max_tokens=-1)
        else:
            for _, _ in llm.generate_each(["ab", "b", "aab"], **OPTIONS):
                break
        return

    def write(request):
        return bits(llm.generate(request[0], seed=request[1], **OPTIONS))

    with ThreadPoolExecutor(8) as pool:
        disturbing = [pool.submit(disturb, i) for i in range(24)]
        texts = list(pool.map(write, requests, timeout=300))
        for one in disturbing:
            one.result(timeout=300)
    assert texts == alone(tiny_path, requests)


def test_a_stream_may_be_closed_by_another_thread(llm):
    stream = llm.stream("ab", **OPTIONS)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream.close).result(timeout=60)
    assert list(stream) == []
    assert llm.generate("ab", max_tokens=1).token_ids


async def test_a_second_owner_is_refused_in_one_sentence(llm):
    async with AsyncLLM(llm) as first:
        text = await first.generate("ab", seed=1, **OPTIONS)
        for use in (
            lambda: AsyncLLM(llm), lambda: llm.generate("ab"), lambda: llm.stream("ab"),
            lambda: llm.logits([5]), lambda: llm.generate_each(["ab"]),
        ):  # fmt: skip
            with pytest.raises(InputError) as refused:
                use()
            assert "\n" not in str(refused.value)
        assert bits(await first.generate("ab", seed=1, **OPTIONS)) == bits(text)


def test_a_model_that_writes_is_not_given_away(llm):
    with llm.stream("ab", **OPTIONS) as stream:
        next(stream)
        with pytest.raises(InputError, match="close their streams first"):
            AsyncLLM(llm)
        assert len([*stream]) == OPTIONS["max_tokens"] - 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loaded_model_is_not_copied(llm, copied):
    with pytest.raises(InputError, match="load it there"):
        copied(llm)


FORK = """
import os, sys, threading
from cutaway import LLM, CutawayError
llm = LLM(sys.argv[1], threads=2, progress=False)
options = dict(seed=1, max_tokens=24, temperature=1.0, ignore_eos=True)
expected = llm.generate("ab", **options).fingerprint
child = os.fork()
if not child:
    os._exit(0 if llm.generate("ab", **options).fingerprint == expected else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert llm.generate("ab", **options).fingerprint == expected
stop = threading.Event()
def write():
    while not stop.is_set():
        llm.generate("ab", **options)
writing = threading.Thread(target=write)
writing.start()
for _ in range(20):
    child = os.fork()
    if not child:
        try:
            right = llm.generate("ab", **options).fingerprint == expected
        except CutawayError as error:
            right = "after the fork" in str(error)
        os._exit(0 if right else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
writing.join()
assert llm.generate("ab", **options).fingerprint == expected
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no such thing here")
def test_a_forked_process_writes_the_same_or_says_why_not(tiny_path):
    environment = os.environ | {"PYTHONPATH": str(Path(cutaway.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", FORK, str(tiny_path)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# -- misused at random, in a process of its own, which must survive it -------------------------


HOMES = [Path(cutaway.__file__).parents[1], Path(misuse.__file__).parents[1]]


@pytest.mark.parametrize(
    ("seed", "calls"), [(0, 500), pytest.param(1, 10_000, marks=pytest.mark.slow)]
)
def test_misuse_ends_in_an_answer_or_in_one_sentence(tiny_path, seed, calls):
    paths = "; ".join(f"sys.path.insert(0, {str(home)!r})" for home in HOMES)
    code = f"import sys; {paths}; from support.misuse import main; main(*sys.argv[1:])"
    command = [sys.executable, "-X", "faulthandler", "-c", code]
    done = subprocess.run(
        [*command, str(tiny_path), str(seed), str(calls)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["faults"] == []
    verbs = {name.split()[0] for name in found["outcomes"]}
    assert {"generate", "begin", "read", "process", "chat", "asynchronous", "keep",
            "duplicate"} <= verbs  # fmt: skip
    assert sum(found["outcomes"].values()) == calls


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        ValueError("x"),
        cutaway.InputError("two\nlines"),
        cutaway.InputError("x" * 999),
    ],
)
def test_what_is_no_sentence_is_a_fault(error):
    with pytest.raises(type(error)) as caught:
        raise error
    assert fault(caught.value)


# -- interpreters ----------------------------------------------------------------------------------

# Python that ends, and subinterpreters: a text, or one sentence where it would hang.


CODE = """
import sys
from cutaway import LLM, CutawayError

class Host:
    def __init__(self):
        self.me = self  # so that __del__ comes when modules are torn down
        self.llm = LLM(sys.argv[1], progress=False)
        self.options = {"max_tokens": 2, "seed": 1}
        if len(sys.argv) > 2:
            self.text = self.write()
        else:
            self.options["regex"] = "[ab]+"  # imports what compiles it
    def write(self):
        return self.llm.generate("ab", **self.options).text
    def __del__(self):
        try:
            assert self.write() == self.text
            print("the same")
        except CutawayError as error:
            print(error)

host = Host()
"""


def told(*args):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *args], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_cannot_be_imported_any_more_is_one_sentence(tiny_path):
    assert told(tiny_path) == (
        "Python is ending, and can import nothing more that this text needs: write it earlier, at "
        "the latest in a function of atexit\n"
    )


def test_what_was_imported_before_is_written(tiny_path):
    assert told(tiny_path, "before") == "the same\n"


# -- a subinterpreter, as mod_wsgi and uWSGI make them -----------------------------------------


SENTENCE = (
    "cutaway computes in Python's main interpreter alone, and this is a subinterpreter: under "
    "mod_wsgi write WSGIApplicationGroup %{GLOBAL}, under uWSGI single-interpreter = true"
)

BEGIN = """
try:
    import _interpreters as interpreters
    run = interpreters.exec
except ImportError:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
run(interpreters.create(), '''
import faulthandler, warnings
faulthandler.dump_traceback_later(60, exit=True)
warnings.simplefilter("ignore")  # NumPy's, which says that it may not work there either
"""


def told_within(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}{code}''')"], capture_output=True, text=True, check=False
    )
    if "No module named '_xxsubinterpreters'" in done.stderr:
        pytest.skip("this Python has no subinterpreters")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_load_is_refused(tiny_path):
    code = f"""
from cutaway import LLM, CutawayError
try:
    LLM({str(tiny_path)!r})
except CutawayError as error:
    print(error)
"""
    assert told_within(code) == f"{SENTENCE}\n"


def test_native_code_is_refused():
    code = """
try:
    import cutaway.base._native
except ImportError as error:
    print(error)
"""
    assert told_within(code) == f"{SENTENCE}\n"
