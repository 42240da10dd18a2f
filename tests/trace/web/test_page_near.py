"""The panel Compare texts: why an encoder finds two texts near, in the numbers of ``LLM.near``."""

import re

import httpx
import numpy as np
import pytest

from cutaway import LLM
from cutaway.features.inside.texts import text_attention
from support.arcs import check_arcs
from support.browser import expect
from support.random_llama import write_tiny_late, write_tiny_ranker
from support.served import serve

FIRST, SECOND = "the quick brown fox", "a lazy dog and the fox"
QUERY, DOCUMENT = "ab ba", "b ab bb"
IN_SIGHT = "(one) => one.getBoundingClientRect().top < innerHeight"


@pytest.fixture(scope="module")
def near(tiny_encoder):
    with LLM(tiny_encoder, threads=1, progress=False) as llm:
        return llm.near(FIRST, SECOND)


@pytest.fixture(scope="module")
def server(tiny_encoder, near):
    with serve(LLM(tiny_encoder, threads=1, progress=False)) as served:
        yield served


def compared(page):
    page.tab.get_by_label("The first text", exact=True).fill(FIRST)
    page.tab.get_by_label("The second text", exact=True).fill(SECOND)
    page.tab.get_by_role("button", name="Compare", exact=True).click()
    page.tab.get_by_text("It is the sum of the shares").wait_for()
    return page.tab.locator("near-panel")


def plain(value):
    return f"{value:.4f}".replace("-", "−")


def signed(value):
    return f"{'−' if value < 0 else '+'}{abs(value):.4f}"


def test_an_encoders_page_opens_on_texts_to_compare(open_page, server):
    page = open_page(server.url)
    panel = page.tab.locator("near-panel")
    panel.get_by_text("is an encoder: it makes vectors of texts").wait_for()
    page.settle()
    for part in ("ask-box", "settings-panel", "token-strip", "river-view"):
        assert not page.tab.locator(part).is_visible(), part
    assert page.tab.locator("first-look").inner_text() == "Help · Practice · Lessons · A class"
    assert "SmolLM2" not in page.tab.locator("body").inner_text()
    panel.get_by_role("button", name="A man is playing the guitar.").click()
    panel.get_by_text("It is the sum of the shares").wait_for()
    expect(page.tab.get_by_label("The first text", exact=True)).to_have_value(re.compile("^A man"))


@pytest.mark.parametrize(
    "context",
    [
        {},
        pytest.param({"width": 390, "height": 844, "color_scheme": "dark"}, marks=pytest.mark.slow),
    ],
    ids=["wide", "phone"],  # a phone has the panel's attention in every run
)
def test_shares_and_words_left_out_are_those_of_python(open_page, server, near, context):
    page = open_page(server.url, **context)
    panel = compared(page)
    assert f"Cosine {plain(near.score)}." in panel.inner_text()
    for which, tokens, shares in zip(
        ("first", "second"), near.tokens, near.of_tokens(), strict=True
    ):
        shown = panel.get_by_role("group", name=f"Tokens of the {which} text").get_by_role("button")
        assert shown.all_inner_texts() == [name.replace(" ", "␣") for name in tokens]
        titles = [shown.nth(i).get_attribute("title") for i in range(len(tokens))]
        assert titles == [signed(share) for share in shares]
    rows = panel.locator("tbody tr").all_inner_texts()
    words = sorted(near.left_out, key=lambda one: one.score)
    assert [row.split() for row in rows] == [
        [w.word, ("first", "second")[w.which], plain(w.score), signed(w.score - near.score)]
        for w in words
    ]
    assert page.barriers("near-panel") == []
    width = "() => document.documentElement.scrollWidth - innerWidth"
    assert page.tab.evaluate(width) <= 0


def test_a_chosen_token_shows_its_shares_with_the_other_text(open_page, server, near):
    page = open_page(server.url)
    panel = compared(page)
    first, second = (
        panel.get_by_role("group", name=f"Tokens of the {name} text").get_by_role("button")
        for name in ("first", "second")
    )
    first.nth(1).click()
    titles = [second.nth(i).get_attribute("title") for i in range(len(near.tokens[1]))]
    assert titles == [signed(share) for share in near.shares[1]]
    page.press("ArrowRight")
    expect(first.nth(2)).to_have_attribute("aria-pressed", "true")
    titles = [second.nth(i).get_attribute("title") for i in range(len(near.tokens[1]))]
    assert titles == [signed(share) for share in near.shares[2]]
    page.settle()
    shares = np.concatenate([np.zeros(len(near.tokens[0])), near.shares[2]])
    check_arcs(
        page, "near-panel > .arcs-box button", shares / np.abs(shares).max() / 2, 2,
        across=0.5, within="near-panel > .arcs-box",
    )  # fmt: skip
    share = signed(near.of_tokens()[0][2])
    assert f"has {share} of the cosine" in panel.inner_text()


def test_the_answer_is_that_of_python(server, near):
    answer = httpx.post(f"{server.url}/page/near", json={"first": FIRST, "second": SECOND})
    assert answer.json() == near.to_dict()
    assert httpx.get(f"{server.url}/page/about").json()["near"] == "cosine"


def test_too_many_pairs_are_refused_in_a_sentence(server):
    text = "fox " * 200
    answer = httpx.post(f"{server.url}/page/near", json={"first": text, "second": text})
    assert answer.status_code == 400
    assert "pairs of tokens are computed: shorten them" in answer.json()["error"]["message"]


def test_a_model_that_pools_otherwise_has_no_such_panel(open_page, tiny_server):
    assert httpx.get(f"{tiny_server.url}/page/about").json()["near"] is None
    page = open_page(tiny_server.url)
    page.tab.get_by_text("tiny · cutaway").wait_for()
    assert page.tab.get_by_role("tab", name="Compare texts").count() == 0


