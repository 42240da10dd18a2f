"""A block drafter to be trained: its layers in PyTorch, how they begin, and the folder of the end.

DSpark's form (DFlash, arXiv 2602.06036, with a Markov head), with a vocabulary of its own. The
layers begin as the model's last ones: the text's rows are read as the input that the last layer
has, and queries and keys, which a drafter norms, keep their usual size. So training begins with
heads that know where to look. The folder is written as vLLM's speculators publishes such drafters.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cutaway import LLM
from cutaway.compute.backends import inspectable
from cutaway.compute.model.anatomy import Anatomy

BLOCK, LAYERS, RANK, EPS = 8, 2, 64, 1e-5


class Form(NamedTuple):
    """What a drafter takes from its model.

    streams  how many of the model's layers come before each stream that is read; the last is the
             input of the model's last layer
    units    the usual size of each number of these streams, which ``fc`` reads divided by it
    ids      the model's ids of the drafter's tokens
    mask     the token of rows that are to be guessed
    """

    streams: list[int]
    units: Tensor
    ids: Tensor
    mask: int


class Weights:
    """The model's weights, as a drafter's layers have them."""

    def __init__(self, llm: LLM) -> None:
        self._backend, self.config = inspectable(llm.backend), llm.config
        self.anatomy = Anatomy(llm.graph)
        self.layers = len(self.anatomy.stream) - 1
        self.heads = self.anatomy.attends[0].heads
        self._shapes = llm.graph.shapes

    def read(self, name: str) -> Tensor:
        """Return a tensor; SystemExit if the model has none of that name."""
        if name not in self._shapes:
            raise SystemExit(f"the model has no {name}: a drafter begins as layers of Llama's kind")
        return torch.from_numpy(self._backend.weight(name).copy()).float()

    @property
    def embedding(self) -> Tensor:
        """The embedding of every token."""
        return self.read("token_embd.weight")

    @property
    def norm(self) -> Tensor:
        """The last norm's weight."""
        return self.read(*self.anatomy.norm.weights.values())

    def head(self, ids: Tensor) -> Tensor:
        """Return the head's rows for these tokens."""
        return self.read(self.anatomy.head.weights["weight"])[ids]

    def rotated(self, name: str) -> Tensor:
        """Return q or k, so that the pairs that rotate together are halves of a head."""
        x, dim = self.read(name), self.heads.dim
        if self.config.rope.rotate_half:
            return x
        return x.unflatten(0, (-1, dim // 2, 2)).transpose(1, 2).flatten(0, 2)


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """Norm each row."""
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def matrix(weight: Tensor) -> nn.Linear:
    """Return a linear layer without a bias."""
    layer = nn.Linear(*reversed(weight.shape), bias=False)
    layer.weight.data = weight
    return layer


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate (batch, rows, heads, size) by positions (batch, rows)."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None] / base ** (torch.arange(half) / half)
    a, b = x.split(half, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Layer(nn.Module):
    """A layer, by the names of the published tensors."""

    def __init__(self, weights: Weights, number: int, rows: Tensor) -> None:
        """Begin as the model's layer of this number, whose input has rows like these."""
        super().__init__()
        self._size, self._base, p = weights.heads.dim, weights.config.rope.base, f"blk.{number}."
        self.input_layernorm, self.post_attention_layernorm = (
            Norm(weights.read(f"{p}{name}.weight")) for name in ("attn_norm", "ffn_norm")
        )
        q, k = (weights.rotated(f"{p}attn_{role}.weight") for role in "qk")
        h = self.input_layernorm(rows).detach()
        self.self_attn = nn.ModuleDict({
            "q_proj": matrix(q), "k_proj": matrix(k),
            "v_proj": matrix(weights.read(f"{p}attn_v.weight")),
            "o_proj": matrix(weights.read(f"{p}attn_output.weight")),
            "q_norm": Norm((h @ q.T).pow(2).mean().sqrt().expand(self._size).clone()),
            "k_norm": Norm((h @ k.T).pow(2).mean().sqrt().expand(self._size).clone()),
        })  # fmt: skip
        self.mlp = nn.ModuleDict(
            {
                f"{role}_proj": matrix(weights.read(f"{p}ffn_{role}.weight"))
                for role in ("gate", "up", "down")
            }
        )

    def forward(
        self, x: Tensor, text: Tensor, places: tuple[Tensor, Tensor], seen: Tensor
    ) -> Tensor:
        """Return the block's rows after the layer; text: what the text's rows are read as."""
        h, attention = self.input_layernorm(x), self.self_attn
        both = torch.cat([text, h], 1)
        q, k, v = (
            attention[f"{role}_proj"](rows).unflatten(-1, (-1, self._size))
            for role, rows in (("q", h), ("k", both), ("v", both))
        )
        q = rotate(attention["q_norm"](q), places[1], self._base)
        k = rotate(attention["k_norm"](k), torch.cat(places, 1), self._base)
        a = F.scaled_dot_product_attention(
            *(y.transpose(1, 2).to(v.dtype) for y in (q, k, v)), seen, enable_gqa=True
        )
        x = x + attention["o_proj"](a.transpose(1, 2).flatten(2))
        h, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))


class Drafter(nn.Module):
    """The trained part; the embedding and the head are the model's, and stay."""

    def __init__(self, weights: Weights, form: Form, rows: Tensor) -> None:
        """Begin as the model's last layers; rows: streams of a text, divided by their units."""
        super().__init__()
        self.form, self.embedding = form, weights.embedding
        self.head, hidden = weights.head(form.ids), self.embedding.shape[1]
        last = rows[:, -hidden:] * form.units[-hidden:]
        self.layers = nn.ModuleList(
            Layer(weights, weights.layers - LAYERS + i, last) for i in range(LAYERS)
        )
        self.hidden_norm = Norm(self.layers[-1].input_layernorm.weight.detach().clone())
        fc = 0.003 * torch.randn(hidden, len(form.units))
        fc[:, -hidden:] += torch.diag(form.units[-hidden:] / last.pow(2).mean().sqrt())
        self.fc, self.norm = matrix(fc), Norm(weights.norm)
        self.markov_head = nn.ModuleDict(
            {
                "markov_w1": nn.Embedding(len(self.embedding), RANK),
                "markov_w2": matrix(torch.zeros(len(form.ids), RANK)),
            }
        )

    def forward(self, streams: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Return the logits without the Markov head's, (batch, anchors, rows of a block, tokens).

        streams (batch, text, streams); blocks (batch, anchors, rows) of tokens; anchors are the
        places of their first tokens
        """
        (count, length, _), rows = streams.shape, blocks.shape[2]
        text, x = self.hidden_norm(self.fc(streams)), self.embedding[blocks.flatten(1)]
        places = torch.arange(length).expand(count, -1)
        positions = (anchors[..., None] + torch.arange(rows)).flatten(1)
        first = anchors.repeat_interleave(rows, 1)
        mine = torch.arange(anchors.shape[1]).repeat_interleave(rows)
        seen = torch.cat([
            places[:, None] < first[..., None],
            (mine[:, None] == mine).expand(count, -1, -1),
        ], 2)[:, None]  # fmt: skip
        for layer in self.layers:
            x = layer(x, text, (places, positions), seen)
        return F.linear(self.norm(x), self.head).unflatten(1, blocks.shape[1:])

    def after(self, tokens: Tensor) -> Tensor:
        """Return what the Markov head adds to the logits of the rows after these tokens."""
        logits: Tensor = self.markov_head["markov_w2"](self.markov_head["markov_w1"](tokens))
        return logits


def write_folder(folder: Path, drafter: Drafter, weights: Weights) -> None:
    """Write the drafter as vLLM's speculators publishes them."""
    from safetensors.torch import save_file

    form, heads, hidden = drafter.form, weights.heads, drafter.embedding.shape[1]
    config = {
        "architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark",
        "block_size": BLOCK, "sample_from_anchor": True, "draft_vocab_size": len(form.ids),
        "markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": False,
        "mask_token_id": form.mask, "aux_hidden_state_layer_ids": form.streams,
        "transformer_layer_config": {
            "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": LAYERS,
            "intermediate_size": drafter.layers[0].mlp["up_proj"].out_features,
            "num_attention_heads": heads.queries, "num_key_value_heads": heads.kv,
            "head_dim": heads.dim, "hidden_act": "silu", "rms_norm_eps": EPS,
            "rope_theta": weights.config.rope.base, "vocab_size": len(drafter.embedding),
        },
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {name: x.detach() for name, x in drafter.state_dict().items()}
    tensors |= {"fc.weight": tensors["fc.weight"] / form.units, "lm_head.weight": drafter.head}
    maps = {
        "d2t": form.ids - torch.arange(len(form.ids)),
        "t2d": torch.from_numpy(np.isin(np.arange(len(drafter.embedding)), form.ids)),
    }
    tensors = {name: x.bfloat16() for name, x in tensors.items()} | maps
    save_file({name: x.contiguous() for name, x in tensors.items()}, folder / "model.safetensors")
