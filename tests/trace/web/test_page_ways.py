"""How the page has a text computed, and what a text must be: the same bits, or its mask."""

import json

import pytest

from cutaway import LLM
from support.browser import expect
from support.served import serve

SETTINGS = {"max_tokens": 40, "temperature": 0.3}
SCHEMA = '{"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"],'
SCHEMA += ' "additionalProperties": false}'


def runs_of(page):
    """Return (text, fingerprint, whether it was cached, drafts) of each run."""
    return page.tab.evaluate(
        """() => document.querySelector("text-ways").store.state.runs.map(({ trace }) =>
          [trace.text, trace.end.fingerprint, trace.head.params.kv_cache,
            trace.head.params.speculate])"""
    )


def open_group(page, title):
    page.tab.locator("settings-panel summary").filter(has_text=title).click()


def field(page, name):
    return page.tab.locator(f"#set-{name}")


def write(page, prompt):
    page.tab.get_by_role("tab", name="Completion").click()
    page.tab.get_by_label("Text to continue").fill(prompt)
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.wait_for_runs()


def test_a_text_is_written_again_without_the_kv_cache(open_page, site):
    """By keyboard, beside the run with it: the same hashes, and both times on one scale."""
    page = open_page(site)
    page.write("Mr. Darcy", seed=5, **SETTINGS)
    page.tab.get_by_role("tab", name="Timelines").click()
    ways = page.tab.locator("text-ways")
    ways.get_by_role("button", name="Write it again without the KV cache").focus()
    page.press("Enter")
    page.wait_for_runs(2)
    (text, fingerprint, *way), (again, same, *other) = runs_of(page)
    assert (text, fingerprint) == (again, same)
    assert (way, other) == ([True, "off"], [False, "off"])
    prompt = page.tab.evaluate(
        "() => document.querySelector('text-ways').store.run.trace.head.prompt_token_ids.length"
    )
    naive = sum(range(prompt, prompt + 40))
    sentence = ways.locator("p").inner_text()
    assert sentence == (
        f"Written without the KV cache: the model computed {naive:,} tokens. Run 1 is the same "
        f"text with the KV cache, {prompt + 39} tokens: every step has the same hash."
    )
    names = page.tab.locator("run-timelines .names text:not(.scale)").all_text_contents()
    assert names[-2:] == ["time", "run 1"]
    assert page.barriers("run-timelines") == []


def test_the_kv_cache_is_a_setting(open_page, site):
    page = open_page(site)
    page.go(kind="completion", settings=SETTINGS, seed="5")
    open_group(page, "KV cache")
    expect(field(page, "kv_cache")).to_have_value("on")
    field(page, "kv_cache").select_option("off")
    write(page, "Mr. Darcy")
    assert "kv_cache%22%3Afalse" in page.address
    assert page.tab.locator("in-force").get_by_text("KV cache").count() == 1
    page.tab.get_by_role("button", name="Reset KV cache to on").click()
    page.settle()
    write(page, "Mr. Darcy")
    (*one, off, _), (*other, on, _) = runs_of(page)
    assert one == other and (off, on) == (False, True)


def test_drafts_are_underlined_and_counted(open_page, toy_chat):
    page = open_page(f"{toy_chat.url}/")
    page.go(kind="completion", settings={**SETTINGS, "temperature": 0, "max_tokens": 60}, seed="5")
    open_group(page, "KV cache")
    field(page, "speculate").select_option("ngram")
    write(page, "she said, and she said, and she said, and")
    drafts, accepted, tokens = page.tab.evaluate(
        """() => {
          const { trace } = document.querySelector("text-ways").store.run;
          const drafts = trace.steps.filter(({ source }) => source === "draft");
          return [drafts.length, trace.end.speculation.accepted, trace.steps.length];
        }"""
    )
    assert drafts >= accepted > 0
    assert page.tab.locator("token-strip .drafted").count() == drafts
    assert 0 < page.tab.locator("token-strip [data-mark=d]").count() < drafts
    assert f"wrote {tokens} tokens." in page.tab.locator("time-view").inner_text()
    page.tab.get_by_role("tab", name="Timelines").click()
    page.tab.get_by_role("button", name="Write it again with the KV cache").click()
    page.wait_for_runs()
    (*one, _, ngram), (*other, _, off) = runs_of(page)
    assert one == other and (ngram, off) == ("ngram", "off")


