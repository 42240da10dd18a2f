"""The files that the page saves are traces like any other, and its figures are Python's.

``data/`` lies between both: tests/web/js/ holds the page's modules against the same files.
"""

import json
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator

from cutaway.trace import Parent, Trace, diff_texts
from support.web_data import DATA, difference, meetings

NAMES = ("first.jsonl", "six.jsonl")


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_survives_the_page(name):
    before, after = (Trace.read(folder / name) for folder in (DATA, DATA / "page"))
    assert after.steps == before.steps
    assert (after.end, after.tokens) == (before.end, before.tokens)
    assert (after.head.params, after.head.seed) == (before.head.params, 2**64 - 1)
    assert (DATA / name).read_bytes() != (DATA / "page" / name).read_bytes()  # 1 is not 1.0


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_of_the_schema(name):
    schema = json.loads(files("cutaway.trace").joinpath("schema.json").read_text())
    validator = Draft202012Validator(schema)
    for line in (DATA / "page" / name).read_text().splitlines():
        validator.validate(json.loads(line))


def test_a_fork_that_the_page_saved_names_its_parent():
    first, six = (Trace.read(DATA / "page" / name) for name in NAMES)
    assert diff_texts(first, six).is_fork
    assert six.head.parent == Parent(first.sha256, 2, six.steps[2].token_id)
    assert not diff_texts(six, first).is_fork


def test_what_the_page_is_held_against_is_what_python_finds():
    assert json.loads((DATA / "diff.json").read_text()) == difference()
    assert json.loads((DATA / "meetings.json").read_text()) == meetings()
