"""A folder of sentence-transformers: how a text's rows become its vector, and how long it may be.

Knows modules.json and the files that it names. Whatever changes the vector and is not supported is
listed in the metadata, so that the model can still be loaded for other uses.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER = "sentence_bert_config.json"
_PREFIX = "cutaway.embedding."
_KINDS = {"mean": 1, "cls": 2, "last": 3}  # as GGUF numbers them
_MODES = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last", "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip


def files(folder: Path) -> list[Path]:
    """The files that exist and describe vectors."""
    pooling = [
        folder / path / "config.json" for kind, path in _modules(folder) if kind == "Pooling"
    ]
    each = [folder / name for name in (MODULES, PROMPTS, TRANSFORMER)] + pooling
    return [path for path in each if path.is_file()]


def sentence_metadata(folder: Path, architecture: str) -> dict[str, Any]:
    """GGUF's keys, and those that it has no words for; none where the folder says nothing."""
    modules = _modules(folder)
    if not modules:
        return {}
    metadata: dict[str, Any] = {f"{_PREFIX}normalize": False}
    refused = []
    for kind, path in modules:
        if kind == "Pooling":
            name = _pooling(JsonObject.read(folder / path / "config.json"))
            if name in _KINDS:
                metadata[f"{architecture}.pooling_type"] = _KINDS[name]
            else:
                refused.append(f"pooling by {name}")
        elif kind == "Normalize":
            metadata[f"{_PREFIX}normalize"] = True
        elif kind != "Transformer":
            refused.append(f"the module {kind}")
    own = JsonObject.read(folder / TRANSFORMER)
    if own.get("max_seq_length") is not None:
        metadata[f"{_PREFIX}max_tokens"] = own.size("max_seq_length")
    if own.flag("do_lower_case"):
        refused.append("do_lower_case")
    if JsonObject.read(folder / PROMPTS).get("default_prompt_name") is not None:
        refused.append("a prompt in front of each text (default_prompt_name)")
    return metadata | ({f"{_PREFIX}refused": ", ".join(refused)} if refused else {})


def _pooling(config: JsonObject) -> str:
    """By the names of old files and of new ones; the mean is what both take for granted."""
    if not config.flag("include_prompt", True):
        return "the rows behind a prompt"
    if (mode := config.text("pooling_mode")) is not None:
        return {"lasttoken": "last"}.get(mode, mode)
    on = [name for key, name in _MODES.items() if config.flag(key, name == "mean")]
    return " and ".join(on) or "nothing"


def _modules(folder: Path) -> list[tuple[str, PurePosixPath]]:
    """(kind, folder) of each, in order."""
    path = folder / MODULES
    try:
        listed = json.loads(path.read_bytes()) if path.is_file() else []
        each = [(str(one["type"]).split(".")[-1], str(one["path"])) for one in listed]
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise FormatError(f"{path}: the file is no list of modules; download it again") from None
    found = [(kind, PurePosixPath(name)) for kind, name in each]
    if any(name.is_absolute() or ".." in name.parts for _, name in found):
        raise FormatError(f"{path}: a module lies outside the folder; download it again")
    return found
