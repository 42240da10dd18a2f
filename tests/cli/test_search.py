"""``cutaway embed``, ``search``, ``rerank`` and ``near`` on a model of vectors."""

import io
import json
from functools import partial
from zipfile import ZipFile

import numpy as np
import pytest

from cutaway import LLM
from cutaway.errors import FormatError, InputError
from cutaway.methods.index import Index, Passage, passages
from support.random_llama import write_tiny_late

TEXTS = ["ab", "ba a", "b b b", "aab"]


@pytest.fixture
def files(tmp_path):
    """Two files of paragraphs."""
    (tmp_path / "one.txt").write_text("ab\n\nba a\n")
    (tmp_path / "two.txt").write_text("\n\nb b b\n\naab")
    return tmp_path


@pytest.fixture
def index(printed, files, tiny_path):
    out = files / "i.npz"
    names = files / "one.txt", files / "two.txt"
    said = printed("embed", "-q", "-m", tiny_path, *names, "--out", out)
    assert said == f"{out}: 4 passages of 2 files, 32 numbers each\n"
    assert not (files / "i.npz.part").exists()
    return out


def test_an_index_has_the_vectors_of_python_and_where_texts_stand(index, files, tiny_path):
    found = Index.open(index)
    with LLM(tiny_path) as llm:
        assert np.array_equal(found.vectors, llm.embed(TEXTS, normalize=True).vectors)
    places = [(one.text, one.file.rpartition("/")[2], one.line) for one in found.passages]
    assert [one[1:] for one in places] == [
        ("one.txt", 1), ("one.txt", 3), ("two.txt", 3), ("two.txt", 5),
    ]  # fmt: skip
    assert [one[0] for one in places] == TEXTS


def test_a_search_is_the_cosines_in_order(printed, index, tiny_path):
    said = json.loads(printed("search", "-q", index, "aab", "--top", "3", "--json"))
    with LLM(tiny_path) as llm:
        vectors = llm.embed(["aab", *TEXTS], normalize=True).vectors.astype(float)
    cosines = vectors[1:] @ vectors[0]
    order = np.argsort(-cosines)[:3]
    assert [one["text"] for one in said["results"]] == [TEXTS[i] for i in order]
    assert [one["cosine"] for one in said["results"]] == pytest.approx(cosines[order].tolist())
    shown = printed("search", "-q", index, "aab", "--top", "1", "--rerank", tiny_path)
    assert shown.splitlines()[0].split() == ["relevance", "cosine", "where", "passage"]
    assert "of 4 passages, by " in shown


def test_late_interaction_ranks_what_was_found(printed, index, files):
    late = write_tiny_late(files / "late.gguf")
    said = json.loads(printed("search", "-q", index, "aab", "--rerank", late, "--json"))
    with LLM(late) as llm:
        expected = llm.rerank("aab", TEXTS, truncate=True)
        query = llm.embed_tokens(["ab", "b"], "query", 3)
    assert [one["text"] for one in said["results"]] == [
        TEXTS[one.index] for one in expected.results
    ]
    assert [one["relevance"] for one in said["results"]] == [
        one.relevance for one in expected.results
    ]
    asked = ("embed", "-q", "-m", late, "ab", "b", "--prompt", "query", "--dimensions", "3")
    found = json.loads(printed(*asked, "--json"))
    assert found["vectors"] == [one.tolist() for one in query.vectors]
    assert found["kind"] == "query"
    shown = printed(*asked).splitlines()
    assert shown[1].split() == ["'ab'", "10", "10", "×", "3"]
    assert shown[-1].startswith("a vector for each token, read as query")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["ab", "--prompt", "text"], "--prompt must be one of query, document, not 'text'"),
        (["ab", "--no-normalize"], "--normalize: vectors of tokens always have length 1"),
        (["one.txt", "--out", "late.npz"], "--out: an index has one vector a text"),
    ],
)
def test_what_late_interaction_refuses(refused, files, args, sentence, monkeypatch):
    monkeypatch.chdir(files)
    write_tiny_late(files / "late.gguf")
    assert sentence in refused("embed", "-q", "-m", "late.gguf", *args)


