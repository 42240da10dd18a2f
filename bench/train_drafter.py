"""Trains a DFlash block drafter for a model here; ``drafts.py`` measures what it brings.

    python bench/train_drafter.py smollm2 drafter/ --minutes 35

The model itself writes the training texts: answers to ``routine_texts.py``, two of three greedily.
A drafter is to guess what the model would write. Each text has anchors at random places. A block
begins at each with the token there, and goes on with mask tokens; it sees the model's residual
stream of the tokens before the anchor. The loss is the cross entropy of the text's tokens at the
masks, later ones with less weight, since a draft token counts only if those before it are right.

Three things let a short training suffice. Numbers of the stream differ a thousandfold, so each is
divided by its usual size, which ``fc`` takes over in the end. The loss compares a token with those
of the texts and with others by chance, not with the whole vocabulary. The last norm begins as the
model's, since the head is the model's.

The folder is written as the authors of DFlash (arXiv 2602.06036) publish theirs.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cutaway import LLM
from cutaway.compute.backends import inspectable
from cutaway.compute.model.anatomy import Anatomy
from routine_texts import routine_prompts

BLOCK, LAYERS, ANCHORS, BATCH = 8, 2, 20, 2
SHORTER = 0.25  # of the steps have shorter blocks, as drafts may have
FADE = 4.0  # a mask's weight in the loss falls by e in so many places
OTHERS = 2048  # tokens of the vocabulary that are compared beside those of the texts
THETA, EPS, RATE, WARM_UP = 10000.0, 1e-6, 1.5e-3, 100
TOGETHER = 16  # texts that are written at once


# -- the texts -------------------------------------------------------------------------------------


class Text(NamedTuple):
    """A text of the model: its token ids, the place of the answer, and its tokens' streams."""

    ids: Tensor
    answer: int
    streams: Tensor


def write_texts(llm: LLM, count: int, length: int) -> Iterator[tuple[list[int], int]]:
    """Let the model answer; yield texts, and how many tokens of each are the prompt's."""
    prompts = routine_prompts(llm, held_out=False)
    order = np.random.default_rng(1).permutation(len(prompts))[:count]
    for at in range(0, count, TOGETHER):
        temperature = 0.6 if at // TOGETHER % 3 == 2 else 0.0
        asked = [prompts[number] for number in order[at : at + TOGETHER]]
        for done in llm.generate(asked, temperature=temperature, seed=at, max_tokens=length):
            if len(done.token_ids) > 2 * BLOCK:
                yield [*done.prompt_token_ids, *done.token_ids], len(done.prompt_token_ids)


def read_streams(llm: LLM, text: list[int], layers: list[int]) -> Tensor:
    """Return the residual stream behind these layers, side by side: (tokens, layers · hidden)."""
    stream = Anatomy(llm.graph).stream
    tensors = llm.tensors(text, [stream[i + 1] for i in layers])
    return torch.from_numpy(np.concatenate([tensors[stream[i + 1]] for i in layers], axis=1))


def read_texts(llm: LLM, layers: list[int], count: int, length: int) -> tuple[list[Text], Tensor]:
    """Return texts with their streams divided by each number's usual size, and these sizes.

    Sizes are those of the first text without its first token, whose numbers are far larger.
    """
    texts, sizes = list[Text](), torch.empty(0)
    for ids, answer in write_texts(llm, count, length):
        streams = read_streams(llm, ids, layers)
        if not texts:
            sizes = streams[1:].pow(2).mean(0).sqrt()
        texts.append(Text(torch.tensor(ids), answer, (streams / sizes).half()))
    return texts, sizes


def check_count(texts: int) -> None:
    """Raise SystemExit if a step of the training needs more texts."""
    if texts < BATCH:
        raise SystemExit(
            f"texts of more than {2 * BLOCK} tokens: {texts}, but a step needs {BATCH}: "
            "raise --texts or --length"
        )


