"""Python that ends, and subinterpreters: a text, or one sentence where it would hang."""

import subprocess
import sys

import pytest

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
