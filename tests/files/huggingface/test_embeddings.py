"""Vectors of texts from folders: against transformers; what sentence-transformers has said."""

import json
import os

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute.backends.cpu import tiers
from cutaway.compute.loading.open import open_model
from cutaway.errors import FormatError
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch

from support.random_models import ENCODERS, FAMILIES, IDS, save
from support.tiny_tokenizers import wordpiece

DECODERS = ("llama", "qwen3", "gemma3", "gpt2")
TEXTS = [IDS, IDS[:7], IDS[3:50], IDS[:64], IDS[1:2]]


@pytest.fixture(scope="module")
def bodies(tmp_path_factory):
    """By model: the folder of its body alone, and transformers' last rows of IDS."""
    made = {}

    def body(name):
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            model = save(name, path).base_model
            if name in ENCODERS:  # the others need the head to be written with
                model.save_pretrained(path)
            with torch.no_grad():
                made[name] = path, model(torch.tensor([IDS])).last_hidden_state[0].numpy()
        return made[name]

    return body


def pooled(rows, pooling):
    return {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_s_vectors_are_those_of_transformers(bodies, name, pooling):
    path, rows = bodies(name)
    llm = LLM(path, backend="reference")
    found = llm.embed(IDS, pooling, normalize=False).vectors[0]
    assert np.abs(found - pooled(rows, pooling)).max() < 1e-3
    unit = llm.embed([IDS], pooling).vectors[0].astype(np.float64)
    assert np.abs(unit - found / np.linalg.norm(found.astype(np.float64))).max() < 1e-6


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_s_vectors_are_those_of_transformers(bodies, name, pooling):
    path, rows = bodies(name)
    found = LLM(path, backend="reference").embed(IDS, pooling, normalize=False)
    assert np.abs(found.vectors[0] - pooled(rows, pooling)).max() < 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_head_reads_has_the_bits_that_a_look_finds(tmp_path, name):
    """A plan that ends before the head, against the one whose every tensor can be read."""
    save(name, tmp_path)
    llm = LLM(tmp_path, threads=2)
    graph, found = llm.graph, llm.embed(IDS[:40], "last", normalize=False).vectors[0]
    reads = graph.body().ops[-1].out.name
    row = llm.row(IDS[:40], [reads], {})
    assert np.array_equal(row.tensors[reads].reshape(-1), found)
    assert graph.has_head


@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_bits_are_the_same_over_company_threads_tiers_and_files(
    bodies, name, quantize, monkeypatch, tmp_path
):
    path, _ = bodies(name)
    with LLM(path, threads=2, quantize=quantize) as llm:
        expected = np.concatenate([llm.embed([text]).vectors for text in TEXTS])
        assert np.array_equal(llm.embed(TEXTS).vectors, expected)
    with LLM(path, threads=3, quantize=quantize, max_num_seqs=2) as llm:
        assert np.array_equal(llm.embed(TEXTS[::-1]).vectors[::-1], expected)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    with LLM(tmp_path / "one.gguf", quantize=quantize) as llm:
        assert np.array_equal(llm.embed(TEXTS).vectors, expected)
    for tier in tiers():
        monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
        with LLM(path, threads=1, quantize=quantize) as llm:
            assert np.array_equal(llm.embed(TEXTS).vectors, expected), tier


@pytest.mark.parametrize("name", ENCODERS)
def test_a_body_without_its_head_says_what_it_can_do(bodies, name):
    llm = LLM(bodies(name)[0])
    asks = (
        lambda: llm.generate(IDS[:5]),
        lambda: llm.fill("a [MASK]"),
        lambda: llm.pseudo_likelihood("a"),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.logits(IDS[:5]),
        lambda: llm.row(IDS[:5], [], {}),
    )
    for ask in asks:
        with pytest.raises(InputError, match="no head that predicts tokens: it makes vectors"):
            ask()


# -- what sentence-transformers writes beside a model ------------------------------------------

MODULES = ("Transformer", "Pooling", "Normalize")


def sentences(path, modules=MODULES, pooling=None, own=None, prompts=None):
    """The files of sentence-transformers, beside a body with a tokenizer."""
    kinds = [{"path": f"{i}_{kind}" if i else "", "type": f"a.b.{kind}"}
             for i, kind in enumerate(modules)]  # fmt: skip
    (path / "modules.json").write_text(json.dumps(kinds))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {}))
    (path / "sentence_bert_config.json").write_text(json.dumps(own or {}))
    (path / "config_sentence_transformers.json").write_text(json.dumps(prompts or {}))
    return path