# -- the drafter -----------------------------------------------------------------------------------


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Norm each row."""
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def matrix(inner: int, out: int) -> nn.Linear:
    """Return a linear layer without a bias."""
    return nn.Linear(inner, out, bias=False)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate (batch, rows, heads, size) by positions (batch, rows)."""
    half = x.shape[-1] // 2
    angle = positions[..., None, None] / THETA ** (torch.arange(half) / half)
    a, b = x.split(half, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Layer(nn.Module):
    """A layer, by the names of the published tensors."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, ffn: int) -> None:
        super().__init__()
        self.size, narrow = hidden // heads, kv_heads * hidden // heads
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden), Norm(hidden)
        self.self_attn = nn.ModuleDict({
            "q_proj": matrix(hidden, hidden), "k_proj": matrix(hidden, narrow),
            "v_proj": matrix(hidden, narrow), "o_proj": matrix(hidden, hidden),
            "q_norm": Norm(self.size), "k_norm": Norm(self.size),
        })  # fmt: skip
        self.mlp = nn.ModuleDict({
            "gate_proj": matrix(hidden, ffn), "up_proj": matrix(hidden, ffn),
            "down_proj": matrix(ffn, hidden),
        })  # fmt: skip

    def forward(
        self, x: Tensor, text: Tensor, places: tuple[Tensor, Tensor], seen: Tensor
    ) -> Tensor:
        """Return the block's rows after the layer; text: what the text's rows are read as."""
        h, of = self.input_layernorm(x), self.self_attn
        both = torch.cat([text, h], 1)
        q, k, v = (
            of[f"{role}_proj"](rows).unflatten(-1, (-1, self.size))
            for role, rows in (("q", h), ("k", both), ("v", both))
        )
        q, k = rotate(of["q_norm"](q), places[1]), rotate(of["k_norm"](k), torch.cat(places, 1))
        a = F.scaled_dot_product_attention(
            *(y.transpose(1, 2).to(v.dtype) for y in (q, k, v)), seen, enable_gqa=True
        )
        x = x + of["o_proj"](a.transpose(1, 2).flatten(2))
        h, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))


class Sizes(NamedTuple):
    """The sizes of a drafter's layers."""

    hidden: int
    heads: int
    kv_heads: int
    ffn: int


class Drafter(nn.Module):
    """The trained part; the embedding and the head are the model's, and stay."""

    def __init__(self, streams: int, sizes: Sizes, embedding: Tensor, norm: Tensor) -> None:
        super().__init__()
        self.embedding = embedding
        self.fc, self.hidden_norm = matrix(streams, sizes.hidden), Norm(sizes.hidden)
        self.layers = nn.ModuleList([Layer(*sizes) for _ in range(LAYERS)])
        self.norm = Norm(sizes.hidden)
        self.norm.weight.data = norm.clone()

    def forward(self, streams: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Return what the head reads, (batch, anchors, rows of a block, hidden).

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
        return self.norm(x).unflatten(1, blocks.shape[1:])


# -- training --------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What a step of the training reads: as ``Drafter.forward``, and the tokens at the masks."""

    streams: Tensor
    blocks: Tensor
    anchors: Tensor
    wanted: Tensor


def steps_of(texts: list[Text], mask: int) -> Iterator[Step]:
    """Yield steps without end."""
    random = np.random.default_rng(2)
    while True:
        for at in random.permutation(len(texts) // BATCH * BATCH).reshape(-1, BATCH).tolist():
            rows = int(random.integers(3, BLOCK)) if random.random() < SHORTER else BLOCK
            chosen = [texts[number] for number in at]
            anchors = torch.from_numpy(np.stack([
                random.integers(text.answer, len(text.ids) - rows, ANCHORS) for text in chosen
            ]))  # fmt: skip
            streams, ids = (
                nn.utils.rnn.pad_sequence(list(parts), batch_first=True)
                for parts in ((t.streams for t in chosen), (t.ids for t in chosen))
            )
            places = (anchors[..., None] + torch.arange(rows)).flatten(1)
            blocks = ids.gather(1, places).unflatten(1, (ANCHORS, rows))
            wanted = blocks[..., 1:].clone()
            blocks[..., 1:] = mask
            yield Step(streams.float(), blocks, anchors, wanted)


class Candidates:
    """The tokens that the loss compares: all of the texts, and others by chance."""

    def __init__(self, texts: list[Text], head: Tensor) -> None:
        self.used = torch.cat([text.ids for text in texts]).unique()
        is_other = torch.ones(len(head), dtype=torch.bool)
        is_other[self.used] = False
        self._others, self._head = torch.arange(len(head))[is_other], head
        self._number = torch.zeros(len(head), dtype=torch.long)
        self._number[self.used] = torch.arange(len(self.used))

    def logits(self, x: Tensor) -> Tensor:
        """Return the candidates' logits, those of ``used`` first."""
        others = self._others[torch.randint(len(self._others), (OTHERS,))]
        return F.linear(x, self._head[torch.cat([self.used, others])]).float()

    def numbers(self, tokens: Tensor) -> Tensor:
        """Return which of the candidates these tokens are."""
        return self._number[tokens]


def train(drafter: Drafter, texts: list[Text], head: Tensor, mask: int, minutes: float) -> None:
    """Train for so many minutes of processor time; print the loss and tokens right in a row."""
    candidates, weights = Candidates(texts, head), torch.exp(-torch.arange(BLOCK - 1) / FADE)
    optimizer = torch.optim.AdamW(drafter.parameters(), RATE, (0.9, 0.95), weight_decay=0.01)
    started, losses, right = time.process_time(), list[float](), list[float]()
    for number, step in enumerate(steps_of(texts, mask)):
        share = (time.process_time() - started) / (60 * minutes)
        if share >= 1:
            return
        optimizer.param_groups[0]["lr"] = RATE * min(1, (number + 1) / WARM_UP) * (1 - share)
        with torch.autocast("cpu", torch.bfloat16):
            logits = candidates.logits(drafter(*step[:3])[..., 1:, :])
        wanted = candidates.numbers(step.wanted)
        each = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
        loss = (each.view(wanted.shape) * (w := weights[: wanted.shape[2]])).mean() / w.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if wanted.shape[2] == BLOCK - 1:
            hits = (logits.argmax(-1) == wanted).cumprod(-1).sum(-1).float()
            right.append(hits.mean().item())
        if number % 100 == 99:
            print(
                f"step {number + 1}, {share:.0%}: loss {np.mean(losses[-100:]):.3f}, "
                f"{np.mean(right[-70:]):.2f} right of {BLOCK - 1}", flush=True,
            )  # fmt: skip


def write_folder(
    folder: Path, drafter: Drafter, sizes: Sizes, units: Tensor, dflash: dict[str, Any]
) -> None:
    """Write the drafter as its authors publish theirs; units: what streams were divided by."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["DFlashDraftModel"], "hidden_size": sizes.hidden, "hidden_act": "silu",
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.hidden // sizes.heads, "num_hidden_layers": LAYERS,
        "rms_norm_eps": EPS, "rope_theta": THETA, "block_size": BLOCK,
        "dflash_config": dflash,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {name: x.detach() for name, x in drafter.state_dict().items()}
    tensors["fc.weight"] = tensors["fc.weight"] / units
    save_file({name: x.bfloat16() for name, x in tensors.items()}, folder / "model.safetensors")


def make(llm: LLM, folder: Path, minutes: float, count: int, length: int) -> None:
    """Train a drafter for the model, and write its folder."""
    anatomy, backend = Anatomy(llm.graph), inspectable(llm.backend)
    depth = len(anatomy.stream) - 1
    layers = sorted({round(x) for x in np.linspace(min(1, depth - 2), depth - 2, 4)})
    texts, units = read_texts(llm, layers, count, length)
    check_count(len(texts))
    used = {token for text in texts for token in text.ids.tolist()}
    tokens = sum(len(text.ids) for text in texts)
    print(f"{len(texts)} texts of {tokens} tokens, {len(used)} kinds", flush=True)
    embedding, norm, head = (
        torch.from_numpy(backend.weight(name).copy())
        for name in ("token_embd.weight", *anatomy.norm.weights.values(),
                     anatomy.head.weights["weight"])
    )  # fmt: skip
    mask, attention = max(set(range(len(embedding))) - used), anatomy.attends[0].heads
    hidden = embedding.shape[1]
    sizes = Sizes(hidden, attention.queries, attention.kv, 8 * hidden // 3 // 32 * 32)
    drafter = Drafter(len(layers) * hidden, sizes, embedding, norm)
    train(drafter, texts, head, mask, minutes)
    dflash = {"mask_token_id": mask, "target_layer_ids": layers}
    write_folder(folder, drafter, sizes, units, dflash)


def main() -> None:
    """Read the arguments, and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=35.0, help="of processor time")
    parser.add_argument("--texts", type=int, default=480)
    parser.add_argument("--length", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)  # beside other programs, more wait for one another
    torch.manual_seed(0)
    make(LLM(given.model), given.folder, given.minutes, given.texts, given.length)


if __name__ == "__main__":
    main()
