"""``cutaway embed``: how alike texts are, their vectors, and what is refused."""

import json
from functools import partial

import numpy as np
import pytest

from cutaway import LLM


@pytest.fixture
def embed(printed, tiny_path):
    return partial(printed, "embed", "-q", "-m", tiny_path)


def test_json_has_the_vectors_of_python_and_how_they_came_about(embed, tiny_path):
    found = json.loads(embed("ab", "ba a", "--json", "--pooling", "mean", "--dimensions", "7"))
    with LLM(tiny_path) as llm:
        expected = llm.embed(["ab", "ba a"], "mean", dimensions=7)
    assert np.array_equal(np.array(found.pop("vectors"), np.float32), expected.vectors)
    assert found == {"model": "tiny", **expected.how(), "tokens": [*expected.tokens]}
    assert expected.similarities().diagonal() == pytest.approx([1, 1])


def test_texts_are_shown_with_each_other(embed, tiny_path):
    out = embed("ab", "ba a", "ab")
    with LLM(tiny_path) as llm:
        alike = llm.embed(["ab", "ba a", "ab"]).similarities()
    header, *rows = out.splitlines()[:4]
    assert header.split() == ["cosine", "1", "2", "3"]
    for row, expected in zip(rows, alike, strict=True):
        assert row.split()[-3:] == [f"{one:.3f}" for one in expected]
    assert "32 numbers each; pooling: last (by default); length 1 (by default)" in out


def test_of_many_texts_each_is_shown_with_its_nearest(embed, tmp_path):
    lines = ["a" * i for i in range(1, 14)]
    (tmp_path / "texts").write_text("\n".join([*lines, "", "aa"]))
    out = embed("--file", tmp_path / "texts")
    rows = [line.split() for line in out.splitlines()[1:15]]
    assert rows[1] == ["2", "'aa'", "1.000", "14", "'aa'"]
    assert rows[13] == ["14", "'aa'", "1.000", "2", "'aa'"]
    assert all(row[0] != row[3] for row in rows)


def test_standard_input_is_a_text_a_line(embed):
    found = json.loads(embed("--json", "--no-normalize", stdin=b"ab\nba\n"))
    assert len(found["vectors"]) == 2
    assert found["normalized"] is False


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["a", "--pooling", "max"], "pooling must be one of mean, cls, last"),
        (["a", "--dimensions", "0"], "dimensions must be between 1 and 32"),
        (["a", "--file", "x"], "leave out one of the two"),
        (["--file", "no-such-file"], "cannot be read: No such file"),
        (["a" * 600], "texts[0] has 601 tokens, and the model reads 512: shorten it"),
    ],
)
def test_what_cannot_be_is_one_sentence(refused, tiny_path, args, sentence):
    assert sentence in refused("embed", "-q", "-m", tiny_path, *args)


def test_a_text_that_is_too_long_is_cut_where_that_is_asked(embed):
    assert embed("a" * 600, "ab", "--truncate").rstrip().endswith("; cut: 1")
