"""Odd files and odd addresses: what can be shown is shown, the rest is a sentence."""

import json
from urllib.parse import quote

import pytest

from cutaway import LLM

PANELS = (
    "() => [...document.querySelectorAll('panel-tabs [role=tab]:not([hidden])')]"
    ".map((tab) => tab.id)"
)
ODD = (
    "runs=[null]", "runs=[{}]", "runs=[1,2]", "messages=5", "messages=[5]", 'settings="x"',
    "settings=[]", 'settings={"stop":5,"chain":"x","temperature":{}}', "inside=5", "inside={}",
    "whatIf=[1]", 'whatIf={"temperature":"x"}', "price={}", "panel=nope", "lesson=nope", "kind=x",
    "step=1e99", "step=-4", "run=x", "candidate=9999", "pass=5", "typing=77", "other=9",
    'tools={"a"', 'runs=[{"id":1,"parent":1,"at":0,"name":"a","request":{"kind":"completion",'
    '"prompt":"a","messages":[],"settings":{},"seed":"1","forced":[]}}]',
)  # fmt: skip


@pytest.mark.parametrize("fragment", ODD)
def test_an_odd_address_opens_the_page(open_page, tiny_server, fragment):
    name, _, value = fragment.partition("=")
    page = open_page(f"{tiny_server.url}/#{name}={quote(value)}")
    page.wait_for_runs()
    assert page.tokens
    page.settle()
    assert not page.tab.locator("[data-unshown]").count()


@pytest.fixture(scope="module")
def records(tiny_path, tmp_path_factory):
    """The records of a short run."""
    path = tmp_path_factory.mktemp("odd") / "run.jsonl"
    with LLM(tiny_path, threads=1, progress=False) as llm:
        llm.generate("ab ab", seed=3, max_tokens=8, ignore_eos=True, trace=str(path))
    return [json.loads(line) for line in path.read_text().splitlines()]


def tour(page, records, path):
    """Open the records as a file, then each panel."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    page.open_file(path)
    for tab in page.tab.evaluate(PANELS):
        page.tab.evaluate("(id) => document.getElementById(id).click()", tab)
        page.settle()


def test_a_prompt_of_400000_tokens_is_shown(open_page, tiny_server, records, tmp_path):
    head, *rest = records
    ids = head["prompt_token_ids"] * 200_000
    long = [head | {"prompt_token_ids": ids[:400_000], "prompt": None}, *rest]
    page = open_page(tiny_server.url)
    page.expected = "400 (Bad Request)"  # the inside of such a step is refused
    tour(page, long, tmp_path / "long.jsonl")
    page.tab.get_by_text("prompt · 400,000 tokens").wait_for()
    assert not page.tab.locator("[data-unshown]").count()


def test_a_token_of_2_mb_is_shown_at_its_beginning(open_page, tiny_server, records, tmp_path):
    big = records[-2]["token_id"]
    text = "x" * 2_000_000
    odd = [r | {"text": text} if r["kind"] == "tok" and r["id"] == big else r for r in records]
    page = open_page(tiny_server.url)
    tour(page, odd, tmp_path / "big.jsonl")
    assert page.tab.evaluate("() => document.body.innerText.length") < 200_000
    page.expected = ""


def test_a_head_alone_says_that_there_is_no_step(open_page, tiny_server, records, tmp_path):
    page = open_page(tiny_server.url)
    tour(page, records[:1], tmp_path / "head.jsonl")
    assert "head.jsonl has no step yet" in page.tab.locator("#notice").inner_text()


BREAKS = {
    "no times": lambda record: {k: v for k, v in record.items() if k != "ms"},
    "a text is a number": lambda record: record | {"text": 5},
    "no histogram": lambda record: {k: v for k, v in record.items() if k != "logit_histogram"},
    "rank is null": lambda record: record | {"rank": None},
    "no candidates": lambda record: record | {"candidates": {"id": []}},
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKS)
def test_a_part_that_cannot_be_shown_says_so_once(open_page, tiny_server, records, tmp_path, name):
    odd = [BREAKS[name](r) if r["kind"] == "step" else r for r in records]
    page = open_page(tiny_server.url)
    tour(page, odd, tmp_path / "odd.jsonl")
    assert len(page.complaints) <= 12, page.complaints
    said = page.tab.locator("[data-unshown] > .unshown").all_inner_texts()
    assert {*said} <= {"This part of the run cannot be shown."}
    assert bool(said) == bool(page.complaints), page.complaints
    page.expected = ""
