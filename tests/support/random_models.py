"""Tiny random models of transformers, saved as folders: one or more of each family.

`FAMILIES` joins the tables of `families/`. Every row is a transformers config in shapes odd enough
to catch a mistake: fewer kv heads than heads, a head size of its own, windows shorter than a test's
text, norms other than one. `save` makes the model and writes it with a tokenizer.

torch and transformers are imported when a model is made, so that the table needs neither.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from support import tiny_ling, tiny_rwkv, tiny_tokenizers
from support.families.dense import DENSE
from support.families.encoders import BODIES, ENCODERS, RANKERS
from support.families.mixtures import MIXTURES
from support.families.recurrent import RECURRENT
from support.families.row import VOCAB, Row
from support.lfm2_encoder import CHANGED, see_both_sides

IDS: list[int] = np.random.default_rng(1).integers(6, VOCAB, 80).tolist()  # no special tokens

FAMILIES: Mapping[str, Row] = {**DENSE, **MIXTURES, **RECURRENT}
"""The families that generate text."""

FORMULAS: Mapping[str, Row] = {
    "ling": Row("not there", tiny_ling.CONFIGS["ling"], "bailingmoe"),
    "ling2": Row("not there", tiny_ling.CONFIGS["ling2"], "bailingmoe2"),
    **{name: Row("not there", values, "rwkv7") for name, values in tiny_rwkv.CONFIGS.items()},
}
"""The families that transformers lacks; `tiny_ling` and `tiny_rwkv` have their formulas."""

ROWS = {**FAMILIES, **FORMULAS, **ENCODERS, **BODIES, **CHANGED, **RANKERS}


def row(name: str) -> Row:
    """Return the row of a name."""
    return ROWS[name]


def context(name: str) -> int | None:
    """Return the context with which cutaway takes the rope factors that transformers takes.

    A context within a model's first training length takes the short factors. None: the default.
    """
    return {"phi3-longrope": 64, "phimoe": 64, "minicpm3": 256}.get(name)


def save(
    name: str,
    folder: Path,
    *,
    dtype: str = "float32",
    tokenizer: Callable[[], Any] = tiny_tokenizers.byte_level,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Write the family's model into a folder; return transformers' model, in eval mode.

    dtype: of the saved weights, "float32", "bfloat16" or "float16"; the returned model is float32
    and has exactly the saved numbers. options: of save_pretrained (max_shard_size).
    """
    family = row(name)
    if name in FORMULAS:
        formulas = tiny_rwkv if name in tiny_rwkv.CONFIGS else tiny_ling
        return formulas.save(name, folder, seed, tokenizer)
    kind = "AutoModelForMaskedLM" if name in ENCODERS else family.kind
    model = save_row(family._replace(kind=kind), folder, dtype, tokenizer(), seed, **options)
    if name in CHANGED:
        see_both_sides(model).save_pretrained(folder)
    return model


def save_row(
    row: Row,
    folder: Path,
    dtype: str,
    tokenizer: Any,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Write a model of a row that is in no table, as `save` does."""
    import torch
    import transformers

    torch.manual_seed(seed)
    transformers.utils.logging.disable_progress_bar()
    config = getattr(transformers, row.config)(**row.values)
    model = getattr(transformers, row.kind).from_config(config).eval()
    shake(model, np.random.default_rng(seed))
    model.to(getattr(torch, dtype)).save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tiny_tokenizers.save(tokenizer, folder)
    # Read again: conversion to a smaller dtype and back loses digits of the rope table.
    read = getattr(transformers, row.kind).from_pretrained(folder, dtype=torch.float32)
    return read.eval()


def shake(model: Any, rng: np.random.Generator) -> None:
    """Change initial numbers, which hide mistakes in scales, norms and biases."""
    import torch

    gain = 0.5 if hasattr(model.config, "H_cycles") else 1.5  # else each run would amplify rounding
    for name, weight in model.named_parameters():
        noise = rng.normal(size=tuple(weight.shape))
        if weight.ndim == 1:
            centre = 1.0 if name.endswith("weight") and not _adds_one(model) else 0.0
            noise = centre + 0.3 * noise if name.endswith("weight") else 0.3 * noise
        else:
            noise = noise * gain / np.sqrt(64)
        with torch.no_grad():
            weight.copy_(torch.from_numpy(noise))
    for name, numbers in model.named_buffers():
        if name.endswith(("layer_scalar", "e_score_correction_bias")):
            centre = 1.0 if name.endswith("scalar") else 0.0
            noise = centre + 0.2 * rng.normal(size=tuple(numbers.shape))
            numbers.copy_(torch.from_numpy(noise))


def _adds_one(model: Any) -> bool:
    """Return whether the model adds 1 to its norms' weights, as Gemma and Nemotron do."""
    name = str(model.config.model_type)
    if name == "nemotron_h" or name.startswith(("gemma4", "gemma3n")):
        return False
    return name.startswith(("gemma", "nemotron", "qwen3_5", "qwen3_next", "muse_glimmer"))


def logits(model: Any, ids: list[int], prompt_tokens: int = 0) -> np.ndarray[Any, Any]:
    """Return transformers' logits: float32 (n, vocab).

    prompt_tokens: how many first tokens are a prompt that is read to both sides; 0: none
    """
    import torch

    if isinstance(model, (tiny_ling.Ling, tiny_rwkv.Rwkv)):
        return model.logits(ids)
    with torch.no_grad():
        parts = both_sides(prompt_tokens, len(ids))
        out: np.ndarray[Any, Any] = model(torch.tensor([ids]), **parts).logits[0].float().numpy()
    return out


def both_sides(prompt_tokens: int, length: int) -> dict[str, Any]:
    """Return the arguments by which transformers reads a text's prompt to both sides."""
    import torch

    if not prompt_tokens:
        return {}
    return {"token_type_ids": (torch.arange(length) < prompt_tokens).long()[None]}


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values.update(changes)
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
