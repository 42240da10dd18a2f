"""Encoders from folders of transformers: what their rows see, how they are shown and refused."""

from shutil import copytree

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.cli.main import main
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.engine import Policy
from cutaway.requests.base import make_engine

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from support.families.encoders import ENCODERS
from support.random_models import IDS, edit, save
from support.read_whole import read
from support.tiny_tokenizers import wordpiece


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
    with pytest.raises(InputError, match="attention is causal"):
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
    with pytest.raises(FormatError, match=r"layer_types is .* one for each layer"):
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