@pytest.fixture(scope="module", params=[write_tiny_ranker, write_tiny_late])
def ranker(request, tmp_path_factory):
    """The address of a server of a reranker, and what Python says of two texts."""
    path = request.param(tmp_path_factory.mktemp("ranker") / "ranker.gguf")
    with LLM(path, threads=1, progress=False) as llm:
        found = llm.near(QUERY, DOCUMENT)
    with serve(LLM(path, threads=1, progress=False)) as served:
        yield served.url, found


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "context", [{}, {"width": 390, "height": 844, "color_scheme": "dark"}], ids=["wide", "phone"]
)
def test_a_reranker_s_words_are_tinted_by_what_leaving_them_out_changes(open_page, ranker, context):
    url, found = ranker
    page = open_page(url, **context)
    query = page.tab.get_by_label("The query", exact=True)
    page.tab.wait_for_function(IN_SIGHT, arg=query.element_handle())  # drawn, then scrolled to
    page.tab.get_by_label("The query", exact=True).fill(QUERY)
    page.tab.get_by_label("The document", exact=True).fill(DOCUMENT)
    page.tab.get_by_role("button", name="Compare", exact=True).click()
    name = {"head": "Score", "maxsim": "MaxSim"}[found.method]
    page.tab.get_by_text(f"{name} {plain(found.score)}.").wait_for()
    panel = page.tab.locator("near-panel")
    rows = [row.split() for row in panel.locator("tbody tr").all_inner_texts()]
    words = sorted(found.left_out, key=lambda one: one.score)
    assert rows == [
        [w.word, ("query", "document")[w.which], plain(w.score), signed(w.score - found.score)]
        for w in words
    ]
    assert page.barriers("near-panel") == []
    assert page.tab.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    if found.shares is not None:
        return
    shown = panel.get_by_role("group", name="Words of the document").get_by_role("button")
    own = [one for one in found.left_out if one.which == 1]
    assert shown.all_inner_texts() == [one.word for one in own]
    titles = [shown.nth(i).get_attribute("title") for i in range(len(own))]
    assert titles == [signed(one.score - found.score) for one in own]
    shown.nth(1).click()
    assert f"without {own[1].word} of the document: {plain(own[1].score)}" in panel.inner_text()


def test_the_page_of_a_reranker_offers_no_writing(open_page, ranker):
    url, found = ranker
    about = httpx.get(f"{url}/page/about").json()
    assert (about["near"], about["writes"]) == (found.method, False)
    page = open_page(url)
    page.tab.locator("near-panel").get_by_text("Click two texts, or write your own").wait_for()
    assert not page.tab.get_by_role("button", name="Write", exact=True).is_visible()
    answer = httpx.post(f"{url}/page/near", json={"first": QUERY, "second": DOCUMENT})
    assert answer.json() == found.to_dict()


def test_attention_of_a_chosen_token_is_that_of_python(open_page, server, tiny_encoder):
    with LLM(tiny_encoder, threads=1, progress=False) as llm:
        first, second = text_attention(llm, FIRST, SECOND)
        names = [llm.tokenizer.token_name(i) for i in second.token_ids]
    page = open_page(server.url, width=390, height=844, color_scheme="dark")
    panel = compared(page)
    tokens = panel.get_by_role("group", name="Tokens as the model reads them").get_by_role("button")
    page.tab.get_by_text("Attention weight by position, mean of all heads").wait_for()
    assert read_from(tokens) == rounded(first.mean[0])
    panel.get_by_label("Text", exact=True).select_option("second text")
    page.tab.wait_for_function(COUNT, arg=len(names))
    tokens.nth(3).click()
    page.tab.get_by_text(f"{names[3].strip()} at position 3 reads most from").wait_for()
    assert read_from(tokens) == rounded(second.mean[3])
    shown = {"tokens": "near-panel section .text button", "origin": 3, "across": 0.5}
    check_arcs(page, weights=second.mean[3], **shown)  # to tokens before it and after it
    panel.get_by_label("Layer", exact=True).select_option("L1")
    assert read_from(tokens) == rounded(second.weights[1].mean(axis=0)[3])
    panel.get_by_label("Head", exact=True).select_option("H2")
    assert page.tab.get_by_text("Attention weight by position, L1.H2").count() == 1
    assert read_from(tokens) == rounded(second.weights[1, 2, 3])
    check_arcs(page, weights=second.weights[1, 2, 3], **shown)
    assert page.barriers("near-panel") == []
    assert page.tab.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0


def test_attention_of_texts_that_are_read_together_is_of_both(ranker):
    url, found = ranker
    asked = {"first": QUERY, "second": DOCUMENT}
    answer = httpx.post(f"{url}/page/near/attention", json=asked).json()
    assert answer["texts"] == (1 if found.method == "head" else 2)
    assert answer["position"] == len(answer["tokens"]) - 1  # attention is causal
    for heads in answer["weights"]:
        assert [sum(row) for row in heads] == pytest.approx([1] * len(heads), abs=1e-5)
    for more, sentence in (
        ({"position": 99}, "position: the text has"),
        ({"which": 1} if found.method == "head" else {"which": 2}, "which"),
    ):
        refused = httpx.post(f"{url}/page/near/attention", json=asked | more)
        assert refused.status_code == 400
        assert sentence in refused.json()["error"]["message"]


COUNT = "(count) => document.querySelectorAll('near-panel section .text button').length === count"


def read_from(tokens):
    """The weights in their titles."""
    titles = [tokens.nth(i).get_attribute("title") for i in range(tokens.count())]
    return [float(title.removesuffix("%")) / 100 for title in titles]


def rounded(weights):
    return pytest.approx([float(weight) for weight in weights], abs=6e-4)
