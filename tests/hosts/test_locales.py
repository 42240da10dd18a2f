"""A host's locale, of C's functions too: decimal commas, and letters whose case is another's."""

import os
import shutil
import subprocess
import sys
from functools import cache

import pytest

WRITE = """
import locale, sys
print(locale.setlocale(locale.LC_ALL, ""), locale.localeconv()["decimal_point"], file=sys.stderr)
from cutaway import LLM
NUMBER = {"type": "number", "minimum": 0.5, "maximum": 2.25}
SCHEMA = {"type": "object", "properties": {"TITLE": NUMBER}, "required": ["TITLE"]}
with LLM("toy-writer", threads=1, progress=False) as llm:
    for form in ({}, {"json_schema": SCHEMA}, {"regex": "[0-9][.][0-9]{2}[Iıİi]"}):
        done = llm.generate("I ı İ i 1,5 1.5", max_tokens=24, seed=7, min_p=0.05, **form)
        print(ascii(done.text), done.fingerprint)
"""
COMMAND = ["generate", "-m", "toy-writer", "I", "--seed", "7", "--min-p", "0.05", "--regex", "[Ii]"]


@pytest.fixture(scope="module")
def locales(tmp_path_factory):
    """A folder of locales that any system can make."""
    if (program := shutil.which("localedef")) is None:
        pytest.skip("needs localedef: apt install locales")
    folder = tmp_path_factory.mktemp("locales")
    for name in ("tr_TR", "de_DE"):
        command = [program, "-i", name, "-f", "UTF-8", str(folder / f"{name}.UTF-8")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs the sources of locales: apt install locales ({done.stderr[:80]})")
    return str(folder)


def run(name, locales, *command):
    environment = os.environ | {"LC_ALL": name, "LOCPATH": locales}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=True
    )


@cache
def in_english(locales):
    return run("C.UTF-8", locales, "-c", WRITE).stdout


@pytest.mark.parametrize("name", ["tr_TR.UTF-8", "de_DE.UTF-8"])
def test_texts_and_bits_are_the_same(locales, name):
    done = run(name, locales, "-c", WRITE)
    assert done.stderr == f"{name} ,\n"
    assert done.stdout == in_english(locales)


@pytest.mark.parametrize("name", ["tr_TR.UTF-8", "de_DE.UTF-8"])
def test_the_command_line_reads_numbers_with_a_point(locales, name):
    assert run(name, locales, "-m", "cutaway", *COMMAND).stdout in ("I", "i")
