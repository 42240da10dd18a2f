"""``cutaway lessons``: the lessons of the package, as pages that open from disk."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from cutaway.base.checks import check_choice
from cutaway.errors import InputError

EPILOG = """
examples:
  cutaway lessons lessons                          then open lessons/index.html
  cutaway lessons lessons temperature snowball     two of them
Each page contains its recorded runs, its style and its script, and fetches nothing. No model is
needed. class.html is a plan that leads through them in 45 minutes. cutaway serve has the same
lessons at /lessons, and the plan at /class.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of ``cutaway lessons``."""
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    parser.add_argument("names", nargs="*", metavar="LESSON", help="which to write; default: all")


def run(args: Namespace) -> int:
    """Write the pages and the index, and print the size of each page."""
    from cutaway.features.lessons import LESSONS
    from cutaway.features.lessons.class_page import TITLE, class_page
    from cutaway.features.lessons.pages import index, write

    for name in args.names:
        check_choice("LESSON", name, LESSONS)
    try:
        sizes = write(args.out, args.names)
        if not args.names:
            index_page = index({TITLE: "class.html"})
            args.out.joinpath("index.html").write_text(index_page, "utf-8")
            args.out.joinpath("class.html").write_text(class_page(), "utf-8")
    except OSError as error:
        raise InputError(f"{args.out}: the lessons cannot be written: {error.strerror}") from error
    for name, size in sizes.items():
        print(f"{args.out / name}.html  {size / 1e6:.2f} MB")
    return 0
