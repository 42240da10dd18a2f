"""Trains the toy: a small masked-diffusion language model over characters, for the lesson.

    Rscript -e 'writeLines(janeaustenr::austen_books()$text, "austen.txt")'
    python bench/train_canvas.py austen.txt toy.pt --export toy.gguf
    cutaway quantize toy.gguf toy-canvas.Q8_0.gguf --to q8_0

The text is the six novels of Jane Austen (1775–1817), which are in the public domain, as the R
package janeaustenr 1.0.0 has them (Debian: r-cran-janeaustenr 1.0.0-1); TEXT_SHA256 is the file's
that the first line writes. It needs torch, which cutaway itself never does.

The model is LLaDA's (arXiv 2502.09992) made small: the body of llama, in which every token sees
all. Its loss is LLaDA's: of a window of L characters, k are masked, k drawn evenly from 1 to L; the
loss is the mean cross entropy of the masked ones, and its mean over k is a bound of the window's
negative log-likelihood per character. Half of the windows have a beginning that is never masked,
as a prompt is. Windows are of 64, 128 or 256 characters; in the first steps few of them are masked,
since what is behind a hole says most about it.

The rate of learning is constant and falls in the last part of the steps alone, so a training that
is stopped and resumed with fewer steps in all is the training that had these steps from the start.
"""

import json
import math
import re
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from canvas_model import CHARACTERS, MASK, Sizes, Toy, ToyFile
from cutaway.files.weights.gguf_writer import write_gguf
from script import parser_of

TEXT_SHA256 = "f2516f2139e3cecf49657122fed58ac46313f1fdff32a26fc66789293e92d573"
HELD_OUT = 100_000  # characters at the end, which are never trained on
BATCH = 4096  # characters of a step
WINDOWS = 64, 128, 256
WARMUP, DECAY = 50, 0.45  # steps at the start, part of all steps at the end
EASY = 500  # steps until windows may be masked entirely, at the start a fifth of them at most
RATE, OTHER_RATE = 8e-3, 2e-3  # of matrices (Muon), of everything else (AdamW)
STEPS = 8000
DRAWS, LAST_DRAWS = 4, 32  # of 64 windows each, for the bound
EVERY = 50  # steps from one checkpoint to the next


def clean(text: str) -> str:
    """One line per paragraph, one space between words, nothing but CHARACTERS."""
    known = re.sub(f"[^{re.escape(CHARACTERS)}]", "", text)
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", known))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


class Text:
    """Ids of a text, and windows of it that begin where a word does."""

    def __init__(self, text: str) -> None:
        places = {character: i for i, character in enumerate(CHARACTERS)}
        self.ids = torch.tensor([places[character] for character in text])
        spaces = (self.ids == places[" "]) | (self.ids == places["\n"])
        self.starts = torch.nonzero(spaces)[:, 0] + 1

    def windows(self, count: int, length: int, random: torch.Generator) -> Tensor:
        """So many, (count, length), drawn by chance."""
        starts = self.starts[: torch.searchsorted(self.starts, len(self.ids) - length + 1)]
        chosen = starts[torch.randint(len(starts), (count,), generator=random)]
        return self.ids[chosen[:, None] + torch.arange(length)]


def masked(ids: Tensor, random: torch.Generator, *, most: float = 1, prompts: bool) -> Tensor:
    """Which cells of each window are masked; prompts: half of the windows keep a beginning.

    most: the part of the others that can be masked
    """
    count, length = ids.shape
    first = torch.zeros(count, dtype=torch.long)
    if prompts:
        first[::2] = torch.randint(0, length - 8, (len(first[::2]),), generator=random)
    # Even shares of the masked part over the batch, in any order: less noise than by chance.
    shares = torch.randperm(count, generator=random) + torch.rand(count, generator=random)
    number = ((length - first) * most * shares / count).floor().long() + 1
    order = torch.rand(count, length, generator=random)
    order[torch.arange(length) < first[:, None]] = 2.0
    return order.argsort(1).argsort(1) < number[:, None]


