"""Trains toy-canvas, a small masked-diffusion language model over characters, and toy-noise.

    Rscript -e 'writeLines(janeaustenr::austen_books()$text, "austen.txt")'
    python bench/train_canvas.py austen.txt toy.pt --export toy.gguf
    cutaway quantize toy.gguf toy-canvas.Q8_0.gguf --to q8_0

The text is the six novels of Jane Austen (1775–1817), which are in the public domain, from the R
package janeaustenr 1.0.0 (Debian: r-cran-janeaustenr 1.0.0-1); TEXT_SHA256 is the hash of the file
that the first line writes. toy_training.py has the steps.

The model is a small LLaDA (arXiv 2502.09992): llama's body, in which every token attends to all
tokens. Its loss is LLaDA's: of a window of L characters, k are masked, k being uniform in 1 to L.
The loss is the mean cross entropy of the masked characters; its mean over k is a bound of the
window's negative log-likelihood per character. Half of the windows begin with characters that are
never masked, like a prompt. Windows have 64, 128 or 256 characters. In the first steps few
characters are masked, since a masked character's neighbours say most about it.

With --start noise it trains toy-noise, whose canvases begin as random characters. The k characters
are replaced by random ones, so nothing tells the model which they are; the loss is the mean cross
entropy of all characters of the window. The figure is the bound of uniform diffusion in continuous
time (UDLM, arXiv 2412.10193).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import toy_training
from toy_model import CHARACTERS, MASK, Sizes, ToyFile, characters
from toy_training import Training, Windows

HELD_OUT = 100_000  # characters at the end, which are never trained on
WINDOWS = 64, 128, 256
EASY = 500  # steps until windows may be masked entirely; at the start, a fifth at most
STEPS = 8000
DENOISER = {  # of canvases that begin as noise; all else is the rule's default
    "diffusion.canvas_length": 64,
    "diffusion.eb_t_max": 0.5,
    "diffusion.eb_t_min": 0.125,
    "diffusion.eb_confidence_threshold": 0.125,
}


def windows(text: str) -> Windows:
    """Make windows of the text, in which a token is a character."""
    places = {character: i for i, character in enumerate(CHARACTERS)}
    starts = (i + 1 for i, character in enumerate(text) if character in " \n")
    return Windows((places[character] for character in text), starts)


def corrupted(ids: Tensor, random: torch.Generator, *, most: float = 1, prompts: bool) -> Tensor:
    """Draw whether each cell of each window is corrupted, (windows, length).

    prompts: half of the windows keep a beginning. most: the largest corrupted share of other cells
    """
    count, length = ids.shape
    first = torch.zeros(count, dtype=torch.long)
    if prompts:
        first[::2] = torch.randint(0, length - 8, (len(first[::2]),), generator=random)
    number = ((length - first) * most * shares(count, random)).floor().long() + 1
    order = torch.rand(count, length, generator=random)
    order[torch.arange(length) < first[:, None]] = 2.0
    return order.argsort(1).argsort(1) < number[:, None]


def shares(count: int, random: torch.Generator) -> Tensor:
    """Draw ``count`` shares, spread evenly over 0 to 1, in random order, for less noise."""
    return (torch.randperm(count, generator=random) + torch.rand(count, generator=random)) / count


def noisy(ids: Tensor, chosen: Tensor, random: torch.Generator) -> Tensor:
    """Replace the chosen cells by random characters, some of which are the right ones."""
    noise = torch.randint(len(CHARACTERS), ids.shape, generator=random)
    return torch.where(chosen, noise, ids)


def cross_entropies(model: nn.Module, seen: Tensor, ids: Tensor) -> Tensor:
    """The cross entropy of each cell of windows that the model sees as ``seen``, in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(seen)
    return F.cross_entropy(logits.float().transpose(1, 2), ids, reduction="none")


def masked_losses(model: nn.Module, ids: Tensor, holes: Tensor) -> Tensor:
    """The mean cross entropy of the masked cells of each window, in nats, (windows,)."""
    each = cross_entropies(model, ids.masked_fill(holes, MASK), ids)
    return (each * holes).sum(1) / holes.sum(1)


