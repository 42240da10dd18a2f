"""Masked diffusion models from folders: what a row sees and predicts, masks, what is refused."""

from shutil import copytree

import numpy as np
import pytest

from cutaway import LLM, FormatError, InputError
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.open import open_model
from cutaway.engine import Policy
from cutaway.files.huggingface import HuggingFaceFolder
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.weights.gguf_writer import write_gguf
from cutaway.requests.base import limits_of, make_engine

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from safetensors.numpy import load_file, save_file

from support import random_models
from support.diffusion_models import DIFFUSION, MASK, VOCAB, logits, row
from support.random_models import IDS, edit
from support.read_whole import read


@pytest.fixture
def copied(random_model, tmp_path):
    """A folder of one's own."""
    return lambda name: copytree(random_model(name)[0], tmp_path, dirs_exist_ok=True)


@pytest.mark.parametrize("name", DIFFUSION)
def test_what_a_row_sees_and_predicts_is_in_the_files(random_model, name, tmp_path):
    path, _ = random_model(name)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    made = DIFFUSION[name]
    for file in (path, tmp_path / "one.gguf"):
        llm = LLM(file, backend="reference")
        assert llm.config.architecture == row(name).architecture
        limits = limits_of(llm.model)
        assert (limits.attention, limits.shift) == (llm.config.attention, llm.config.shift)
        assert (limits.attention, limits.shift, limits.mask_id) == (
            made.attention, made.shift, made.mask,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["dream", "sdar", "sdar-blocks", "a2d-blocks", "llada-moe"])
def test_company_and_small_steps_change_no_bit(random_model, name):
    path, _ = random_model(name)
    texts = [IDS, IDS[:7], IDS[3:50], IDS[:64], IDS[1:2]]
    llm = LLM(path, threads=2)
    alone = [llm.logits(text) for text in texts]
    for policy in (Policy(), Policy(max_rows=81, max_logit_rows=5), Policy(max_num_seqs=2)):
        together, _ = read(make_engine(LoadedModel.open(path), policy), texts)
        assert all(map(np.array_equal, together, alone))


def test_a_block_is_seen_by_its_own_rows_and_those_behind_it(random_model):
    """And its logits do not depend on what comes later, so that keys and values can be kept."""
    llm = LLM(random_model("sdar-blocks")[0])
    plain = llm.logits(IDS)
    changed = llm.logits([*IDS[:20], IDS[20] ^ 1, *IDS[21:]])
    moved = [i for i in range(80) if (plain[i] != changed[i]).any()]
    assert moved == [*range(14, 80)]
    assert np.array_equal(llm.logits(IDS[:21]), plain[:21])


@pytest.mark.parametrize("name", ["dream", "sdar", "llada"])
def test_it_continues_no_text_and_says_what_it_can_do(random_model, name):
    llm = LLM(random_model(name)[0])
    with pytest.raises(InputError, match="cannot continue a text; use cutaway denoise or"):
        llm.generate(IDS[:5])
    with pytest.raises(InputError, match="cannot continue a text"):
        llm.chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize("name", ["diffugpt", "llada", "sdar"])
def test_fill_reads_the_row_that_predicts_the_masked_place(random_model, name):
    llm = LLM(random_model(name)[0], backend="reference")
    [candidates] = llm.fill("once [MASK]time", top=3).masks
    ids = llm.tokenizer.encode_parts(["once ", MASK, "time"])
    found = llm.logits(ids)[ids.index(MASK) - DIFFUSION[name].shift]
    share = np.exp(found.astype(np.float64) - found.max())
    share /= share.sum()
    best = np.argsort(-share)[:3]
    assert [one.token_ids for one in candidates] == [(int(i),) for i in best]
    assert np.allclose([one.score for one in candidates], share[best], rtol=1e-5)


def test_a_mask_that_is_a_word_is_said_to_be_one(random_model):
    """DiffuGPT and DiffuLLaMA mask with a token of their vocabulary."""
    llm = LLM(random_model("diffugpt")[0])
    word = llm.tokenizer.token_bytes(MASK).decode()
    assert word
    with pytest.raises(InputError, match=r"the text has no mask: write \[MASK\] where"):
        llm.fill(f"one {word} two")
    with pytest.raises(InputError, match="which this model takes for a mask: leave it out"):
        llm.fill(f"[MASK]{word}{word}")


def masked_by(path):
    return HuggingFaceFolder(path).metadata.get("tokenizer.ggml.mask_token_id")


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("llada", 126336), ("llada-moe", 156895), ("dream", 151666), ("sdar", 151669),
        ("llada2", 156895), ("rnd1", 151669), ("diffullama", 811),
    ],
)  # fmt: skip
def test_masks_that_no_file_names_are_those_that_were_published(copied, name, mask):
    path = copied(name)
    edit(path / "config.json", mask_token_id=None)
    with pytest.raises(FormatError, match=f"mask_token_id is {mask}; .* tokens, 0 to {VOCAB - 1}"):
        masked_by(path)


