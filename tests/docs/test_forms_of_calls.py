"""docs/tools.md has the forms in which models write calls."""

from pathlib import Path

import pytest

from support.chat_templates import NAMES, dialect

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_a_call_is_as_documented(name):
    written = dialect(name).write([("NAME", "{…}", "ID")]).replace("\n", "\\n")
    assert f"`{written}`" in PAGE.read_text().replace("\\|", "|")
