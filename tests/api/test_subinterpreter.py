"""A subinterpreter, as mod_wsgi and uWSGI make them: one sentence where it would hang."""

import subprocess
import sys

import pytest

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


def told(code: str) -> str:
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
    assert told(code) == f"{SENTENCE}\n"


def test_native_code_is_refused():
    code = """
try:
    import cutaway.base._native
except ImportError as error:
    print(error)
"""
    assert told(code) == f"{SENTENCE}\n"
