"""The architectures: one row each, beside the function that builds its graph.

A new architecture is a row in a module here and, if no other architecture has its graph, a short
function that builds this graph (``parts.py`` has the parts that graphs share). If transformers
writes folders of it, a row in a module of ``files/huggingface/families/``, which the module here
names, says how these are read. That package is below this one in the order of imports, because a
file is read before its graph is built. docs/families.md lists the architecture, and
``tests/support/families`` has a random model of it.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module

from cutaway.compute.model.config import Architecture
from cutaway.errors import FormatError

MODULES = (
    "llama", "gemma", "gemma3n", "mixtures", "recurrent", "mamba", "mamba1", "gpt", "bert", "ling",
    "diffusion", "deberta", "deepseek", "laguna", "mimo", "apertus", "hrm", "rwkv", "inkling",
)  # fmt: skip
"""The modules with rows; a module is imported only if no earlier module has the row looked up."""


def architecture_of(name: object) -> Architecture:
    """Return the row of GGUF's ``general.architecture``; FormatError if it is not supported."""
    for rows in tables():
        if isinstance(name, str) and name in rows:
            return rows[name]
    raise FormatError(
        f"architecture {name!r:.40} is not supported; docs/families.md lists the "
        f"{sum(map(len, tables()))} that are"
    )


def tables() -> Iterator[Mapping[str, Architecture]]:
    """Yield the rows of each module, by name."""
    return (import_module(f"{__name__}.{module}").ROWS for module in MODULES)
