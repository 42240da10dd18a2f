"""The families of models: GGUF's architecture and the names of tensors and keys for each.

A row has the model_type of config.json and the particulars of its family. The row's module has the
same name as its graph's module in ``compute/model/architectures/``. Those modules may import this
package, but this package may not import them. Keys that several families share are in `keys`, names
of tensors in `family`.

Source: llama.cpp's `conversion/` and `gguf-py/gguf/tensor_mapping.py`.
"""

from collections.abc import Mapping

from cutaway.files.huggingface.families import (
    apertus,
    bert,
    deberta,
    deepseek,
    diffusion,
    gemma,
    gemma3n,
    gpt,
    hrm,
    inkling,
    laguna,
    ling,
    llama,
    mamba,
    mamba1,
    mimo,
    mixtures,
    recurrent,
    rwkv,
)
from cutaway.files.huggingface.families.family import Family, Variant

MODULES = (
    llama, apertus, mixtures, laguna, mimo, deepseek, ling, gemma, gemma3n, gpt, recurrent, mamba,
    mamba1, bert, deberta, diffusion, hrm, rwkv, inkling,
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {k: v for module in MODULES for k, v in module.ROWS.items()}
"""The families by config.json's model_type; ``VARIANTS`` choose further ones."""
VARIANTS: Mapping[str, Variant] = {
    name: variant
    for module in (bert, diffusion, gemma, gpt, ling, mamba, recurrent)
    for name, variant in module.VARIANTS.items()
}
"""model_type that several families share -> the function that chooses one of them."""
UNSUPPORTED: Mapping[str, str] = deepseek.UNSUPPORTED | diffusion.UNSUPPORTED | mimo.UNSUPPORTED
"""model_type of models that people ask for -> a sentence that refuses them."""
