"""``cutaway models`` lists the models, or shows one; ``cutaway pull`` fetches one and checks it."""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from cutaway.base.progress import megabytes, say
from cutaway.errors import InputError
from cutaway.files import hub
from cutaway.files.hub.catalog import find

_EPILOG = """
examples:
  cutaway models
  cutaway models --json
  cutaway models show smollm2                        sizes, formats, memory, special tokens
  cutaway models show model.gguf --context 4096
  cutaway models show model.gguf --quantize q4_1     sizes with --quantize q4_1

A .gguf file in the folder 'models' of the cache is listed too; name it with -m. The cache is
~/.cache/cutaway; set CUTAWAY_HOME to move it.
"""

_PULL_EPILOG = """
examples:
  cutaway pull                                       the default model
  cutaway pull gemma3-270m
  cutaway pull hf:org/repo:file.gguf                 with the huggingface_hub package
  cutaway generate -m "$(cutaway pull -q smollm2)" "The sky is"

A model that is already in the cache is checked, not fetched again.
"""


_SHOWN = "alias, .gguf file, folder or hf:org/repo[:file]; default smollm2"
_CONTEXT = "with show: the memory for a context of N tokens; default: the model's"

_QUANTIZE = "with show: sizes after --quantize FORMAT: q8_0, q6_k, q4_1 or q4_0"


_KV = "with show: the memory with --kv FORMAT, f16 or q8_0"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cutaway models``."""
    parser.epilog = _EPILOG
    parser.add_argument("verb", nargs="?", choices=("show",), help="show one model; else list all")
    parser.add_argument("name", nargs="?", metavar="NAME|PATH", help=_SHOWN)
    parser.add_argument("--context", type=int, metavar="N", help=_CONTEXT)
    parser.add_argument("--quantize", metavar="FORMAT", help=_QUANTIZE)
    parser.add_argument("--kv", metavar="FORMAT", default="f16", help=_KV)
    parser.add_argument("--json", action="store_true", help="print JSON; sizes in bytes")


def run(args: Namespace) -> int:
    """Print the models, or one of them, to standard output."""
    if args.verb == "show":
        from cutaway.cli import model_card  # which reads the file

        return model_card.run(args)
    if args.context is not None:
        raise InputError("--context is for one model: cutaway models show NAME --context N")
    if args.quantize is not None:
        raise InputError("--quantize is for one model: cutaway models show NAME --quantize FORMAT")
    if args.kv != "f16":
        raise InputError("--kv is for one model: cutaway models show NAME --kv FORMAT")
    models = hub.available()
    if args.json:
        print(json.dumps([asdict(model) for model in models], indent=2, default=str))
    else:
        print(_table(models))
    return 0


def _table(models: list[hub.ModelStatus]) -> str:
    rows = [("NAME", "SIZE", "LICENSE", "STATE", "PATH")]
    rows += [
        (m.name, megabytes(m.size), m.license or "unknown", m.state, str(m.path or "-"))
        for m in models
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def add_pull_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway pull``."""
    parser.epilog = _PULL_EPILOG
    parser.add_argument(
        "name", nargs="?", default=hub.DEFAULT_MODEL, help="alias or hf:org/repo[:file]"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only the path")


def run_pull(args: Namespace) -> int:
    """Fetch the model if it is not here, check it, and print its path to standard output."""
    path = hub.resolve(args.name, progress=not args.quiet)
    checked = find(args.name) is not None
    if checked:
        hub.verify(args.name)
    if not args.quiet:
        say("The checksum is correct." if checked else "No checksum is known for this model.")
    print(path)
    return 0
