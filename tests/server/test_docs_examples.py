"""The examples of tools.md, structured.md and score.md, run in order; the forms of calls."""

import re
from pathlib import Path

import pytest

from support.chat_templates import NAMES, dialect

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


EXAMPLES = {
    name: blocks
    for name in ("tools.md", "structured.md", "score.md")
    if (blocks := BLOCK.findall((DOCS / name).read_text()))
}


@pytest.mark.model
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(smollm2, name):
    known = {}
    for number, block in enumerate(EXAMPLES[name], 1):
        code = block.replace("http://127.0.0.1:8000", smollm2.url)
        exec(compile(code, f"{name}, example {number}", "exec"), known)


def test_there_are_examples():
    assert len(EXAMPLES["tools.md"]) == 4


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_a_call_is_as_documented(name):
    written = dialect(name).write([("NAME", "{…}", "ID")]).replace("\n", "\\n")
    assert f"`{written}`" in (DOCS / "tools.md").read_text().replace("\\|", "|")
