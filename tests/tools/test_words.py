"""``tools/words.py``: what it counts in the three languages, and the ceilings of this checkout."""

import json
import subprocess

import pytest

import words
from code_names import cpp_names, javascript_names, leading_comments, tokens_of

PYTHON = '''
"""Of the text."""
import numpy as found
def told(each, *, tokens): ...
def embed(**given):
    "Return the vectors."
    one, (many, row) = rows
    one = 2
    return [made for made in given if (kept := made)]
def of_texts(): ...
def with_seed(): ...
class Part:
    said: str
    own = lambda which: 1
    @property
    def closed(self): ...
    def looked_up(self): self.asked = 1
try: pass
except OSError as what: pass
'''
JAVASCRIPT = """
/** As a page
 * Of it. */
class Strip extends View {
  chosen = el("div");  // kept = 1
  #tokens = /[a=]found = 1/;
  told(each, { of: one, row }) {
    for (const found of rows) this.found = `${made} kept = ${2}`;
    const _given = async (asked) => asked;
    const { text: said = 1, which } = f(what);
    let made = rows.map((many) => many.told(1));
  }
}
function ofText() {}
"""
CPP = """
// With a comment
// Of it.
int found = one * two & three;
#if defined(X)
std::vector<int> Rows::joined(const Rows& each, int* own_) const {
  for (const auto& which : kept) given(which, made);
  return told;
}
enum class One { some };
"""


def test_python_counts_what_is_assigned_once_in_a_scope(tmp_path):
    path = tmp_path / "file.py"
    path.write_text(PYTHON)
    places = sorted(words.python_places(path, tmp_path))
    assert {place.path for place in places} == {"file.py"}
    assert named(places, "docstrings") == ["Of the text."]
    assert named(places, "functions") == ["of_texts", "told"]
    expected = "asked each found given kept made many one own said what which"
    assert named(places, "names") == expected.split()
    assert next(place.line for place in places if place.name == "told") == 4


@pytest.mark.parametrize(
    ("source", "declared", "functions", "comments"),
    [
        (
            JAVASCRIPT,
            "asked chosen each found many made one row said tokens which",
            "_given ofText told",
            ["As a page\nOf it. */"],
        ),
        (CPP, "each found own_ which", "joined", ["With a comment"]),
    ],
)
def test_javascript_and_c_are_read_as_tokens(source, declared, functions, comments):
    tokens = tokens_of(source)
    names = list((cpp_names if source is CPP else javascript_names)(tokens))
    assert {name.name for name in names if name.is_function} == {*functions.split()}
    assert {name.name for name in names if not name.is_function} == {*declared.split()}
    assert [text for text, _ in leading_comments(tokens)] == comments


@pytest.mark.parametrize(
    ("name", "is_counted"),
    [
        ("_packed", True),
        ("__of__", True),
        ("ofText", True),
        ("from_json", False),
        ("from_", True),
        ("embed", False),
        ("pack", False),
        ("packed_rows", False),
    ],
)
def test_a_function_is_named_by_what_it_does(name, is_counted):
    assert bool(list(words.name_places(name, "", 1, is_function=True))) is is_counted


def test_a_file_is_in_the_room_of_its_folder():
    rooms = ["registry.py", "engine/loop/engine.py", "features/inside/lens/__init__.py"]
    assert [words.room_of(words.Path(room)) for room in rooms] == [
        "cutaway",
        "engine",
        "features/inside",
    ]


def test_what_rises_is_named_and_ceilings_fall_only():
    rooms = {"engine": [place("one"), place("found"), place("found")], "text": []}
    ceilings = {"engine": {"names": {"one": 1, "found": 1}}, "text": {}}
    (head, risen, *places) = words.excess(rooms, ceilings)
    assert head.startswith("engine: 3 names") and head.endswith("its ceiling is 2:")
    assert risen.endswith("found (1, now 2)") and places == ["  a.py:3: found"] * 2
    counts = words.count(rooms)
    assert words.lower(ceilings, counts) is ceilings
    moved = {"engine": {}, "text": {"names": {"each": 3}}}
    assert words.lower(moved, counts) is counts
    assert not list(words.excess(rooms, words.lower({}, counts)))
    assert json.loads(words.to_text(counts)) == counts
    assert "(2) 3" in words.table(rooms, ceilings)


def test_a_commits_subject_has_72_characters(tmp_path, monkeypatch):
    def git(*command):
        subprocess.run(["git", "-C", tmp_path, *command], check=True, capture_output=True)

    git("init")
    for subject in ("x" * 72, "y" * 73):
        git("-c", "user.name=a", "-c", "user.email=b", "commit", "--allow-empty", "-m", subject)
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (message,) = words.long_subjects("HEAD")
    assert "73 characters" in message and message.endswith("y" * 73)


@pytest.mark.slow  # make lint asks the same
def test_no_room_of_this_checkout_is_above_its_ceiling(capsys):
    assert words.main([]) == 0, capsys.readouterr().err


def place(word):
    return words.Place("names", word, word, "a.py", 3)


def named(places, kind):
    return [place.name for place in places if place.kind == kind]
