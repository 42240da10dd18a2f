"""Trains a DFlash block drafter for a model here, and measures what drafts bring.

    python bench/train_drafter.py toy-writer drafter/ --minutes 5
    python bench/train_drafter.py toy-writer drafter/ --measure

The model itself writes the training texts, at several temperatures: a drafter is to guess what the
model would write. Each of a batch's windows has anchors at random places. A block begins at each
with the token there, and goes on with mask tokens; it sees the model's residual stream of the
tokens before the anchor. The loss is the cross entropy of the text's tokens at the masks, later
ones with less weight, since a draft token counts only if those before it are right.

The folder is written as the authors of DFlash (arXiv 2602.06036) publish theirs. The table has
tokens a pass, what drafts cost, and user seconds of the process without drafts divided by those
with them, in pairs that follow each other, for routine text (greedy) and surprising text
(temperature 1).
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from cutaway import LLM
from cutaway.compute.backends import inspectable
from cutaway.compute.model.anatomy import Anatomy
from cutaway.engine import Speculation
from cutaway.engine.speculation import length as lengths

BLOCK, LAYERS, ANCHORS, WINDOW, BATCH = 8, 2, 12, 96, 4
FADE = 4.0  # a mask's weight in the loss falls by e in so many places
THETA, EPS = 10000.0, 1e-6
TEMPERATURES = 0.0, 0.7, 1.0


# -- the texts -------------------------------------------------------------------------------------


def write_texts(llm: LLM, count: int, length: int) -> list[list[int]]:
    """Let the model write texts, each from the first words of another one."""
    rng, texts = np.random.default_rng(1), list[list[int]]()
    prompts = ["The ", "She ", "I am ", "Mr. ", '"You ', "It was ", "When ", "But "]
    while len(texts) < count:
        seed, temperature = int(rng.integers(2**31)), float(rng.choice(TEMPERATURES))
        done = llm.generate(
            prompts, temperature=max(temperature, 0.3 * bool(texts)), seed=seed, max_tokens=length
        )
        texts += [[*c.prompt_token_ids, *c.token_ids] for c in done if len(c.token_ids) > BLOCK]
        starts = [text[k : k + 12] for text in texts[-8:] if (k := int(rng.integers(length // 2)))]
        prompts = [llm.tokenizer.decode(start) or "The " for start in starts] or prompts
    return texts


def read_streams(llm: LLM, text: list[int], layers: list[int]) -> Tensor:
    """Return the residual stream behind these layers, side by side: (tokens, layers · hidden)."""
    stream = Anatomy(llm.graph).stream
    tensors = llm.tensors(text, [stream[i + 1] for i in layers])
    return torch.from_numpy(np.concatenate([tensors[stream[i + 1]] for i in layers], axis=1))


# -- the drafter -----------------------------------------------------------------------------------


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Norm each row."""
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

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.size = hidden // heads
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden), Norm(hidden)
        self.self_attn = nn.ModuleDict(
            {f"{role}_proj": matrix(hidden, hidden) for role in "qkvo"}
            | {f"{role}_norm": Norm(self.size) for role in "qk"}
        )
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
        a = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)), seen)
        x = x + of["o_proj"](a.transpose(1, 2).flatten(2))
        h, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](h)) * mlp["up_proj"](h))