def test_what_was_stopped_goes_on_and_other_work_begins_anew(tiny_path, tmp_path, monkeypatch):
    monkeypatch.setattr("cutaway.methods.index._AT_ONCE", 2)
    texts, part = [Passage(text) for text in TEXTS], tmp_path / "part"
    asked = []
    with LLM(tiny_path) as llm:
        whole = Index.build(llm, texts)

        def stop(done):
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Index.build(llm, texts, part=part, progress=stop)
        with part.open("ab") as out:  # cut in the middle of a row
            out.write(b"xyz")
        found = Index.build(llm, texts, part=part, progress=asked.append)
        assert asked == [2, 4]
        assert np.array_equal(found.vectors, whole.vectors)
        other = [*texts[:3], Passage("bb")]
        asked.clear()
        Index.build(llm, other, part=part, progress=asked.append)
        assert asked == [0, 2, 4]


def test_paragraphs_that_are_long_are_parted(tmp_path):
    (tmp_path / "x").write_text("aa bb\ncc dd\n\nee " + "f" * 9)
    found = [(one.text, one.line) for one in passages(tmp_path / "x", max_length=8)]
    assert found == [("aa bb", 1), ("cc dd", 2), ("ee fffff", 4), ("ffff", 4)]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["embed", "--out", "i.npz"], "--out: name the files whose paragraphs are to be indexed"),
        (["embed", "no-such", "--out", "i.npz"], "no-such cannot be read: No such file"),
        (["embed", "a", "--out", "i.npz", "--json"], "--json: an index is made as the model's"),
        (["search", "no-such", "a"], "no-such: there is no such file"),
        (["search", "no-such", "a", "--top", "0"], "--top must be 1 or more, not 0"),
        (["rerank", "a"], "there is no document: give one or more"),
        (["near", "a", "b", "--method", "head"], "is not what this model has: answers, cosine"),
    ],
)
def test_what_cannot_be_is_one_sentence(refused, tiny_path, args, sentence):
    assert sentence in refused(*args, "-q", "-m", tiny_path)


def test_a_file_that_is_no_index_or_of_another_model_is_refused(index, tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\3\4 no")
    with pytest.raises(FormatError, match="is no index of cutaway"):
        Index.open(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", vectors=np.zeros(3))
    with pytest.raises(FormatError, match="is no index of cutaway"):
        Index.open(tmp_path / "y.npz")
    boast = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        boast, {"descr": "<f4", "fortran_order": False, "shape": (10**13, 1)}
    )
    with ZipFile(index) as whole, ZipFile(tmp_path / "z.npz", "w") as file:
        for name in whole.namelist():
            file.writestr(name, boast.getvalue() if name == "vectors.npy" else whole.read(name))
    with pytest.raises(FormatError, match="vectors says that it has 40000000000000 bytes, and the"):
        Index.open(tmp_path / "z.npz")
    found = Index.open(index)
    found.about["weights"] = "0"
    with LLM(found.about["model"]) as llm, pytest.raises(InputError, match="has other weights"):
        found.check(llm)


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        ("vectors", np.full((6, 32), np.nan, np.float32), "vectors hold what is not finite"),
        ("vectors", np.zeros((6, 32)), "vectors is an array of float64 with 2 dimensions"),
        ("texts", np.array("x"), "texts is an array of <U1 with 0 dimensions"),
        ("lines", np.zeros(6, "M8[s]"), r"lines is an array of datetime64\[s\] with 1 dimensions"),
        ("files", b"[1, 2, 3, 4, 5, 6]", "files must be a list of texts"),
        ("about", b'"\\u001b"', "about must have the fields model, weights, arithmetic"),
        ("about", {"dimensions": "x"}, "about: dimensions is 'x'"),
        ("about", {"model": 3}, "about: model is 3"),
        ("about", {"weights": None}, "about: weights is None"),
    ],
)
def test_a_part_of_another_type_is_refused(index, tmp_path, name, array, sentence):
    with np.load(index) as whole:
        arrays = dict(whole)
    if isinstance(array, dict):
        array = json.dumps(json.loads(arrays[name].tobytes()) | array).encode()
    arrays[name] = np.frombuffer(array, np.uint8) if isinstance(array, bytes) else array
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(FormatError, match=f"is no index of cutaway: {sentence}"):
        Index.open(tmp_path / "x.npz")


