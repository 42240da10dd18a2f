"""The lessons as documents: a page for each, and an index of cards.

Knows their addresses: names beside each other, as files or below a server's ``/lessons``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cutaway.features.lessons import LESSONS
from cutaway.features.lessons.lesson import Lesson, read, read_card
from cutaway.trace import Guide, ShownRun, Trace, runs_to_html

FOLDER = files("cutaway.features.lessons")
STYLE = FOLDER.joinpath("cards.css").read_text("utf-8")
_MEASURED = ("cache",)
"""Lessons whose times are worth a measurement: their archives have none."""
_SETTINGS = ("temperature", "top_p", "max_tokens", "kv_cache")
"""Settings of such a lesson's texts that may differ from the page's."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a lesson's page is: the address of the index, and what follows a lesson's name.

    static  the address of the page's script and style; None: the page contains them
    writer  the address of a page on which a model writes; None: there is none
    """

    index: str = "index.html"
    suffix: str = ".html"
    static: str | None = None
    writer: str | None = None


FILES = Addresses()
"""Pages as files in one folder."""


def page(lesson: Lesson, addresses: Addresses = FILES) -> str:
    """Return a lesson's document."""
    guide = Guide(
        lesson.title,
        lesson.question,
        tuple(lesson.points),
        lesson.answer,
        _links(lesson, addresses),
        lesson.drawing,
    )
    return runs_to_html(lesson.runs, f"{lesson.title} · cutaway", guide, addresses.static)


def _links(lesson: Lesson, addresses: Addresses) -> dict[str, str]:
    links = {"All lessons": addresses.index}
    if addresses.writer is not None and lesson.name in _MEASURED:
        links["Measure it on this machine"] = f"{addresses.writer}#{_written_again(lesson.runs)}"
    names = [*LESSONS]
    if (following := names.index(lesson.name) + 1) < len(names):
        after = read_card(names[following])
        links[f"Next: {after.title} →"] = f"{after.name}{addresses.suffix}"
    return links


def _written_again(runs: Sequence[ShownRun]) -> str:
    """Return the address's fragment by which a page writes these texts, and shows their times."""
    texts = [
        {"id": n, "parent": None, "at": 0, "name": run.name, "request": _request(run.trace)}
        for n, run in enumerate(runs, 1)
    ]
    return urlencode({"runs": json.dumps(texts), "run": len(texts), "panel": "timelines"})


def _request(trace: Trace) -> dict[str, Any]:
    params = trace.head.params
    return {
        "kind": "completion",
        "prompt": trace.head.prompt,
        "messages": [],
        "settings": {name: params[name] for name in _SETTINGS},
        "seed": str(trace.head.seed),
        "forced": [],
    }


def write(folder: Path, names: Sequence[str] = (), addresses: Addresses = FILES) -> dict[str, int]:
    """Write a page for each lesson, or for those that are named; return the bytes of each."""
    lessons = [read(name) for name in names or LESSONS]
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for lesson in lessons:
        document = page(lesson, addresses).encode()
        folder.joinpath(f"{lesson.name}.html").write_bytes(document)
        sizes[lesson.name] = len(document)
    return sizes


# -- the index -----------------------------------------------------------------------------------


def cards(folder: str = "", suffix: str = ".html") -> str:
    """Return a list of all lessons, as HTML. folder: where their pages are."""
    items = (_card(read_card(name), folder, suffix) for name in LESSONS)
    return '<ol class="lessons">\n' + "\n".join(items) + "\n</ol>\n"


def _card(lesson: Lesson, folder: str, suffix: str) -> str:
    caption = escape(lesson.caption)
    return (
        f'<li><a href="{folder}{lesson.name}{suffix}">{escape(lesson.title)}</a>'
        f'<p class="question">{escape(lesson.question)}</p>'
        f'<div class="figure" role="img" aria-label="{caption}">{lesson.figure}</div>'
        f"<p>{escape(lesson.answer)}</p></li>"
    )


def index(links: Mapping[str, str], folder: str = "", suffix: str = ".html") -> str:
    """Return the index as a document of its own. links: words → address, above the cards."""
    parts = {
        "STYLE": INDEX_STYLE,
        "LINKS": " · ".join(f'<a href="{to}">{escape(text)}</a>' for text, to in links.items()),
        "CARDS": cards(folder, suffix),
    }
    document = _INDEX
    for mark, part in parts.items():
        document = document.replace(mark, part)
    return document


INDEX_STYLE = f"""
body {{ max-width: 76rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #12151b; color: #e7eaf0; }}
  a {{ color: #7cc0f4; }}
}}
{STYLE}"""
_INDEX = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>Lessons of a minute · cutaway</title>
  <style>STYLE</style>
</head>
<body>
<main>
<h1>Lessons of a minute</h1>
<p>Each is a recorded run: click its sentences one after the other, then anything else. LINKS</p>
CARDS
</main>
</body>
</html>
"""
