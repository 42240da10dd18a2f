"""``cutaway pull``: download a model and check it."""

from argparse import ArgumentParser, Namespace

from cutaway.base.progress import say
from cutaway.compute.loading.model import LoadedModel
from cutaway.files import hub
from cutaway.files.hub.catalog import find

EPILOG = """
examples:
  cutaway pull                                       the default model
  cutaway pull gemma3-270m
  cutaway pull hf:org/repo:file.gguf                 with the huggingface_hub package
  cutaway generate -m "$(cutaway pull -q smollm2)" "The sky is"

A model that is already in the cache is checked, not fetched again.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway pull``."""
    parser.add_argument(
        "name", nargs="?", default=hub.DEFAULT_MODEL, help="alias or hf:org/repo[:file]"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, only the path")


def run(args: Namespace) -> int:
    """Download the model if it is not on this machine, check it, and print its path."""
    path = hub.resolve(args.name, progress=not args.quiet)
    checked = find(args.name) is not None
    if checked:
        hub.verify(args.name)
    else:
        LoadedModel.open(path, progress=False, weights=False)  # reads all but the weights
    verdict = (
        "The checksum is correct." if checked else "It is a model; no checksum is known for it."
    )
    if not args.quiet:
        say(verdict)
    print(path)
    return 0
