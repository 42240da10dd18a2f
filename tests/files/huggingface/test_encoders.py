"""Encoders from folders of transformers: what their rows see, how they are shown and refused."""

import shutil
from shutil import copytree

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.cli.main import main
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import open_model
from cutaway.compute.loading.setup import Setup
from cutaway.engine import Policy
from cutaway.features.inside.texts import text_attention
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.requests.base import make_engine

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import torch
import transformers
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from support.families.encoders import ENCODERS, RANKERS
from support.random_models import IDS, edit, row, save, save_row
from support.read_whole import read
from support.tiny_tokenizers import byte_level, modern_bert, roberta, wordpiece


def copy(path, folder):
    copytree(path, folder, dirs_exist_ok=True)


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_company_and_small_steps_change_no_bit(random_model, name):
    """Texts wait for a step that has room for all of each; longer ones have a step of their own."""
    path, _ = random_model(name)
    texts = [IDS, IDS[:7], IDS[3:50], IDS[:64], IDS[1:2]]
    llm = LLM(path, threads=2)
    alone = [llm.logits(text) for text in texts]
    policies = Policy(), Policy(max_num_seqs=2), *(Policy(max_rows=n) for n in (81, 60))
    for policy in (*policies, Policy(max_rows=81, max_logit_rows=5)):
        engine = make_engine(LoadedModel.open(path), policy)
        together, steps = read(engine, texts)
        assert all(map(np.array_equal, together, alone))
        assert steps < sum(map(len, texts))
        assert engine.blocks.free == engine.blocks.count


def test_a_text_longer_than_the_context_is_refused(random_model):
    engine = make_engine(LoadedModel.open(random_model("bert")[0], Setup(context=79)))
    with pytest.raises(InputError, match="has 80 tokens, and 79 can be read: shorten it"):
        read(engine, [IDS])
    assert len(read(engine, [IDS[:79]])[0][0]) == 79


def test_a_model_that_writes_sees_no_text_as_a_whole(tiny_path):
    with pytest.raises(InputError, match="this model continues texts"):
        read(LLM(tiny_path).engine, [[1, 2]])


def test_every_row_sees_the_whole_text(random_model):
    path, _ = random_model("bert")
    llm = LLM(path)
    other = [*IDS[:-1], IDS[-1] ^ 1]
    assert (llm.logits(other)[0] != llm.logits(IDS)[0]).any()


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_writes_nothing_and_says_what_it_can_do(random_model, name):
    llm = LLM(random_model(name)[0])
    assert llm.config.attention == "bidirectional"
    asks = (
        lambda: llm.generate(IDS[:5]),
        lambda: llm.generate(IDS[:5], max_tokens=0, prompt_logprobs=1),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.row(IDS, [], {}),
    )
    for ask in asks:
        with pytest.raises(InputError, match="is a masked model and cannot continue a text; use"):
            ask()


def test_a_model_is_shown_as_what_it_is(tmp_path, capsys):
    save("bert", tmp_path, tokenizer=wordpiece)
    assert main(["models", "show", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "positions     learned\n" in said
    assert "\n              bidirectional\n" in said
    assert "chat          none: it attends in both directions, and fills in what is masked" in said
    assert "begins with   [CLS] (2)" in said
    assert "ends with     [SEP] (3), from tokenizer.ggml.seperator_token_id\n" in said
    assert "mask          [MASK] (4), from tokenizer.ggml.mask_token_id\n" in said


def test_windows_to_both_sides_are_shown(random_model, capsys):
    assert main(["models", "show", str(random_model("modernbert")[0])]) == 0
    said = capsys.readouterr().out
    assert "windows       2 of 4 layers see 8 tokens to each side\n" in said
    assert "positions     rope, base 5,000, 16 of 16 rotated\n" in said


def test_the_config_of_the_first_modern_berts(random_model, tmp_path):
    """They say how often a layer sees all, and both bases by other names."""
    path, theirs = random_model("modernbert")
    copy(path, tmp_path)
    config = tmp_path / "config.json"
    edit(
        config, layer_types=None, rope_parameters=None, global_attn_every_n_layers=3,
        global_rope_theta=5000.0, local_rope_theta=300.0,
    )  # fmt: skip
    assert np.abs(LLM(tmp_path, backend="reference").logits(IDS) - theirs(IDS)).max() < 1e-3
    edit(config, layer_types=["full_attention"] * 3)
    with pytest.raises(FormatError, match=r"layer_types is .* one for each of 4 layers"):
        LLM(tmp_path)


def test_a_modern_bert_s_rows_see_to_both_sides_and_no_farther(random_model, tmp_path):
    """With windows in all layers a token is known as far as four of them reach."""
    path, _ = random_model("modernbert")
    copy(path, tmp_path)
    edit(tmp_path / "config.json", layer_types=["sliding_attention"] * 4)
    llm, other = LLM(tmp_path), [*IDS[:40], IDS[40] ^ 1, *IDS[41:]]
    changed = np.flatnonzero((llm.logits(IDS) != llm.logits(other)).any(axis=1))
    assert changed.tolist() == list(range(40 - 4 * 8, 40 + 4 * 8 + 1))


def test_a_folder_from_before_tokenizer_json(tmp_path):
    save("bert", tmp_path, tokenizer=wordpiece)
    text = "the [MASK] jumps over the lazy [MASK]."
    expected = LLM(tmp_path).fill(text)
    vocab = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab()
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocab, key=vocab.get)))
    assert LLM(tmp_path).fill(text) == expected


