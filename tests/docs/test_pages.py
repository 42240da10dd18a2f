"""The commands, JSON and Python in the blocks of README and docs can be parsed."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from cutaway.cli import denoise
from cutaway.cli.main import main
from cutaway.engine.canvas import RULES, SETTING_WORDS
from cutaway.engine.canvas.rule import CACHES, NOISES, ORDERS, REMASKS, SCHEDULES
from doc_blocks import blocks_of, commands
from support.browser import CHROMIUM, DEADLINE_MS, HOW_TO_HAVE_CHROMIUM, start_chromium
from support.chat_templates import NAMES, dialect
from support.doc_pages import PAGES, ROOT, blocks, calls, named_in_prose, parser_of
from walk_docs import cut, steady, walk

KINDS = {"sh", "python", "json", "console", "js", "yaml", "toml", "text", ""}
DIRECTIVES = {"{eval-rst}", "{toctree}"}


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_parsed(page):
    for block in blocks(page):
        for command in commands(block.script):
            for words in calls(command):
                parser, argv = parser_of(words)
                with suppress(SystemExit):  # of an option that prints something and ends
                    parser.parse(argv)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_prose_exist_with_their_flags(page):
    for words in named_in_prose(page):
        if words[0] == "COMMAND" or words in (["trace"], ["cache"]):
            continue
        parser, argv = parser_of(words)
        for flag in argv:
            assert not flag.startswith("--") or flag in parser._option_string_actions, words


@pytest.mark.parametrize("page", PAGES)
def test_a_block_says_what_it_is(page):
    for block in blocks(page):
        assert block.kind in KINDS | DIRECTIVES, block
        if block.kind in ("", "text"):  # or its commands would escape
            assert not re.search(r"^(cutaway|\$) ", block.code, re.MULTILINE), block


@pytest.mark.parametrize("page", PAGES)
def test_json_and_python_are_read(page):
    for block in blocks(page):
        if block.kind == "python":
            ast.parse(block.code)
        elif block.kind == "json":
            for line in block.code.splitlines():
                json.loads(line)


# -- examples --------------------------------------------------------------------------------------

# Every page's examples, run from its first block to its last as tools/walk_docs.py does.
#
# What is not run says why on its page; where that names a test, the test is there.


RUN = [
    page
    for page in PAGES
    if any(
        (block.script or block.kind == "python") and "" not in block.not_run
        for block in blocks(page)
    )
]
QUICK = ("docs/quickstart.md", "docs/structured.md")
"""Pages whose examples take seconds; those of the others are parsed in every run."""


@pytest.mark.model
@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in RUN]
)
def test_examples_run_and_print_what_is_shown(page):
    assert [outcome for outcome in walk(page) if not outcome.good] == []


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_run_says_why(page):
    marks = PAGES[page].count("<!-- not run") - PAGES[page].count("<!-- not run on this page")
    assert marks <= sum(len(block.not_run) for block in blocks(page)), "a mark before no block"
    for block in blocks(page):
        for begins, why in block.not_run.items():
            assert begins in block.code
            for test in re.findall(r"see (tests/\S+)", why):
                assert (ROOT / test).exists()


def test_a_block_is_read_with_its_marks_and_outputs():
    text = "<!-- not run (a): why -->\n```console\n$ a \\\n  b\nout\n\n$ c\n```\n"
    [block] = blocks_of(text)
    assert [*block.shown()] == [("a \\\n  b", "out"), ("c", "")]
    assert block.why_not("a b") == "why"
    assert block.why_not("c") is None


def test_outputs_differ_where_more_than_times_and_chosen_seeds_does():
    told = "[3 tokens in · first token {} s · {} tokens/s · seed {}]"
    once, again = told.format("0.03", "41.0", 1), told.format("0.1", "9", 2)
    assert steady(once, "cutaway") == steady(again, "cutaway")
    assert steady(once, "cutaway --seed 1") != steady(again, "cutaway --seed 1")
    assert steady(once, "cutaway") != steady(once.replace("3 tokens", "4 tokens"), "cutaway")


def test_an_output_is_cut_where_the_page_cuts_it():
    assert cut("1\n2\n3\n4", "a\n…") == "1\n…"
    assert cut("1\n2", "a\n…") == "1\n2"  # one more line takes no more room than the mark
    assert cut("1\n2\n3", "a") == "1\n2\n3"
    assert cut("another key each time", "…") == "…"


# -- forms of calls --------------------------------------------------------------------------------

# docs/tools.md has the forms in which models write calls.


PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


@pytest.mark.parametrize("name", NAMES)
def test_the_form_of_a_call_is_as_documented(name):
    written = dialect(name).write([("NAME", "{…}", "ID")]).replace("\n", "\\n")
    assert f"`{written}`" in PAGE.read_text().replace("\\|", "|")


# -- rules of canvases -----------------------------------------------------------------------------

# docs/denoise.md explains every rule and setting, and the commands of its help page run.


TEXT = (Path(__file__).parents[2] / "docs" / "denoise.md").read_text()
COMMANDS = [line.strip() for line in denoise.EPILOG.splitlines() if "cutaway denoise" in line]


@pytest.mark.parametrize("line", [line for line in COMMANDS if "-m " not in line])
def test_the_commands_are_commands(line, capfd):
    assert main(["denoise", *shlex.split(line, comments=True)[2:]]) == 0
    assert capfd.readouterr().out


def test_every_rule_and_setting_is_explained():
    for name in (*RULES, *(set(SETTING_WORDS) - {"rule"})):
        assert f"`{name}`" in TEXT, name
    for choices in (ORDERS, SCHEDULES, REMASKS, CACHES, NOISES):
        assert all(f"`{choice}`" in TEXT for choice in choices)


# -- security --------------------------------------------------------------------------------------

# docs/security.md names for each promise the test that holds it: they are there.


TREE = Path(__file__).parents[2]


def test_each_class_names_a_test_that_is_there():
    text = (TREE / "docs/security.md").read_text()
    table = text.partition("## What holds, by class")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named, row
        assert all((TREE / path).is_file() for path in named), row
    assert "docs/security.md" in (TREE / "SECURITY.md").read_text()


# -- widths ----------------------------------------------------------------------------------------

# Code on the pages fits: at most 80 columns, and on the site no block is cut at 1400 pixels.


COLUMNS = 80
"""Of what is typed; an output is as wide as it is."""
DRAWN = 125
"""Of drawings and tables, which have smaller type."""


@pytest.mark.parametrize("page", [page for page in PAGES if page != "README.md"])
def test_code_is_no_wider_than_a_page(page):
    for block in blocks(page):
        typed = block.script if block.kind == "console" else block.code
        limit = DRAWN if block.kind == "" else COLUMNS
        if block.kind not in ("json", "{eval-rst}"):
            long = [line for line in typed.splitlines() if len(line) > limit]
            assert long == [], f"{page}, line {block.line}"


CUT = """() => [
  document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth,
  [...document.querySelectorAll("pre")].filter((pre) => pre.scrollWidth > pre.clientWidth)
    .map((pre) => pre.innerText.slice(0, 80))]"""


@pytest.fixture
def site(tmp_path):
    needed = ("sphinx", "furo", "myst_nb", "matplotlib", "sphinx_copybutton", "playwright")
    if missing := [name for name in needed if find_spec(name) is None]:
        pytest.skip(f"not installed, of the extras docs and test: {', '.join(missing)}")
    if CHROMIUM is None:  # before the minutes of a build
        pytest.skip(f"there is no Chromium here: {HOW_TO_HAVE_CHROMIUM}")
    build = [sys.executable, "-m", "sphinx", "-W", "-D", "nb_execution_mode=off"]
    subprocess.run(
        [*build, "-c", ROOT / "docs/site", "-d", tmp_path / "doctrees", ROOT / "docs", tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=True, timeout=900,
    )  # fmt: skip
    return tmp_path


@pytest.mark.slow
def test_no_block_is_cut_and_no_page_scrolls_sideways(site):
    pages = [page for page in site.rglob("*.html") if "_static" not in page.parts]
    assert len(pages) > 30
    scrolling = {"ignore_default_args": ["--hide-scrollbars"]}  # a window's width is less by one
    with start_chromium(**scrolling) as browser:
        for width in (1920, 1600, 1400, 1366, 390):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.set_default_timeout(DEADLINE_MS)
            for page in pages:
                tab.goto(page.as_uri())
                sideways, cut = tab.evaluate(CUT)
                assert sideways <= 0, (page.name, width)
                assert width < 1400 or cut == [], page.name
