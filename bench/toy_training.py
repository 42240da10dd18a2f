"""Trains a toy: the steps, their learning rates, the checkpoints. Knows one model and when to stop.

Knows no objective: train_canvas.py and train_writer.py define the loss, the windows and the
measure. The module needs torch, which cutaway itself does not.

The learning rate is constant and falls only in the last part of the steps. So a training that is
stopped and resumed with fewer steps in all equals a training with these steps from the start.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cutaway.files.weights.gguf_writer import write_gguf
from script import parser_of
from toy_model import CHARACTERS, Sizes, Toy, ToyFile

TEXT_SHA256 = "f2516f2139e3cecf49657122fed58ac46313f1fdff32a26fc66789293e92d573"
BATCH = 4096  # tokens of a step
WARMUP, DECAY = 50, 0.45  # number of steps at the start, share of all steps at the end
RATE, OTHER_RATE = 8e-3, 2e-3  # learning rates: of matrices (Muon), of all else (AdamW)
DRAWS, LAST_DRAWS = 4, 32  # draws of 64 windows each, for the figure
EVERY = 50  # steps from one checkpoint to the next


def read(path: Path) -> str:
    """Read the cleaned text; exit if it is not the text that the toys are trained on."""
    data = path.read_bytes()
    if sha256(data).hexdigest() != TEXT_SHA256:
        raise SystemExit(f"{path} is not the text of TEXT_SHA256: make it as --help says")
    return clean(data.decode())


def clean(text: str) -> str:
    """Give each paragraph one line, put one space between words, keep only CHARACTERS."""
    known = re.sub(f"[^{re.escape(CHARACTERS)}]", "", text)
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", known))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


class Windows:
    """The tokens of a text, and windows of tokens that begin at a word."""

    def __init__(self, ids: Iterable[int], starts: Iterable[int]) -> None:
        self.ids, self.starts = torch.tensor(list(ids)), torch.tensor(list(starts))

    def draw(self, count: int, length: int, random: torch.Generator) -> Tensor:
        """Draw random windows, (count, length)."""
        starts = self.starts[: torch.searchsorted(self.starts, len(self.ids) - length + 1)]
        chosen = starts[torch.randint(len(starts), (count,), generator=random)]
        return self.ids[chosen[:, None] + torch.arange(length)]


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Make the optimizers: Muon for the matrices of layers, AdamW for all else."""
    inner = [p for name, p in model.named_parameters() if "blk" in name and p.ndim == 2]
    rest = [p for name, p in model.named_parameters() if "blk" not in name or p.ndim != 2]
    return [
        torch.optim.Muon(inner, RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step: int, steps: int) -> float:
    """The factor of the learning rate at a step, 0 to 1."""
    return min(1.0, (step + 1) / WARMUP, (steps - step) / (DECAY * steps))


class Training:
    """A model in training: all that a checkpoint needs, so that a resumed training is the same.

    done     number of steps so far; the random numbers of a step depend only on the step's number
    seconds  processor seconds of these steps; figures: of the last measure
    """

    unit: str  # of `BATCH`

    def __init__(self, sizes: Sizes) -> None:
        torch.manual_seed(0)
        self.model = Toy(sizes)
        self.by = optimizers(self.model)
        self.done, self.seconds = 0, 0.0
        self.figures: dict[str, Any] = {}

    def loss(self, random: torch.Generator) -> Tensor:
        """The loss of one step's windows, which `done` and random choose."""
        raise NotImplementedError

    def held_out_losses(self, random: torch.Generator) -> Tensor:
        """The nats per character of 64 windows that are never trained on, (64,)."""
        raise NotImplementedError

    def file(self) -> ToyFile:
        """The model with its name, its vocabulary and its figures."""
        raise NotImplementedError

    def bits(self, draws: int) -> Tensor:
        """The bits per character of 64 held-out windows for each draw, the same in each call."""
        random = torch.Generator().manual_seed(1)
        return torch.cat([self.held_out_losses(random) for _ in range(draws)]) / math.log(2)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, was in zip(self.by, state["optimizers"], strict=True):
            optimizer.load_state_dict(was)
        self.done, self.seconds = state["done"], state["spent"]
        self.figures = state["figures"]

    def save(self, path: Path) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.by],
            "done": self.done,
            "spent": self.seconds,
            "figures": self.figures,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def step(self, steps: int) -> None:
        """Make one training step. steps: of the whole training."""
        started = time.process_time()
        self.loss(torch.Generator().manual_seed(self.done + 1000)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, full in zip(self.by, (RATE, OTHER_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full * rate(self.done, steps)
            optimizer.step()
            optimizer.zero_grad()
        self.done += 1
        self.seconds += time.process_time() - started

    def measure(self, draws: int) -> None:
        """Measure the bits per character; print them and the tokens so far as a line of JSON."""
        with torch.no_grad():
            bits = self.bits(draws)
        self.figures = {
            "steps": self.done,
            self.unit: self.done * BATCH,
            "bits_per_character": round(bits.mean().item(), 3),
            "standard_error": round(bits.std().item() / len(bits) ** 0.5, 3),
            "core_minutes": round(self.seconds / 60, 1),
        }
        print(json.dumps(self.figures), flush=True)


def train(training: Training, checkpoint: Path, steps: int) -> None:
    """Train from the last checkpoint, if there is one, to the last step."""
    if checkpoint.exists():
        training.load(checkpoint)
    while training.done < steps:
        training.step(steps)
        if training.done % EVERY == 0 or training.done == steps:
            training.measure(LAST_DRAWS if training.done == steps else DRAWS)
            training.save(checkpoint)


def training_parser(doc: str | None, steps: int) -> argparse.ArgumentParser:
    """Make the parser of both scripts; steps: the default number of steps."""
    parser = parser_of(doc, model=False)
    parser.add_argument("text", type=Path)
    parser.add_argument("checkpoint", type=Path, help="resumed where it exists")
    parser.add_argument("--steps", type=int, default=steps, help="of the whole training")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export", type=Path, metavar="FILE", help="then write it as GGUF")
    return parser


def run(training: Training, args: argparse.Namespace) -> None:
    """Train, and export, as the arguments say."""
    torch.set_num_threads(args.threads)
    train(training, args.checkpoint, args.steps)
    if args.export:
        write_gguf(args.export, training.file())
