"""The toy models of the package: their bodies in torch, and their files as GGUF.

A causal body is llama's, a bidirectional body LLaDA's. Two details are special: at first, heads
attend to neighbours; and a token of toy-canvas is one character. Knows nothing of the text and the
training.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cutaway.files.weights import ModelFile, TensorInfo

CHARACTERS = "\n !\"&'(),-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
MASK = len(CHARACTERS)  # toy-canvas's token after those of the characters
NORMAL, CONTROL = 1, 3  # a token's type


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model; the defaults are toy-canvas's.

    Sizes are multiples of 32, as Q8_0 needs.
    """

    vocabulary: int = MASK + 1
    causal: bool = False
    hidden: int = 128
    layers: int = 5
    heads: int = 4
    ffn: int = 384
    context: int = 256
    rope_base: float = 10_000.0
    epsilon: float = 1e-5


class Layer(nn.Module):
    """Attention over the whole window, or over earlier tokens; then a gated feed-forward layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.causal = sizes.heads, sizes.causal
        hidden, ffn = sizes.hidden, sizes.ffn
        self.attn_norm = nn.RMSNorm(hidden, sizes.epsilon)
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (
            nn.Linear(hidden, hidden, bias=False) for _ in range(4)
        )
        self.ffn_norm = nn.RMSNorm(hidden, sizes.epsilon)
        self.ffn_gate = nn.Linear(hidden, ffn, bias=False)
        self.ffn_up = nn.Linear(hidden, ffn, bias=False)
        self.ffn_down = nn.Linear(ffn, hidden, bias=False)
        nn.init.zeros_(self.attn_output.weight)
        nn.init.zeros_(self.ffn_down.weight)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """Map x to the same shape, (texts, positions, hidden). turn: see `turned`."""
        n = self.attn_norm(x)
        q, k, v = (
            matrix(n).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for matrix in (self.attn_q, self.attn_k, self.attn_v)
        )
        # Written out: for windows this short, training with the fused kernel takes twice as long.
        scores = turned(q, turn) @ turned(k, turn).transpose(-1, -2) * q.shape[-1] ** -0.5
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        x = x + self.attn_output((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))
        n = self.ffn_norm(x)
        mixed: Tensor = x + self.ffn_down(F.silu(self.ffn_gate(n)) * self.ffn_up(n))
        return mixed


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """RoPE over the two halves of each head; turn: (2, positions, pairs)."""
    first, second = x.chunk(2, -1)
    cos, sin = turn.to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Toy(nn.Module):
    """A model: ids (texts, positions) -> logits (texts, positions, vocabulary)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.token_embd = nn.Embedding(sizes.vocabulary, sizes.hidden)
        layers = [Layer(sizes) for _ in range(sizes.layers)]
        self.blk = nn.ModuleList(layers)
        self.output_norm = nn.RMSNorm(sizes.hidden, sizes.epsilon)
        self.output = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        size = sizes.hidden // sizes.heads
        speeds = sizes.rope_base ** (-torch.arange(0, size, 2).double() / size)
        angles = torch.outer(torch.arange(sizes.context).double(), speeds)
        turn = torch.stack((angles.cos(), angles.sin())).float()
        self.turn = nn.Buffer(turn, persistent=False)
        self._begin(layers, speeds)

    @torch.no_grad()
    def _begin(self, layers: list[Layer], speeds: Tensor) -> None:
        """Initialize two heads of layer n to attend n + 1 tokens back, and n + 1 ahead.

        In a causal body, both attend back: one n + 1 tokens, the other n + 1 + layers.

        A masked cell has no content of its own, so heads would first have to learn to find
        neighbours; until then the loss is that of single characters. All embeddings share a
        direction, from which the queries and keys of these heads are made.
        """
        nn.init.zeros_(self.output.weight)
        nn.init.normal_(self.token_embd.weight, std=0.5)
        shared = F.normalize(torch.randn(self.sizes.hidden), dim=0)
        self.token_embd.weight += 0.5 * self.sizes.hidden**0.5 * shared
        fast = (speeds > 0.1).double()  # slow pairs cannot tell neighbours apart
        for n, layer in enumerate(layers):
            other = -n - 1 - len(layers) if self.sizes.causal else n + 1
            for head, distance in enumerate((-n - 1, other)):
                rows = slice(head * 2 * len(speeds), (head + 1) * 2 * len(speeds))
                query = torch.cat((fast, torch.zeros_like(speeds)))
                angle = distance * speeds
                key = torch.cat((fast * angle.cos(), -fast * angle.sin()))
                for matrix, one in ((layer.attn_q, query), (layer.attn_k, key)):
                    matrix.weight[rows] += 0.4 * torch.outer(one.float(), shared)

    def forward(self, ids: Tensor) -> Tensor:
        """See the class."""
        x = self.token_embd(ids)
        for layer in self.blk:
            x = layer(x, self.turn[:, : ids.shape[1]])
        logits: Tensor = self.output(self.output_norm(x))
        return logits


