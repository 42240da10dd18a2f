"""The toy that train_canvas.py trains: its characters, its body in torch, and its file as GGUF.

What is particular to it, beside LLaDA's architecture: a token is one character, and heads begin
with their eyes on neighbours. Refuses to know the text and the training.
"""

from collections.abc import Iterator
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
MASK = len(CHARACTERS)  # the token behind them
_NORMAL, _CONTROL = 1, 3  # a token's type


@dataclass(frozen=True)
class Sizes:
    """What the model is. Sizes are multiples of 32 for the sake of Q8_0."""

    hidden: int = 128
    layers: int = 5
    heads: int = 4
    ffn: int = 384
    context: int = 256
    rope_base: float = 10_000.0
    epsilon: float = 1e-5


class Layer(nn.Module):
    """Attention over all of the window, then a gated network."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
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
        """(texts, positions, hidden); turn: of the positions, see `turned`."""
        n = self.attn_norm(x)
        q, k, v = (
            matrix(n).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for matrix in (self.attn_q, self.attn_k, self.attn_v)
        )
        # Spelt out: of windows this short the fused kernel takes twice as long to learn from.
        scores = turned(q, turn) @ turned(k, turn).transpose(-1, -2) * q.shape[-1] ** -0.5
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
    """Ids (texts, positions) to logits (texts, positions, characters and the mask)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.token_embd = nn.Embedding(MASK + 1, sizes.hidden)
        layers = [Layer(sizes) for _ in range(sizes.layers)]
        self.blk = nn.ModuleList(layers)
        self.output_norm = nn.RMSNorm(sizes.hidden, sizes.epsilon)
        self.output = nn.Linear(sizes.hidden, MASK + 1, bias=False)
        size = sizes.hidden // sizes.heads
        speeds = sizes.rope_base ** (-torch.arange(0, size, 2).double() / size)
        angles = torch.outer(torch.arange(sizes.context).double(), speeds)
        turn = torch.stack((angles.cos(), angles.sin())).float()
        self.turn = nn.Buffer(turn, persistent=False)
        self._begin(layers, speeds)

    @torch.no_grad()
    def _begin(self, layers: list[Layer], speeds: Tensor) -> None:
        """Two heads of layer n look n + 1 characters back and ahead before anything is learnt.

        A masked cell knows nothing of its own, so that heads would first have to find their
        neighbours: until then the loss is that of single characters.
        All embeddings share a direction, from which queries and keys of these heads are made.
        """
        nn.init.zeros_(self.output.weight)
        nn.init.normal_(self.token_embd.weight, std=0.5)
        shared = F.normalize(torch.randn(self.sizes.hidden), dim=0)
        self.token_embd.weight += 0.5 * self.sizes.hidden**0.5 * shared
        fast = (speeds > 0.1).double()  # slow pairs cannot tell neighbours apart
        for n, layer in enumerate(layers):
            for head, distance in enumerate((-n - 1, n + 1)):
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
    """A trained toy as llama.cpp names LLaDA's parts, in float32.

    It names no token that begins or ends texts: it was trained on pieces of one long text.
    """

    def __init__(self, model: Toy, name: str, description: str) -> None:
        self.path, self._model = Path(name), model
        self.metadata = MappingProxyType(
            dict(_metadata(model.sizes, name, description)) | dict(_vocabulary())
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

    def release(self, name: str) -> None:
        """All is kept."""

    def close(self) -> None:
        """Nothing is open."""


def _metadata(sizes: Sizes, name: str, description: str) -> Iterator[tuple[str, Any]]:
    yield "general.architecture", "llada"
    yield "general.name", name
    yield "general.description", description
    yield "diffusion.shift_logits", False
    for key, value in (
        ("block_count", sizes.layers),
        ("context_length", sizes.context),
        ("embedding_length", sizes.hidden),
        ("feed_forward_length", sizes.ffn),
        ("attention.head_count", sizes.heads),
        ("attention.head_count_kv", sizes.heads),
        ("attention.layer_norm_rms_epsilon", sizes.epsilon),
        ("attention.causal", False),
        ("rope.freq_base", sizes.rope_base),
        ("rope.dimension_count", sizes.hidden // sizes.heads),
        ("vocab_size", MASK + 1),
    ):
        yield f"llada.{key}", value


def _vocabulary() -> Iterator[tuple[str, Any]]:
    """SentencePiece's kind without anything to merge: a character that it lacks is refused."""
    tokens = [*CHARACTERS.replace(" ", "\u2581"), "[MASK]"]
    types = [_NORMAL] * MASK + [_CONTROL]
    yield "tokenizer.ggml.model", "llama"
    yield "tokenizer.ggml.tokens", tokens
    yield "tokenizer.ggml.scores", np.zeros(len(tokens), np.float32)
    yield "tokenizer.ggml.token_type", np.array(types, np.int32)
    yield "tokenizer.ggml.mask_token_id", MASK
    yield "tokenizer.ggml.add_space_prefix", False
    yield "tokenizer.ggml.add_bos_token", False


def _tensors(model: Toy) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, tensor in model.state_dict().items():
        numbers = tensor.float().numpy()
        if ".attn_q." in name or ".attn_k." in name:
            # GGUF turns pairs of neighbours, this model pairs of halves.
            halves = numbers.reshape(model.sizes.heads, 2, -1, model.sizes.hidden)
            numbers = halves.swapaxes(1, 2).reshape(numbers.shape)
        yield name, np.ascontiguousarray(numbers)
