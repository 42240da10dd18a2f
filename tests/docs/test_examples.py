"""Every page's examples, run from its first block to its last as tools/walk_docs.py does.

What is not run says why on its page; where that names a test, the test is there.
"""

import re

import pytest

from doc_blocks import blocks_of
from support.doc_pages import PAGES, ROOT, blocks
from walk_docs import cut, steady, walk

RUN = [
    page
    for page in PAGES
    if any(
        (block.script or block.kind == "python") and "" not in block.not_run
        for block in blocks(page)
    )
]
QUICK = ("docs/quickstart.md", "docs/score.md", "docs/structured.md", "docs/tools.md")
"""Pages whose examples take seconds."""


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