def bound_integrand(log_p: Tensor, ids: Tensor, seen: Tensor, kept: Tensor) -> Tensor:
    """The bound of each cell, in nats, before its integration over ``kept``, from 0 to 1.

    While noise becomes text, a cell's character jumps to each other one at some rate. The bound
    says how far the rates that the model gives are from those of somebody who knows the text.

    log_p  the model's log-probabilities of the cell's character, (…, characters)
    seen   the characters that it saw there: each kept with probability ``kept``, else random
    """
    characters, kept, here = log_p.shape[-1], kept[..., None], seen[..., None]
    odds = 1 + characters * kept / (1 - kept)  # of the right character against another

    def rates(p: Tensor) -> Tensor:
        to = 1 + p * (odds - 1) + p.gather(-1, here) * (1 / odds - 1)
        return to.scatter(-1, here, 1.0)  # a stay is no jump

    true, models = rates(F.one_hot(ids, characters).double()), rates(log_p.double().exp())
    apart = (models - true + true * (true / models).log()).sum(-1)
    return apart / (characters * kept[..., 0])


class CanvasTraining(Training):
    """The training of toy-canvas; the figure is the bound for windows of 256 characters."""

    unit, name, lesson = "characters", "toy-canvas", "masked diffusion"

    def __init__(self, text: str, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.seen, self.held_out = windows(text[:-HELD_OUT]), windows(text[-HELD_OUT:])

    def loss(self, random: torch.Generator) -> Tensor:
        """See `Training`."""
        length = WINDOWS[int(torch.randint(len(WINDOWS), (), generator=random))]
        ids = self.seen.draw(toy_training.BATCH // length, length, random)
        most = min(1.0, 0.2 + 0.8 * self.done / EASY)
        return self.losses(ids, corrupted(ids, random, most=most, prompts=True), random).mean()

    def losses(self, ids: Tensor, chosen: Tensor, random: torch.Generator) -> Tensor:  # noqa: ARG002
        """The loss of each window, of which the chosen cells are corrupted, (windows,)."""
        return masked_losses(self.model, ids, chosen)

    def held_out_losses(self, random: torch.Generator) -> Tensor:
        """See `Training`."""
        ids = self.held_out.draw(64, WINDOWS[-1], random)
        return masked_losses(self.model, ids, corrupted(ids, random, prompts=False))

    def file(self) -> ToyFile:
        """See `Training`."""
        figures = self.figures
        description = (
            f"A toy for the lesson on {self.lesson}, trained on the six novels of Jane Austen: "
            f"{figures['steps']:,} steps, {figures['characters']:,} characters, at most "
            f"{figures['bits_per_character']:.2f} bits per character of text that it has not seen."
        )
        return ToyFile(self.model, self.name, description, self.metadata())

    def metadata(self) -> dict[str, Any]:
        """The file's metadata on tokens and canvases."""
        return characters(mask=True)


class NoiseTraining(CanvasTraining):
    """The training of toy-noise; the figure is the bound for windows of 256 characters."""

    name, lesson = "toy-noise", "text that begins as noise"

    def losses(self, ids: Tensor, chosen: Tensor, random: torch.Generator) -> Tensor:
        """See `CanvasTraining`."""
        return cross_entropies(self.model, noisy(ids, chosen, random), ids).mean(1)

    def held_out_losses(self, random: torch.Generator) -> Tensor:
        """See `Training`."""
        ids = self.held_out.draw(64, WINDOWS[-1], random)
        kept = (1 - shares(len(ids), random).double())[:, None].expand(ids.shape)
        seen = noisy(ids, torch.rand(ids.shape, generator=random) >= kept, random)
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(seen)
        return bound_integrand(logits.float().log_softmax(-1), ids, seen, kept).mean(1)

    def metadata(self) -> dict[str, Any]:
        """See `CanvasTraining`."""
        return characters(mask=False) | DENOISER


TRAININGS = {"mask": (CanvasTraining, Sizes()), "noise": (NoiseTraining, Sizes(vocabulary=MASK))}


def main() -> None:
    parser = toy_training.training_parser(__doc__, STEPS)
    parser.add_argument("--start", choices=TRAININGS, default="mask", help="what cells hold")
    args = parser.parse_args()
    training, sizes = TRAININGS[args.start]
    toy_training.run(training(toy_training.read(args.text), sizes), args)


if __name__ == "__main__":
    main()
