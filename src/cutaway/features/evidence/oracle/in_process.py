"""Asking transformers in this process, which torch and transformers must be installed for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cutaway.errors import InputError
from cutaway.features.evidence.oracle.told import Told

_OFF = {
    "top_k": 0, "top_p": 1.0, "min_p": None, "typical_p": 1.0, "repetition_penalty": 1.0,
}  # fmt: skip
"""Settings of the sampler that it has, too, and where each does nothing; besides temperature."""


def ask_transformers(
    path: str | Path,
    prompts: Sequence[Sequence[int]],
    *,
    dtype: str = "float32",
    tell: Literal["final", "raw"] = "final",
    max_tokens: int = 64,
    seed: int = 0,
    **settings: Any,
) -> list[Told]:
    """Let transformers write after each prompt, and tell log-probabilities.

    path      a folder that it saved, or a .gguf file, whose weights it unpacks
    dtype     float32, bfloat16 or float16
    tell      final: after its processors and warpers, which it draws from; raw: before them
    settings  temperature (default 1), top_k, top_p, min_p, typical_p, repetition_penalty

    Raises InputError where torch or transformers is missing or cannot load the model, or a setting
    is not among these.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise InputError(
            f"transformers in this process needs torch and transformers: {error}"
        ) from error
    asked = _generation(settings)
    path = Path(path)
    if not path.exists():
        raise InputError(f"transformers: there is no {path}: name a folder or a .gguf file")
    where = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if where else path
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **where)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"transformers cannot load {path}: {error}") from error
    told = []
    for number, ids in enumerate(prompts):
        torch.manual_seed(seed + number)
        with torch.no_grad():
            done = model.generate(
                torch.tensor([list(ids)]), max_new_tokens=max_tokens, return_dict_in_generate=True,
                output_scores=tell == "final", output_logits=tell == "raw", **asked,
            )  # fmt: skip
        new = done.sequences[0, len(ids) :].tolist()
        rows = torch.cat(done.scores if tell == "final" else done.logits).float()
        logs = rows.log_softmax(-1)[torch.arange(len(new)), torch.tensor(new)].tolist()
        told.append(Told(tuple(ids), tuple(new), tuple(logs)))
    return told


def _generation(settings: dict[str, Any]) -> dict[str, Any]:
    for name in settings:
        if name not in _OFF and name != "temperature":
            raise InputError(f"transformers has no {name} that means the same: leave it out")
    temperature = settings.get("temperature", 1.0)
    if not temperature:
        return {"do_sample": False, "repetition_penalty": settings.get("repetition_penalty", 1.0)}
    given = {k: v for k, v in (_OFF | settings).items() if v is not None}
    return {"do_sample": True, **given, "temperature": float(temperature)}
