"""``cutaway perplexity``: the perplexity of a text."""

import time
from argparse import ArgumentParser, Namespace
from math import log
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.methods.scoring import Likelihood

EPILOG = """
examples:
  cutaway perplexity story.txt
  cutaway perplexity -m model.gguf --context 512 --stride 256 wiki.test.raw
  zcat story.txt.gz | cutaway perplexity --json -

The perplexity is e to the mean surprise of the text's tokens, in nats, each given all before it as
far as the context reaches. The first follows the begin token; without one it is not scored. Bits
per byte are what the text would be compressed to; they compare models whose tokens differ.

A text longer than the context is read in windows. By default they are those of lm-eval's rolling
log-likelihood: each begins with the last token of the one before it, so that its first tokens have
few before them. With --stride N each has only N tokens that are new, and the others are read again:
the figure is lower, and the time longer. llama.cpp's figure (of windows that it fills, the second
half) is nearest to --stride of half the context.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway perplexity``."""
    parser.add_argument("file", metavar="FILE", help="a text in UTF-8; - reads standard input")
    parser.add_argument(
        "--stride", type=int, metavar="N",
        help="new tokens in each window after the first, 1 to --context; default: all",
    )  # fmt: skip
    arguments.add_loading_arguments(parser)
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Print the perplexity, bits per byte, and how much text was read."""
    text = namespace.read_file(args.file)
    llm = console.load(args)
    start, room = time.monotonic(), llm.room
    stride = room if args.stride is None else check_int("--stride", args.stride, 1, room)
    with console.progress(show=not args.quiet) as report:
        likelihood = llm.likelihood(text, before=room - stride + 1, progress=report)
    figures = _figures(llm, text, likelihood, stride) | {"seconds": time.monotonic() - start}
    print_report(args, lambda: {"model": llm.name, **figures}, lambda: _report(figures))
    return 0


def _figures(llm: "LLM", text: str, likelihood: "Likelihood", stride: int) -> dict[str, Any]:
    beyond, size = len(likelihood.token_ids) - llm.room, len(text.encode())
    if likelihood.prompt_token_ids != (llm.tokenizer.bos_id,):  # the text's own first token
        size = sum(len(llm.tokenizer.token_bytes(token_id)) for token_id in likelihood.token_ids)
    return {
        "perplexity": likelihood.perplexity,
        "bits_per_byte": -likelihood.total / log(2) / size,
        "log_likelihood": likelihood.total,
        "tokens": len(likelihood.token_ids),
        "bytes": size,
        "context": llm.room,
        "stride": stride,
        "windows": 1 + max(-(-beyond // stride), 0),
    }


def _report(figures: dict[str, Any]) -> list[str]:
    tokens, seconds = figures["tokens"], figures["seconds"]
    nats = -figures["log_likelihood"] / tokens
    windows = f"{figures['windows']} windows of {figures['context']} tokens"
    return [
        f"perplexity     {figures['perplexity']:.4f}   {nats:.4f} nats a token, {tokens} tokens",
        f"bits per byte  {figures['bits_per_byte']:.4f}   {figures['bytes']} bytes",
        f"read           {windows if figures['windows'] > 1 else 'at once'}",
        f"time           {seconds:.1f} s, {tokens / seconds:.0f} tokens/s",
    ]
