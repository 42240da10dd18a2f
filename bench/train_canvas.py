"""Trains toy-canvas: a small masked-diffusion language model over characters, for the lesson.

    Rscript -e 'writeLines(janeaustenr::austen_books()$text, "austen.txt")'
    python bench/train_canvas.py austen.txt toy.pt --export toy.gguf
    cutaway quantize toy.gguf toy-canvas.Q8_0.gguf --to q8_0

The text is the six novels of Jane Austen (1775–1817), which are in the public domain, as the R
package janeaustenr 1.0.0 has them (Debian: r-cran-janeaustenr 1.0.0-1); TEXT_SHA256 is the file's
that the first line writes. toy_training.py has the steps.

The model is LLaDA's (arXiv 2502.09992) made small: the body of llama, in which every token sees
all. Its loss is LLaDA's: of a window of L characters, k are masked, k drawn evenly from 1 to L; the
loss is the mean cross entropy of the masked ones, and its mean over k is a bound of the window's
negative log-likelihood per character. Half of the windows have a beginning that is never masked,
as a prompt is. Windows are of 64, 128 or 256 characters; in the first steps few of them are masked,
since what is behind a hole says most about it.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import toy_training
from toy_model import CHARACTERS, MASK, Sizes, ToyFile, characters
from toy_training import Training, Windows

HELD_OUT = 100_000  # characters at the end, which are never trained on
WINDOWS = 64, 128, 256
EASY = 500  # steps until windows may be masked entirely, at the start a fifth of them at most
STEPS = 8000


def windows(text: str) -> Windows:
    """A token is a character."""
    places = {character: i for i, character in enumerate(CHARACTERS)}
    starts = (i + 1 for i, character in enumerate(text) if character in " \n")
    return Windows((places[character] for character in text), starts)


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


class CanvasTraining(Training):
    """See `Training`; the figure is the bound, of windows of 256."""

    unit = "characters"

    def __init__(self, text: str, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.seen, self.held_out = windows(text[:-HELD_OUT]), windows(text[-HELD_OUT:])

    def loss(self, random: torch.Generator) -> Tensor:
        """See `Training`."""
        length = WINDOWS[int(torch.randint(len(WINDOWS), (), generator=random))]
        ids = self.seen.draw(toy_training.BATCH // length, length, random)
        most = min(1.0, 0.2 + 0.8 * self.done / EASY)
        return losses(self.model, ids, masked(ids, random, most=most, prompts=True)).mean()

    def held_out_losses(self, random: torch.Generator) -> Tensor:
        """See `Training`."""
        ids = self.held_out.draw(64, WINDOWS[-1], random)
        return losses(self.model, ids, masked(ids, random, prompts=False))

    def file(self) -> ToyFile:
        """See `Training`."""
        figures = self.figures
        description = (
            "A toy for the lesson on masked diffusion, trained on the six novels of Jane Austen: "
            f"{figures['steps']:,} steps, {figures['characters']:,} characters, at most "
            f"{figures['bits_per_character']:.2f} bits per character of text that it has not seen."
        )
        return ToyFile(self.model, "toy-canvas", description, characters())


def main() -> None:
    args = toy_training.arguments(__doc__, STEPS)
    toy_training.run(CanvasTraining(toy_training.read(args.text), Sizes()), args)


if __name__ == "__main__":
    main()
