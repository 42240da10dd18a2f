"""The page's modules as one script, and its files, few and named by their contents.

Knows the few forms in which cutaway's modules import and export. Knows no document.
"""

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from posixpath import dirname, join, normpath
from typing import NamedTuple

_WEB = files("cutaway.trace.web")
_STYLES = re.compile(r'href="static/([\w/-]+\.css)"')
_IMPORT = re.compile(r'^import (?:\{([^}]*)\}\s+from )?"(\.{1,2}/[\w./-]+\.js)";$', re.MULTILINE)
_EXPORT = re.compile(
    r"^export ((?:async )?(?:function\*?|class|const) )(\w+)|^export \{\};$", re.MULTILINE
)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_COMMENT = re.compile(r"^ */\*\*(?:(?!\*/).)*\*/\n", re.MULTILINE | re.DOTALL)

SERVED = {"page.js": "app/app.js", "viewer.js": "app/viewer.js"}
"""The scripts of a server's pages, and the modules where they begin."""
ALONE = {
    "page.js": "app/page.js",
    "viewer.js": "app/viewer.js",
    "worker.js": "local/worker.js",
    "thread.js": "local/thread.js",
}
"""The scripts of the page that runs a model by itself, and of the lessons beside it."""


class Files(NamedTuple):
    """The page's files by name, in a folder that is named by what they contain.

    Browsers may keep them for good: other contents have another address.
    """

    folder: str
    contents: Mapping[str, bytes]


@cache
def served_files() -> Files:
    """The files of the page on a server."""
    return page_files(SERVED)


def page_files(scripts: Mapping[str, str]) -> Files:
    """Make the files of a page: scripts from the modules where they begin, style sheets, others.

    A script exports each of its modules, under the name of its scope: tests ask for them.
    """
    contents = {name: _with_exports(module).encode() for name, module in scripts.items()}
    contents["page.css"] = style(*page_styles()).encode()
    for name in ("guide", "class"):  # of documents beside the page
        contents[f"{name}.css"] = style(f"css/{name}.css").encode()
    for name in ("icon.svg", "first-run.jsonl.gz"):
        contents[name] = _WEB.joinpath(name).read_bytes()
    names = "".join(f"{name} {sha256(content).hexdigest()}\n" for name, content in contents.items())
    return Files(f"static/{sha256(names.encode()).hexdigest()[:16]}", contents)


def page_styles() -> list[str]:
    """Return the names of the page's style sheets, in order."""
    return _STYLES.findall(read("index.html"))


def style(*names: str) -> str:
    """Return style sheets as one."""
    return "\n".join(map(read, names))


def script(module: str) -> str:
    """Return a module with all that it imports: each in a scope of its own, after its imports."""
    return "\n".join(_scopes(module).values())


def read(name: str) -> str:
    """Return the text of a file of the page."""
    return _WEB.joinpath(name).read_text("utf-8")


def _with_exports(module: str) -> str:
    return f"{script(module)}\nexport {{ {', '.join(map(_scope, _scopes(module)))} }};\n"


@cache
def _scopes(module: str) -> dict[str, str]:
    done: dict[str, str] = {}
    _add(module, done, ())
    return done


def _add(path: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    """Add a module, given by its path below js/, after the modules that it imports."""
    if path in above:
        raise ValueError(f"modules import each other: {' → '.join((*above, path))}")
    if path in done:
        return
    text = _COMMENT.sub("", read(f"js/{path}"))
    folder = dirname(path)
    for _, imported_path in _IMPORT.findall(text):
        _add(normpath(join(folder, imported_path)), done, (*above, path))
    exported = [name for _, name in _EXPORT.findall(text) if name]
    body = _EXPORT.sub(lambda match: f"{match[1] or ''}{match[2] or ''}", text)
    body = _IMPORT.sub(lambda match: _bound(match[1], normpath(join(folder, match[2]))), body)
    if left := _LEFT.search(body):
        raise ValueError(f"{path}: a script cannot hold this: {left[0]}")
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