def losses(model: nn.Module, ids: Tensor, holes: Tensor) -> Tensor:
    """Mean cross entropy of the masked cells of each window, in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids.masked_fill(holes, MASK))
    each = F.cross_entropy(logits.float().transpose(1, 2), ids, reduction="none")
    return (each * holes).sum(1) / holes.sum(1)


@torch.no_grad()
def bound(model: nn.Module, text: Text, draws: int) -> tuple[float, float]:
    """Bits per character of windows of 256, and the standard error of that mean."""
    random = torch.Generator().manual_seed(1)
    drawn = []
    for _ in range(draws):
        ids = text.windows(64, WINDOWS[-1], random)
        drawn.append(losses(model, ids, masked(ids, random, prompts=False)) / math.log(2))
    bits = torch.cat(drawn)
    return bits.mean().item(), bits.std().item() / len(bits) ** 0.5


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of layers, AdamW for all else."""
    inner = [p for name, p in model.named_parameters() if "blk" in name and p.ndim == 2]
    rest = [p for name, p in model.named_parameters() if "blk" not in name or p.ndim != 2]
    return [
        torch.optim.Muon(inner, RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step: int, steps: int) -> float:
    """Part of the rate of learning that step has."""
    return min(1.0, (step + 1) / WARMUP, (steps - step) / (DECAY * steps))


class Training:
    """A model on its way: what a checkpoint has, so that a resumed one goes on as if never stopped.

    done     steps; each depends on its number, and on nothing else that is drawn
    seconds  of processors that they took; figures: what was last measured
    """

    def __init__(self, text: str) -> None:
        self.seen, self.held_out = Text(text[:-HELD_OUT]), Text(text[-HELD_OUT:])
        torch.manual_seed(0)
        self.model = Toy(Sizes())
        self.by = optimizers(self.model)
        self.done, self.seconds = 0, 0.0
        self.figures: dict[str, Any] = {}

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
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
        """One step of so many."""
        started = time.process_time()
        random = torch.Generator().manual_seed(self.done + 1000)
        length = WINDOWS[int(torch.randint(len(WINDOWS), (), generator=random))]
        ids = self.seen.windows(BATCH // length, length, random)
        most = min(1.0, 0.2 + 0.8 * self.done / EASY)
        holes = masked(ids, random, most=most, prompts=True)
        losses(self.model, ids, holes).mean().backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, full in zip(self.by, (RATE, OTHER_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full * rate(self.done, steps)
            optimizer.step()
            optimizer.zero_grad()
        self.done += 1
        self.seconds += time.process_time() - started

    def measure(self, draws: int) -> None:
        """What the model has seen and how well it does, printed as a line of JSON."""
        bits, error = bound(self.model, self.held_out, draws)
        self.figures = {
            "steps": self.done,
            "characters": self.done * BATCH,
            "bits_per_character": round(bits, 3),
            "standard_error": round(error, 3),
            "core_minutes": round(self.seconds / 60, 1),
        }
        print(json.dumps(self.figures), flush=True)


def train(text: str, checkpoint: Path, steps: int) -> None:
    """From the last checkpoint, if there is one, to the last step."""
    training = Training(text)
    if checkpoint.exists():
        training.load(checkpoint)
    while training.done < steps:
        training.step(steps)
        if training.done % EVERY == 0 or training.done == steps:
            training.measure(LAST_DRAWS if training.done == steps else DRAWS)
            training.save(checkpoint)


def export(text: str, checkpoint: Path, output: Path) -> None:
    """The last checkpoint's model, its figures in its description."""
    training = Training(text)
    training.load(checkpoint)
    figures = training.figures
    description = (
        "A toy for the lesson on masked diffusion, trained on the six novels of Jane Austen: "
        f"{figures['steps']:,} steps, {figures['characters']:,} characters, at most "
        f"{figures['bits_per_character']:.2f} bits per character of text that it has not seen."
    )
    write_gguf(output, ToyFile(training.model, "toy-canvas", description))


def read(path: Path) -> str:
    """The cleaned text; ends where it is not the one that the toy is trained on."""
    data = path.read_bytes()
    if sha256(data).hexdigest() != TEXT_SHA256:
        raise SystemExit(f"{path} is not the text of TEXT_SHA256: make it as --help says")
    return clean(data.decode())


def main() -> None:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("text", type=Path)
    parser.add_argument("checkpoint", type=Path, help="resumed where it exists")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the whole training")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export", type=Path, metavar="FILE", help="then write it as GGUF")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    text = read(args.text)
    train(text, args.checkpoint, args.steps)
    if args.export:
        export(text, args.checkpoint, args.export)


if __name__ == "__main__":
    main()
