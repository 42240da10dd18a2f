"""``cutaway export --page``: a web page that runs a model by itself, for any static host."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path

from cutaway.base.progress import Bar, megabytes, say
from cutaway.errors import InputError

_CONTEXT = 1024

EPILOG = """
examples:
  cutaway export --page smollm2 page
  python -m http.server --directory page 8000      then open http://localhost:8000
  cutaway export --page smollm2 page --context 2048
A recorded run as a page: cutaway trace export RUN.jsonl --html PAGE.html
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway export --page``."""
    parser.add_argument("--page", action="store_true", required=True, help="as a page that runs it")
    parser.add_argument("model", metavar="MODEL", help="an alias, a file or a folder")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write; it must be new")
    parser.add_argument(
        "--context", type=int, metavar="N",
        help="tokens of prompt and text together that the page has room for "
        f"(default {_CONTEXT}, or the model's own where that is less)",
    )  # fmt: skip


def run(args: Namespace) -> int:
    """Write the folder, and print how to open the page."""
    from cutaway.api.llm import LLM
    from cutaway.compute.loading.model import LoadedModel
    from cutaway.compute.loading.setup import Setup
    from cutaway.features.page.cores import page_cores
    from cutaway.features.page.folder import check_causal, write_page_folder

    if args.out.exists():
        raise InputError(f"{args.out} exists already: name a new folder, or delete it")
    model = LoadedModel.open(args.model, Setup(context=args.context), weights=False)
    check_causal(model)
    cores = page_cores()
    with model.open_file() as file:
        size = sum(info.nbytes for info in file.tensors.values())
    context = args.context or min(model.context, _CONTEXT)

    with ExitStack() as stack:
        bar = stack.enter_context(Bar(f"exporting {model.name}", size))

        def load_for_exercises() -> LLM:
            stack.close()
            say("running the model for the exercises of the page")
            return LLM(model.path, context=context)

        missing = write_page_folder(
            model, args.out, context=context, cores=cores, run=load_for_exercises,
            on_progress=bar.update,
        )  # fmt: skip
    for sentence in missing:
        say(sentence)
    total = sum(path.stat().st_size for path in args.out.rglob("*") if path.is_file())
    say(f"{args.out}: {megabytes(total)}; python -m http.server --directory {args.out}")
    return 0
