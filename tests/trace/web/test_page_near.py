"""The panel "Two texts": why an encoder finds two texts near, in the numbers of ``LLM.near``."""

import httpx
import pytest

from cutaway import LLM
from support.served import serve

FIRST, SECOND = "the quick brown fox", "a lazy dog and the fox"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    from support.random_models import save
    from support.tiny_tokenizers import wordpiece

    path = tmp_path_factory.mktemp("near")
    save("bert", path, tokenizer=wordpiece).base_model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def near(encoder):
    with LLM(encoder, threads=1, progress=False) as llm:
        return llm.near(FIRST, SECOND)


@pytest.fixture(scope="module")
def server(encoder, near):
    with serve(LLM(encoder, threads=1, progress=False)) as served:
        yield served


def compared(page):
    page.tab.get_by_role("button", name="Compare two texts").click()
    page.tab.get_by_label("The first text", exact=True).fill(FIRST)
    page.tab.get_by_label("The second text", exact=True).fill(SECOND)
    page.tab.get_by_role("button", name="Compare", exact=True).click()
    page.tab.get_by_text("It is the sum of the shares").wait_for()
    return page.tab.locator("near-panel")


def signed(value):
    return f"{'−' if value < 0 else '+'}{abs(value):.4f}"


@pytest.mark.parametrize(
    "context", [{}, {"width": 390, "height": 844, "color_scheme": "dark"}], ids=["wide", "phone"]
)
def test_shares_and_words_left_out_are_those_of_python(open_page, server, near, context):
    page = open_page(server.url, **context)
    panel = compared(page)
    assert f"Cosine {near.cosine:.4f}." in panel.inner_text()
    for which, tokens, shares in zip(
        ("first", "second"), near.tokens, near.of_tokens(), strict=True
    ):
        shown = panel.get_by_role("group", name=f"Tokens of the {which} text").get_by_role("button")
        assert shown.all_inner_texts() == [name.replace(" ", "␣") for name in tokens]
        titles = [shown.nth(i).get_attribute("title") for i in range(len(tokens))]
        assert titles == [signed(share) for share in shares]
    rows = panel.locator("tbody tr").all_inner_texts()
    words = sorted(near.left_out, key=lambda one: one.cosine)
    assert [row.split() for row in rows] == [
        [w.word, ("first", "second")[w.which], f"{w.cosine:.4f}", signed(w.cosine - near.cosine)]
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
    assert first.nth(2).get_attribute("aria-pressed") == "true"
    titles = [second.nth(i).get_attribute("title") for i in range(len(near.tokens[1]))]
    assert titles == [signed(share) for share in near.shares[2]]
    share = signed(near.of_tokens()[0][2])
    assert f"has {share} of the cosine" in panel.inner_text()


def test_the_answer_is_that_of_python(server, near):
    answer = httpx.post(f"{server.url}/page/near", json={"first": FIRST, "second": SECOND})
    assert answer.json() == near.to_dict()
    assert httpx.get(f"{server.url}/page/about").json()["near"] is True


def test_too_many_pairs_are_refused_in_a_sentence(server):
    text = "fox " * 200
    answer = httpx.post(f"{server.url}/page/near", json={"first": text, "second": text})
    assert answer.status_code == 400
    assert "pairs of tokens are computed: shorten them" in answer.json()["error"]["message"]


def test_a_model_that_pools_otherwise_has_no_such_panel(open_page, tiny_server):
    assert httpx.get(f"{tiny_server.url}/page/about").json()["near"] is False
    page = open_page(tiny_server.url)
    page.tab.get_by_text("tiny · cutaway").wait_for()
    assert page.tab.get_by_role("tab", name="Two texts").count() == 0
    answer = httpx.post(f"{tiny_server.url}/page/near", json={"first": "a", "second": "b"})
    assert answer.status_code == 400
    assert "no mean of its tokens' rows" in answer.json()["error"]["message"]
