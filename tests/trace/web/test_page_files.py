"""The files that the page saves are valid traces, and its figures equal Python's.

The page's modules are tested against the same files of ``data/`` in tests/trace/web/js/.
"""

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cutaway.trace import Parent, Trace, diff_texts
from cutaway.trace.check import VERSION, to_current
from support.page_modules import in_node
from support.web_data import DATA, FOUND

NAMES = ("first.jsonl", "six.jsonl")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with both runs as the page saves them."""
    if shutil.which("node") is None:
        pytest.skip("there is no node here")
    folder = tmp_path_factory.mktemp("page")
    in_node(Path(__file__).parent / "js" / "save.mjs", folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_survives_the_page(name, saved):
    before, after = (Trace.read(folder / name) for folder in (DATA, saved))
    assert after.steps == before.steps
    assert (after.end, after.tokens) == (before.end, before.tokens)
    assert (after.head.params, after.head.seed) == (before.head.params, 2**64 - 1)
    assert (DATA / name).read_bytes() != (saved / name).read_bytes()  # 1 is not 1.0


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_of_the_schema(name, saved):
    schema = json.loads(files("cutaway.trace").joinpath("schema.json").read_text())
    validator = Draft202012Validator(schema)
    head, *others = map(json.loads, (saved / name).read_text().splitlines())
    version = head["version"]  # that of the file that the page opened
    validator.validate(to_current(head, version) | {"version": VERSION})
    for line in others:
        validator.validate(to_current(line, version))


def test_a_fork_that_the_page_saved_names_its_parent(saved):
    first, six = (Trace.read(saved / name) for name in NAMES)
    assert diff_texts(first, six).is_fork
    assert six.head.parent == Parent(first.sha256, 2, six.steps[2].token_id)
    assert not diff_texts(six, first).is_fork


@pytest.mark.parametrize("name", FOUND)
def test_what_the_page_is_held_against_is_what_python_finds(name):
    assert json.loads((DATA / f"{name}.json").read_text()) == FOUND[name]()
