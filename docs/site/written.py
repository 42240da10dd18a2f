"""What is written into pages while the site is built: README, help, keywords, endpoints, and
the cards of the lessons and the pages that run a model, beside which these themselves lie.

Knows the marks in the pages, ``<!-- written: NAME -->``. Refuses to keep anything that it writes:
all of it follows from the package that is installed.
"""

import asyncio
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any

from cutaway.files.hub.catalog import SMOLLM2, TOY_WRITER

ROOT = Path(__file__).parents[2]
_MARK = re.compile(r"^<!-- written: (\w+) -->$", re.MULTILINE)
_NAMED = re.compile(r"\[(?:docs/)?[\w/]+\.md\]\(([^)]+)\)")
_PICTURE = re.compile(
    r"<picture>.*?srcset=\"(\S+)\".*?alt=\"(.*?)\" src=\"(\S+)\".*?</picture>", re.DOTALL
)
_IMAGES = (
    "```{image} \\3\n:alt: \\2\n:class: only-light\n```\n"
    "```{image} \\1\n:alt: \\2\n:class: only-dark\n```"
)


def filled_in(page: str) -> str:
    """A page with what is written in the place of each mark, and links by titles, and pictures."""
    page = _PICTURE.sub(_IMAGES, _MARK.sub(lambda mark: _PARTS[mark[1]](), page))
    return _NAMED.sub(r"[](\1)", page)


def readme() -> str:
    """The README, as a page of this folder."""
    text = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    text = text.replace("](CHANGELOG.md)", "](reference/releases.md)")
    text = text.replace("](CONTRIBUTING.md)", "](contributing.md)")
    return re.sub(r'(src|srcset)="docs/', r'\1="', text)


def contributing() -> str:
    """How to contribute, below the page's own title."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("\n")[2]
    return text.replace("](docs/", "](")


def changelog() -> str:
    """The changes by release, below the page's own title."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8").partition("\n")[2]
    text = text.replace("[SECURITY.md](SECURITY.md)", "SECURITY.md")  # which is no page of the site
    return text.replace("](docs/", "](../")


def commands() -> str:
    """The help page of each command and verb."""
    from cutaway.cli.main import command_words

    os.environ["COLUMNS"] = "80"
    return "\n".join(
        f"{'#' * (len(words) + 1)} cutaway {' '.join(words)}\n\n```text\n{_help(words)}```\n"
        for words in command_words()
    )


def _help(words: Sequence[str]) -> str:
    from cutaway.cli.main import main

    with redirect_stdout(StringIO()) as out:
        assert main([*words, "--help"]) == 0
    return out.getvalue()


def keywords() -> str:
    """Tables of the keywords of a request, by what they are about."""
    from cutaway.requests.keywords import GrammarOptions, RequestOptions, SamplingOptions

    drawn, constrained = SamplingOptions.__annotations__, GrammarOptions.__annotations__
    tables = {
        "How a token is chosen": drawn,
        "What the text must be": constrained,
        "When it ends, how it is computed, what is reported": {
            name: kind
            for name, kind in RequestOptions.__annotations__.items()
            if name not in drawn | constrained
        },
    }
    return "\n".join(
        f"### {title}\n\n"
        + _table(
            ["keyword", "default", "what it does", "at a terminal"],
            (_keyword(name, _type(kind)) for name, kind in kinds.items()),
        )
        for title, kinds in tables.items()
    )


def _keyword(name: str, kind: str) -> list[str]:
    from cutaway.requests.keywords import KEYWORDS, Absent

    row = KEYWORDS[name]
    about = f"false: {row.help}" if row.kind == "off" else row.help
    flag = f"no: {row.flag.reason}" if isinstance(row.flag, Absent) else f"`{row.flag_name(name)}`"
    return [f"`{name}` {kind}", f"`{row.default!r}`", about, flag]


def _type(kind: Any) -> str:
    return str(kind.__forward_arg__)


# -- HTTP ----------------------------------------------------------------------------------------


