"""``cutaway quantize``: a model's weights in another format, in a new GGUF file."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cutaway.base.progress import Bar, megabytes
from cutaway.cli.terminal import signals, streams
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.compute.loading.info import Stored
    from cutaway.files.weights import ModelFile
    from cutaway.files.weights.quantised import QuantisedFile

_QUANTISED = ("q8_0", "q6_k", "q4_1", "q4_0")
_PLAIN = ("f16", "bf16", "f32")
EPILOG = """
examples:
  cutaway quantize model-f16.gguf model-q8_0.gguf --to q8_0
  cutaway quantize model-bf16.gguf model-q4_1.gguf --to q4_1 --threads 4
  cutaway quantize smollm2 smollm2-f16.gguf --to f16      without quantisation
  cutaway generate -m model-bf16.gguf --quantize q8_0 "The sky is"    without a file

formats, with the bits of a weight: q8_0 8.5, q6_k 6.6, q4_1 5, q4_0 4.5; f16 and bf16 16, f32 32.
Matrices are quantised; norms, biases, routers and position embeddings are not. With q4_0 and q4_1
the token embedding and the output matrix become q6_k; rows that q6_k cannot hold become q8_0.
"""
_IN = "an alias, a .gguf file, or hf:org/repo[:file]; of F32, F16 or BF16 weights"
_REQUANTIZE = "accept weights that are quantised already; the errors of both add up"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway quantize``."""
    parser.add_argument("input", metavar="IN", help=_IN)
    parser.add_argument("output", metavar="OUT", help="the .gguf file to write")
    names = ", ".join((*_QUANTISED, *_PLAIN))
    parser.add_argument("--to", required=True, metavar="FORMAT", help=names)
    parser.add_argument("--threads", type=int, metavar="N", help="threads that quantise")
    parser.add_argument("--requantize", action="store_true", help=_REQUANTIZE)
    parser.add_argument("--force", action="store_true", help="replace OUT where it exists")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document; sizes in bytes"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no table")


def run(args: Namespace) -> int:
    """Write the file, and say what became of the tensors on standard output."""
    from cutaway.compute.loading.open import open_model
    from cutaway.files import hub
    from cutaway.files.weights.gguf_writer import write_gguf
    from cutaway.files.weights.quantised import QuantisedFile, refuse_quantised

    _check(args)
    output = _output(args.output, force=args.force)
    path = hub.resolve(args.input, progress=not args.quiet)
    if output.exists() and output.samefile(path):
        raise InputError(f"OUT is IN, {output}: name another file to write")
    started = perf_counter()
    with open_model(path) as file:
        if args.to in _QUANTISED and not args.requantize:
            refuse_quantised(file, "give F32, F16 or BF16 weights, or add --requantize")
        with QuantisedFile(file, args.to.upper(), threads=args.threads) as made:
            total = sum(info.nbytes for info in made.tensors.values())
            bar = Bar("quantising", total, show=not args.quiet, after=1)
            with signals.leaving_nothing(), bar:
                write_gguf(output, made, bar.update)
            _tell(args, output, file, made, perf_counter() - started)
    return 0


def _check(args: Namespace) -> None:
    from cutaway.base.checks import check_int
    from cutaway.compute.backends import MAX_THREADS

    if args.to not in (names := (*_QUANTISED, *_PLAIN)):
        raise InputError(f"--to must be one of {', '.join(names)}, not {args.to!r}")
    if args.threads is not None:
        check_int("--threads", args.threads, 1, MAX_THREADS)


def _output(name: str, *, force: bool) -> Path:
    path = Path(name).expanduser()
    if path.suffix.lower() != ".gguf":
        raise InputError(f"OUT must be a name that ends in .gguf, not {name!r}")
    if not path.parent.is_dir():
        raise InputError(f"OUT: there is no folder {path.parent}; make it first")
    if path.exists() and not path.is_file():
        raise InputError(f"OUT: {path} is not a regular file; name a new one")
    if path.exists() and not force:
        raise InputError(f"OUT: {path} exists; name a new file, or add --force to replace it")
    return path


def _tell(
    args: Namespace, output: Path, before: "ModelFile", after: "QuantisedFile", seconds: float
) -> None:
    from cutaway.compute.loading.info import by_format
    from cutaway.compute.loading.open import size_of

    old, new = by_format(before.tensors.values()), by_format(after.tensors.values())
    if args.json:
        streams.print_json({
            "input": str(before.path), "output": str(output), "to": args.to,
            "before": _document(size_of(before.path), old),
            "after": _document(size_of(output), new),
            "unfit": {name: after.tensors[name].format for name in after.fallback_tensors},
            "seconds": seconds,
        })  # fmt: skip
    elif not args.quiet:
        sizes = (size_of(before.path), size_of(output))
        print("\n".join(_table(old, new, sizes)))
        print("\n".join([f"\n{output}", *_unfit(after)]))


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
    """That some tensors could not get the format."""
    if not after.fallback_tensors:
        return
    names = sorted({after.tensors[name].format for name in after.fallback_tensors})
    count = len(after.fallback_tensors)
    tensors, whose = ("1 tensor is", "its") if count == 1 else (f"{count} tensors are", "their")
    blocks = f"{whose} rows cannot be divided into the format's blocks"
    yield f"{tensors} stored as {' or '.join(names)}: {blocks}"
