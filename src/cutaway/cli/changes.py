"""--change and --control-vector: what is other inside the model.

Knows argparse. Refuses to know what a change means: ``cutaway.engine.changes`` does.
"""

from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import Any

_CHANGE = (
    'change the model inside: "L25.H2 x 0" cuts head 2 of layer 25, "L9.mlp x 0.5 at 3-7 from 2" '
    'halves what a layer adds at some positions from step 2 on, "blind 3-7" hides positions; '
    "repeat for more"
)
_CONTROL_VECTOR = (
    "add X (default 1) times the vectors of this GGUF file (repeng, llama.cpp), each after its "
    "layer; repeat for more"
)


def add_arguments(parser: ArgumentParser) -> None:
    """What is other inside the model."""
    group = parser.add_argument_group("changes", argument_default=SUPPRESS)
    group.add_argument("--change", dest="changes", action="append", metavar="C", help=_CHANGE)
    group.add_argument(
        "--control-vector", type=_control_vector, action="append", metavar="FILE[:X]",
        help=_CONTROL_VECTOR,
    )  # fmt: skip


def from_files(args: Namespace) -> dict[str, Any]:
    """The keyword for all changes, those in files included, where there are some."""
    if not hasattr(args, "control_vector"):
        return {}
    from cutaway.engine.changes import control_vector

    files = (control_vector(path, strength) for path, strength in args.control_vector)
    read = [one.to_json() for found in files for one in found]
    return {"changes": [*getattr(args, "changes", ()), *read]}


def _control_vector(text: str) -> tuple[str, float]:
    """FILE, or FILE:X."""
    path, _, strength = text.rpartition(":")
    try:
        return (path, float(strength)) if path else (text, 1.0)
    except ValueError:
        return text, 1.0
