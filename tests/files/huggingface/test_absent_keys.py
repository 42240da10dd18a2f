"""A config.json without one of its keys is refused in a sentence, or read as transformers reads it.

What it reads is in tests/data/absent_keys.json. `test_one_key` compares logits.
"""

import json
import sys
from pathlib import Path

import pytest

from cutaway import FormatError
from cutaway.files.huggingface.config import Config
from cutaway.files.huggingface.families.class_defaults import TABLE
from support.absent_keys import PATH, completed, without

READ = json.loads(PATH.read_text("utf-8"))
ROOT = Path(__file__).parents[3]


def reading(folder, values):
    """All that a folder's tensors are read by."""
    (folder / "config.json").write_text(json.dumps(values))
    found = Config(folder)
    told = {**found.metadata, **found.tensors, "tied": found.tied, "behind": found.behind}
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in told.items()}


@pytest.mark.parametrize("name", READ)
def test_an_absent_key_is_what_transformers_takes_for_it(tmp_path, name):
    full, wrong, read = READ[name]["full"], {}, 0
    reading(tmp_path, full)
    for key, more in READ[name]["absent"].items():
        try:
            ours = reading(tmp_path, without(full, key))
        except FormatError:
            continue
        read += 1
        theirs = reading(tmp_path, completed(without(full, key), more))
        if ours != theirs:
            wrong[key] = {k: (ours.get(k), theirs.get(k)) for k in {*ours, *theirs}
                          if ours.get(k) != theirs.get(k)}  # fmt: skip
    assert wrong == {}
    assert read > 4


@pytest.mark.parametrize(("command", "path"), [
    (["-m", "support.absent_keys"], PATH), ([ROOT / "tools" / "transformers_defaults.py"], TABLE),
])  # fmt: skip
def test_the_tables_are_those_of_the_transformers_that_is_here(command, path):
    """Written anew where transformers has changed."""
    pytest.importorskip("transformers", reason="needs transformers: '.[test-transformers]'")
    import subprocess

    environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, check=True
    )
    assert run.stdout.decode() == path.read_text("utf-8")