@pytest.fixture
def folder(tmp_path):
    save("bert", tmp_path, tokenizer=wordpiece).base_model.save_pretrained(tmp_path)
    return tmp_path


CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("modules", "pooling", "found"),
    [
        (MODULES, None, ("mean", True)),
        (MODULES[:2], {"pooling_mode_mean_tokens": True}, ("mean", False)),
        (MODULES, CLS, ("cls", True)),
        (MODULES, {"pooling_mode": "lasttoken"}, ("last", True)),
        (MODULES, {"pooling_mode": "cls"}, ("cls", True)),
    ],
)
def test_the_files_say_how(folder, modules, pooling, found):
    asked = LLM(sentences(folder, modules, pooling)).embed("a b")
    assert (asked.pooling, asked.normalized) == found
    assert asked.says == ("files", "files")
    with open_model(folder) as model:
        write_gguf(folder / "one.gguf", model)
    with LLM(folder / "one.gguf") as llm:
        assert np.array_equal(llm.embed("a b").vectors, asked.vectors)
        assert llm.embed("a b").how() == asked.how()


def test_where_no_file_says_how(folder, tiny_path):
    asked = LLM(folder).embed("a")
    assert (asked.pooling, asked.normalized, asked.says) == ("mean", True, ("default",) * 2)
    asked = LLM(tiny_path).embed("a", normalize=False)
    assert (asked.pooling, asked.normalized) == ("last", False)
    assert asked.says == ("default", "asked")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"pooling": {"pooling_mode_max_tokens": True}}, "pooling by mean and max"),
        ({"pooling": {"pooling_mode": "weightedmean"}}, "pooling by weightedmean"),
        ({"pooling": {"include_prompt": False}}, "pooling by the rows behind a prompt"),
        ({"modules": (*MODULES[:2], "Dense")}, "the module Dense"),
        ({"own": {"do_lower_case": True}}, "do_lower_case"),
        ({"prompts": {"default_prompt_name": "query"}}, "a prompt in front of each text"),
    ],
)
def test_what_is_not_supported_is_said_when_vectors_are_wanted(folder, given, what):
    llm = LLM(sentences(folder, **given))
    with pytest.raises(InputError, match=f"ask for {what}.*, which is not supported: name pooling"):
        llm.embed("a")
    assert llm.embed("a", "mean").says[0] == "asked"


@pytest.mark.parametrize("text", ["{}x", "{}", "[1]", '[{"path": "../x", "type": "a.Pooling"}]'])
def test_a_list_of_modules_that_is_none_is_refused(folder, text):
    sentences(folder)
    (folder / "modules.json").write_text(text)
    if text == "{}":
        assert LLM(folder).embed("a").says[0] == "default"
        return
    with pytest.raises(FormatError, match="modules"):
        LLM(folder)


def test_a_text_that_is_none_or_too_long_is_refused_by_its_place_or_cut(folder):
    llm = LLM(sentences(folder, own={"max_seq_length": 9}))
    text = "a b " * 4  # with what is around them 10
    with pytest.raises(InputError, match=r"texts\[1\] has 10 tokens, and the model reads 9: "):
        llm.embed(["a", text])
    cut = llm.embed(["a", text], truncate=True)
    assert (cut.tokens, cut.truncated) == ((3, 9), (1,))
    with pytest.raises(InputError, match=r"texts\[1\] must be a string or a list of token ids"):
        llm.embed(["a", 3.5])
    ids = llm.tokenize(text)
    assert np.array_equal(cut.vectors[1], llm.embed([[*ids[:8], ids[-1]]]).vectors[0])
    assert llm.embed([ids], truncate=True).truncated == (0,)


def test_a_file_as_llama_cpp_converts_it_has_the_same_vectors(folder):
    """It names [CLS] so, says nothing of framing, and has no keys of ours."""
    sentences(folder, pooling=CLS)
    expected = LLM(folder).embed(["a b", "the quick"])
    with open_model(folder) as model:
        metadata = {k: v for k, v in model.metadata.items() if "cutaway" not in k}
        for name in ("add_bos_token", "add_sep_token"):
            del metadata[f"tokenizer.ggml.{name}"]
        metadata["tokenizer.ggml.cls_token_id"] = metadata.pop("tokenizer.ggml.bos_token_id")
        model.metadata = metadata
        write_gguf(folder / "one.gguf", model)
    with LLM(folder / "one.gguf") as llm:
        found = llm.embed(["a b", "the quick"])
        assert np.array_equal(found.vectors, expected.vectors)
        assert (found.pooling, found.says) == ("cls", ("files", "default"))
        assert metadata["tokenizer.ggml.token_type_count"] == 2
