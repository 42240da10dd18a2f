"""Draft heads in folders: as one more layer, or apart under mtp."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
from safetensors.numpy import load_file, save_file

from cutaway import LLM
from cutaway.compute.loading.open import open_model
from support import random_models

HIDDEN = 64
AS_LAYER = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
APART = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")


def with_head(family, folder, *, apart, key):
    """The family's model, and behind it a head whose layer has the tensors of one that attends."""
    random_models.save(family, folder)
    file = folder / "model.safetensors"
    tensors, config = load_file(file), json.loads((folder / "config.json").read_text())
    count = config["num_hidden_layers"]
    layer = max(int(n.split(".")[-4]) for n in tensors if n.endswith("self_attn.o_proj.weight"))
    to = "mtp." if apart else f"model.layers.{count}."
    for name in [n for n in tensors if re.search(rf"layers\.{layer}\.", n)]:
        ending = name.partition(f"layers.{layer}.")[2]
        tensors[f"{to}layers.0.{ending}" if apart else to + ending] = tensors[name]
    rng = np.random.default_rng(4)
    shapes = [(HIDDEN, 2 * HIDDEN), *[(HIDDEN,)] * 3]
    for name, shape in zip(APART if apart else AS_LAYER, shapes, strict=True):
        tensors[f"{to}{name}.weight"] = rng.normal(size=shape).astype(np.float32) * 0.3
    save_file(tensors, file, metadata={"format": "pt"})
    if key:
        (folder / "config.json").write_text(json.dumps(config | {key: 1}))
    return folder, count, tensors


@pytest.mark.parametrize(
    ("family", "apart", "key"),
    [
        ("glm4_moe", False, "num_nextn_predict_layers"),
        ("glm4_moe-normed-heads", False, "num_nextn_predict_layers"),
        ("deepseek_v3", False, "num_nextn_predict_layers"),
        ("qwen3_5", True, "mtp_num_hidden_layers"),
        ("qwen3_5_moe", True, "mtp_num_hidden_layers"),
        ("qwen3_next", True, None),
    ],
)
def test_it_drafts_and_changes_nothing(tmp_path, family, apart, key):
    folder, count, tensors = with_head(family, tmp_path, apart=apart, key=key)
    with open_model(folder) as file:
        assert "tokens ahead" not in file.metadata["cutaway.unread"]
        made = file.dequantize(f"blk.{count}.nextn.enorm.weight")
        stored = tensors[
            "mtp.pre_fc_norm_embedding.weight" if apart else f"model.layers.{count}.enorm.weight"
        ]
        assert np.array_equal(made, stored + np.float32(apart))  # Qwen's norms are of 1 + w
    llm = LLM(folder)
    options = {"max_tokens": 24, "ignore_eos": True, "seed": 3, "temperature": 1.0}
    plain, drafted = (
        llm.generate(random_models.IDS, speculate=s, **options) for s in ("off", "mtp")
    )
    assert (drafted.token_ids, drafted.fingerprint) == (plain.token_ids, plain.fingerprint)
    assert drafted.speculation.proposed > 0


def test_a_head_that_the_folder_only_announces_is_none(tmp_path):
    random_models.save("glm4_moe", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    assert LLM(tmp_path).config.unrun_layers == 0
