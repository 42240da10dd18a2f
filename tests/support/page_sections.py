"""The examples of one section of a page in docs/."""

import re

from support import doc_pages

ADDRESS = "http://127.0.0.1:8000"
"""The address of ``cutaway serve`` in all pages."""


def blocks(page: str, title: str, language: str, url: str) -> list[str]:
    """Return the section's blocks of code in a language, with ``url`` as the server's address."""
    text = doc_pages.PAGES[f"docs/{page}"]
    [section] = re.finditer(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.M | re.S)
    first, behind = (text.count("\n", 0, place) for place in section.span())
    code_blocks = [
        block.code
        for block in doc_pages.blocks(f"docs/{page}")
        if block.kind == language and first < block.line <= behind
    ]
    assert code_blocks, f"{page}: {title} has no {language}"
    return [block.replace(ADDRESS, url) for block in code_blocks]
