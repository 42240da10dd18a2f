"""``cutaway quantize``: a model's weights in another format, in a new GGUF file."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cutaway._version import __version__
from cutaway.base.progress import Bar, megabytes, say
from cutaway.cli.options.namespace import gguf_output
from cutaway.cli.terminal import console, streams
from cutaway.cli.terminal.drawing import print_lines
from cutaway.errors import InputError
from cutaway.files.weights.mixes import MIXES, PLAIN_MIXES

if TYPE_CHECKING:
    from cutaway.compute.loading.info import Stored
    from cutaway.files.weights import ModelFile
    from cutaway.files.weights.importance import Importance
    from cutaway.files.weights.quantised import QuantisedFile

EPILOG = """
examples:
  cutaway quantize model-f16.gguf model-q8_0.gguf --to q8_0
  cutaway quantize model-bf16.gguf model-q4_k_m.gguf --to q4_k_m --threads 4
  cutaway imatrix -m model-bf16.gguf text.txt importance.gguf
  cutaway quantize model-bf16.gguf model-q3_k_m.gguf --to q3_k_m --imatrix importance.gguf
  cutaway quantize smollm2 smollm2-f16.gguf --to f16      without quantisation
  cutaway generate -m model-bf16.gguf --quantize q8_0 "The sky is"    without a file

formats, with the bits of a weight:
  q8_0 8.5 | q6_k 6.6 | q5_k_m q5_k_s 5.5, q5_1 6, q5_0 5.5 | q4_k_m q4_k_s 4.5, q4_1 5, q4_0 4.5
  iq4_nl 4.5, iq4_xs 4.25, mxfp4 4.25, mxfp4_moe: experts alone | q3_k_l q3_k_m q3_k_s 3.4
  q2_k 2.6 | f16 and bf16 16, f32 32
Matrices are quantised; norms, biases, routers and position embeddings are not. As in llama.cpp some
matrices get more bits: the output matrix, and with _m and _l those that matter most. Rows that
256 does not divide get a format of 32.

After an interruption, the same command continues where it was.
"""
_IN = "an alias, a .gguf file, or hf:org/repo[:file]; of F32, F16 or BF16 weights"
_IMATRIX = "how much each column matters, from 'cutaway imatrix' or llama.cpp: fewer errors for it"
_REQUANTIZE = "accept weights that are quantised already; the errors of both add up"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway quantize``."""
    parser.add_argument("input", metavar="IN", help=_IN)
    parser.add_argument("output", metavar="OUT", help="the .gguf file to write")
    names = ", ".join((*MIXES, *PLAIN_MIXES))
    parser.add_argument("--to", required=True, metavar="FORMAT", help=names)
    parser.add_argument("--imatrix", metavar="FILE", help=_IMATRIX)
    parser.add_argument("--threads", type=int, metavar="N", help="threads that quantise")
    parser.add_argument("--requantize", action="store_true", help=_REQUANTIZE)
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; sizes in bytes"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no table")


def run(args: Namespace) -> int:
    """Write the file, and print the tensors' formats before and after."""
    from cutaway.compute.loading.open import open_model
    from cutaway.files import hub
    from cutaway.files.weights.llama_cpp import convert_for_llama_cpp
    from cutaway.files.weights.quantised import QuantisedFile, refuse_quantised

    _check(args)
    output = gguf_output(args.output, force=args.force)
    path = hub.resolve(args.input, progress=not args.quiet)
    if output.exists() and output.samefile(path):
        raise InputError(f"OUT is IN, {output}: name another file to write")
    started = perf_counter()
    with open_model(path) as file:
        if args.to in MIXES and not args.requantize:
            refuse_quantised(file, "give F32, F16 or BF16 weights, or add --requantize")
        weights = _importance(args.imatrix)
        with QuantisedFile(
            convert_for_llama_cpp(file), args.to, threads=args.threads, importance=weights
        ) as quantised_file:
            unweighted = [] if weights is None else _unweighted_matrices(weights, quantised_file)
            _write(args, path, output, quantised_file)
            _tell(args, file, quantised_file, unweighted, perf_counter() - started)
    return 0


def _importance(name: str | None) -> "Importance | None":
    from cutaway.files.weights.importance import Importance

    return None if name is None else Importance.read(Path(name).expanduser())


def _unweighted_matrices(weights: "Importance", quantised_file: "QuantisedFile") -> list[str]:
    """Return the names of the quantised matrices that the importance matrix lacks."""
    from cutaway.files.weights.mixes import is_matrix

    return weights.check({n: info for n, info in quantised_file.tensors.items() if is_matrix(info)})


