"""The page's documents: the page, and the viewer, which is a single file.

The page fetches one script and one style sheet, which are made of the modules and sheets here
(bundle.py); for work on it, its document can name these themselves. The viewer contains traces,
and the style and the script that show them; it fetches nothing.

The modules in js/: state/ has the store and the requests to a server, figures/ computes from a
trace, drawings/ turns figures into marks, parts/ has views of a trace (each depends on the store
alone), compose/ the form of a request, lessons/ the lessons on a text, app/ the pages made of
these, local/ the model in the page, which state/api.js asks instead of a server. No build step is
needed.

Knows the viewer's content security policy, which has the hashes of style and script.
"""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from typing import Any, NamedTuple

from cutaway.trace.web.bundle import Files, page_styles, read, script, style

_SHEETS = re.compile(r'(?: *<link rel="stylesheet"[^>]*>\n)+')
_SCRIPT = "static/js/app/app.js"
_FETCHED = re.compile(r'"static/([\w.-]+)"')
_GLASS = re.compile(r' *<section class="glass".*?</section>\n', re.DOTALL)


def index(catalogue: Mapping[str, Any], files: Files | None = None) -> str:
    """Return the page's document, with the catalogue inside.

    files: what it fetches; None: each module and style sheet of this folder
    """
    text = read("index.html")
    if files:
        text = _SHEETS.sub('  <link rel="stylesheet" href="static/page.css">\n', text)
        text = text.replace(_SCRIPT, "static/page.js")
        text = _FETCHED.sub(lambda match: f'"{files.folder}/{match[1]}"', text)
    return text.replace("CATALOGUE", _data(json.dumps(catalogue)))


class BundledRun(NamedTuple):
    """A run of a viewer: the lines of its trace, and its name.

    parent  number of a fork's parent among the runs, from 1; None for no fork
    at      the step of the fork
    """

    trace: str
    name: str
    parent: int | None
    at: int


def viewer(
    runs: Sequence[BundledRun],
    title: str,
    catalogue: Mapping[str, Any],
    looks: Mapping[str, bytes],
    *,
    guide: Mapping[str, Any] | None = None,
    static: str | None = None,
) -> str:
    """Return an HTML document that shows runs.

    looks: run and step, as in "1 12" -> file of ``cutaway.features.inside.summary``
    static: the address of the files that the document fetches (``Files.folder``, and the way
    there); None: the document contains its style and script, and opens from disk
    """
    parts = _links(static) if static else _embed()
    parts |= {
        "TITLE": escape(title),
        "GUIDE\n": "" if guide is None else _guide(guide),
        "GLASS": _glass().rstrip(),
        "CATALOGUE": _data(json.dumps(catalogue)),
        "TRACES": "\n".join(_run(number, run) for number, run in enumerate(runs, 1)),
        "LOOKS": json.dumps({place: _pack(look) for place, look in looks.items()}),
    }
    return re.sub("|".join(parts), lambda match: parts[match[0]], read("viewer.html"))


def _embed() -> dict[str, str]:
    """Return a viewer's style and script as elements, and the policy that has their hashes."""
    sheet, code = _style(), _script()
    return {
        "POLICY": _policy(_hash(code), _hash(sheet), "data:"),
        "STYLE": f"<style>{sheet}</style>",
        "SCRIPT": f'<script type="module">{code}</script>',
    }


def _links(static: str) -> dict[str, str]:
    links = [f'<link rel="icon" href="{static}/icon.svg">']
    links += [f'<link rel="stylesheet" href="{static}/{name}.css">' for name in ("page", "guide")]
    return {
        "POLICY": _policy("'self'", "'self'", "'self' data:"),
        "STYLE": "\n  ".join(links),
        "SCRIPT": f'<script type="module" src="{static}/viewer.js"></script>',
    }


def _guide(guide: Mapping[str, Any]) -> str:
    """Return the elements of a guide: all of its text, and as data the places of its sentences.

    The text is read, and has its place, before the script has come. The drawing is HTML as it is.
    """
    places = json.dumps([point["shows"] for point in guide["points"]])
    points = "".join(f"<li><a>{escape(point['text'])}</a></li>" for point in guide["points"])
    links = (f'<a href="{escape(to)}">{escape(words)}</a>' for words, to in guide["links"])
    parts = {
        "TITLE": escape(guide["title"]),
        "QUESTION": escape(guide["question"]),
        "POINTS": points.replace("<a>", '<a aria-current="step">', 1),  # a phone shows this alone
        "ANSWER": escape(guide["answer"]),
        "LINKS": " ".join(links),
        "PLACES": _data(places),
    }
    text = re.sub("|".join(parts), lambda match: parts[match[0]], read("guide.html"))
    if drawing := guide.get("drawing"):
        text += f'    <section class="drawing" aria-label="Drawing">{drawing}</section>\n'
    return text


def _run(number: int, run: BundledRun) -> str:
    fork = f' data-parent="{run.parent}" data-at="{run.at}"' if run.parent else ""
    return (
        f'  <script type="application/json" class="trace" id="trace-{number}" '
        f'data-name="{escape(run.name)}"{fork}>{_data(run.trace)}</script>'
    )


def _pack(data: bytes) -> str:
    return b64encode(gzip.compress(data, mtime=0)).decode()


def _data(lines: str) -> str:
    """Escape JSON so that it cannot end its script element: only strings have "<"."""
    return lines.replace("<", "\\u003c")


def _policy(scripts: str, styles: str, images: str) -> str:
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src {images}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> str:
    """Return the page's style sheets in order, and the style sheet of guides.

    The page itself does not link the style sheet of guides.
    """
    return style(*page_styles(), "css/guide.css")


@cache
def _glass() -> str:
    """Return the page's section that shows a run; both documents share this markup."""
    match = _GLASS.search(read("index.html"))
    if match is None:
        raise ValueError("index.html: there is no section of class glass")
    return match[0]


@cache
def _script() -> str:
    return script("app/viewer.js").replace("</script", "<\\/script")
