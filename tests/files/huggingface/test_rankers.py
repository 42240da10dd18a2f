"""Heads that score pairs of texts: against transformers; the same bits however they are asked."""

import os
import shutil

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.compute.backends.cpu import tiers
from cutaway.compute.loading.open import open_model
from cutaway.features.inside.texts import text_attention
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch
import transformers
from tokenizers import Tokenizer

from support.families.encoders import RANKERS
from support.random_models import edit, row, save, save_row
from support.tiny_tokenizers import modern_bert, roberta, wordpiece

QUERY = "the quick brown fox"
DOCUMENTS = ["jumps over the lazy dog", "a glass of milk and a cup of tea", "paris", "the " * 90]
WORDS = ("bert", "distilbert", "electra", "albert", "nomic_bert")
TYPED = ("bert", "electra", "albert", "nomic_bert")  # a vector for each of the two texts


def tokenizer(name):
    kind = name.removeprefix("rank-")
    return wordpiece if kind in WORDS else modern_bert if "modern" in kind else roberta


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By name: the folder, and transformers' scores of the documents."""
    known = {}

    def one(name):
        if name not in known:
            path = tmp_path_factory.mktemp(name)
            model = save(name, path, tokenizer=tokenizer(name))
            known[name] = path, theirs(name, path, model)
        return known[name]

    return one


def theirs(name, path, model):
    scores, library = [], Tokenizer.from_file(str(path / "tokenizer.json"))
    for document in DOCUMENTS:
        pair = library.encode(QUERY, document)
        asked = {"input_ids": torch.tensor([pair.ids])}
        if name.removeprefix("rank-") in TYPED:
            asked["token_type_ids"] = torch.tensor([pair.type_ids])
        with torch.no_grad():
            scores.append(model(**asked).logits[0, 0].item())
    return np.array(scores)


def scores(found):
    return np.array([one.score for one in sorted(found.results, key=lambda one: one.index)])


@pytest.mark.parametrize("name", RANKERS)
def test_scores_are_those_of_transformers(made, name):
    path, expected = made(name)
    found = LLM(path, backend="reference").rerank(QUERY, DOCUMENTS)
    assert found.method == "head"
    assert np.abs(scores(found) - expected).max() < 1e-4
    assert [one.index for one in found.results] == np.argsort(-expected).tolist()
    for one in found.results:
        assert one.relevance == pytest.approx(1 / (1 + np.exp(-one.score)))
    assert np.abs(scores(LLM(path).rerank(QUERY, DOCUMENTS)) - expected).max() < 0.02


@pytest.mark.parametrize("name", ["rank-bert", "rank-modernbert", "rank-mpnet"])
def test_bits_are_the_same_over_company_threads_tiers_and_files(made, name, monkeypatch, tmp_path):
    path, _ = made(name)
    with LLM(path, threads=2) as llm:
        expected = [llm.rerank(QUERY, [one]).results[0].score for one in DOCUMENTS]
        assert scores(llm.rerank(QUERY, DOCUMENTS)).tolist() == expected
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    for tier in tiers():
        monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
        with LLM(tmp_path / "one.gguf", threads=1) as llm:
            assert scores(llm.rerank(QUERY, DOCUMENTS)).tolist() == expected, tier


def test_a_head_says_what_it_cannot_do(made):
    llm = LLM(made("rank-bert")[0])
    with pytest.raises(InputError, match="for rerank: name pooling to have vectors of its body"):
        llm.embed("a")
    assert llm.embed("a", "mean").vectors.shape == (1, 64)
    with pytest.raises(InputError, match="no head that predicts tokens"):
        llm.fill("a [MASK]")
    for asked, sentence in (
        ({"documents": "a"}, "documents must be a list of texts, not"),
        ({"documents": ["a", 3]}, r"documents\[1\] must be a string, not 3"),
        ({"query": 3}, "query must be a string, not 3"),
        ({"method": "cosine"}, "method: 'cosine' is not what this model has: head"),
        ({"instruction": "x"}, "instruction: a model that ranks by head is asked nothing"),
        ({"top": 0}, "top must be 1 or more, not 0"),
        ({"documents": ["a " * 300]}, r"documents\[0\] and the query have 30\d tokens together"),
    ):
        with pytest.raises(InputError, match=sentence):
            llm.rerank(**({"query": "a", "documents": ["b"]} | asked))


@pytest.mark.parametrize(
    "name", ["rank-xlm-roberta", "rank-modernbert", "rank-deberta", "rank-mpnet"]
)
def test_attention_in_both_texts_is_transformers(made, name):
    path = made(name)[0]
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(path, attn_implementation="eager").eval()
    with LLM(path, backend="reference") as llm:
        [found] = text_attention(llm, QUERY, DOCUMENTS[0])
    ids = torch.tensor([found.token_ids])
    with torch.no_grad():
        asked = model(input_ids=ids, attention_mask=torch.ones_like(ids), output_attentions=True)
    theirs = np.array([layer[0].numpy() for layer in asked.attentions])
    assert found.weights.shape == theirs.shape
    assert np.abs(found.weights - theirs).max() < 1e-5
    assert found.mean == pytest.approx(theirs.mean(axis=(0, 1)), abs=1e-5)


