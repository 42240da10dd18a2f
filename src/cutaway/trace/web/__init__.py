"""The page's documents: the served page, and the viewer, which is a single file.

The viewer contains traces, and the style and the script that show them; it fetches nothing.

The modules in js/: state/ has the store and the requests to a server, figures/ computes from a
trace, drawings/ turns figures into marks, parts/ has views of a trace (each depends on the store
alone), compose/ the form of a request, lessons/ the lessons on a text, app/ the pages made of
these, local/ the model in the page, which state/api.js asks instead of a server. No build step is
needed.

Knows the few forms in which cutaway's modules import and export, and the content security policy,
which has the hashes of style and script.
"""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from posixpath import dirname, join, normpath
from typing import Any, NamedTuple

_WEB = files("cutaway.trace.web")
_STYLES = re.compile(r'href="static/([\w/-]+\.css)"')
_GLASS = re.compile(r' *<section class="glass".*?</section>\n', re.DOTALL)
_IMPORT = re.compile(r'^import (?:\{([^}]*)\}\s+from )?"(\.{1,2}/[\w./-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(
    r"^export ((?:async )?(?:function\*?|class|const) )(\w+)|^export \{\};$", re.MULTILINE
)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def index(catalogue: Mapping[str, Any]) -> str:
    """Return the served page, with the catalogue inside."""
    return _read("index.html").replace("CATALOGUE", _data(json.dumps(catalogue)))


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
    guide: Mapping[str, Any] | None = None,
) -> str:
    """Return an HTML document that shows runs and opens from disk.

    looks: run and step, as in "1 12" -> file of ``cutaway.features.inside.summary``
    """
    style, script = _style(), _script()
    parts = {
        "POLICY": _policy(style, script),
        "TITLE": escape(title),
        "STYLE": style,
        "GUIDE\n": "" if guide is None else _guide(guide),
        "GLASS": _glass().rstrip(),
        "CATALOGUE": _data(json.dumps(catalogue)),
        "TRACES": "\n".join(_run(number, run) for number, run in enumerate(runs, 1)),
        "LOOKS": json.dumps({place: _pack(look) for place, look in looks.items()}),
        "SCRIPT": script,
    }
    return re.sub("|".join(parts), lambda match: parts[match[0]], _read("viewer.html"))


def _guide(guide: Mapping[str, Any]) -> str:
    return (
        '    <section class="guide" aria-label="Lesson"><run-guide></run-guide></section>\n'
        f'    <script type="application/json" id="guide">{_data(json.dumps(guide))}</script>\n'
    )


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


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> str:
    """Return the page's style sheets in order, and the style sheet of guides.

    The page itself does not link the style sheet of guides.
    """
    names = [*_STYLES.findall(_read("index.html")), "css/guide.css"]
    return "\n".join(map(_read, names))


@cache
def _glass() -> str:
    """Return the page's section that shows a run; both documents share this markup."""
    match = _GLASS.search(_read("index.html"))
    if match is None:
        raise ValueError("index.html: there is no section of class glass")
    return match[0]


@cache
def _script() -> str:
    """Return the viewer's script: each module in a scope of its own, after its imports."""
    done: dict[str, str] = {}
    _add("app/viewer.js", done, ())
    return "\n".join(done.values()).replace("</script", "<\\/script")


def _add(path: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    """Add a module, given by its path below js/, after the modules that it imports."""
    if path in above:
        raise ValueError(f"modules import each other: {' → '.join((*above, path))}")
    if path in done:
        return
    text = _read(f"js/{path}")
    folder = dirname(path)
    for _, imported_path in _IMPORT.findall(text):
        _add(normpath(join(folder, imported_path)), done, (*above, path))
    exported = [name for _, name in _EXPORT.findall(text) if name]
    body = _EXPORT.sub(lambda match: f"{match[1] or ''}{match[2] or ''}", text)
    body = _IMPORT.sub(lambda match: _bound(match[1], normpath(join(folder, match[2]))), body)
    if left := _LEFT.search(body):
        raise ValueError(f"{path}: the viewer cannot hold this: {left[0]}")
    done[path] = (
        f"const {_scope(path)} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
    )


def _bound(names: str | None, path: str) -> str:
    if names is None:
        return ""
    return f"const {{{names.replace(' as ', ': ')}}} = {_scope(path)};"


def _scope(path: str) -> str:
    """Return the variable of a module's exports: "parts/tree.js" → "$parts_tree"."""
    return "$" + re.sub(r"[/-]", "_", path.removesuffix(".js"))


def _read(name: str) -> str:
    return _WEB.joinpath(name).read_text("utf-8")
