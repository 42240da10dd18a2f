"""The viewer as one file: a trace, the style and the script that show it, and nothing to fetch.

Knows the few forms in which our modules import and export, and how a document is sealed: its
policy names the hashes of what it holds. Refuses to know what is in a trace.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

_WEB = files("cutaway.web")
_STYLES = re.compile(r'href="/static/([\w/-]+\.css)"')
_IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"\./([\w-]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(
    r"^export ((?:async )?(?:function\*?|class|const) )(\w+)|^export \{\};$", re.MULTILINE
)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def viewer(trace: str, title: str) -> str:
    """A document that shows a trace and opens from disk.

    trace: the lines of its file
    """
    style, script = _style(), _script()
    parts = {
        "POLICY": _policy(style, script),
        "TITLE": escape(title),
        "STYLE": style,
        "TRACE": trace.replace("<", "\\u003c"),  # in JSON it stands in strings alone
        "SCRIPT": script,
    }
    page = _WEB.joinpath("viewer.html").read_text("utf-8")
    return re.sub("|".join(parts), lambda found: parts[found[0]], page)


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> str:
    """The page's sheets in their order."""
    names = _STYLES.findall(_WEB.joinpath("index.html").read_text("utf-8"))
    return "\n".join(_WEB.joinpath(name).read_text("utf-8") for name in names)


@cache
def _script() -> str:
    """The viewer and all that it imports, each in a scope of its own, after what it needs."""
    done: dict[str, str] = {}
    _add("viewer", done, ())
    return "\n".join(done.values()).replace("</script", "<\\/script")


def _add(name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import each other: {' → '.join((*above, name))}")
    if name in done:
        return
    text = _WEB.joinpath("js", f"{name}.js").read_text("utf-8")
    for _, needed in _IMPORT.findall(text):
        _add(needed, done, (*above, name))
    exported = [name for _, name in _EXPORT.findall(text) if name]
    body = _EXPORT.sub(lambda found: f"{found[1] or ''}{found[2] or ''}", text)
    body = _IMPORT.sub(lambda found: _bound(found[1], found[2]), body)
    if left := _LEFT.search(body):
        raise ValueError(f"{name}.js: the viewer cannot hold this: {left[0]}")
    done[name] = (
        f"const {_scope(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
    )


def _bound(names: str | None, module: str) -> str:
    if names is None:
        return ""
    return f"const {{{names.replace(' as ', ': ')}}} = {_scope(module)};"


def _scope(name: str) -> str:
    return "$" + name.replace("-", "_")
