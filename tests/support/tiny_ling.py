"""Tiny random models of Ling 1, Ling 2 and LLaDA 2, and their formulas in float64.

transformers has none of them; the formulas are those of the publisher's code (modeling_bailing_moe,
modeling_bailing_moe_v2, modeling_llada2_moe).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support import tiny_tokenizers

Array = NDArray[Any]
_SIZES = {
    "vocab_size": 384, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256, "num_experts": 8, "num_experts_per_tok": 3,
    "num_shared_experts": 2, "moe_intermediate_size": 32, "rope_theta": 900.0,
    "norm_topk_prob": True, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_LING2 = {
    **_SIZES, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "use_qk_norm": True,
    "routed_scaling_factor": 2.5, "score_function": "sigmoid", "partial_rotary_factor": 0.5,
    "moe_router_enable_expert_bias": True,
}  # fmt: skip
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "ling": {
        **_SIZES, "model_type": "bailing_moe", "architectures": ["BailingMoeForCausalLM"],
        "first_k_dense_replace": 0, "norm_head": True, "use_qkv_bias": True,
    },
    "ling2": {**_LING2, "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"]},
    "llada2": {
        **_LING2, "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"],
        "mask_token_id": 5,
    },
}  # fmt: skip


@dataclass
class Ling:
    """A model of one row of CONFIGS.

    config: the row; weights: by the tensor names of its files
    block: tokens of a block attend to all of it; None: causal attention
    """

    config: Mapping[str, Any]
    weights: dict[str, Array]
    block: int | None = None

    def logits(self, ids: list[int]) -> Array:
        """Return the logits of all rows: (n, vocab)."""
        x = self._weight("model.word_embeddings")[ids]
        for i in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{i}."
            x = x + self._attention(self._norm(x, f"{p}input_layernorm"), f"{p}attention.")
            h = self._norm(x, f"{p}post_attention_layernorm")
            is_dense = i < self.config["first_k_dense_replace"]
            x = x + (self._mlp(h, f"{p}mlp.") if is_dense else self._mixture(h, f"{p}mlp."))
        head = self._weight("lm_head")
        if self.config.get("norm_head"):
            head = head / np.linalg.norm(head, axis=0)
        logits: Array = self._norm(x, "model.norm") @ head.T
        return logits

    def _weight(self, name: str) -> Array:
        wide: Array = self.weights[f"{name}.weight"].astype(np.float64)
        return wide

    def _norm(self, x: Array, name: str) -> Array:
        mean = (x**2).mean(axis=-1, keepdims=True)
        scaled: Array = x / np.sqrt(mean + self.config["rms_norm_eps"]) * self._weight(name)
        return scaled

    def _mlp(self, x: Array, p: str) -> Array:
        gate = x @ self._weight(f"{p}gate_proj").T
        up = x @ self._weight(f"{p}up_proj").T
        inner: Array = gate / (1 + np.exp(-gate)) * up
        return inner @ self._weight(f"{p}down_proj").T

    def _attention(self, x: Array, p: str) -> Array:
        c, n = self.config, len(x)
        heads, kv_heads, size = (
            c[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
        )
        qkv = x @ self._weight(f"{p}query_key_value").T
        qkv = qkv + self.weights.get(f"{p}query_key_value.bias", 0)
        all_heads = qkv.reshape(n, heads + 2 * kv_heads, size)
        q, k, v = np.split(all_heads, [heads, heads + kv_heads], axis=1)
        if c.get("use_qk_norm"):
            q, k = self._norm(q, f"{p}query_layernorm"), self._norm(k, f"{p}key_layernorm")
        q, k = self._rotate(q), self._rotate(k)
        k, v = (np.repeat(vectors, heads // kv_heads, axis=1) for vectors in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        rows, columns = np.arange(n)[:, None], np.arange(n)
        block = self.block or 1
        scores = np.where(columns // block <= rows // block, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed: Array = np.einsum("hqk,khd->qhd", shares, v).reshape(n, heads * size)
        return mixed @ self._weight(f"{p}dense").T

    def _rotate(self, x: Array) -> Array:
        half = int(x.shape[-1] * self.config.get("partial_rotary_factor", 1.0)) // 2
        angles = np.arange(len(x))[:, None] * self.config["rope_theta"] ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half : 2 * half]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)

    def _mixture(self, x: Array, p: str) -> Array:
        out = self._mlp(x, f"{p}shared_experts.")
        scores = x @ self._weight(f"{p}gate").T
        for row, (ids, weights) in enumerate(map(self._choose_experts, scores, [p] * len(scores))):
            for expert, weight in zip(ids, weights, strict=True):
                out[row] += weight * self._mlp(x[row], f"{p}experts.{expert}.")
        return out

    def _choose_experts(self, scores: Array, p: str) -> tuple[Array, Array]:
        """Return the experts of one row, and their weights."""
        c, used = self.config, self.config["num_experts_per_tok"]
        if c.get("score_function") != "sigmoid":
            shares = np.exp(scores - scores.max())
            ids = np.argsort(-shares, kind="stable")[:used]
            return ids, shares[ids] / shares[ids].sum()
        shares = 1 / (1 + np.exp(-scores))
        scores_by_group = (shares + self.weights[f"{p}gate.expert_bias"]).reshape(c["n_group"], -1)
        best = np.sort(scores_by_group, axis=1)[:, -2:].sum(axis=1)
        scores_by_group[np.argsort(-best, kind="stable")[c["topk_group"] :]] = -np.inf
        ids = np.argsort(-scores_by_group.reshape(-1), kind="stable")[:used]
        return ids, shares[ids] / shares[ids].sum() * c["routed_scaling_factor"]


def save(
    name: str, folder: Path, seed: int = 0,
    tokenizer: Callable[[], Any] = tiny_tokenizers.byte_level,
) -> Ling:  # fmt: skip
    """Write the model's folder."""
    from safetensors.numpy import save_file

    config, rng = CONFIGS[name], np.random.default_rng(seed)
    weights = {
        name: (rng.normal(size=shape) * _spread(name) + name.endswith("norm.weight")).astype("f4")
        for name, shape in _shapes(config).items()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    tiny_tokenizers.save(tokenizer(), folder)
    return Ling(config, weights)


def _spread(name: str) -> float:
    return 0.3 if name.endswith(("norm.weight", "bias")) else 1.5 / np.sqrt(64)


def _shapes(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, head, heads = c["hidden_size"], c["head_dim"], c["num_attention_heads"]
    rows = (heads + 2 * c["num_key_value_heads"]) * head
    shapes: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (c["vocab_size"], hidden),
        "lm_head.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,),
    }  # fmt: skip
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        shapes |= {f"{p}{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
        shapes[f"{p}attention.query_key_value.weight"] = (rows, hidden)
        shapes[f"{p}attention.dense.weight"] = (hidden, heads * head)
        if c.get("use_qkv_bias"):
            shapes[f"{p}attention.query_key_value.bias"] = (rows,)
        if c.get("use_qk_norm"):
            shapes |= {f"{p}attention.{n}_layernorm.weight": (head,) for n in ("query", "key")}
        if i < c["first_k_dense_replace"]:
            shapes |= _mlp(f"{p}mlp.", hidden, c["intermediate_size"])
            continue
        width = c["moe_intermediate_size"]
        shapes[f"{p}mlp.gate.weight"] = (c["num_experts"], hidden)
        if "n_group" in c:
            shapes[f"{p}mlp.gate.expert_bias"] = (c["num_experts"],)
        shapes |= _mlp(f"{p}mlp.shared_experts.", hidden, width * c["num_shared_experts"])
        for expert in range(c["num_experts"]):
            shapes |= _mlp(f"{p}mlp.experts.{expert}.", hidden, width)
    return shapes


def _mlp(p: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{p}gate_proj.weight": (width, hidden), f"{p}up_proj.weight": (width, hidden),
        f"{p}down_proj.weight": (hidden, width),
    }  # fmt: skip