def _write(args: Namespace, path: Path, output: Path, quantised_file: "QuantisedFile") -> None:
    """Write the file, or continue the file that an earlier run began."""
    from cutaway.compute.loading.open import stamp, stat_model
    from cutaway.files.weights.gguf_writer import write_resumable_gguf

    total = sum(info.nbytes for info in quantised_file.tensors.values())
    there, done = 0, 0
    bar = Bar("quantising", total, show=not args.quiet, after=1)

    def begin_after(size: int) -> None:
        nonlocal there
        there = size
        bar.leave_out(size)
        if not args.quiet:
            say(f"continuing after {megabytes(size)} of {megabytes(total)} from an earlier run")

    def update(size: int) -> None:
        nonlocal done
        done = size
        bar.update(size)

    read = [path] if args.imatrix is None else [path, Path(args.imatrix).expanduser()]
    origin = repr((__version__, [stamp(stat_model(source)) for source in read]))
    try:
        with console.leaving_nothing(), bar:
            write_resumable_gguf(output, quantised_file, origin, update, begin_after)
    except (KeyboardInterrupt, SystemExit):
        if done + there and not args.quiet:
            say(
                f"{megabytes(done + there)} of {megabytes(total)} are written and kept: the same "
                "command continues from there"
            )
        raise


def _check(args: Namespace) -> None:
    from cutaway.base.checks import check_int
    from cutaway.compute.backends import MAX_THREADS

    if args.to not in (names := (*MIXES, *PLAIN_MIXES)):
        raise InputError(f"--to must be one of {', '.join(names)}, not {args.to!r}")
    if args.threads is not None:
        check_int("--threads", args.threads, 1, MAX_THREADS)


def _tell(
    args: Namespace, before: "ModelFile", after: "QuantisedFile", unweighted: list[str],
    seconds: float,
) -> None:  # fmt: skip
    from cutaway.compute.loading.info import group_by_format
    from cutaway.compute.loading.open import size_of

    output = Path(args.output).expanduser()
    old, new = group_by_format(before.tensors.values()), group_by_format(after.tensors.values())
    if args.json:
        streams.print_json({
            "input": str(before.path), "output": str(output), "to": args.to,
            "before": _document(size_of(before.path), old),
            "after": _document(size_of(output), new),
            "imatrix": args.imatrix, "without_importance": unweighted,
            "unfit": {name: after.tensors[name].format for name in after.fallback_tensors},
            "seconds": seconds,
        })  # fmt: skip
    elif not args.quiet:
        sizes = (size_of(before.path), size_of(output))
        print_lines(_table(old, new, sizes))
        print_lines(["", str(output), *_unfit(after), *_unweighted_note(unweighted)])


def _document(size: int, formats: Mapping[str, "Stored"]) -> dict[str, Any]:
    sizes = {name: asdict(stored) for name, stored in formats.items()}
    return {"file_bytes": size, "formats": sizes}


def _table(
    old: Mapping[str, "Stored"], new: Mapping[str, "Stored"], files: tuple[int, int]
) -> Iterator[str]:
    yield f"{'':<6}{'BEFORE':>24}{'AFTER':>24}"
    for name in dict.fromkeys((*old, *new)):
        yield f"{name:<6}{_cell(old.get(name)):>24}{_cell(new.get(name)):>24}"
    yield f"{'file':<6}{megabytes(files[0]):>24}{megabytes(files[1]):>24}"


def _cell(stored: "Stored | None") -> str:
    if stored is None:
        return "-"
    return f"{stored.tensors} tensor{'s' * (stored.tensors != 1)}, {megabytes(stored.bytes)}"


def _unfit(after: "QuantisedFile") -> Iterator[str]:
    """Yield a line on the tensors whose shape does not fit the format, if any."""
    if not after.fallback_tensors:
        return
    names = sorted({after.tensors[name].format for name in after.fallback_tensors})
    count = len(after.fallback_tensors)
    tensors, possessive = (
        ("1 tensor is", "its") if count == 1 else (f"{count} tensors are", "their")
    )
    blocks = f"{possessive} rows cannot be divided into the format's blocks"
    yield f"{tensors} stored as {' or '.join(names)}: {blocks}"


def _unweighted_note(names: list[str]) -> Iterator[str]:
    """Yield a line on the tensors that the importance matrix lacks, if any."""
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"without importance, since the matrix lacks them: {', '.join(names[:3])}{more}"
