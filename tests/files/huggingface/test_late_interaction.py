"""Late interaction: folders of PyLate, ColBERT and sentence-transformers, against transformers."""

import json
import string
from types import SimpleNamespace

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.compute.loading.open import open_model
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.sentences import late_metadata
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from support.random_models import edit, save
from support.tiny_tokenizers import byte_level, modern_bert, with_begin, wordpiece

QUERY = "the quick fox?"
DOCUMENTS = ["the lazy dog, the dog.", "a glass of milk; tea", "paris", "?!", "the fox " * 20]
MARKERS = ("[Q] ", "[D] ")
PYLATE = {
    "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 12, "document_length": 24,
    "do_query_expansion": True, "attend_to_expansion_tokens": False,
    "skiplist_words": [*string.punctuation], "prompts": {}, "model_type": "ColBERT",
}  # fmt: skip


def with_markers(make):
    def made():
        tokenizer = make()
        tokenizer.add_tokens([AddedToken(one, normalized=False, special=True) for one in MARKERS])
        return tokenizer

    return made


TOKENIZERS = {
    "bert": lambda: wordpiece(360), "modernbert": lambda: modern_bert(360),
    **dict.fromkeys(("lfm2", "lfm2-encoder"), lambda: with_begin(byte_level(size=360))),
}  # fmt: skip


def folder(path, name="bert", *, residual=False, **changed):
    """As PyLate saves it: a body, a dense layer for each token, and what it says of texts."""
    model = save(name, path, tokenizer=with_markers(TOKENIZERS[name]))
    model.base_model.save_pretrained(path)
    modules = [("0", "", "sentence_transformers.models.Transformer"),
               ("1", "1_Dense", "pylate.models.Dense.Dense")]  # fmt: skip
    (path / "modules.json").write_text(
        json.dumps([{"name": n, "path": p, "type": t} for n, p, t in modules])
    )
    (path / "1_Dense").mkdir()
    torch.manual_seed(4)
    tensors = {"linear.weight": torch.randn(16, 64)}
    if residual:
        tensors["residual.weight"] = torch.randn(16, 64)
    save_file(tensors, path / "1_Dense" / "model.safetensors")
    dense = {"in_features": 64, "out_features": 16, "bias": False, "use_residual": residual,
             "activation_function": "torch.nn.modules.linear.Identity"}  # fmt: skip
    (path / "1_Dense" / "config.json").write_text(json.dumps(dense))
    said = PYLATE | changed
    (path / "config_sentence_transformers.json").write_text(json.dumps(said))
    return model.base_model, tensors, said


