"""A text that is asked for while Python ends: one sentence, or the text."""

import subprocess
import sys

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
