"""nomic v2 (in every second layer a mixture of MLPs), held against formulas in float64.

transformers has only the publisher's own code for it; they are of that code and arXiv 2502.07972.
"""

import json

import numpy as np
import pytest

from cutaway import LLM, FormatError
from support import tiny_tokenizers
from support.encoder_formulas import (
    assert_same_bits,
    assert_vectors,
    attend,
    gelu,
    layers_of,
    softmax,
)

save_file = pytest.importorskip(
    "safetensors.numpy", reason="needs safetensors: pip install '.[test-transformers]'"
).save_file

HIDDEN, INNER, HEADS, LAYERS, EXPERTS, EPS, BASE, VOCAB = 64, 96, 4, 4, 5, 1e-5, 900.0, 384
IDS = np.random.default_rng(5).integers(6, VOCAB, 80).tolist()
CONFIG = {
    "model_type": "nomic_bert", "n_embd": HIDDEN, "n_inner": INNER, "n_head": HEADS,
    "n_layer": LAYERS, "n_positions": 512, "vocab_size": VOCAB, "layer_norm_epsilon": EPS,
    "activation_function": "gelu", "rotary_emb_base": BASE, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "prenorm": False, "use_rms_norm": False,
    "num_experts": EXPERTS, "moe_top_k": 2, "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False, "expert_choice_router": False,
    "num_shared_experts": 0, "ffn_div": 1, "type_vocab_size": 1,
}  # fmt: skip


def shapes():
    found = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.token_type_embeddings.weight": (1, HIDDEN),
        "emb_ln.weight": (HIDDEN,), "emb_ln.bias": (HIDDEN,),
    }  # fmt: skip
    for i in range(LAYERS):
        p = f"encoder.layers.{i}."
        found |= {f"{p}attn.Wqkv.weight": (3 * HIDDEN, HIDDEN), f"{p}attn.Wqkv.bias": (3 * HIDDEN,)}
        found |= {f"{p}attn.out_proj.weight": (HIDDEN, HIDDEN), f"{p}attn.out_proj.bias": (HIDDEN,)}
        found |= {f"{p}{one}.{end}": (HIDDEN,) for one in ("norm1", "norm2")
                  for end in ("weight", "bias")}  # fmt: skip
        if i % 2:
            found |= {
                f"{p}mlp.router.layer.weight": (EXPERTS, HIDDEN),
                f"{p}mlp.experts.mlp.w1": (EXPERTS * INNER, HIDDEN),
                f"{p}mlp.experts.mlp.w2": (EXPERTS * INNER, HIDDEN),
                f"{p}mlp.experts.bias": (HIDDEN,),
            }
        else:
            found |= {f"{p}mlp.fc1.weight": (INNER, HIDDEN), f"{p}mlp.fc1.bias": (INNER,)}
            found |= {f"{p}mlp.fc2.weight": (HIDDEN, INNER), f"{p}mlp.fc2.bias": (HIDDEN,)}
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("nomic"), np.random.default_rng(0)
    weights = {
        name: (rng.normal(size=shape) * 0.2 + ("norm" in name and "weight" in name)).astype("f4")
        for name, shape in shapes().items()
    }
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), path)
    return path, weights


def by_formula(w, ids):
    norm, linear = layers_of(w, EPS)

    def rotated(x):
        half = x.shape[-1] // 2
        angle = np.arange(n)[:, None] * BASE ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
        )

    def mixture(x, p):
        first, second = (
            w[f"{p}mlp.experts.mlp.{one}"].reshape(EXPERTS, INNER, HIDDEN).astype(float)
            for one in ("w1", "w2")
        )
        shares, out = softmax(linear(x, f"{p}mlp.router.layer")), np.zeros_like(x)
        for row, share in enumerate(shares):
            for one in np.argsort(-share)[:2]:
                out[row] += share[one] * (gelu(x[row] @ first[one].T) @ second[one])
        return out + w[f"{p}mlp.experts.bias"]

    n = len(ids)
    x = w["embeddings.word_embeddings.weight"][ids].astype(float)
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for i in range(LAYERS):
        p = f"encoder.layers.{i}."
        q, k, v = linear(x, f"{p}attn.Wqkv").reshape(n, 3, HEADS, -1).transpose(1, 2, 0, 3)
        mixed = attend(rotated(q), rotated(k), v)
        x = norm(linear(mixed, f"{p}attn.out_proj") + x, f"{p}norm1")
        inner = mixture(x, p) if i % 2 else linear(gelu(linear(x, f"{p}mlp.fc1")), f"{p}mlp.fc2")
        x = norm(inner + x, f"{p}norm2")
    return x.mean(axis=0)


def test_vectors_are_those_of_the_formulas(made):
    path, weights = made
    assert_vectors(path, IDS, by_formula(weights, IDS), 1 - 1e-4)


def test_bits_are_the_same_over_company_threads_tiers_and_files(made, each_tier, tmp_path):
    assert_same_bits(made[0], [IDS, IDS[:7], IDS[3:50]], each_tier, tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("expert_choice_router", True), ("num_shared_experts", 1)]
)
def test_other_mixtures_are_refused_by_name(made, tmp_path, key, value):
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(made[0] / name)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {key: value}))
    with pytest.raises(FormatError, match=key):
        LLM(tmp_path)
