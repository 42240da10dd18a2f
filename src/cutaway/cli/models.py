"""``cutaway models``: a list of the models, what fits into this memory, or one model's card."""

import json
from argparse import ArgumentParser, Namespace

from cutaway.base.progress import megabytes
from cutaway.errors import InputError
from cutaway.files import hub

EPILOG = """
examples:
  cutaway models
  cutaway models --json
  cutaway models --fit                               what fits into this memory, and how fast it is
  cutaway models --fit ~/models --context 32768      the same for a folder's models
  cutaway models show smollm2                        sizes, formats, memory, special tokens
  cutaway models show model.gguf --context 4096
  cutaway models show model.gguf --quantize q4_1     sizes with --quantize q4_1

A .gguf file in the folder 'models' of the cache is listed too; name it with -m. The cache is
~/.cache/cutaway; set CUTAWAY_HOME to move it.
"""

_NAME_HELP = "alias, .gguf file, folder or hf:org/repo[:file]; default smollm2"
_FIT = (
    "which models fit into this memory, and how many tokens a second they write at most; default: "
    "those of cutaway's cache"
)
_CONTEXT = "the memory for texts of N tokens; default: the model's most, with --fit 8192"
_QUANTIZE = "sizes after --quantize FORMAT: q8_0, q4_k_m, …"
_KV = "the memory with --kv FORMAT"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of ``cutaway models``."""
    parser.add_argument("verb", nargs="?", choices=("show",), help="show one model; else list all")
    parser.add_argument("name", nargs="?", metavar="NAME|PATH", help=_NAME_HELP)
    parser.add_argument("--fit", nargs="*", metavar="NAME|PATH", help=_FIT)
    parser.add_argument("--context", type=int, metavar="N", help=_CONTEXT)
    parser.add_argument("--quantize", metavar="FORMAT", help=_QUANTIZE)
    parser.add_argument("--kv", metavar="FORMAT", help=_KV)
    parser.add_argument("--json", action="store_true", help="print JSON; sizes in bytes")


def run(args: Namespace) -> int:
    """Print the models, or one of them, to standard output."""
    if args.fit is not None:
        if args.verb is not None:
            raise InputError("--fit takes the models' names behind it: cutaway models --fit NAME")
        from cutaway.cli import model_fit  # which reads the files, and measures

        return model_fit.run(args)
    if args.verb == "show":
        from cutaway.cli import model_card  # which reads the file

        return model_card.run(args)
    for name, value in (("context", "N"), ("quantize", "FORMAT"), ("kv", "FORMAT")):
        if getattr(args, name) is not None:
            command = f"cutaway models show NAME --{name} {value}"
            raise InputError(f"--{name} is for one model ({command}) or for --fit")
    models = hub.available()
    if args.json:
        print(json.dumps([model._asdict() for model in models], indent=2, default=str))
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
