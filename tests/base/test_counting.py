"""People count steps, passes and cells from 1, data from 0; one place in each language turns."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

import cutaway
from cutaway.base.counting import check_index, count_from_0, count_from_1
from cutaway.errors import InputError

ROOT = Path(cutaway.__file__).parent
BEFORE = re.compile(r"\b(step|pass|passes|cell|cells) $", re.IGNORECASE)
INDEX = re.compile(r"(^|\.)(at|i|n|index|step|passed|pass_?[iI]ndex|cell|start|neighbour|made)$")
"""Expressions that are indices by their names."""
TEMPLATE = re.compile(r"\b(?:[Ss]tep|[Pp]ass|[Cc]ell)s? \$\{([^{}]*)\}")


def told_by_python(path):
    """Yield the expressions that a module writes after the word "step", "pass" or "cell"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        values = node.values if isinstance(node, ast.JoinedStr) else []
        for before, value in pairwise(values):
            words = before.value if isinstance(before, ast.Constant) else ""
            if isinstance(value, ast.FormattedValue) and BEFORE.search(words):
                yield ast.unparse(value.value)


def test_no_module_tells_a_reader_an_index():
    told = [(path, words) for path in ROOT.rglob("*.py") for words in told_by_python(path)]
    assert len([words for _, words in told if words.startswith("count_from_1(")]) > 20
    assert [(path.name, words) for path, words in told if INDEX.search(words)] == []


def test_no_script_tells_a_reader_an_index():
    told = [
        (path.name, words)
        for path in (ROOT / "trace/web/js").rglob("*.js")
        for words in TEMPLATE.findall(path.read_text(encoding="utf-8"))
    ]
    assert len([words for _, words in told if words.startswith("countFrom1(")]) > 20
    assert [(name, words) for name, words in told if INDEX.search(words)] == []


def test_to_a_number_and_back():
    assert [count_from_1(index) for index in range(3)] == [1, 2, 3]
    assert [count_from_0(number) for number in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize("number", [0, -1])
def test_there_is_no_number_below_1(number):
    with pytest.raises(
        InputError, match=rf"^passes count from 1, and there is no {number}: give 1"
    ):
        count_from_0(number, "passes")


def test_a_number_that_is_not_there_is_told_as_it_was_given():
    check_index("--step", None, range(3))
    check_index("--step", 2, range(3))
    with pytest.raises(InputError, match=r"^--pass must be 3 to 5, not 6$"):
        check_index("--pass", 5, range(2, 5))


def test_where_there_is_none_no_range_is_told():
    check_index("--at", None, range(0))
    with pytest.raises(InputError, match=r"^--at 1: there is none to choose from; leave it out$"):
        check_index("--at", 0, range(0))
