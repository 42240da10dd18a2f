"""Why two texts are near: shares of tokens that add up to the cosine, and words left out."""

import numpy as np
import pytest

from cutaway import LLM, InputError

FIRST, SECOND = "the quick brown fox", "a lazy dog and the fox"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    from support.random_models import save
    from support.tiny_tokenizers import wordpiece

    path = tmp_path_factory.mktemp("near")
    save("bert", path, tokenizer=wordpiece).base_model.save_pretrained(path)
    return LLM(path)


def test_shares_add_up_to_the_cosine_of_the_vectors(encoder):
    found = encoder.near(FIRST, SECOND)
    vectors = encoder.embed([FIRST, SECOND], normalize=False)
    assert found.cosine == pytest.approx(vectors.similarities()[0, 1], abs=1e-7)
    assert found.shares.sum() == pytest.approx(found.cosine, abs=1e-12)
    assert found.shares.shape == vectors.tokens
    for sums in found.of_tokens():
        assert sum(sums) == pytest.approx(found.cosine, abs=1e-12)
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
    assert one.cosine == pytest.approx(rest, abs=1e-7)
    assert encoder.near(FIRST, SECOND, words=False).left_out == ()


def test_bits_are_the_same_for_any_threads(encoder):
    found = encoder.near(FIRST, SECOND)
    with LLM(encoder.model.path, threads=1) as llm:
        again = llm.near(FIRST, SECOND)
    assert np.array_equal(again.shares, found.shares)
    assert again.left_out == found.left_out


def test_a_model_that_does_not_pool_by_the_mean_is_refused(tiny_path):
    with pytest.raises(InputError, match="no mean of its tokens' rows"):
        LLM(tiny_path).near("a", "b")