class Drafter(nn.Module):
    """The trained part; the embedding and the head are the model's, and stay."""

    def __init__(self, streams: int, embedding: Tensor, head: Tensor, heads: int) -> None:
        super().__init__()
        hidden = embedding.shape[1]
        self.embedding, self.head = embedding, head
        self.fc, self.hidden_norm, self.norm = matrix(streams, hidden), Norm(hidden), Norm(hidden)
        layers = [Layer(hidden, heads, 3 * hidden // 32 * 32) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(layers)

    def forward(self, streams: Tensor, blocks: Tensor, anchors: Tensor) -> Tensor:
        """Return logits (batch, anchors, BLOCK, vocabulary).

        streams (batch, text, streams); blocks (batch, anchors, BLOCK) of tokens; anchors are the
        places of their first tokens
        """
        count, length = streams.shape[:2]
        text, x = self.hidden_norm(self.fc(streams)), self.embedding[blocks.flatten(1)]
        places = torch.arange(length).expand(count, -1)
        rows = (anchors[..., None] + torch.arange(BLOCK)).flatten(1)
        first = anchors.repeat_interleave(BLOCK, 1)
        mine = torch.arange(anchors.shape[1]).repeat_interleave(BLOCK)
        seen = torch.cat([
            places[:, None] < first[..., None],
            (mine[:, None] == mine).expand(count, -1, -1),
        ], 2)[:, None]  # fmt: skip
        for layer in self.layers:
            x = layer(x, text, (places, rows), seen)
        return (self.norm(x) @ self.head.T).unflatten(1, blocks.shape[1:])


# -- training --------------------------------------------------------------------------------------


def batches(texts: list[tuple[Tensor, Tensor]], mask: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield streams, blocks, anchors and the tokens that belong at the masks."""
    random = torch.Generator().manual_seed(2)

    def below(limit: int, *shape: int) -> Tensor:
        return torch.randint(limit, shape, generator=random)

    long = [pair for pair in texts if len(pair[0]) > WINDOW]
    while True:
        windows = []
        for at in below(len(long), BATCH).tolist():
            start = int(below(len(long[at][0]) - WINDOW, 1))
            windows.append([part[start : start + WINDOW] for part in long[at]])
        ids, streams = (torch.stack(parts) for parts in zip(*windows, strict=True))
        anchors = 1 + below(WINDOW - BLOCK - 1, BATCH, ANCHORS)
        rows = (anchors[..., None] + torch.arange(BLOCK)).flatten(1)
        tokens = ids.gather(1, rows).unflatten(1, (ANCHORS, BLOCK))
        blocks = tokens.clone()
        blocks[..., 1:] = mask
        yield streams.float(), blocks, anchors, tokens[..., 1:]


def train(drafter: Drafter, texts: list[tuple[Tensor, Tensor]], mask: int, minutes: float) -> None:
    """Train for so long; print the loss and how many draft tokens would be right in a row."""
    rate, weights = 2e-3, torch.exp(-torch.arange(BLOCK - 1) / FADE)
    steps = torch.optim.AdamW(drafter.parameters(), rate, weight_decay=0.01)
    started = time.monotonic()
    for number, (streams, blocks, anchors, wanted) in enumerate(batches(texts, mask)):
        share = (time.monotonic() - started) / (60 * minutes)
        if share >= 1:
            return
        steps.param_groups[0]["lr"] = rate * min(1, (number + 1) / 50) * (1 - share)
        logits = drafter(streams, blocks, anchors)[..., 1:, :]
        losses = F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none")
        loss = (losses.view(wanted.shape) * weights).mean() / weights.mean()
        steps.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        steps.step()
        if number % 50 == 0:
            right = (logits.argmax(-1) == wanted).cumprod(-1).sum(-1).float().mean()
            print(f"step {number}: loss {loss:.3f}, {right:.2f} right of {BLOCK - 1}", flush=True)


def write_folder(folder: Path, drafter: Drafter, layers: list[int], mask: int, heads: int) -> None:
    """Write the drafter as its authors publish theirs."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    hidden = drafter.embedding.shape[1]
    config = {
        "architectures": ["DFlashDraftModel"], "hidden_size": hidden, "hidden_act": "silu",
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden // heads,
        "num_hidden_layers": LAYERS, "rms_norm_eps": EPS, "rope_theta": THETA,
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": mask, "target_layer_ids": layers},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    tensors = {name: x.detach().bfloat16() for name, x in drafter.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")


def make(llm: LLM, folder: Path, minutes: float, count: int) -> None:
    """Train a drafter for the model, and write its folder."""
    depth = len(Anatomy(llm.graph).stream) - 1
    layers = sorted({round(x) for x in np.linspace(min(1, depth - 2), depth - 2, 4)})
    ids = write_texts(llm, count, 240)
    texts = [(torch.tensor(text), read_streams(llm, text, layers)) for text in ids]
    used = {token for text in ids for token in text}
    print(f"{len(ids)} texts of {sum(map(len, ids))} tokens, {len(used)} kinds", flush=True)
    anatomy, backend = Anatomy(llm.graph), inspectable(llm.backend)
    embedding = torch.from_numpy(backend.weight("token_embd.weight").copy())
    head = torch.from_numpy(backend.weight(anatomy.head.weights["weight"]).copy())
    mask = max(set(range(len(embedding))) - used)
    heads = anatomy.attends[0].heads.queries
    drafter = Drafter(texts[0][1].shape[1], embedding, head, heads)
    train(drafter, texts, mask, minutes)
    write_folder(folder, drafter, layers, mask, heads)


# -- what it brings --------------------------------------------------------------------------------

PROMPTS = ["The next morning ", "Emma had ", "I cannot think ", '"My dear ']
TASKS = {"routine": 0.0, "mixed": 0.7, "surprising": 1.0}


def write(llm: LLM, speculate: str, temperature: float, length: int) -> tuple[float, Speculation]:
    """Write a text after each prompt; return the process's user seconds, and the drafts in all."""
    before, total = time.process_time(), Speculation()
    for prompt in PROMPTS:
        drafts = llm.generate(
            prompt, temperature=temperature, seed=3, speculate=speculate, max_tokens=length,
            ignore_eos=True,
        ).speculation  # fmt: skip
        total = Speculation(
            total.proposed + drafts.proposed, total.accepted + drafts.accepted,
            total.cost + drafts.cost,
        )  # fmt: skip
    return time.process_time() - before, total


def measure(llm: LLM, kinds: list[str], length: int, pairs: int) -> None:
    """Print a row for each kind of drafts and task."""
    print("| drafts | text | tokens a pass | accepted | cost of drafts | user time |")
    print("|---|---|---|---|---|---|")
    tokens = length * len(PROMPTS)
    for kind in kinds:
        for task, temperature in TASKS.items():
            ratios = []
            for _ in range(pairs + 1):  # the first pair warms up
                off, _ = write(llm, "off", temperature, length)
                seconds, found = write(llm, kind, temperature, length)
                ratios.append(off / seconds)
            a_pass = tokens / (tokens - found.accepted)
            print(
                f"| {kind.split(':')[0]} | {task} | {a_pass:.2f} "
                f"| {found.accepted} of {found.proposed} | {found.cost / tokens:.1%} of the tokens "
                f"| {np.median(ratios[1:]):.2f}× |", flush=True,
            )  # fmt: skip


def main() -> None:
    """Train and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--measure", action="store_true", help="only measure")
    parser.add_argument("--draft", help="a draft model to measure beside it")
    parser.add_argument("--length", type=int, default=240)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)  # beside other programs, more wait for one another
    lengths.MEASURABLE_S = 0.0  # a toy's steps are short, and count as they are
    llm = LLM(given.model)
    if not given.measure:
        make(llm, given.folder, given.minutes, given.texts)
    kinds = ["ngram", *([f"draft:{given.draft}"] if given.draft else []), f"dflash:{given.folder}"]
    measure(llm, kinds, given.length, given.pairs)


if __name__ == "__main__":
    main()