def test_a_prefix_of_an_encoder_is_not_saved(random_model, tmp_path):
    """Its keys and values depend on what follows."""
    llm = LLM(random_model("bert")[0])
    with pytest.raises(InputError, match="cannot continue a text"):
        llm.save_prefix(tmp_path / "x", IDS)


def test_old_files_call_their_norms_gamma_and_beta(random_model, tmp_path):
    path, theirs = random_model("bert")
    copy(path, tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in load_file(path / "model.safetensors").items()
    }
    # What files of pretraining have beside the model, and copies of what is tied.
    old["bert.pooler.dense.weight"] = np.zeros((64, 64), np.float32)
    old["cls.seq_relationship.bias"] = np.zeros(2, np.float32)
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].copy()
    old["bert.embeddings.position_ids"] = np.arange(256)[None]
    save_file(old, tmp_path / "model.safetensors")
    ours = LLM(tmp_path, backend="reference").logits(IDS)
    assert np.abs(ours - theirs(IDS)).max() < 1e-3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        *(
            ({"model_type": name}, rf"^config\.json: model_type '{name}' is not supported; supp")
            for name in ("deberta", "roformer", "esm")
        ),
        ({"max_position_embeddings": 512}, "rows for 512 positions"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(random_model, tmp_path, change, sentence):
    path, _ = random_model("bert")
    copy(path, tmp_path)
    edit(tmp_path / "config.json", **change)
    with pytest.raises(Exception, match=sentence):
        LLM(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("pos_att_type", ["c2p"], r"pos_att_type is \['c2p'\], .* c2p and p2c together are"),
        ("conv_kernel_size", 3, "conv_kernel_size is 3, which is not supported; only 0 is"),
        ("norm_rel_ebd", "none", "norm_rel_ebd is 'none', which is not supported"),
        ("position_buckets", 64, "rel_embd.weight has 32 rows of 64, and not 128"),
        ("max_relative_positions", 5, "relative_farthest is 5, within the 8 distances"),
    ],
)
def test_a_deberta_of_another_kind_is_refused(random_model, tmp_path, key, value, sentence):
    copy(random_model("deberta")[0], tmp_path)
    edit(tmp_path / "config.json", **{key: value})
    with pytest.raises(FormatError, match=sentence):
        LLM(tmp_path)


# -- rankers ---------------------------------------------------------------------------------------

# Heads that score pairs of texts: against transformers; the same bits however they are asked.


QUERY = "the quick brown fox"
DOCUMENTS = ["jumps over the lazy dog", "a glass of milk and a cup of tea", "paris", "the " * 90]
WORDS = ("bert", "distilbert", "electra", "albert", "nomic_bert")
TYPED = ("bert", "electra", "albert", "nomic_bert")  # a vector for each of the two texts


def tokenizer(name):
    kind = name.removeprefix("rank-")
    if kind == "qwen3":
        return byte_level
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


@pytest.mark.parametrize("name", ["rank-bert", "rank-modernbert", "rank-mpnet", "rank-qwen3"])
def test_bits_are_the_same_over_company_threads_tiers_and_files(made, name, each_tier, tmp_path):
    path, _ = made(name)
    with LLM(path, threads=2) as llm:
        expected = [llm.rerank(QUERY, [one]).results[0].score for one in DOCUMENTS]
        assert scores(llm.rerank(QUERY, DOCUMENTS)).tolist() == expected
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    for tier in each_tier:
        with LLM(tmp_path / "one.gguf", threads=1) as llm:
            assert scores(llm.rerank(QUERY, DOCUMENTS)).tolist() == expected, tier


def test_a_head_says_what_it_cannot_do(made):
    llm = LLM(made("rank-bert")[0])
    with pytest.raises(InputError, match="for rerank: set pooling to have vectors of its body"):
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
