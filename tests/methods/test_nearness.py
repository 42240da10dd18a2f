"""Why two texts are near: shares of tokens that add up to the cosine, and words left out."""

import json
from pathlib import Path

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.files import hub
from support.random_llama import write_tiny_late, write_tiny_ranker

FIRST, SECOND = "the quick brown fox", "a lazy dog and the fox"


@pytest.fixture(scope="module")
def encoder(tiny_encoder):
    return LLM(tiny_encoder)


def test_shares_add_up_to_the_cosine_of_the_vectors(encoder):
    found = encoder.near(FIRST, SECOND)
    vectors = encoder.embed([FIRST, SECOND], normalize=False)
    assert found.score == pytest.approx(vectors.similarities()[0, 1], abs=1e-7)
    assert found.shares.sum() == pytest.approx(found.score, abs=1e-12)
    assert found.shares.shape == vectors.tokens
    for sums in found.of_tokens():
        assert sum(sums) == pytest.approx(found.score, abs=1e-12)
    assert found.tokens[0][0] == "[CLS]"
    largest = found.pairs(3)
    assert largest[0][2] == found.shares.max()
    assert [one[2] for one in largest] == sorted((one[2] for one in largest), reverse=True)


def test_a_word_left_out_gives_the_cosine_of_the_rest(encoder):
    found = encoder.near(FIRST, SECOND)
    assert [one.word for one in found.left_out] == [*FIRST.split(), *SECOND.split()]
    one = found.left_out[1]
    assert (one.word, FIRST[one.start : one.stop]) == ("quick", "quick")
    rest = encoder.embed(["the brown fox", SECOND], normalize=False).similarities()[0, 1]
    assert one.score == pytest.approx(rest, abs=1e-7)
    assert encoder.near(FIRST, SECOND, words=False).left_out == ()


def test_bits_are_the_same_for_any_threads(encoder):
    found = encoder.near(FIRST, SECOND)
    with LLM(encoder.model.path, threads=1) as llm:
        again = llm.near(FIRST, SECOND)
    assert np.array_equal(again.shares, found.shares)
    assert again.left_out == found.left_out


@pytest.mark.parametrize(
    ("write", "method"), [(write_tiny_ranker, "head"), (write_tiny_late, "maxsim")]
)
def test_a_reranker_s_score_is_that_of_rerank_with_and_without_each_word(tmp_path, write, method):
    query, document = "ab ba", "b ab bb"
    with LLM(write(tmp_path / "ranker.gguf"), threads=1) as llm:
        found = llm.near(query, document)

        def score(first, second):
            return llm.rerank(first, [second]).results[0].score

        assert (found.method, found.score) == (method, score(query, document))
        assert [(one.which, one.word, one.score) for one in found.left_out] == [
            (0, "ab", score("ba", document)), (0, "ba", score("ab", document)),
            (1, "b", score(query, "ab bb")), (1, "ab", score(query, "b bb")),
            (1, "bb", score(query, "b ab")),
        ]  # fmt: skip
        assert len({one.score for one in found.left_out}) > 3
        if method == "head":
            assert (found.shares, found.tokens, found.pairs(3)) == (None, ((), ()), [])
            assert found.to_dict()["shares"] is None
        with pytest.raises(InputError, match=f"prompt: a model that scores by {method}"):
            llm.near(query, document, prompt="query")


def test_shares_of_late_interaction_are_each_query_token_s_nearest(tmp_path):
    with LLM(write_tiny_late(tmp_path / "late.gguf"), threads=1) as llm:
        found = llm.near("ab ba", "b ab bb", words=False)
        query, document = llm.embed_tokens("ab ba", "query"), llm.embed_tokens("b ab bb")
        products = query.products(0, document, 0)
    assert np.array_equal(found.shares.sum(axis=1), products.max(axis=1))
    assert ((found.shares != 0).sum(axis=1) == 1).all()
    assert found.shares.sum() == pytest.approx(found.score, abs=1e-12)
    assert [len(names) for names in found.tokens] == [*products.shape]


def test_yes_or_no_is_scored_by_its_log_odds(tiny):
    found = tiny.near("ab ba", "bb", instruction="a")
    [one] = tiny.rerank("ab ba", ["bb"], instruction="a").results
    assert (found.method, found.score) == ("answers", one.score)
    assert one.relevance == pytest.approx(1 / (1 + np.exp(-one.score)), abs=1e-12)
    [rest] = tiny.rerank("ba", ["bb"], instruction="a").results
    assert [(word.word, word.which) for word in found.left_out] == [("ab", 0), ("ba", 0)]
    assert found.left_out[0].score == rest.score != found.score


def test_vectors_that_are_no_mean_have_no_shares(tiny):
    found = tiny.near("ab ba", "b ab", method="cosine")
    expected = tiny.embed(["ab ba", "b ab", "ba"], normalize=False).similarities()
    assert found.shares is None
    assert found.score == pytest.approx(expected[0, 1], abs=1e-12)
    assert found.left_out[0].score == pytest.approx(expected[2, 1], abs=1e-12)
    with pytest.raises(InputError, match="method: 'head' is not what this model has: answers"):
        tiny.near("a", "b", method="head")


# -- minilm ----------------------------------------------------------------------------------------

# all-MiniLM-L6-v2 beside sentence-transformers: what that made of some texts, in its own file.
#
# ``tests/data/minilm_golden.json`` has vectors of sentence-transformers 6.2 with torch 2.13 on a
# CPU,
# rounded to six digits; ``bench/embeddings.py`` compares a few hundred texts.


GOLDEN = json.loads(
    Path(__file__).parents[1].joinpath("data", "minilm_golden.json").read_text("utf-8")
)
TEXTS = [one["text"] for one in GOLDEN]
VECTORS = np.array([one["vector"] for one in GOLDEN])


@pytest.fixture(scope="module")
def path():
    return hub.resolve("minilm", progress=False)


def cosines(vectors):
    return (vectors * VECTORS).sum(axis=1) / np.linalg.norm(vectors, axis=1)


@pytest.mark.model
def test_the_reference_has_the_vectors_of_sentence_transformers(path):
    with LLM(path, backend="reference") as llm:
        short = [i for i, text in enumerate(TEXTS) if len(text) < 300]
        found = llm.embed([TEXTS[i] for i in short])
        assert np.abs(found.vectors - VECTORS[short]).max() < 2e-6
        assert found.says == ("files", "files")
        assert (found.pooling, found.normalized) == ("mean", True)


@pytest.mark.model
def test_the_native_backend_is_close(path):
    with LLM(path) as llm:
        found = llm.embed(TEXTS, truncate=True).vectors.astype(np.float64)
        assert np.abs(found - VECTORS).max() < 1e-4
        one_by_one = [llm.embed(text, truncate=True).vectors[0] for text in TEXTS]
        assert np.array_equal(found.astype(np.float32), one_by_one)


@pytest.mark.model
def test_in_eight_bits_it_is_about_as_close_as_the_weights_allow(path):
    """Rounded weights alone take the cosine to 0.9998."""
    with LLM(path, quantize="q8_0") as llm:
        found = llm.embed(TEXTS, truncate=True).vectors.astype(np.float64)
        assert cosines(found).min() > 0.998
        assert np.median(cosines(found)) > 0.9995
