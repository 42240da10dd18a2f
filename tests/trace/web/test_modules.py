"""The page's modules: tests in Node of those that need no document, and rules for all of them."""

import re
import shutil
from pathlib import Path

import pytest

from cutaway.trace.page import catalogue
from cutaway.trace.web import __file__ as web
from support.page_modules import JS, in_node

MODULES = sorted((Path(web).parent / "js").rglob("*.js"))
COMPUTED = {"temperature", "top_k"}
"""Stages whose arithmetic the page does: what a logit is divided by, and ranks up to k."""
ENDS = {"constraint"}
"""Stages whose name is also that of an end."""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_in_node():
    in_node("--test", *sorted(JS.glob("*.test.mjs")))


def test_every_module_is_explained():
    for path in MODULES:
        assert path.read_text().startswith("/**"), path.name


def test_nothing_becomes_markup_and_nothing_is_fetched_elsewhere():
    for path in MODULES:
        text = path.read_text()
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ):
            assert forbidden not in text, (path.name, forbidden)
        assert "https://" not in text


def test_no_module_names_a_stage():
    """They come from Python with their letters, settings and orders, so a new stage is no work."""
    stages = catalogue()["stages"]
    named = {name for s in stages for name in (s["name"], *(p["name"] for p in s["params"]))}
    words = re.compile(rf"[\"'{{.\s]({'|'.join(named - COMPUTED - ENDS)})[\"'\]:]")
    for path in MODULES:
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        assert not words.findall(code), path.name
