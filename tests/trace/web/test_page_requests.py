"""Each request that the page makes, of each kind of run: by a server, and by the page alone."""

from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.trace import Trace

BAD = [
    {"temperature": -1}, {"temperature": 1000}, {"temperature": 0.001}, {"temperature": "1"},
    {"temperature": True}, {"temperature": [1]}, {"temperature": -1e-7}, {"temperature": 1e22},
    {"top_p": 2}, {"top_p": 0}, {"top_p": 123456789012345680}, {"top_k": -5}, {"top_k": 1.5},
    {"min_p": "0.1"}, {"min_p": 1}, {"min_p": -0.1}, {"typical_p": 0}, {"top_n_sigma": -1},
    {"xtc_probability": 2}, {"xtc_threshold": 0}, {"repetition_penalty": 0},
    {"presence_penalty": 3}, {"frequency_penalty": -2.5},
    {"dry_multiplier": 101}, {"dry_base": 0.5}, {"dry_allowed_length": 0},
    {"dry_penalty_last_n": -2}, {"dry_breakers": 5}, {"dry_breakers": [1.5]},
    {"dry_breakers": "ab"}, {"dry_breakers": [""]}, {"dry_breakers": ["é" * 2049]},
    {"logit_bias": {"99999": 1}}, {"logit_bias": {"a": 1}}, {"logit_bias": {"01": 1}},
    {"logit_bias": {"5": 101}}, {"logit_bias": {"5": "x"}}, {"logit_bias": [1]},
    {"stop_token_ids": [-1]}, {"stop_token_ids": [99999]}, {"stop_token_ids": 5},
    {"stop_token_ids": ["a"]}, {"stop_token_ids": [1.5]}, {"stop_token_ids": [True]},
    {"chain": ["nope"]}, {"chain": ["it's"]}, {"chain": "top_k"}, {"chain": ["top_k", "top_k"]},
    {"chain": [1]}, {"chain": ["top_k"], "temperature": 0.5},
    {"chain": ["temperature"], "top_k": 5, "preset": "llama.cpp"},
    {"chain": ["temperature"], "logit_bias": {"5": 1}},
    {"max_tokens": 1.5}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": "5"},
    {"stop": [""]}, {"stop": ""}, {"stop": 5}, {"stop": [5]}, {"stop": ["x"] * 65},
    {"stop": ["x" * 5000]}, {"preset": "nope"}, {"preset": 5}, {"ignore_eos": 1},
    {"cache_prompt": "yes"}, {"kv_cache": 0}, {"kv_cache": "off"}, {"track": [-1]},
    {"track": 5}, {"track": ["a"]},
    {"candidates": 0}, {"candidates": 1001}, {"candidates": 1.5}, {"nonsense": 1},
    {"seed": "5x"}, {"seed": "18446744073709551616"}, {"seed": "-2.5"},
    {"prompt": [99999]}, {"prompt": [-1]}, {"prompt": ""},
    {"forced": [-1]}, {"forced": [99999]}, {"forced": ["a"]}, {"forced": [1] * 20},
]  # fmt: skip
"""Of each, one thing that the server refuses."""
REFUSALS = """async (asked) => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  const said = [];
  for (const { prompt = "Once", forced = [], seed = "1", ...settings } of asked) {
    const request = { kind: "completion", messages: [], prompt, forced, seed, settings };
    if (!("max_tokens" in settings)) settings.max_tokens = 3;
    try {
      for await (const _ of api.records(request, new AbortController().signal));
      said.push("written");
    } catch (error) {
      said.push([error.message, error.param]);
    }
  }
  return said;
}"""
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
    asked = page.tab.evaluate(REQUESTS, {"file": file, "forcedFile": forced_file})
    given = asked["said"]
    refused = {name: one for name, one in given.items() if isinstance(one, str)}
    assert {name: one for name, one in refused.items() if not name.endswith(": inside")} == {}
    assert set(refused.values()) == {"computed"}
    text = here.generate("Mr. Darcy", seed=5, **SETTINGS)
    assert given["a text"][::2][:2] == [text.fingerprint, list(text.token_ids)]
    assert given["without the KV cache"] == given["a text"]
    fork = Trace.read(files[1])
    assert given["a recording of a fork, again"][0] == fork.end.fingerprint
    prompt, output = given["a file of a fork, forked twice"][1:3]
    at = given["a file of a fork, forked twice"][4].count("f")
    limit = given["a file of a fork, forked twice"][3]
    settings = SETTINGS | {"max_tokens": limit}
    again = here.generate(prompt, seed=9, forced=output[:at], **settings)
    assert again.fingerprint == given["a file of a fork, forked twice"][0]
    assert answers.setdefault("said", given) == given
    for name, records in answers.setdefault("records", asked["records"]).items():
        assert asked["records"][name] == records, name


def test_what_the_server_refuses_the_page_alone_refuses_with_its_sentences(
    open_page, hosted, toy_chat, toy_chat_folder
):
    served, alone = open_page(f"{toy_chat.url}/"), open_page(hosted(toy_chat_folder))
    served.expected = "400 (Bad Request)"
    sentences = served.tab.evaluate(REFUSALS, BAD)
    assert "written" not in sentences
    for asked, said, there in zip(BAD, alone.tab.evaluate(REFUSALS, BAD), sentences, strict=True):
        assert said == there, asked


def test_a_fork_is_forked_with_keys(open_page, site):
    """And the step of the fork of a fork is drawn again with other settings."""
    page = open_page(site)
    page.write("Mr. Darcy", seed=5, max_tokens=30)
    for step in 3, 6:
        page.press("Home", *["ArrowRight"] * step, "ArrowDown", "ArrowDown", "Enter")
        page.wait_for_runs()
    assert len(page.tokens) > 30
    page.tab.get_by_role("tab", name="What if").click()
    page.tab.locator("what-if").get_by_role("slider", name="temperature").fill("2")
    page.tab.locator("what-if").get_by_text("is drawn").wait_for()


def test_a_run_is_removed_and_its_fork_stays(open_page, site):
    page = open_page(site)
    page.write("Mr. Darcy", seed=5, max_tokens=8)
    page.fork(3)
    tokens, runs = page.tokens, page.tab.get_by_label("Run", exact=True)
    page.tab.evaluate("() => document.querySelector('run-picker').store.select(1)")
    remove = page.tab.get_by_role("button", name="Remove", exact=True)
    remove.click()
    page.settle()
    assert runs.locator("option").count() == 1
    assert page.tokens == tokens
    assert page.address.count("forced") == 1
    remove.click()
    page.settle()
    assert "Example (recorded)" in runs.inner_text()
    assert "runs=" not in page.address
    assert not remove.is_visible()
