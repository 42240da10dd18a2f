"""The table of fields in docs/server.md: ``PYTHONPATH=tests python -m support.keyword_table``."""

import re
from pathlib import Path

from cutaway.requests.keywords import KEYWORDS, Fields

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
_BETWEEN = re.compile(r"(?<=<!-- fields -->\n).*(?=<!-- end -->)", re.DOTALL)
_FACES = ("chat", "completions", "responses", "messages")


def keyword_table() -> str:
    """Return a row for each keyword that is not OpenAI's, with the requests that have it."""
    lines = ["| field | what it does | requests |", "|---|---|---|"]
    for name, row in KEYWORDS.items():
        if isinstance(row.fields, Fields) and row.fields.faces and not row.fields.openai:
            false = "false: " if row.kind == "off" else ""
            about = "; ".join(filter(None, (f"{false}{row.help}", row.fields.more)))
            at = [face for face in _FACES if face in row.fields.faces]
            faces = "all" if len(at) == len(_FACES) else ", ".join(at)
            about = re.sub(r"\(docs/(\w+\.md)\)", r"([\1](\1))", about.replace("|", "\\|"))
            lines.append(f"| `{name}` | {about} | {faces} |")
    return "\n".join(lines) + "\n"


def read_table() -> str:
    """Return the page's text between its markers."""
    match = _BETWEEN.search(PAGE.read_text())
    return match.group() if match else ""


if __name__ == "__main__":
    PAGE.write_text(_BETWEEN.sub(lambda _: keyword_table(), PAGE.read_text()))