def test_a_compressed_or_encrypted_one_is_refused(index, tmp_path):
    with np.load(index) as whole:
        np.savez_compressed(tmp_path / "x.npz", **whole)
    with pytest.raises(FormatError, match="vectors is compressed"):
        Index.open(tmp_path / "x.npz")
    raw = index.read_bytes()
    at = raw.index(b"PK\1\2")
    for place, byte, why in ((6, 95, "version 9.5"), (8, 1, "encrypted")):
        changed = bytearray(raw)
        changed[at + place] = byte
        (tmp_path / "x.npz").write_bytes(changed)
        with pytest.raises(FormatError, match=why):
            Index.open(tmp_path / "x.npz")


def test_a_long_header_is_not_quoted_whole(index, tmp_path):
    with ZipFile(index) as whole, ZipFile(tmp_path / "x.npz", "w") as file:
        for name in whole.namelist():
            head = b"\x93NUMPY\1\0\x10\x27" + b"x" * 10_000
            file.writestr(name, head if name == "lines.npy" else whole.read(name))
    with pytest.raises(FormatError) as error:
        Index.open(tmp_path / "x.npz")
    assert len(str(error.value)) < len(str(tmp_path)) + 400


def test_documents_are_ordered(printed, tiny_path):
    said = json.loads(
        printed("rerank", "-q", "-m", tiny_path, "ab", *TEXTS, "--json", "--top", "2")
    )
    with LLM(tiny_path) as llm:
        expected = llm.rerank("ab", TEXTS, top=2)
    assert said["results"] == expected.to_dict()["results"]
    assert said["documents"] == [TEXTS[one.index] for one in expected.results]
    shown = printed("rerank", "-q", "-m", tiny_path, "ab", *TEXTS)
    assert 'relevance: the probability of "yes"' in shown


def test_near_prints_the_score_its_shares_and_the_words_left_out(printed, tmp_path):
    path = write_tiny_late(tmp_path / "late.gguf")
    with LLM(path) as llm:
        found = llm.near("ab ba", "b ab bb")
    assert json.loads(printed("near", "-q", "-m", path, "ab ba", "b ab bb", "--json")) == {
        "model": llm.name, **found.to_dict(),
    }  # fmt: skip
    lines = printed("near", "-q", "-m", path, "ab ba", "b ab bb", "--top", "1").splitlines()
    assert lines[0] == f"MaxSim {found.score:.4f}"
    assert lines[3].split()[0] == f"{found.pairs(1)[0][2]:+.4f}"
    least = min(found.left_out, key=lambda one: one.score)
    at = next(i for i, line in enumerate(lines) if line.startswith("without"))
    assert lines[at + 1].split()[:2] == [f"{least.score:.4f}", f"{least.score - found.score:+.4f}"]


def test_near_of_a_model_that_is_asked_prints_no_shares(printed, tiny_path):
    said = printed("near", "-q", "-m", tiny_path, "ab ba", "b ab", "--instruction", "a")
    assert said.startswith("log P(yes) - log P(no) ")
    assert "share" not in said
    assert len(said.splitlines()) == 3 + 4


# -- ``cutaway embed``: how alike texts are, their vectors, and what is refused --------------------


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
def test_what_cannot_be_embedded_is_one_sentence(refused, tiny_path, args, sentence):
    assert sentence in refused("embed", "-q", "-m", tiny_path, *args)


def test_a_text_that_is_too_long_is_cut_where_that_is_asked(embed):
    assert embed("a" * 600, "ab", "--truncate").rstrip().endswith("; cut: 1")
