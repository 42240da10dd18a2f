"""The families of models: GGUF's architecture and the names of tensors and keys for each.

A row says which family a config.json's model_type is, and what of it is its own; it stands in the
module that has the name of its graph's, in ``compute/model/architectures/``, which is above this in
the order of imports. Keys that several share are in `keys`, names of tensors in `family`.

Source: llama.cpp's `conversion/` and `gguf-py/gguf/tensor_mapping.py`.
"""

from collections.abc import Mapping

from cutaway.files.huggingface.families import (
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
from cutaway.files.huggingface.families.family import Family, Variant

MODULES = (llama, mixtures, ling, gemma, gpt, recurrent, mamba, bert, deberta, diffusion)

FAMILIES: Mapping[str, Family] = {k: v for module in MODULES for k, v in module.ROWS.items()}
"""By config.json's model_type, or as ``VARIANTS`` say."""
VARIANTS: Mapping[str, Variant] = {
    name: variant
    for module in (bert, diffusion, gemma, ling, mamba)
    for name, variant in module.VARIANTS.items()
}
"""By model_type, of those that several families have."""