def test_a_text_of_a_schema_shows_what_the_mask_removed(open_page, toy_chat):
    page = open_page(f"{toy_chat.url}/")
    page.go(kind="completion", settings={"max_tokens": 40}, seed="7")
    open_group(page, "JSON schema")
    field(page, "json_schema").fill(SCHEMA)
    write(page, "Is the sky blue? As JSON:")
    assert page.barriers("settings-panel") == []
    [(text, *_)] = runs_of(page)
    assert set(json.loads(text)) == {"blue"}
    survivors, vocabulary = page.tab.evaluate(
        """() => {
          const { run, state } = document.querySelector("text-ways").store;
          const [record] = run.trace.steps[state.step].stages;
          return [record.survivors, run.trace.head.vocab_size];
        }"""
    )
    sentence = page.tab.locator("river-view p").first.inner_text()
    assert f"{vocabulary - survivors:,} tokens with " in sentence and "by constraint" in sentence
    page.fork(0)
    assert "forced: the grammar does not allow token" in page.tab.locator("#notice").inner_text()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("json_schema", '{"type"', "json_schema is not JSON: "),
        ("json_schema", '{"type": "objet"}', "json_schema: type is 'objet'"),
        ("regex", "[", "regex: unclosed character class"),
    ],
)
def test_a_form_that_is_none_is_refused_beside_its_field(open_page, toy_chat, name, text, sentence):
    page = open_page(f"{toy_chat.url}/")
    page.expected = "400 (Bad Request)"
    open_group(page, "JSON schema")
    field(page, name).fill(text)
    page.tab.get_by_role("tab", name="Completion").click()
    page.tab.get_by_label("Text to continue").fill("Mr. Darcy")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.tab.locator(f"#said-{name}").get_by_text(sentence).wait_for()
    assert field(page, name).get_attribute("aria-invalid") == "true"


@pytest.mark.parametrize(("name", "text"), [("regex", "[ab]{3}"), ("choice", "yes\nno")])
def test_a_form_is_kept(open_page, toy_chat, name, text):
    """By the address, and by the settings of the run."""
    page = open_page(f"{toy_chat.url}/")
    open_group(page, "JSON schema")
    field(page, name).fill(text)
    write(page, "Mr. Darcy")
    [(written, *_)] = runs_of(page)
    assert len(written) == 3 if name == "regex" else written in ("yes", "no")
    assert page.tab.locator("in-force").get_by_text(name).count() == 1
    page.reload()
    page.wait_for_runs()
    expect(field(page, name)).to_have_value(text)
    assert runs_of(page)[0][0] == written


def test_the_page_alone_says_what_it_lacks(open_page, hosted, toy_chat_folder):
    page = open_page(hosted(toy_chat_folder))
    page.tab.locator("settings-panel summary").filter(has_text="KV cache").wait_for()
    open_group(page, "KV cache")
    assert field(page, "kv_cache").is_visible() and not field(page, "speculate").is_visible()
    open_group(page, "JSON schema")
    assert page.tab.get_by_text("cannot make a text fit a form: cutaway serve can").is_visible()
    assert not field(page, "regex").is_visible()
    page.go(kind="completion", settings={"max_tokens": 4, "regex": "a"}, seed="5")
    page.tab.get_by_label("Text to continue").fill("Mr. Darcy")
    page.tab.get_by_role("button", name="Write", exact=True).click()
    page.tab.locator("settings-panel > .said-of").get_by_text("regex: this page cannot").wait_for()


def test_a_server_that_drafts_with_a_model_keeps_its_path(open_page, toy_chat_path):
    """Its texts are branched with the same drafts, and written again without."""
    llm = LLM(toy_chat_path, threads=1, context=512, progress=False)
    with serve(llm, speculate=f"draft:{toy_chat_path}") as served:
        page = open_page(f"{served.url}/")
        page.write("Mr. Darcy", seed=5, **SETTINGS)
        about = page.tab.evaluate("() => document.querySelector('text-ways').store.state.about")
        assert str(toy_chat_path) not in json.dumps(about)
        expect(field(page, "speculate")).to_have_value("draft")
        page.fork(2)
        assert len(runs_of(page)) == 2 and page.tab.locator("#notice").inner_text() == ""
        page.tab.get_by_role("tab", name="Timelines").click()
        page.tab.get_by_role("button", name="Write it again with the KV cache").click()
        page.wait_for_runs()
        (_, (*fork, _, draft), (*again, _, off)) = runs_of(page)
        assert fork == again and (off, draft) == ("off", "draft")