def endpoints() -> str:
    """All that ``/openapi.json`` offers, by what it is about."""
    document = asyncio.run(_openapi())
    shapes = document["components"]["schemas"]
    made = []
    for tag in document["tags"]:
        made.append(f"## {tag['description']}\n")
        for path, operations in document["paths"].items():
            made += [
                _endpoint(method, path, operation, shapes)
                for method, operation in operations.items()
                if operation["tags"] == [tag["name"]]
            ]
    return "\n".join(made)


async def _openapi() -> dict[str, Any]:
    from cutaway import AsyncLLM
    from cutaway.server.app import create_app

    async with AsyncLLM("toy-canvas") as llm:  # it is part of the package
        return create_app(llm).openapi()


def _endpoint(method: str, path: str, operation: Mapping[str, Any], shapes: Any) -> str:
    said = f"### {method.upper()} {path}\n\n{operation['description']}\n"
    body = operation.get("requestBody")
    if body is None:
        return said
    (content,) = body["content"].values()  # as JSON, or as a form
    shape = content["schema"]
    if "$ref" in shape:
        shape = shapes[shape["$ref"].rpartition("/")[2]]
    needed = shape.get("required", ())
    rows = (
        [
            f"`{name}` {_kind(field)}",
            "*required* " * (name in needed) + field.get("description", ""),
        ]
        for name, field in shape["properties"].items()
    )
    return f"{said}\n{_table(['field', 'what it says'], rows)}"


def _kind(field: Mapping[str, Any]) -> str:
    """The type of a field, in words."""
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(map(_kind, field["anyOf"])))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field or "const" in field:
        return " or ".join(f"`{value!r}`" for value in field.get("enum") or [field["const"]])
    if field.get("type") == "array" and "items" in field:
        return f"list of {_kind(field['items'])}"
    return str(field.get("type", "anything"))


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def lessons() -> str:
    """A card for each lesson, with links to the pages that ``conf`` writes in the end."""
    from cutaway.features.lessons.pages import cards

    return cards("lessons/")


def page() -> str:
    """The pages that run a model, and what each fetches; or why this build of the site has none."""
    if not (folders := page_folders()):
        return (
            "This build of the site has no such page: what it runs was not compiled "
            "(`pip install ziglang`, then `make docs`)."
        )
    links = (
        f'<li><a href="{name}/index.html">Open the page with {_PAGES[name].title}</a> '
        f"({_megabytes(folders[name])})</li>"
        for name in folders
    )
    return (
        f"<ul>{''.join(links)}</ul><p>Each fetches that much from this site, once, and asks no "
        "other. Your browser keeps it, and opens the page without a connection. What you write "
        "stays with you.</p>"
    )


_PAGES = {"page-alone": SMOLLM2, "page-toy": TOY_WRITER}  # what the site names them


def _megabytes(folder: Path) -> str:
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    weights = sum(size for path, size in sizes.items() if path.name.startswith("weights-"))
    rest = sum(sizes.values()) - weights
    return f"{weights / 1e6:.0f} MB of weights, {rest / 1e6:.0f} MB of other files"


@cache
def page_folders() -> dict[str, Path]:
    """The exported pages of one build by name; none where what a page runs was not compiled."""
    from cutaway import LLM
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.compute.loading.setup import Setup
    from cutaway.features.page.folder import write_page_folder

    if not (cores := ROOT / "src/cutaway/trace/web/cores").is_dir():
        return {}
    folders = {}
    for name, listed in _PAGES.items():
        folders[name] = Path(tempfile.mkdtemp()) / "page"
        model = LoadedModel.open(listed.alias, Setup(), weights=False)
        run = partial(LLM, model.path, progress=False)
        context = min(1024, model.context)
        write_page_folder(model, folders[name], context=context, cores=cores, run=run)
    return folders


_PARTS = {
    part.__name__: part
    for part in (readme, contributing, changelog, commands, keywords, endpoints, lessons, page)
}
