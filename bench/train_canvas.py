"""Trains toy-canvas: a small masked-diffusion language model over characters, for the lesson.

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
"""

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


def windows(text: str) -> Windows:
    """Make windows of the text, in which a token is a character."""
    places = {character: i for i, character in enumerate(CHARACTERS)}
    starts = (i + 1 for i, character in enumerate(text) if character in " \n")
    return Windows((places[character] for character in text), starts)


def masked(ids: Tensor, random: torch.Generator, *, most: float = 1, prompts: bool) -> Tensor:
    """Draw whether each cell of each window is masked, (windows, length).

    prompts: half of the windows keep a beginning. most: the largest masked share of other cells
    """
    count, length = ids.shape
    first = torch.zeros(count, dtype=torch.long)
    if prompts:
        first[::2] = torch.randint(0, length - 8, (len(first[::2]),), generator=random)
    # The masked shares are spread evenly over the batch, in random order, for less noise.
    shares = torch.randperm(count, generator=random) + torch.rand(count, generator=random)
    number = ((length - first) * most * shares / count).floor().long() + 1
    order = torch.rand(count, length, generator=random)
    order[torch.arange(length) < first[:, None]] = 2.0
    return order.argsort(1).argsort(1) < number[:, None]


def losses(model: nn.Module, ids: Tensor, holes: Tensor) -> Tensor:
    """The mean cross entropy of the masked cells of each window, in nats, (windows,)."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids.masked_fill(holes, MASK))
    each = F.cross_entropy(logits.float().transpose(1, 2), ids, reduction="none")
    return (each * holes).sum(1) / holes.sum(1)


class CanvasTraining(Training):
    """The training of toy-canvas; the figure is the bound for windows of 256 characters."""

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
