"""Vectors of texts from folders: against transformers; what sentence-transformers has said."""

import json

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute.loading.open import open_model
from cutaway.errors import FormatError
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch

from support.families.encoders import BODIES, ENCODERS
from support.lfm2_encoder import CHANGED
from support.random_models import FAMILIES, IDS, edit, row, save, save_row
from support.tiny_tokenizers import byte_level, wordpiece

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


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a @ b / np.sqrt((a @ a) * (b @ b))


@pytest.mark.parametrize("name", [*BODIES, *CHANGED])
def test_a_body_s_vectors_are_those_of_transformers(bodies, name):
    path, rows = bodies(name)
    found = LLM(path, backend="reference").embed(IDS, "mean", normalize=False).vectors[0]
    assert np.abs(found - rows.mean(axis=0)).max() < 1e-4
    assert cosine(found, rows.mean(axis=0)) > 1 - 1e-9
    assert cosine(LLM(path).embed(IDS, "mean").vectors[0], rows.mean(axis=0)) > 1 - 1e-5


def test_the_weighted_mean(bodies):
    path, rows = bodies("mpnet")
    weights = np.arange(1, len(rows) + 1)[:, None]
    found = LLM(path, backend="reference").embed(IDS, "weighted", normalize=False).vectors[0]
    assert np.abs(found - (rows * weights).sum(axis=0) / weights.sum()).max() < 1e-4


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_s_vectors_are_those_of_transformers(bodies, name, pooling):
    path, rows = bodies(name)
    found = LLM(path, backend="reference").embed(IDS, pooling, normalize=False)
    assert np.abs(found.vectors[0] - pooled(rows, pooling)).max() < 1e-3


def test_a_body_of_a_family_that_writes_makes_vectors_alone(tmp_path):
    """As e5-mistral's folder is: no output matrix, and none that is tied."""
    made = row("mistral")._replace(kind="AutoModel")
    model = save_row(made, tmp_path, "float32", byte_level())
    with torch.no_grad():
        rows = model(torch.tensor([IDS])).last_hidden_state[0].numpy()
    llm = LLM(tmp_path, backend="reference")
    found = llm.embed(IDS, normalize=False)
    assert found.pooling == "last"
    assert np.abs(found.vectors[0] - rows[-1]).max() < 1e-4
    with pytest.raises(InputError, match="no head that predicts tokens: it makes vectors"):
        llm.generate("a")
    native = LLM(tmp_path).embed(IDS).vectors
    with open_model(tmp_path) as model:
        write_gguf(tmp_path / "one.gguf", model)
    assert np.array_equal(LLM(tmp_path / "one.gguf").embed(IDS).vectors, native)
    for named in ["MistralForCausalLM"], ["MistralLMHeadModel"], []:
        edit(tmp_path / "config.json", architectures=named)
        with pytest.raises(FormatError, match="the files hold no output matrix"):
            LLM(tmp_path)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_head_reads_has_the_bits_that_a_look_finds(random_model, name):
    """A plan that ends before the head, against the one whose every tensor can be read."""
    llm = LLM(random_model(name)[0], threads=2)
    graph, found = llm.graph, llm.embed(IDS[:40], "last", normalize=False).vectors[0]
    reads = graph.body().ops[-1].out.name
    row = llm.row(IDS[:40], [reads], {})
    assert np.array_equal(row.tensors[reads].reshape(-1), found)
    assert graph.has_head


@pytest.mark.each_choice
@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS, "mpnet", "deberta", "gemma_embedding"])
def test_bits_are_the_same_over_company_threads_tiers_and_files(
    bodies, name, quantize, each_tier, tmp_path
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
    for tier in each_tier:
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
    (path / "1_Pooling").mkdir(exist_ok=True)
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
        ({"pooling": {"pooling_mode": "mean_sqrt_len"}}, "pooling by mean_sqrt_len"),
        ({"modules": (*MODULES[:2], "LSTM")}, "the module LSTM"),
    ],
)
def test_what_is_not_supported_is_said_when_vectors_are_wanted(folder, given, what):
    llm = LLM(sentences(folder, **given))
    with pytest.raises(InputError, match=f"ask for {what}.*, which is not supported: set pooling"):
        llm.embed("a")
    assert llm.embed("a", "mean").says[0] == "asked"


PROMPTS = {"prompts": {"query": "the query: ", "document": ""}}


def test_prompts_by_name(folder):
    llm = LLM(sentences(folder, prompts=PROMPTS | {"default_prompt_name": "query"}))
    asked, plain = llm.embed("a b"), llm.embed("a b", prompt="")
    assert (asked.prompt, plain.prompt) == ("query", "")
    assert np.array_equal(asked.vectors, llm.embed("the query: a b", prompt="document").vectors)
    assert not np.array_equal(asked.vectors, plain.vectors)
    with pytest.raises(InputError, match=r"prompt: .* none named 'other': 'query', 'document'"):
        llm.embed("a", prompt="other")


