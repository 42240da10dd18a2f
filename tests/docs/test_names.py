"""Names of the package: no two public classes have the same one."""

import ast
from collections import defaultdict
from pathlib import Path

import cutaway

_ROOT = Path(cutaway.__file__).parent

EXCEPTIONS = {
    "Plan": "the native one, and that of a cluster: the latter is to be renamed",
}
"""Name -> why several classes may have it."""


def _homes() -> dict[str, set[str]]:
    """Each public class's name, and the modules that define one of that name."""
    homes = defaultdict(set)
    for suffix in ("*.py", "*.pyi"):
        for file in _ROOT.rglob(suffix):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].add(str(file.relative_to(_ROOT)))
    return homes


def test_no_two_public_classes_have_one_name():
    homes = _homes()
    assert len(homes) > 400
    twice = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() <= twice.keys(), "an exception that is none any more: take it out"
