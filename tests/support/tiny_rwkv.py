"""Tiny random models of RWKV-7, and their formulas in float64.

transformers has none; the formulas are those of the paper (arXiv 2503.14456) and of the publisher's
code, the names those of flash-linear-attention's folders.
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
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "rwkv7": {
        "model_type": "rwkv7", "architectures": ["RWKV7ForCausalLM"], "vocab_size": 384,
        "hidden_size": 128, "head_dim": 64, "num_heads": None, "intermediate_size": 96,
        "num_hidden_layers": 3, "hidden_act": "sqrelu", "norm_first": True, "norm_bias": True,
        "norm_eps": 1e-5, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "attn": None, "value_dim": [128, 128, 128],
    },
    "rwkv7-old": {
        "model_type": "rwkv7_fla", "vocab_size": 384, "hidden_size": 96, "head_dim": 32,
        "num_hidden_layers": 2, "hidden_ratio": 3.5, "intermediate_size": None, "x_x": True,
    },
}  # fmt: skip
_RANKS = {"w": 32, "a": 64, "v": 96, "g": 128}


@dataclass
class Rwkv:
    """A model of one row of CONFIGS; weights: by the tensor names of its files."""

    config: Mapping[str, Any]
    weights: dict[str, Array]

    def logits(self, ids: list[int]) -> Array:
        """Return the logits of all rows: (n, vocab)."""
        x = self._norm(self._weight("model.embeddings.weight")[ids], "model.layers.0.pre_norm")
        first = None
        for i in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{i}."
            mixed, first = self._time_mix(self._norm(x, f"{p}attn_norm"), f"{p}attn.", first)
            x = x + mixed
            h = self._norm(x, f"{p}ffn_norm")
            k = self._shift(h, self._weight(f"{p}ffn.x_k")) @ self._weight(f"{p}ffn.key.weight").T
            x = x + np.maximum(k, 0) ** 2 @ self._weight(f"{p}ffn.value.weight").T
        logits: Array = self._norm(x, "model.norm") @ self._weight("lm_head.weight").T
        return logits

    def _weight(self, name: str) -> Array:
        wide: Array = self.weights[name].astype(np.float64)
        return wide

    def _norm(self, x: Array, name: str, eps: float = 1e-5) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        y: Array = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
        if not name:
            return y
        normed: Array = y * self._weight(f"{name}.weight") + self._weight(f"{name}.bias")
        return normed

    def _shift(self, x: Array, mix: Array) -> Array:
        before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
        shifted: Array = x + (before - x) * mix.reshape(-1)
        return shifted

    def _mix(self, p: str, name: str) -> Array:
        if f"{p}x_x" in self.weights:
            mix: Array = self._weight(f"{p}x_x")["rwkvag".index(name)]
            return mix
        return self._weight(f"{p}x_{name}")

    def _narrow(self, x: Array, p: str, act: Callable[[Array], Array]) -> Array:
        inner = act(x @ self._weight(f"{p}.lora.0.weight").T)
        y: Array = inner @ self._weight(f"{p}.lora.2.weight").T
        return y + (self._weight(f"{p}.lora.2.bias") if f"{p}.lora.2.bias" in self.weights else 0)

    def _time_mix(self, x: Array, p: str, first: Array | None) -> tuple[Array, Array]:
        xr, xw, xk, xv, xa, xg = (self._shift(x, self._mix(p, name)) for name in "rwkvag")
        r, k, v = (
            part @ self._weight(f"{p}{name}_proj.weight").T
            for part, name in ((xr, "r"), (xk, "k"), (xv, "v"))
        )
        keep = np.exp(-np.exp(-0.5) * _sigmoid(self._narrow(xw, f"{p}w_lora", np.tanh)))
        if first is None:
            first = v
        else:
            v = v + (first - v) * _sigmoid(self._narrow(xv, f"{p}v_lora", np.asarray))
        learn = _sigmoid(self._narrow(xa, f"{p}a_lora", np.asarray))
        gate = self._narrow(xg, f"{p}g_lora", _sigmoid)
        size = self.config["head_dim"]
        r, keep, v, learn = (part.reshape(len(x), -1, size) for part in (r, keep, v, learn))
        removed = (k * self._weight(f"{p}k_k")).reshape(r.shape)
        removed = removed / np.linalg.norm(removed, axis=-1, keepdims=True)
        k, learned = k.reshape(r.shape), self._weight(f"{p}k_a").reshape(r.shape[1:])
        k = k * (1 + (learn - 1) * learned)
        state, out = np.zeros((*r.shape[1:], size)), np.empty_like(v)  # (heads, values, keys)
        for t in range(len(x)):
            had = np.einsum("hvk,hk->hv", state, removed[t])
            state = state * keep[t][:, None]
            state -= had[:, :, None] * (removed[t] * learn[t])[:, None]
            state += v[t][:, :, None] * k[t][:, None]
            out[t] = np.einsum("hvk,hk->hv", state, r[t])
        y = self._norm(out, "", size * 1e-5).reshape(x.shape)
        y = y * self._weight(f"{p}g_norm.weight") + self._weight(f"{p}g_norm.bias")
        bonus = (r * k * self._weight(f"{p}r_k")).sum(axis=-1, keepdims=True) * v
        y = (y + bonus.reshape(x.shape)) * gate
        return y @ self._weight(f"{p}o_proj.weight").T, first


def _sigmoid(x: Array) -> Array:
    y: Array = 1 / (1 + np.exp(-x))
    return y


def save(
    name: str, folder: Path, seed: int = 0,
    tokenizer: Callable[[], Any] = tiny_tokenizers.byte_level,
) -> Rwkv:  # fmt: skip
    """Write the model's folder."""
    from safetensors.numpy import save_file

    config, rng = CONFIGS[name], np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: _random(name, shape, rng).astype("f4") for name, shape in shapes_of(config).items()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "x_x"}))
    tiny_tokenizers.save(tokenizer(), folder)
    return Rwkv(config, weights)


