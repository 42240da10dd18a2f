"""``cutaway imatrix``: how much each column of a model's matrices matters, for quantising."""

import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from cutaway.base.checks import check_int
from cutaway.cli.options import arguments, namespace
from cutaway.cli.terminal import console
from cutaway.cli.terminal.drawing import print_report
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.files.weights.importance import Importance

EPILOG = """
examples:
  cutaway imatrix -m model-f16.gguf calibration.txt importance.gguf
  cutaway imatrix -m model-f16.gguf --chunks 100 calibration.txt importance.gguf
  cutaway quantize model-f16.gguf small.gguf --to q3_k_m --imatrix importance.gguf

The model reads the text, and of each matrix's input the squares are added up, column by column.
Quantising then keeps columns more exact that larger numbers meet. It matters most with few bits.
The text should be like those that the model will read; 100 chunks are plenty for most models.

The file is llama.cpp's, and its programs read it. It is the same for any number of threads.
"""
_TEXT = "a text in UTF-8; - reads standard input"
_OUTPUT = "the output matrix, too, where the model has one of its own; default: not, as llama.cpp"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway imatrix``."""
    from cutaway.features.measure.importance import CHUNK

    parser.add_argument("file", metavar="FILE", help=_TEXT)
    parser.add_argument("output", metavar="OUT", help="the .gguf file to write")
    arguments.add_model(parser)
    arguments.add_number(parser, "--chunk", CHUNK, "tokens that are read at once, 2 or more")
    parser.add_argument("--chunks", type=int, metavar="N", help="read no more chunks than this")
    parser.add_argument("--process-output", action="store_true", help=_OUTPUT)
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads")
    parser.add_argument("--backend", metavar="NAME", help="what computes: cpu, gpu or reference")
    parser.add_argument("--offload-folder", metavar="DIR", help=arguments.OFFLOAD)
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")
    arguments.add_report_arguments(parser)


def run(args: Namespace) -> int:
    """Collect the importance matrix, write the file, print its figures, and return 0."""
    from cutaway.features.measure.importance import collect

    chunk = check_int("--chunk", args.chunk, 2, 1 << 20)
    chunks = None if args.chunks is None else check_int("--chunks", args.chunks, 1, 1 << 31)
    output = namespace.gguf_output(args.output, force=args.force)
    text = namespace.read_file(args.file)
    started = time.monotonic()
    with _load(args, chunk) as llm, console.progress(show=not args.quiet, after=1) as report:
        importance = collect(
            llm.model, text, dataset="" if args.file == "-" else args.file, chunk=chunk,
            chunks=chunks, with_output=args.process_output,
            progress=lambda done, total: report("reading", done, total),
        )  # fmt: skip
    with console.leaving_nothing():
        importance.write(output)
    figures = {"output": str(output), "matrices": len(importance.entries),
               "chunks": importance.chunks,
               "tokens": importance.chunks * chunk, "experts_without": _idle(importance),
               "seconds": time.monotonic() - started}  # fmt: skip
    print_report(args, lambda: {"model": llm.name, **figures}, lambda: _report(figures))
    return 0


def _load(args: Namespace, chunk: int) -> Any:
    from cutaway.api.llm import LLM

    llm = LLM(
        args.model, kv_tokens=chunk, threads=args.threads, backend=args.backend,
        offload_folder=args.offload_folder, progress=not args.quiet,
    )  # fmt: skip
    if llm.model.context < chunk:
        raise InputError(f"--chunk must be at most the context, {llm.model.context}, not {chunk}")
    return llm


def _idle(importance: "Importance") -> int:
    """Count the experts' matrices that no token went through."""
    return sum(int((entry.counts == 0).sum()) for entry in importance.entries.values())


def _report(figures: dict[str, Any]) -> list[str]:
    lines = [
        f"matrices  {figures['matrices']}",
        f"read      {figures['chunks']} chunks, {figures['tokens']} tokens",
        f"time      {figures['seconds']:.1f} s",
        "",
        figures["output"],
    ]
    if figures["experts_without"]:
        lines.append(
            f"{figures['experts_without']} matrices of experts met no token, and count as 1: "
            "a longer text helps"
        )
    return lines