def test_a_long_document_is_cut_where_asked(made):
    llm = LLM(made("rank-bert")[0])
    found = llm.rerank("the", ["the", "the " * 400], truncate=True, top=1)
    assert found.cut == (1,)
    assert len(found.results) == 1
    assert found.tokens == 256 + 5


def test_a_head_of_several_classes_ranks_nothing(tmp_path):
    save("rank-bert", tmp_path, tokenizer=wordpiece)
    from safetensors.numpy import load_file, save_file

    held = load_file(tmp_path / "model.safetensors")
    for end in ("weight", "bias"):
        held[f"classifier.{end}"] = np.concatenate([held[f"classifier.{end}"]] * 3)
    save_file(held, tmp_path / "model.safetensors")
    edit(tmp_path / "config.json", num_labels=3)
    with pytest.raises(InputError, match="tells 3 classes apart: it ranks no documents"):
        LLM(tmp_path).rerank("a", ["b"])


@pytest.fixture(scope="module")
def of_two_classes(tmp_path_factory):
    """A folder of a head with two classes, and transformers' logits of the documents."""
    path = tmp_path_factory.mktemp("two")
    made = row("rank-bert")
    values = {**made.values, "num_labels": 2}
    model = save_row(made._replace(values=values), path, "float32", wordpiece())
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    found = []
    for pair in (library.encode(QUERY, document) for document in DOCUMENTS):
        asked = {"input_ids": [pair.ids], "token_type_ids": [pair.type_ids]}
        with torch.no_grad():
            logits = model(**{name: torch.tensor(ids) for name, ids in asked.items()}).logits
        found.append(logits[0].numpy())
    return path, np.array(found)


@pytest.mark.parametrize(("labels", "relevant"), [
    (None, 1), (["LABEL_0", "LABEL_1"], 1), (["yes", "no"], 0), (["Not relevant", "Relevant"], 1),
    (["positive", "negative"], 0), (["other", "match"], 1),
])  # fmt: skip
def test_of_two_classes_the_relevant_one_counts(of_two_classes, tmp_path, labels, relevant):
    path, logits = of_two_classes
    shutil.copytree(path, tmp_path, dirs_exist_ok=True)
    named = None if labels is None else {str(i): label for i, label in enumerate(labels)}
    edit(tmp_path / "config.json", id2label=named, label2id=None)
    expected = logits[:, relevant] - logits[:, 1 - relevant]
    with LLM(tmp_path, backend="reference") as llm:
        assert np.abs(scores(llm.rerank(QUERY, DOCUMENTS)) - expected).max() < 1e-4
    with open_model(tmp_path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    with LLM(tmp_path / "one.gguf", backend="reference") as llm:
        assert np.abs(scores(llm.rerank(QUERY, DOCUMENTS)) - expected).max() < 1e-4


@pytest.mark.parametrize("labels", [["toxic", "fine"], ["yes", "true"]])
def test_two_classes_neither_or_both_of_which_are_relevant_rank_nothing(
    of_two_classes, tmp_path, labels
):
    shutil.copytree(of_two_classes[0], tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "config.json", id2label={str(i): label for i, label in enumerate(labels)})
    sentence = f"tells '{labels[0]}' from '{labels[1]}', and not which .*: it ranks no documents"
    with pytest.raises(InputError, match=sentence):
        LLM(tmp_path).rerank("a", ["b"])


def test_labels_have_the_numbers_of_classes(of_two_classes, tmp_path):
    shutil.copytree(of_two_classes[0], tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "config.json", id2label={"1": "a", "2": "b"})
    with pytest.raises(FormatError, match=r"config\.json: id2label is .* by numbers from 0 on"):
        LLM(tmp_path)


@pytest.mark.parametrize(("most", "tokens"), [(20, 20), (10**30, 97), (None, 97)])
def test_a_pair_is_as_long_as_the_tokenizer_says(made, tmp_path, most, tokens):
    """Of the query's 4 words, the document's 90 and what is between, and around them."""
    shutil.copytree(made("rank-bert")[0], tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "tokenizer_config.json", model_max_length=most)
    with LLM(tmp_path) as llm:
        assert llm.rerank(QUERY, ["the " * 90], truncate=True).tokens == tokens
        if most == 20:
            with pytest.raises(InputError, match="tokens together, and the model reads 20"):
                llm.rerank(QUERY, ["the " * 90])


def test_a_model_that_writes_is_asked_and_one_of_vectors_compares(tiny_path, tmp_path):
    save("bert", tmp_path, tokenizer=wordpiece).base_model.save_pretrained(tmp_path)
    llm = LLM(tmp_path)
    found = llm.rerank("the fox", ["the fox", "a dog"])
    assert found.method == "cosine"
    assert found.results[0].index == 0
    assert found.results[0].relevance == pytest.approx(1, abs=1e-6)
    asked = LLM(tiny_path).rerank("a", ["b", "c"], instruction="d")
    assert asked.method == "answers"
    assert all(0 < one.relevance < 1 for one in asked.results)