class ToyFile(ModelFile):
    """A trained toy in float32, with llama.cpp's names.

    more: metadata of the tokenizer and, for a canvas of noise, of its denoiser.

    The file names no token that begins or ends texts: the training text is one long text in pieces.
    """

    def __init__(self, model: Toy, name: str, description: str, more: Mapping[str, Any]) -> None:
        self.path, self._model = Path(name), model
        self.metadata = MappingProxyType(
            dict(_metadata(model.sizes, name, description)) | dict(more)
        )
        self._numbers = dict(_tensors(model))
        self.tensors = MappingProxyType(
            {
                name: TensorInfo(name, "F32", numbers.shape)
                for name, numbers in self._numbers.items()
            }
        )

    def raw(self, name: str) -> NDArray[np.uint8]:
        """See `ModelFile`."""
        return self._numbers[self.info(name).name].reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Do nothing, as no file is open."""


def _metadata(sizes: Sizes, name: str, description: str) -> Iterator[tuple[str, Any]]:
    architecture = "llama" if sizes.causal else "llada"
    yield "general.architecture", architecture
    yield "general.name", name
    yield "general.description", description
    if not sizes.causal:
        yield "diffusion.shift_logits", False
        yield f"{architecture}.attention.causal", False
    for key, value in (
        ("block_count", sizes.layers),
        ("context_length", sizes.context),
        ("embedding_length", sizes.hidden),
        ("feed_forward_length", sizes.ffn),
        ("attention.head_count", sizes.heads),
        ("attention.head_count_kv", sizes.heads),
        ("attention.layer_norm_rms_epsilon", sizes.epsilon),
        ("rope.freq_base", sizes.rope_base),
        ("rope.dimension_count", sizes.hidden // sizes.heads),
        ("vocab_size", sizes.vocabulary),
    ):
        yield f"{architecture}.{key}", value


def characters(*, mask: bool) -> dict[str, Any]:
    """Metadata of a SentencePiece tokenizer without merges, which refuses unknown characters.

    mask: there is a token of masked cells after those of the characters
    """
    tokens = [*CHARACTERS.replace(" ", "\u2581"), *["[MASK]"] * mask]
    types = [NORMAL] * len(CHARACTERS) + [CONTROL] * mask
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.zeros(len(tokens), np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    } | ({"tokenizer.ggml.mask_token_id": MASK} if mask else {})


def _tensors(model: Toy) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, tensor in model.state_dict().items():
        numbers = tensor.float().numpy()
        if ".attn_q." in name or ".attn_k." in name:
            # In GGUF, RoPE turns pairs of neighbouring numbers; in this model, pairs of halves.
            halves = numbers.reshape(model.sizes.heads, 2, -1, model.sizes.hidden)
            numbers = halves.swapaxes(1, 2).reshape(numbers.shape)
        yield name, np.ascontiguousarray(numbers)
