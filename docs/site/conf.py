"""How Sphinx builds the site: ``make docs``.

Knows the theme, and what is made while it builds. Refuses to know what a page says; the order of
the pages is in ``index.md``, and one that is in no section there ends the build.
"""

import os
import shutil
import sys
from inspect import isfunction, signature
from pathlib import Path
from typing import Any, get_overloads

sys.path.insert(0, str(Path(__file__).parent))

from sphinx.util.inspect import stringify_signature

import docstrings  # beside this file, which is no package
import written
from cutaway import LLM, AsyncLLM, __version__
from cutaway.features.lessons import pages as lessons

project = "cutaway"
author = "the authors of cutaway"
copyright = "the authors of cutaway, Apache-2.0"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["site"]
myst_heading_anchors = 4  # as GitHub names them

# Of a console's block the commands alone are copied, without the prompt.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_exclude = ".linenos"

# Notebooks run in processes that have these from this one.
os.environ["MATPLOTLIBRC"] = str(Path(__file__).with_name("matplotlibrc"))
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads spin where others use the processors, too
nb_execution_mode = "force"  # a notebook's figures are those of the build
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_execution_in_temp = True  # where a run on record may be written
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 78
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"cutaway {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static", str(lessons.FOLDER / "cards.css")]
html_css_files = ["site.css", "cards.css"]
html_js_files = [("filter.js", {"defer": "defer"})]
pygments_style, pygments_dark_style = "tango", "github-dark"


def setup(app: Any) -> None:
    """Connect what writes parts of pages, and what reads docstrings."""
    _shorten_signatures()
    app.connect("source-read", _fill_in)
    app.connect("autodoc-process-docstring", _read)
    app.connect("autodoc-process-signature", _overloads)
    app.connect("build-finished", _whole_pages)


def _fill_in(_app: Any, _name: str, source: list[str]) -> None:
    source[0] = written.filled_in(source[0])


def _whole_pages(app: Any, error: Exception | None) -> None:
    """The lessons, and the pages that run a model: without the site's frame."""
    if error is None and app.builder.format == "html":
        out = Path(app.outdir)
        lessons.write(out / "lessons", addresses=lessons.Addresses("../lessons.html"))
        for name, folder in written.page_folders().items():
            shutil.rmtree(out / name, ignore_errors=True)  # of the last build
            shutil.copytree(folder, out / name)


def _read(_app: Any, _what: str, _name: str, object: Any, _options: Any, lines: list[str]) -> None:
    docstrings.read(object, lines)


def _shorten_signatures() -> None:
    """A request's keywords are listed on a page, and not with each function."""
    for kind in (LLM, AsyncLLM):
        for name in dir(kind):
            function: Any = getattr(kind, name)
            if declared := getattr(function, "declared_signature", None):
                function.__signature__ = declared


def _overloads(
    _app: Any, _what: str, name: str, object: Any, _options: Any, *_signature: Any
) -> tuple[str, str] | None:
    """All that a function takes and gives; autodoc knows those of the class's own module alone."""
    if not (overloads := get_overloads(object) if isfunction(object) else []):
        return None
    each = [signature(one) for one in overloads]
    each = [one.replace(parameters=[*one.parameters.values()][1:]) for one in each]  # no self
    lines = [stringify_signature(one, unqualified_typehints=True) for one in each]
    *more, (arguments, result) = [line.rsplit(" -> ", 1) for line in lines]
    said = [*(" -> ".join(line) for line in more), arguments]
    return f"\n{name.removeprefix('cutaway.')}".join(said), result
