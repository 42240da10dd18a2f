"""Which tensors and files of a folder are read, which are left out, and which are refused."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface import HuggingFaceFolder
from cutaway.files.huggingface.shards import shard_paths

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from safetensors.numpy import load_file, save_file

from support.random_models import IDS, edit, logits, save


def test_fused_experts_are_read_either_way_round(tmp_path):
    save("qwen3_vl_moe", tmp_path)
    before = LLM(tmp_path, backend="reference").logits(IDS)
    with_tensors(tmp_path, lambda t: t.update(
        {k: np.ascontiguousarray(x.swapaxes(1, 2)) for k, x in t.items() if ".experts." in k}
    ))  # fmt: skip
    assert np.array_equal(LLM(tmp_path, backend="reference").logits(IDS), before)


def test_half_numbers_are_moved_and_not_changed(tmp_path):
    save("gemma3", tmp_path / "gemma", dtype="bfloat16")
    save("gpt2", tmp_path / "gpt2", dtype="float16")
    gemma, gpt2 = (HuggingFaceFolder(tmp_path / name) for name in ("gemma", "gpt2"))
    assert {t.format for t in gemma.tensors.values() if len(t.shape) == 2} == {"BF16"}
    assert {t.format for t in gpt2.tensors.values() if len(t.shape) == 2} == {"F16"}
    assert {t.format for t in gemma.tensors.values() if len(t.shape) == 1} == {"F32"}
    stored = load_file(tmp_path / "gpt2" / "model.safetensors")
    raw = gpt2.raw("blk.1.attn_qkv.weight")[:].view(np.float16).reshape(192, 64)
    assert np.array_equal(raw, stored["transformer.h.1.attn.c_attn.weight"].T)


def test_a_closed_folder_says_so(tmp_path):
    save("llama", tmp_path)
    with HuggingFaceFolder(tmp_path) as file:
        embedding = file.raw("token_embd.weight")
    with pytest.raises(InputError, match="the folder is closed"):
        file.raw("token_embd.weight")
    with pytest.raises(InputError, match="no tensor named 'nothing'"):
        file.raw("nothing")
    assert embedding.nbytes == file.tensors["token_embd.weight"].nbytes


def with_tensors(path, change):
    """The folder with other tensors: change gets and alters them."""
    file = path / "model.safetensors"
    tensors = {name: x.copy() for name, x in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def test_tensors_with_no_place_are_refused_by_name(tmp_path):
    save("llama", tmp_path)
    with_tensors(tmp_path, lambda t: t.update({"model.layers.0.extra.weight": np.ones(3)}))
    with pytest.raises(FormatError, match=r"'model.layers.0.extra.weight' has no place"):
        HuggingFaceFolder(tmp_path)


def test_what_reads_pictures_or_guesses_ahead_is_read_past(tmp_path, capsys):
    model = save("glm4", tmp_path)
    edit(tmp_path / "config.json", num_nextn_predict_layers=1)
    names = ("visual.x", "model.visual.y", "mtp.fc", "model.layers.4.eh_proj",
             "model.layers.4.input_layernorm")  # fmt: skip
    more = {f"{name}.weight": np.ones((2, 3), np.float32) for name in names}
    with_tensors(tmp_path, lambda t: t.update(more))
    assert np.abs(LLM(tmp_path, backend="reference").logits(IDS) - logits(model, IDS)).max() < 1e-3
    assert main(["models", "show", str(tmp_path)]) == 0
    said = "\nnot run       what reads pictures and what guesses tokens ahead (MTP)\n"
    assert said in capsys.readouterr().out


def test_a_block_behind_the_last_is_refused_where_the_config_does_not_tell_of_it(tmp_path):
    save("llama", tmp_path)
    more = {"model.layers.4.input_layernorm.weight": np.ones(64, np.float32)}
    with_tensors(tmp_path, lambda t: t.update(more))
    with pytest.raises(FormatError, match=r"blk\.4\.attn_norm\.weight' .* has no place"):
        LLM(tmp_path)


def test_exaone_3_is_a_llama_with_other_names(tmp_path):
    """Its code is the publisher's own; the names are those of LGAI-EXAONE's folders."""
    model = save("llama", tmp_path)
    names = {
        "model.layers.": "transformer.h.", "model.embed_tokens": "transformer.wte",
        "model.norm": "transformer.ln_f", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2", "self_attn.o_proj": "attn.attention.out_proj",
        "self_attn": "attn.attention", "gate_proj": "c_fc_0", "up_proj": "c_fc_1",
        "down_proj": "c_proj",
    }  # fmt: skip
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    for old, new in names.items():
        stored = {name.replace(old, new): numbers for name, numbers in stored.items()}
    save_file(stored, file)
    edit(
        tmp_path / "config.json", model_type="exaone", num_layers=4, layer_norm_epsilon=1e-6,
        activation_function="silu", num_hidden_layers=None, rms_norm_eps=None, hidden_act=None,
    )  # fmt: skip
    ours = LLM(tmp_path, backend="reference").logits(IDS)
    assert np.abs(ours - logits(model, IDS)).max() < 1e-3


def test_tables_that_old_files_hold_are_left_out(tmp_path):
    save("llama", tmp_path)
    before = list(HuggingFaceFolder(tmp_path).tensors)
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(16, np.float32)}
    with_tensors(tmp_path, lambda t: t.update(table))
    assert sorted(HuggingFaceFolder(tmp_path).tensors) == sorted(before)


def test_a_copy_of_a_tied_embedding_is_left_out(tmp_path):
    save("llama-tied", tmp_path)
    with_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert "output.weight" not in HuggingFaceFolder(tmp_path).tensors


@pytest.mark.parametrize("name", ["llama", "nemotron_h", "bert"])
def test_an_output_of_its_own_is_read_although_the_config_says_it_is_the_embedding(tmp_path, name):
    save(name, tmp_path)
    edit(tmp_path / "config.json", tie_word_embeddings=True)
    output = "cls.predictions.decoder.weight" if name == "bert" else "lm_head.weight"
    own = np.full((384, 64), 0.5, np.float32)
    with_tensors(tmp_path, lambda t: t.update({output: own}))
    folder = HuggingFaceFolder(tmp_path)
    assert np.array_equal(folder.raw("output.weight")[:].view(np.float32), own.reshape(-1))
    folder.close()


def test_an_output_that_is_neither_there_nor_tied_is_refused(tmp_path):
    save("llama", tmp_path)
    with_tensors(tmp_path, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(FormatError, match="tie_word_embeddings is false, and the files hold no"):
        HuggingFaceFolder(tmp_path)
    with_tensors(tmp_path, lambda t: t.pop("model.embed_tokens.weight"))
    with pytest.raises(FormatError, match="hold no embedding"):
        HuggingFaceFolder(tmp_path)


def test_a_missing_expert_is_missed(tmp_path):
    save("mixtral", tmp_path)
    with_tensors(tmp_path, lambda t: t.pop("model.layers.1.block_sparse_moe.experts.1.w1.weight"))
    with pytest.raises(
        FormatError, match=r"blk.1.ffn_gate_exps.weight is made of 2 experts, and 3"
    ):
        HuggingFaceFolder(tmp_path)


def test_a_number_of_experts_takes_no_memory(tmp_path, peak_memory):
    save("mixtral", tmp_path)
    edit(tmp_path / "config.json", num_local_experts=10_000_000)
    with peak_memory(10e6), pytest.raises(FormatError, match="3 experts, and 10000000 are ann"):
        HuggingFaceFolder(tmp_path)


def test_names_without_their_prefix_are_known(tmp_path):
    """As OpenAI's own GPT-2 has them."""
    save("gpt2", tmp_path)
    before = set(HuggingFaceFolder(tmp_path).tensors)

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.ones((1, 1, 8, 8), np.float32)

    with_tensors(tmp_path, strip)
    assert set(HuggingFaceFolder(tmp_path).tensors) == before


# -- the files of a folder -------------------------------------------------------------------------


def test_a_shard_that_is_missing_is_named(tmp_path):
    save("llama", tmp_path, max_shard_size="100KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(FormatError, match=f"names '{gone.name}', which is no file beside it"):
        HuggingFaceFolder(tmp_path)


@pytest.mark.parametrize(
    "name", ["../b.safetensors", "/etc/passwd", ".", "..", "", "a" * 5000, "a\n\x1b[31m", "a\0"]
)
def test_an_index_names_files_beside_it_alone(tmp_path, name):
    (tmp_path / "in").mkdir()
    (tmp_path / "b.safetensors").write_bytes(b"")
    edit(tmp_path / "in" / "model.safetensors.index.json", weight_map={"a": name})
    with pytest.raises(
        FormatError, match=r"^[^\n\x1b]{,400}, which is no file beside it; download"
    ):
        shard_paths(tmp_path / "in")


def test_other_weights_are_not_read(tmp_path):
    save("llama", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(FormatError, match="save the model as safetensors"):
        HuggingFaceFolder(tmp_path)
