"""The architectures: one row each, beside the function that builds its graph.

A new one is a row in a module here and, where no other has its graph, a short function that builds
it (``parts.py`` has what they share). What its folders say, if transformers writes them, is a row
in the module of the same name of ``files/huggingface/families/``: the one is below the other in the
order of imports, since a file is read before a graph is built of it. docs/models.md lists it, and
``tests/support/families`` has a random model of it.
"""

from collections.abc import Mapping

from cutaway.compute.model.architectures import (
    bert,
    deberta,
    diffusion,
    gemma,
    gpt,
    ling,
    llama,
    mamba,
    mixtures,
    recurrent,
)
from cutaway.compute.model.config import Architecture

MODULES = (llama, mixtures, ling, gemma, gpt, recurrent, mamba, diffusion, bert, deberta)

ARCHITECTURES: Mapping[str, Architecture] = {
    name: row for module in MODULES for name, row in module.ROWS.items()
}
"""By GGUF's ``general.architecture``."""
