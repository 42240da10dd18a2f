"""Encoders from folders of transformers: their masked-LM logits, and the same bits in every way."""

import os

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.cli.main import main
from cutaway.compute.backends.cpu import tiers
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import open_model
from cutaway.compute.loading.setup import Setup
from cutaway.engine import Policy
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.requests.base import make_engine

pytest.importorskip("torch", reason="torch is not installed: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from support.random_models import ENCODERS, VOCAB, edit, logits, save
from support.read_whole import read
from support.tiny_tokenizers import wordpiece

IDS = np.random.default_rng(1).integers(3, VOCAB, 80).tolist()


def copy(path, folder):
    for file in path.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By model: its folder, and transformers' logits of all rows."""
    made = {}

    def folder(name):
        if name not in made:
            path = tmp_path_factory.mktemp(name)
            model = save(name, path)
            made[name] = path, logits(model, IDS)
        return made[name]

    return folder


@pytest.mark.parametrize("name", ENCODERS)
def test_the_reference_s_logits_are_those_of_transformers(folders, name):
    path, theirs = folders(name)
    llm = LLM(path, backend="reference")
    assert llm.config.attention == "bidirectional"
    assert np.abs(llm.logits(IDS) - theirs).max() < 1e-3
    # NumPy's BLAS may round a matrix of fewer rows otherwise; the contract is the cpu backend's.
    assert np.abs(llm.logits(IDS, 70) - llm.logits(IDS)[70:]).max() < 1e-5


@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("name", ENCODERS)
def test_the_native_backend_is_close(folders, name, quantize):
    path, _ = folders(name)
    exact, ours = (
        LLM(path, backend=b, quantize=quantize).logits(IDS) for b in ("reference", "cpu")
    )
    error = np.sqrt(np.mean((ours - exact) ** 2) / np.mean(exact**2))
    assert error < (0.004 if quantize is None else 0.12)


@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("name", ENCODERS)
def test_bits_are_the_same_over_threads_tiers_and_files(
    folders, name, quantize, monkeypatch, tmp_path
):
    path, _ = folders(name)
    expected = LLM(path, threads=2, quantize=quantize).logits(IDS)
    assert np.array_equal(LLM(path, threads=3, quantize=quantize).logits(IDS), expected)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    assert np.array_equal(LLM(tmp_path / "one.gguf", quantize=quantize).logits(IDS), expected)
    for tier in tiers():
        monkeypatch.setitem(os.environ, "CUTAWAY_ISA", tier)
        assert np.array_equal(LLM(path, threads=1, quantize=quantize).logits(IDS), expected), tier


@pytest.mark.parametrize("name", ["roberta", "modernbert"])
def test_company_and_small_steps_change_no_bit(folders, name):
    """Texts wait for a step that has room for all of each; longer ones have a step of their own."""
    path, _ = folders(name)
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


def test_a_text_longer_than_the_context_is_refused(folders):
    engine = make_engine(LoadedModel.open(folders("bert")[0], Setup(context=79)))
    with pytest.raises(InputError, match="has 80 tokens, and 79 can be read: shorten it"):
        read(engine, [IDS])
    assert len(read(engine, [IDS[:79]])[0][0]) == 79


def test_a_model_that_writes_sees_no_text_as_a_whole(tiny_path):
    with pytest.raises(InputError, match="attention is causal"):
        read(LLM(tiny_path).engine, [[1, 2]])


def test_every_row_sees_the_whole_text(folders):
    path, _ = folders("bert")
    llm = LLM(path)
    other = [*IDS[:-1], IDS[-1] ^ 1]
    assert (llm.logits(other)[0] != llm.logits(IDS)[0]).any()


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_writes_nothing_and_says_what_it_can_do(folders, name):
    llm = LLM(folders(name)[0])
    asks = (
        lambda: llm.generate(IDS[:5]),
        lambda: llm.generate(IDS[:5], max_tokens=0, prompt_logprobs=1),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: llm.row(IDS, [], {}),
    )
    for ask in asks:
        with pytest.raises(InputError, match="cannot continue a text: it fills in what is masked"):
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


def test_windows_to_both_sides_are_shown(folders, capsys):
    assert main(["models", "show", str(folders("modernbert")[0])]) == 0
    said = capsys.readouterr().out
    assert "windows       2 of 4 layers see 8 tokens to each side\n" in said
    assert "positions     rope, base 5,000, 16 of 16 rotated\n" in said


def test_the_config_of_the_first_modern_berts(folders, tmp_path):
    """They say how often a layer sees all, and both bases by other names."""
    path, theirs = folders("modernbert")
    copy(path, tmp_path)
    config = tmp_path / "config.json"
    edit(
        config, layer_types=None, rope_parameters=None, global_attn_every_n_layers=3,
        global_rope_theta=5000.0, local_rope_theta=300.0,
    )  # fmt: skip
    assert np.abs(LLM(tmp_path, backend="reference").logits(IDS) - theirs).max() < 1e-3
    edit(config, layer_types=["full_attention"] * 3)
    with pytest.raises(FormatError, match=r"layer_types is .* one for each layer"):
        LLM(tmp_path)


def test_a_modern_bert_s_rows_see_to_both_sides_and_no_farther(folders, tmp_path):
    """With windows in all layers a token is known as far as four of them reach."""
    path, _ = folders("modernbert")
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


def test_a_prefix_of_an_encoder_is_not_saved(folders, tmp_path):
    """Its keys and values depend on what follows."""
    llm = LLM(folders("bert")[0])
    with pytest.raises(InputError, match="cannot continue a text"):
        llm.save_prefix(tmp_path / "x", IDS)


def test_old_files_call_their_norms_gamma_and_beta(folders, tmp_path):
    path, theirs = folders("bert")
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
    assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        *(
            ({"model_type": name}, rf"^config\.json: model_type '{name}' is not supported; supp")
            for name in ("deberta", "deberta-v2", "mpnet", "albert", "electra", "roformer", "esm")
        ),
        ({"max_position_embeddings": 512}, "rows for 512 positions"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(folders, tmp_path, change, sentence):
    path, _ = folders("bert")
    copy(path, tmp_path)
    edit(tmp_path / "config.json", **change)
    with pytest.raises(Exception, match=sentence):
        LLM(tmp_path)
