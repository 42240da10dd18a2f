"""The examples of one section of a page in docs/."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_ADDRESS = "http://127.0.0.1:8000"  # of ``cutaway serve``, in all pages


def blocks(page: str, title: str, language: str, url: str) -> list[str]:
    """The section's blocks of code in a language, with the address of a server that there is."""
    [section] = re.findall(
        rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", (DOCS / page).read_text(), re.M | re.S
    )
    found = re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)
    assert found, f"{page}: {title} has no {language}"
    return [block.replace(_ADDRESS, url) for block in found]