def theirs(path, model, tensors, said, text, *, is_query):
    """Of one text, as PyLate's encode has it: token ids, the rows kept, unit vectors."""
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    marker = library.token_to_id(said["query_prefix" if is_query else "document_prefix"])
    length = said["query_length" if is_query else "document_length"]
    library.enable_truncation(length - 1)
    ids = library.encode(text).ids
    ids = [ids[0], marker, *ids[1:]]
    mask = [1] * len(ids)
    if is_query and said["do_query_expansion"]:
        more = length - len(ids)
        filler = next(i for i in map(library.token_to_id, ("[MASK]", "</s>")) if i is not None)
        ids, mask = ids + [filler] * more, mask + [0] * more
        if said["attend_to_expansion_tokens"]:
            mask = [1] * len(ids)
    with torch.no_grad():
        rows = model(torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
        found = rows @ tensors["linear.weight"].T
        if "residual.weight" in tensors:
            found = found + rows @ tensors["residual.weight"].T
    skipped = {library.token_to_id(word) for word in said["skiplist_words"]}
    kept = [i for i, one in enumerate(ids) if is_query or one not in skipped]
    return ids, kept, torch.nn.functional.normalize(found[kept], dim=1).numpy()


def maxsim(query, document):
    return (query @ document.T).max(axis=1).sum() if len(document) else 0.0


CASES = {
    "bert": {}, "seen": {"attend_to_expansion_tokens": True}, "residual": {"residual": True},
    "plain": {"do_query_expansion": False}, "modernbert": {"name": "modernbert"},
    "lfm2": {"name": "lfm2", "do_query_expansion": False},
    "lfm2-seen": {"name": "lfm2", "attend_to_expansion_tokens": True},
    "lfm2-encoder": {"name": "lfm2-encoder"},  # convolutions read tokens that are not attended to
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_vectors_and_scores_are_those_of_transformers(tmp_path, case):
    made = folder(tmp_path, **CASES[case])
    llm = LLM(tmp_path, backend="reference")
    documents = llm.embed_tokens(DOCUMENTS, truncate=True)
    query = llm.embed_tokens(QUERY, "query")
    asked = [(query, 0, QUERY, True), *((documents, i, t, False) for i, t in enumerate(DOCUMENTS))]
    each = []
    for found, i, text, is_query in asked:
        ids, kept, vectors = theirs(tmp_path, *made, text, is_query=is_query)
        assert found.tokens[i] == len(ids)
        assert found.token_ids[i] == tuple(ids[row] for row in kept)
        assert np.abs(found.vectors[i] - vectors).max(initial=0) < 2e-5
        each.append(vectors)
    assert documents.truncated == (4,)
    expected = [maxsim(each[0], one) for one in each[1:]]
    assert query.maxsim(documents)[0] == pytest.approx(expected, abs=1e-4)
    assert query.nearest(0, documents, 0) == (each[0] @ each[1].T).argmax(axis=1).tolist()
    ranked = llm.rerank(QUERY, DOCUMENTS, truncate=True)
    assert ranked.method == "maxsim"
    assert [one.index for one in ranked.results] == np.argsort(-np.array(expected)).tolist()
    assert ranked.results[0].relevance == ranked.results[0].score / len(each[0])
    assert np.abs(LLM(tmp_path).embed_tokens(QUERY, "query").vectors[0] - each[0]).max() < 5e-3


@pytest.mark.parametrize("name", ["bert", "lfm2"])
def test_bits_are_the_same_over_company_threads_tiers_and_files(tmp_path, name, each_tier):
    folder(tmp_path, name, attend_to_expansion_tokens=name == "lfm2")
    with LLM(tmp_path, threads=2) as llm:
        expected = [llm.rerank(QUERY, [one], truncate=True).results[0].score for one in DOCUMENTS]
        alone = llm.embed_tokens(QUERY, "query").vectors[0]
        llm.embed_tokens(["the quick fox", QUERY], "query")
        assert np.array_equal(llm.embed_tokens(QUERY, "query").vectors[0], alone)
    with open_model(tmp_path) as opened:
        write_gguf(tmp_path / "one.gguf", opened)
    for tier in each_tier:
        with LLM(tmp_path / "one.gguf", threads=1) as llm:
            found = llm.rerank(QUERY, DOCUMENTS, truncate=True)
            scores = sorted((one.index, one.score) for one in found.results)
            assert [score for _, score in scores] == expected, tier


def test_a_file_of_llama_cpp_s_converter_lacks_the_settings(tmp_path):
    """It has the matrix as dense_2 and no pooling: no guess is made of what queries begin with."""
    folder(tmp_path, "lfm2-encoder")
    with open_model(tmp_path) as file:
        own = [key for key in file.metadata if key.startswith("cutaway.embedding.")]
        metadata = {key: value for key, value in file.metadata.items() if key not in own}
        write_gguf(tmp_path / "one.gguf", SimpleNamespace(
            metadata=metadata | {"lfm2.embedding_length_out": 16}, value_types=file.value_types,
            tensors=file.tensors, raw=file.raw,
        ))  # fmt: skip
    llm = LLM(tmp_path / "one.gguf", backend="reference")
    for ask in (lambda: llm.embed_tokens(QUERY, "query"), lambda: llm.rerank(QUERY, DOCUMENTS)):
        with pytest.raises(InputError, match="does not say how queries and documents are marked"):
            ask()
    with pytest.raises(InputError, match="the model makes a vector for each token"):
        llm.embed(QUERY)
    assert llm.embed(QUERY, "mean").vectors.shape == (1, 64)  # of the body


def test_colbert_s_own_folder(tmp_path):
    """Its matrix is among the body's, and artifact.metadata says what PyLate's file does."""
    model, tensors, said = folder(tmp_path)
    for name in ("modules.json", "config_sentence_transformers.json"):
        (tmp_path / name).unlink()
    weights = load_file(tmp_path / "model.safetensors")
    weights = {f"bert.{name}": tensor for name, tensor in weights.items()}
    save_file(weights | {"linear.weight": tensors["linear.weight"]}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    own = {"query_token_id": "[Q] ", "doc_token_id": "[D] ", "query_maxlen": 12, "doc_maxlen": 24}
    (tmp_path / "artifact.metadata").write_text(json.dumps(own))
    llm = LLM(tmp_path, backend="reference")
    _, _, vectors = theirs(tmp_path, model, tensors, said, QUERY, is_query=True)
    assert np.abs(llm.embed_tokens(QUERY, "query").vectors[0] - vectors).max() < 2e-5
    _, _, vectors = theirs(tmp_path, model, tensors, said, DOCUMENTS[0], is_query=False)
    assert np.abs(llm.embed_tokens(DOCUMENTS[0]).vectors[0] - vectors).max() < 2e-5


def test_what_sentence_transformers_saves(tmp_path):
    """Its own encoder of several vectors, which reads PyLate's folder and saves it in its way."""
    library = pytest.importorskip(
        "sentence_transformers", "6.0", reason="needs sentence-transformers 6"
    )
    (tmp_path / "pylate").mkdir()
    folder(tmp_path / "pylate")
    model = library.MultiVectorEncoder(str(tmp_path / "pylate"), device="cpu")
    model.save_pretrained(str(tmp_path / "own"))
    llm = LLM(tmp_path / "own", backend="reference")
    found = llm.embed_tokens(DOCUMENTS[:3])
    for one, vectors in zip(found.vectors, model.encode_document(DOCUMENTS[:3]), strict=True):
        assert np.abs(one - np.asarray(vectors)).max() < 2e-5
    vectors = np.asarray(model.encode_query([QUERY])[0])
    assert np.abs(llm.embed_tokens(QUERY, "query").vectors[0] - vectors).max() < 2e-5


def test_what_cannot_be_is_said(tmp_path):
    folder(tmp_path)
    llm = LLM(tmp_path)
    for ask, sentence in (
        (lambda: llm.embed("a"), "a vector for each token.*ask for embed_tokens or rerank"),
        (lambda: llm.embed_tokens("a", "both"), "kind must be one of query, document, not 'both'"),
        (lambda: llm.embed_tokens("the " * 30), r"texts\[0\] has 3\d tokens, and the model reads"),
        (lambda: llm.rerank("the " * 30, ["a"]), r"^query has 3\d tokens"),
        (lambda: llm.embed_tokens("a", dimensions=17), "dimensions"),
        (
            lambda: llm.near("a", "b", method="cosine"),
            "'cosine' is not what this model has: maxsim",
        ),
    ):
        with pytest.raises(InputError, match=sentence):
            ask()
    assert llm.embed("a", "mean").vectors.shape == (1, 64)
    assert llm.embed_tokens("a b", dimensions=4).vectors[0].shape[1] == 4


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"query_prefix": "[X] "}, r"query_prefix is '\[X\] '; it must be a token of the vocab"),
        ({"query_length": 0}, "query_length is 0; it must be a whole number from 1"),
        ({"skiplist_words": [3]}, "skiplist_words is .*; it must be a list of texts"),
        ({"do_query_expansion": "yes"}, "do_query_expansion is 'yes'; it must be true or false"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, changed, sentence):
    folder(tmp_path, **changed)
    with pytest.raises(FormatError, match=sentence):
        LLM(tmp_path)


def test_what_unseen_tokens_would_change_is_refused(tmp_path):
    folder(tmp_path / "state", "lfm2")
    with pytest.raises(InputError, match=r"query: .* layers with a recurrent state"):
        LLM(tmp_path / "state").rerank(QUERY, ["a"])
    folder(tmp_path / "window", "modernbert", query_length=40)
    sentence = r"^texts\[0\]: the query is filled with 3\d tokens, and a layer's window reaches 8"
    with pytest.raises(InputError, match=sentence):
        LLM(tmp_path / "window").embed_tokens("the", "query")


def test_convolutions_that_read_zeros_for_unseen_fillers_are_refused(tmp_path):
    folder(tmp_path, "lfm2-encoder")
    edit(tmp_path / "config.json", conv_zero_padding=True)
    with pytest.raises(FormatError, match=r"conv_zero_padding is True, .* not supported; where"):
        LLM(tmp_path)
    edit(tmp_path / "config_sentence_transformers.json", attend_to_expansion_tokens=True)
    assert LLM(tmp_path).embed_tokens("the", "query").tokens == (12,)


def test_a_model_of_one_vector_says_so(tmp_path):
    save("bert", tmp_path, tokenizer=wordpiece)
    with pytest.raises(InputError, match="was not made for late interaction"):
        LLM(tmp_path).embed_tokens("a")


def test_a_folder_whose_architectures_are_no_list_is_of_no_late_interaction(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": true}')
    config = JsonObject.read(tmp_path / "config.json")
    assert late_metadata(tmp_path, config, {"tokenizer.ggml.tokens": []}) == {}