def test_a_mask_that_cannot_be_known_is_none(copied):
    path = copied("a2d-qwen3")
    edit(path / "config.json", mask_token_id=None)
    assert masked_by(path) is None
    with pytest.raises(InputError, match="names no mask token"):
        LLM(path).fill("[MASK]")


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("llada", {"block_type": "sequential"}, "block_type is 'sequential'"),
        ("llada", {"block_type": None}, "block_type is 'sequential'"),
        ("llada", {"activation_type": None}, "activation_type is 'swiglu'"),
        ("llada", {"layer_norm_type": "low_precision"}, "layer_norm_type"),
        ("llada", {"attention_layer_norm": True}, "attention_layer_norm is True"),
        ("llada", {"scale_logits": True}, "scale_logits is True"),
        ("llada-moe", {"moe_layer_freq": [0, 1, 1, 1]}, "moe_layer_freq"),
        ("llada-moe", {"shared_expert_intermediate_size": 32}, "shared_expert_intermediate_size"),
        ("llada-moe", {"moe_router_score_function": "sigmoid"}, "moe_router_score_function"),
        ("llada-moe", {"clip_qkv": 8.0}, "clip_qkv is 8.0"),
        ("dream", {"use_mrope": True}, "use_mrope is True"),
        ("dream", {"block_size": 32}, "block_size is 32, which is not supported; of such models"),
        ("sdar", {"block_size": 0}, "block_size is 0; it must be a whole number"),
        ("llada2", {"score_function": "softmax"}, "score_function is 'softmax'"),
        ("llada2", {"use_qk_norm": False}, "use_qk_norm is False"),
        ("llada2", {"num_shared_experts": {"a": 1}}, "num_shared_experts is .* a whole number"),
        ("mdlm", {"time_conditioning": True}, "time_conditioning is True"),
        ("sdar", {"model_type": "bd3lm"}, "BD3-LM is not supported"),
        (
            "sdar",
            {"model_type": None, "graph": {"type": "absorb"}, "noise": {}},
            "SEDD is not supported",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(copied, name, change, sentence):
    path = copied(name)
    edit(path / "config.json", **change)
    with pytest.raises(FormatError, match=sentence):
        HuggingFaceFolder(path)


def test_mdlm_in_half_precision_is_folded_from_its_own_numbers(copied):
    """Matrices that a gate is folded into become F32, so that nothing is rounded twice."""
    path = copied("mdlm")
    half = {k: v.astype(np.float16) for k, v in load_file(path / "model.safetensors").items()}
    save_file(half, path / "model.safetensors")
    theirs = logits({k: v.astype(np.float32) for k, v in half.items()}, IDS)
    assert np.abs(LLM(path, backend="reference").logits(IDS) - theirs).max() < 1e-3
    formats = {name: info.format for name, info in HuggingFaceFolder(path).tensors.items()}
    assert (formats["blk.0.attn_qkv.weight"], formats["blk.0.ffn_down.weight"]) == ("F16", "F32")


FITS = {
    "missing": ("mlp.0.bias", "mlp.2.bias", "linear.bias"),  # which no architecture must have
    "shorter": (),
    "wider": ("sigma_map.mlp.0.weight",),  # there are as many waves as it takes
}


@pytest.mark.parametrize("what", FITS)
def test_a_damaged_mdlm_is_refused_in_a_sentence(copied, what):
    path = copied("mdlm")
    whole = load_file(path / "model.safetensors")
    for name in whole:
        of_time = "sigma_map" in name
        if "inv_freq" in name or (name.endswith(FITS[what]) and of_time == (what == "wider")):
            continue
        damaged = {k: v for k, v in whole.items() if k != name}
        if what == "shorter":
            damaged[name] = whole[name][:-1].copy()
        elif what == "wider":
            damaged[name] = np.repeat(whole[name], 2, -1)
        save_file(damaged, path / "model.safetensors")
        with pytest.raises(FormatError) as refused:
            LLM(path)
        assert "\n" not in str(refused.value), name


def test_a_model_is_shown_with_what_its_tokens_see(random_model, capsys):
    from cutaway.cli.main import main

    said = {}
    for name in ("dream", "sdar"):
        assert main(["models", "show", str(random_model(name)[0])]) == 0
        said[name] = capsys.readouterr().out
    assert "\n              bidirectional; rows predict the next position\n" in said["dream"]
    assert "\n              block-causal, in blocks of 4 tokens\n" in said["sdar"]
    assert f"({MASK}), from tokenizer.ggml.mask_token_id\n" in said["sdar"]


def test_the_same_weights_without_the_wrapper_s_names_are_the_model_they_were(tmp_path):
    random_models.save("gpt2", tmp_path)
    assert HuggingFaceFolder(tmp_path).metadata.get("gpt2.attention.causal") is None
    edit(tmp_path / "config.json", model_type="diffugpt")
    found = HuggingFaceFolder(tmp_path).metadata
    assert (found["gpt2.attention.causal"], found["diffusion.shift_logits"]) == (False, True)


@pytest.mark.parametrize(("width", "mask"), [(768, 10541), (1024, 50257), (64, None)])
def test_diffugpt_s_mask_is_known_by_its_width(width, mask):
    from cutaway.files.huggingface.config import _family

    config = JsonObject({"model_type": "diffugpt", "n_embd": width}, "config.json")
    assert _family(config, []).defaults.get("mask_token_id") == mask
