"""Trains toy-writer: a small causal language model, for slow networks and for lessons.

    Rscript -e 'writeLines(janeaustenr::austen_books()$text, "austen.txt")'
    python bench/train_writer.py austen.txt toy.pt --export toy.gguf
    cutaway quantize toy.gguf toy-writer.Q8_0.gguf --to q8_0

The text is toy-canvas's: train_canvas.py names its source. toy_training.py has the steps.

The model is a small llama, with a byte-level BPE of 1,024 tokens that is learnt from the same text.
So two megabytes have all parts of a large model: merges, the causal mask, a KV cache, drafts. Its
loss is the cross entropy of the next token. The figure is bits per character in windows of 256
tokens, whose first tokens have little context.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import toy_training
from toy_model import NORMAL, Sizes, ToyFile
from toy_training import Training, Windows

TOKENS = 1024
HELD_OUT = 100_000  # characters at the end, which are never trained on
WINDOWS = 128, 256, 512
MEASURED = 256
STEPS = 2000
SIZES = Sizes(vocabulary=TOKENS, causal=True, hidden=160, layers=4, heads=5, ffn=448, context=512)


def learnt(text: str, tokens: int = TOKENS) -> Tokenizer:
    """Learn a byte-level BPE of ``tokens`` tokens, with GPT-2's pattern for words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def vocabulary(tokenizer: Tokenizer) -> Iterator[tuple[str, Any]]:
    """Yield the tokenizer's metadata in the file."""
    tokens = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    yield "tokenizer.ggml.model", "gpt2"
    yield "tokenizer.ggml.pre", "gpt-2"
    yield "tokenizer.ggml.tokens", sorted(tokens, key=tokens.__getitem__)
    yield "tokenizer.ggml.merges", [" ".join(pair) for pair in merges]
    yield "tokenizer.ggml.token_type", np.full(len(tokens), NORMAL, np.int32)
    yield "tokenizer.ggml.add_bos_token", False


def losses(model: nn.Module, ids: Tensor) -> Tensor:
    """The cross entropy of each token but the first, (windows, tokens - 1), in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:], reduction="none")


class WriterTraining(Training):
    """The training of toy-writer."""

    unit = "tokens"

    def __init__(self, text: str, sizes: Sizes = SIZES) -> None:
        super().__init__(sizes)
        self.tokenizer = learnt(text[:-HELD_OUT], sizes.vocabulary)
        self.seen, self.held_out = map(self._windows, (text[:-HELD_OUT], text[-HELD_OUT:]))
        lengths = [len(self.tokenizer.decode([i]).encode()) for i in range(sizes.vocabulary)]
        self.lengths = torch.tensor(lengths)  # in characters, since the text is ASCII

    def _windows(self, text: str) -> Windows:
        cut = self.tokenizer.encode(text)
        starts = (i for i, token in enumerate(cut.tokens) if token[0] in "ĠĊ")
        return Windows(cut.ids, starts)

    def loss(self, random: torch.Generator) -> Tensor:
        """See `Training`."""
        length = WINDOWS[int(torch.randint(len(WINDOWS), (), generator=random))]
        ids = self.seen.draw(toy_training.BATCH // length, length + 1, random)
        return losses(self.model, ids).mean()

    def held_out_losses(self, random: torch.Generator) -> Tensor:
        """See `Training`."""
        ids = self.held_out.draw(64, MEASURED, random)
        return losses(self.model, ids).sum(1) / self.lengths[ids[:, 1:]].sum(1)

    def file(self) -> ToyFile:
        """See `Training`."""
        figures = self.figures
        description = (
            "A toy that writes, trained on the six novels of Jane Austen: "
            f"{figures['steps']:,} steps, {figures['tokens']:,} tokens, "
            f"{figures['bits_per_character']:.2f} bits per character of text that it has not seen."
        )
        return ToyFile(self.model, "toy-writer", description, dict(vocabulary(self.tokenizer)))


def main() -> None:
    args = toy_training.training_parser(__doc__, STEPS).parse_args()
    toy_training.run(WriterTraining(toy_training.read(args.text)), args)


if __name__ == "__main__":
    main()