def test_a_prompt_s_own_rows_may_be_left_out(folder):
    llm = LLM(sentences(folder, pooling={"include_prompt": False}, prompts=PROMPTS))
    found = llm.embed("a b", prompt="query", normalize=False)
    rows = rows_of(llm, "the query: a b")
    before = len(llm.tokenize("the query: ")) - 1  # without the last [SEP]
    assert found.tokens == (len(rows),)
    assert np.abs(found.vectors[0] - rows[before:].mean(axis=0)).max() < 1e-5


def rows_of(llm, text):
    """The last layer's rows of a text."""
    from cutaway.engine import Embed, Request

    request = Request(prompt_token_ids=tuple(llm.tokenize(text)), decoder=Embed("rows"))
    llm.engine.add(request)
    events = []
    while not llm.engine.is_idle:
        events += llm.engine.step()
    return next(e.vector for e in events if type(e).__name__ == "Embedded")


def test_lower_case(folder):
    llm = LLM(sentences(folder, own={"do_lower_case": True}))
    assert np.array_equal(llm.embed("A B").vectors, llm.embed("a b").vectors)


def dense(path, number, out, width, activation="linear.Identity", bias=True):
    """A dense layer's folder, as sentence-transformers writes it; its matrix and bias."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(number)
    matrix = rng.normal(size=(out, width)).astype(np.float32) / 8
    held = {"linear.weight": matrix} | ({"linear.bias": matrix[:, 0].copy()} if bias else {})
    at = path / f"{number}_Dense"
    at.mkdir()
    save_file(held, at / "model.safetensors")
    config = {"activation_function": f"torch.nn.modules.{activation}"}
    (at / "config.json").write_text(json.dumps(config))
    return matrix, held.get("linear.bias", np.zeros(out, np.float32))


def test_dense_layers_after_pooling(folder):
    """As EmbeddingGemma and LaBSE have them; the same in one file, for any threads and company."""
    plain = LLM(folder, backend="reference").embed(["a b", "the quick"], "mean", normalize=False)
    sentences(folder, (*MODULES[:2], "Dense", "Dense", "Normalize"))
    first, last = dense(folder, 2, 96, 64, bias=False), dense(folder, 3, 32, 96, "activation.Tanh")
    expected = np.tanh((plain.vectors @ first[0].T + first[1]) @ last[0].T + last[1])
    found = LLM(folder, backend="reference").embed(["a b", "the quick"], normalize=False)
    assert np.abs(found.vectors - expected).max() < 1e-5
    with LLM(folder, threads=1) as llm:
        native = llm.embed(["a b", "the quick"])
        assert native.vectors.shape == (2, 32)
        assert np.array_equal(llm.embed("the quick").vectors[0], native.vectors[1])
        with pytest.raises(InputError, match="dimensions must be between 1 and 32, not 33"):
            llm.embed("a", dimensions=33)
    for i in range(2):
        assert cosine(native.vectors[i], expected[i]) > 1 - 1e-5
    with open_model(folder) as model:
        write_gguf(folder / "one.gguf", model)
    with LLM(folder / "one.gguf", threads=2) as llm:
        assert np.array_equal(llm.embed(["a b", "the quick"]).vectors, native.vectors)


def test_a_dense_layer_that_cannot_be_read_is_refused(folder):
    sentences(folder, (*MODULES[:2], "Dense"))
    with pytest.raises(FormatError, match=r"2_Dense: the folder has no model\.safetensors"):
        LLM(folder)
    dense(folder, 2, 96, 64, "activation.Mish")
    with pytest.raises(FormatError, match=r"activation_function is .*Mish"):
        LLM(folder)


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


@pytest.mark.parametrize(("said", "most"), [(9, 9), (int(1e30), 256), (None, 256)])
def test_the_longest_text_may_stand_beside_the_tokenizer(folder, said, most):
    """Where sentence-transformers 6 writes it."""
    edit(sentences(folder) / "tokenizer_config.json", model_max_length=said)
    assert LLM(folder).embed("a b " * 200, truncate=True).tokens == (most,)


@pytest.mark.parametrize("said", ["512", 512.5, -1])
def test_a_longest_text_that_is_no_whole_number_is_refused(folder, said):
    edit(sentences(folder) / "tokenizer_config.json", model_max_length=said)
    with pytest.raises(FormatError, match=f"model_max_length is {said!r}; it must be a whole"):
        LLM(folder)


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


def test_a_model_that_writes_has_its_end_token_behind_texts_where_its_tokenizer_says_so(tmp_path):
    """As Qwen3-Embedding and e5-mistral have it, and not behind prompts."""
    save("qwen3", tmp_path)
    sentences(tmp_path, pooling={"pooling_mode": "lasttoken"})
    edit(tmp_path / "tokenizer_config.json", add_eos_token=True, eos_token="</s>")
    llm = LLM(tmp_path)
    ids = llm.tokenize("a b")
    found = llm.embed("a b")
    assert (found.tokens, found.pooling) == ((len(ids) + 1,), "last")
    end = next(iter(llm.tokenizer.end_ids))
    assert ids[-1] != end
    assert np.array_equal(found.vectors, llm.embed([[*ids, end]]).vectors)
    cut = llm.embed("a b " * 200, truncate=True)
    assert cut.tokens == (256,)