def _random(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    numbers: Array = rng.normal(size=shape)
    if ".x_" in name:
        return 0.5 + 0.3 * numbers
    if name.endswith(("norm.weight", "k_k", "k_a")):
        return 1 + 0.3 * numbers
    return numbers * (1.5 / np.sqrt(shape[-1]) if len(shape) == 2 else 0.3)


def shapes_of(c: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a config's model."""
    n, size, vocab = c["hidden_size"], c["head_dim"], c["vocab_size"]
    inner = c["intermediate_size"] or -(-int(n * c["hidden_ratio"]) // 32) * 32
    norms = ["model.norm", "model.layers.0.pre_norm"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.weight": (vocab, n), "lm_head.weight": (vocab, n),
    }  # fmt: skip
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}.attn."
        norms += [f"model.layers.{i}.attn_norm", f"model.layers.{i}.ffn_norm", f"{p}g_norm"]
        shapes |= {f"{p}{name}_proj.weight": (n, n) for name in "rkvo"}
        mixes = {f"{p}x_x": (6, n)} if "x_x" in c else {f"{p}x_{m}": (1, 1, n) for m in "rwkvag"}
        shapes |= mixes | {f"{p}k_k": (n,), f"{p}k_a": (n,), f"{p}r_k": (n // size, size)}
        for name in "wag" if i == 0 else "wavg":
            shapes[f"{p}{name}_lora.lora.0.weight"] = (_RANKS[name], n)
            shapes[f"{p}{name}_lora.lora.2.weight"] = (n, _RANKS[name])
            if name != "g":
                shapes[f"{p}{name}_lora.lora.2.bias"] = (n,)
        p = f"model.layers.{i}.ffn."
        shapes |= {f"{p}x_k": (n,), f"{p}key.weight": (inner, n), f"{p}value.weight": (n, inner)}
    return shapes | {f"{name}.{role}": (n,) for name in norms for role in ("weight", "bias")}
