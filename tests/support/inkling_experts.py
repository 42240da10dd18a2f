"""Folders of Inkling 2 as its publisher writes them: experts of the first layers in NVFP4, of the
others in MXFP8, and their twins, whose experts are float32.
"""

import json
import shutil
from pathlib import Path

import numpy as np

from support import random_models, tiny_tokenizers
from support.quantised.floats import inkling_mxfp8, inkling_nvfp4
from support.quantised.method import Typed
from support.quantised.tensors import read_tensors, write_tensors

SIZES = {"hidden_size": 128, "moe_intermediate_size": 64, "intermediate_size": 64}
EXPERTS = ("w13_weight", "w2_weight")
LAYERS_OF_NVFP4 = 2


def write_plain(folder: Path, name: str = "inkling2") -> Path:
    """Write a folder as transformers does, with experts wide enough for both formats."""
    row = random_models.row(name)
    row = row._replace(values={**row.values, **SIZES})
    random_models.save_row(row, folder, "float32", tiny_tokenizers.byte_level())
    return folder


def quantise_experts(source: Path, folder: Path, *, twin: bool = False, seed: int = 0) -> Path:
    """Copy a folder, with drawn experts as the publisher stores them, or as the twin has them."""
    shutil.copytree(source, folder)
    file, rng = folder / "model.safetensors", np.random.default_rng(seed)
    tensors = read_tensors(file)
    for name in sorted(name for name in tensors if name.endswith(EXPERTS)):
        plain = tensors.pop(name)
        assert not isinstance(plain, Typed)
        layer = int(name.split(".layers.")[1].split(".")[0])
        draw = inkling_nvfp4 if layer < LAYERS_OF_NVFP4 else inkling_mxfp8
        experts = draw(rng, plain.shape)
        parts = {"": experts.matrix} if twin else experts.parts
        tensors |= {name + ending: part for ending, part in parts.items()}
    write_tensors(file, tensors, {"format": "pt"})
    if not twin:
        (folder / "hf_quant_config.json").write_text(json.dumps({"of": "the publisher's tools"}))
    return folder
