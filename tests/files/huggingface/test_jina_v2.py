"""jina v2 (ALiBi to both sides, gated MLPs), held against formulas in float64.

transformers has only the publisher's own code for it; they are of that code and arXiv 2310.19923.
"""

import json

import numpy as np
import pytest

from support import tiny_tokenizers
from support.encoder_formulas import (
    assert_same_bits,
    assert_vectors,
    attend,
    gelu,
    layers_of,
)

save_file = pytest.importorskip(
    "safetensors.numpy", reason="needs safetensors: pip install '.[test-transformers]'"
).save_file

HIDDEN, INNER, HEADS, LAYERS, EPS, VOCAB = 96, 64, 6, 2, 1e-12, 384
IDS = np.random.default_rng(5).integers(6, VOCAB, 300).tolist()  # more than a chunk of attention


def shapes():
    found = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        p = f"encoder.layer.{i}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            found |= {f"{p}attention.{name}.weight": (HIDDEN, HIDDEN)}
            found |= {f"{p}attention.{name}.bias": (HIDDEN,)}
        found[f"{p}mlp.gated_layers.weight"] = (2 * INNER, HIDDEN)
        found |= {f"{p}mlp.wo.weight": (HIDDEN, INNER), f"{p}mlp.wo.bias": (HIDDEN,)}
        norms += [f"{p}attention.output.LayerNorm", f"{p}mlp.layernorm"]
    return found | {f"{one}.{end}": (HIDDEN,) for one in norms for end in ("weight", "bias")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("jina"), np.random.default_rng(0)
    weights = {
        name: (rng.normal(size=shape) * 0.2 + ("orm.weight" in name)).astype(np.float32)
        for name, shape in shapes().items()
    }
    save_file(weights, path / "model.safetensors")
    config = {
        "model_type": "bert", "position_embedding_type": "alibi", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
        "max_position_embeddings": 512, "vocab_size": VOCAB, "layer_norm_eps": EPS,
        "feed_forward_type": "geglu", "emb_pooler": "mean", "hidden_act": "gelu",
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config))
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), path)
    return path, weights


def slopes(heads):
    """As the publisher's code finds them: powers of two, and every second of twice as many."""
    power = 2 ** int(np.log2(heads))
    own = [(2 ** (-8 / power)) ** (i + 1) for i in range(power)]
    return own if power == heads else own + slopes(2 * power)[0::2][: heads - power]


def by_formula(w, ids):
    norm, linear = layers_of(w, EPS)
    x = w["embeddings.word_embeddings.weight"][ids].astype(float)
    x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    n, size = len(ids), HIDDEN // HEADS
    distance = abs(np.arange(n)[:, None] - np.arange(n))
    for i in range(LAYERS):
        p = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, f"{p}attention.self.{name}").reshape(n, HEADS, size).swapaxes(0, 1)
            for name in ("query", "key", "value")
        )
        bias = -np.array(slopes(HEADS))[:, None, None] * distance
        mixed = attend(q, k, v, bias)
        x = norm(linear(mixed, f"{p}attention.output.dense") + x, f"{p}attention.output.LayerNorm")
        both = linear(x, f"{p}mlp.gated_layers")
        inner = gelu(both[:, :INNER]) * both[:, INNER:]
        x = norm(linear(inner, f"{p}mlp.wo") + x, f"{p}mlp.layernorm")
    return x.mean(axis=0)


def test_vectors_are_those_of_the_formulas(made):
    path, weights = made
    assert_vectors(path, IDS, by_formula(weights, IDS), 1 - 1e-5)


def test_bits_are_the_same_over_company_threads_tiers_and_files(made, each_tier, tmp_path):
    assert_same_bits(made[0], [IDS, IDS[:7], IDS[3:50]], each_tier, tmp_path)
