"""One figure for each fact: sizes, counts and times on several pages are those of the package."""

import re
import tomllib
from pathlib import Path

import pytest

from cutaway.files.hub import catalog

ROOT = Path(__file__).parents[2]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
BUILD = "one to three minutes on two cores"


def megabytes(size):
    return f"{size / 1e6:.0f}"


def dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [re.match(r"[\w-]+", line)[0] for line in project["dependencies"]]


SMOLLM2, MINILM = catalog.CATALOG["smollm2"], catalog.CATALOG["minilm"]
FETCHED = megabytes(SMOLLM2.download_size)
FACTS = [  # a page, what it says, and the figures
    ("README.md", r"SmolLM2-135M-Instruct \((\d+) MB", [FETCHED]),
    ("docs/quickstart.md", r"SmolLM2-135M-Instruct, (\d+) MB", [FETCHED]),
    ("docs/install.md", r"the model's (\d+) MB", [FETCHED]),
    ("docs/scale.md", r"the model's (\d+) MB", [FETCHED]),
    ("src/cutaway/cli/main.py", r"\((\d+) MB, once\)", [FETCHED]),
    ("docs/tour.md", r"\.gguf \((\d+) MB\)", [megabytes(SMOLLM2.size)]),
    (
        "docs/tour.md", r"\((\d+) MB, (\d+) on disk\)",
        [megabytes(MINILM.download_size), megabytes(MINILM.size)],
    ),
    ("docs/install.md", r"cutaway needs (\w+) packages", [NUMBERS[len(dependencies())]]),
]  # fmt: skip


@pytest.mark.parametrize(("page", "pattern", "figures"), FACTS)
def test_a_page_has_the_packages_own_figure(page, pattern, figures):
    (said,) = re.finditer(pattern, (ROOT / page).read_text("utf-8"))
    assert [*said.groups()] == figures


def test_the_pages_name_every_dependency():
    said = re.search(r"packages: ([^.]*?)\.", (ROOT / "docs/install.md").read_text("utf-8"))[1]
    assert set(re.findall(r"[\w-]+", said)) >= {*dependencies()}


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/install.md"])
def test_a_build_takes_the_same_time_on_each_page(page):
    assert BUILD in " ".join((ROOT / page).read_text("utf-8").split())


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_an_example_of_speculation_has_the_same_text_in_fewer_steps(page):
    shown = (ROOT / page).read_text("utf-8")
    runs = r"--max-tokens 24\n(.*?)\n\[.*?--speculate ngram\n(.*?)\n\[([^]]*)"
    (found,) = re.finditer(runs, shown, re.DOTALL)
    plain, drafted, statistics = found.groups()
    assert drafted == plain
    out, steps, accepted = map(
        int, re.search(r"(\d+) out in (\d+) steps · (\d+) of", statistics).groups()
    )
    assert accepted > 0
    assert steps == out - accepted
