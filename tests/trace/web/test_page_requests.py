"""Each request that the page makes, of each kind of run: by a server, and by the page alone."""

from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.trace import Trace

REQUESTS = (Path(__file__).parent / "js/page-requests.js").read_text()
SETTINGS = {"max_tokens": 12, "temperature": 0.8, "min_p": 0.02}


@pytest.fixture(scope="module")
def here(toy_chat_path):
    with LLM(toy_chat_path, threads=1, context=512, progress=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def files(here, tmp_path_factory):
    """A run, and a fork of it, as traces."""
    folder = tmp_path_factory.mktemp("files")
    run = here.generate("Once upon", seed=9, trace=str(folder / "a.jsonl"), **SETTINGS)
    forced = [*run.token_ids[:3], 100]
    here.generate("Once upon", seed=9, forced=forced, trace=str(folder / "b.jsonl"), **SETTINGS)
    return folder / "a.jsonl", folder / "b.jsonl"


@pytest.fixture(scope="module")
def answers():
    return {}


def test_each_request_is_answered(open_page, site, files, here, answers):
    """With the same texts by both, which are those of this engine."""
    page = open_page(site)
    file, forced_file = (path.read_text() for path in files)
    given = page.tab.evaluate(REQUESTS, {"file": file, "forcedFile": forced_file})
    refused = {name: one for name, one in given.items() if isinstance(one, str)}
    assert {name: one for name, one in refused.items() if not name.endswith(": inside")} == {}
    assert set(refused.values()) == {"computed"}
    text = here.generate("Mr. Darcy", seed=5, **SETTINGS)
    assert given["a text"][::2][:2] == [text.fingerprint, list(text.token_ids)]
    fork = Trace.read(files[1])
    assert given["a recording of a fork, again"][0] == fork.end.fingerprint
    prompt, output = given["a file of a fork, forked twice"][1:3]
    at = given["a file of a fork, forked twice"][4].count("f")
    limit = given["a file of a fork, forked twice"][3]
    settings = SETTINGS | {"max_tokens": limit}
    again = here.generate(prompt, seed=9, forced=output[:at], **settings)
    assert again.fingerprint == given["a file of a fork, forked twice"][0]
    assert answers.setdefault("given", given) == given


def test_a_fork_is_forked_with_keys(open_page, site):
    """And the step of the fork of a fork is drawn again with other settings."""
    page = open_page(site)
    page.write("Mr. Darcy", seed=5, max_tokens=30)
    for step in 3, 6:
        page.press("Home", *["ArrowRight"] * step, "ArrowDown", "ArrowDown", "Enter")
        page.settle()
        page.wait_for_runs()
    assert len(page.tokens) > 30
    page.tab.get_by_role("tab", name="What if").click()
    page.tab.locator("what-if").get_by_role("slider", name="temperature").fill("2")
    page.tab.locator("what-if").get_by_text("is drawn").wait_for()
