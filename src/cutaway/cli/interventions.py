"""--intervention and --control-vector: what is changed inside the model for one text."""

from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Any

from cutaway.cli.arguments import add_keywords

_CONTROL_VECTOR = (
    "add X (default 1) times the vectors of this GGUF file (repeng, llama.cpp), each after its "
    "layer; repeat for more"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the two flags, and --change, the first one's earlier name."""
    group = parser.add_argument_group("interventions", argument_default=SUPPRESS)
    add_keywords(group, "interventions")
    group.add_argument("--change", dest="interventions", action="append", help=SUPPRESS)
    group.add_argument(
        "--control-vector", type=_control_vector, action="append", metavar="FILE[:X]",
        help=_CONTROL_VECTOR,
    )  # fmt: skip


def from_files(args: Namespace) -> dict[str, Any]:
    """The keyword with those in files, too, where there are some."""
    if not hasattr(args, "control_vector"):
        return {}
    from cutaway.engine.interventions import control_vector

    files = (control_vector(path, strength) for path, strength in args.control_vector)
    read = [one.to_json() for found in files for one in found]
    return {"interventions": [*getattr(args, "interventions", ()), *read]}


def _control_vector(text: str) -> tuple[str, float]:
    """FILE, or FILE:X."""
    path, _, strength = text.rpartition(":")
    try:
        return (path, float(strength)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0
