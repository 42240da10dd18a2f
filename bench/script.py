"""Shared parts of this folder's scripts: flags, tables of Markdown, and the pages that show them.

A page has room for a table between <!-- NAME:begin --> and <!-- NAME:end -->. Knows no measurement.
"""

import json
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

# -- flags ---------------------------------------------------------------------------------------


def parser_of(doc: str | None, *, model: bool = True, write: str = "") -> ArgumentParser:
    """Make a parser with -m and --write, whose --help shows the module's docstring.

    write: the page that --write usually names; "": the script writes none
    """
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    if model:
        parser.add_argument("-m", "--model")
    if write:
        parser.add_argument("--write", type=Path, metavar=write, help="where the table goes")
    return parser


def words(text: str) -> list[str]:
    """Split a flag's value at commas."""
    return text.split(",")


# -- figures -------------------------------------------------------------------------------------


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """The log-probabilities of each row (…, vocab), in float64."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    shifted: NDArray[np.float64] = x - np.log(np.exp(x).sum(-1, keepdims=True))
    return shifted


def step_seconds(steps: Iterator[object]) -> list[float]:
    """Time the remaining steps of a stream, in seconds."""
    times = [perf_counter(), *(perf_counter() for _ in steps)]
    return [after - before for before, after in pairwise(times)]


# -- tables --------------------------------------------------------------------------------------


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    lines = ["|" + "---|" * len(head)]
    lines += [f"| {' | '.join(map(str, cells))} |" for cells in rows]
    return "\n".join([f"| {' | '.join(head)} |", *lines])


def check_page(page: Path | None, name: str) -> None:
    """Raise ValueError if a page has no place for the table; call this before measuring."""
    if page:
        replace_between_markers(page.read_text("utf-8"), name, "")


def publish(
    table: str, found: Any, page: Path | None = None, name: str = "", *, only_json: bool = False
) -> None:
    """Print the table, and the results as one line of JSON; write the table into the page."""
    if not only_json:
        print(table, end="\n\n")
    if page:
        page.write_text(replace_between_markers(page.read_text("utf-8"), name, table), "utf-8")
    print(json.dumps(found))


def replace_between_markers(text: str, name: str, table: str) -> str:
    """The text with the table between <!-- name:begin --> and <!-- name:end -->.

    ValueError unless the text has each marker once.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"there must be one line {begin} and, after it, one line {end}")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
