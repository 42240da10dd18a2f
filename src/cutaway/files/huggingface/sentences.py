"""A folder of sentence-transformers: how a text's rows become its vector, and how long it may be.

Knows modules.json and the files that it names. Whatever changes the vector and is not supported is
listed in the metadata, so that the model can still be loaded for other uses.
"""

import json
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.shards import Shards

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
TRANSFORMER, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"
_PREFIX = "cutaway.embedding."
_KINDS = {"mean": 1, "cls": 2, "last": 3}  # as GGUF numbers them
_OWN_KINDS = {"weightedmean": "weighted"}  # of which GGUF knows nothing
_MODES = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last", "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
_PLUS_INPUT = "+input"  # as `compute/model/pooling.py` reads it
_WEIGHTS = "model.safetensors"  # of a dense layer
_NO_LIMIT = 2**31  # transformers writes 10^30 where a tokenizer has none


def files(folder: Path) -> list[Path]:
    """The files that exist and describe vectors."""
    pooling = [folder / path / "config.json" for kind, path in modules(folder) if kind == "Pooling"]
    dense = [
        folder / path / name for kind, path in modules(folder) if kind == "Dense"
        for name in ("config.json", _WEIGHTS)
    ]  # fmt: skip
    each = [folder / name for name in (MODULES, PROMPTS, TRANSFORMER)] + pooling + dense
    return [path for path in each if path.is_file()]


def sentence_metadata(folder: Path, architecture: str, *, is_rank: bool) -> dict[str, Any]:
    """GGUF's keys, and those that it has no words for; none where the folder says nothing.

    is_rank: whether the model has a head that scores, whose tokenizer says how much is read
    """
    listed = modules(folder)
    if not listed:
        most = _most_tokens(folder, JsonObject.read(folder / TRANSFORMER)) if is_rank else None
        return {} if most is None else {f"{_PREFIX}max_tokens": most}
    metadata: dict[str, Any] = {f"{_PREFIX}normalize": False}
    refused, dense = [], list[list[str]]()
    for kind, path in listed:
        own = JsonObject.read(folder / path / "config.json") if str(path) != "." else None
        if kind == "Pooling" and own is not None:
            more, why = _pooling_metadata(own, architecture)
            metadata |= more
            refused += why
        elif kind == "Dense" and own is not None:
            dense.append([f"dense_{len(dense) + 2}", _activation(own)])
        elif kind == "Normalize":
            metadata[f"{_PREFIX}normalize"] = True
        elif kind not in ("Transformer", "MultiVectorMask"):
            refused.append(f"the module {kind}")
    if dense:
        metadata[f"{_PREFIX}dense"] = json.dumps(dense)
    own = JsonObject.read(folder / TRANSFORMER)
    if (most := _most_tokens(folder, own)) is not None:
        metadata[f"{_PREFIX}max_tokens"] = most
    metadata[f"{_PREFIX}lower"] = own.flag("do_lower_case")
    said = JsonObject.read(folder / PROMPTS)
    prompts = said.part("prompts").values
    if not all(isinstance(text, str) for text in prompts.values()):
        said.fail("prompts", "an object of texts")
    metadata[f"{_PREFIX}prompts"] = json.dumps(dict(prompts))
    if (default := said.text("default_prompt_name")) is not None:
        metadata[f"{_PREFIX}default_prompt"] = default
    return metadata | ({f"{_PREFIX}refused": ", ".join(refused)} if refused else {})


def _most_tokens(folder: Path, own: JsonObject) -> int | None:
    """Of a text; sentence-transformers 6 writes it beside the tokenizer. None: nothing is said."""
    if own.get("max_seq_length") is not None:
        return own.size("max_seq_length")
    said = JsonObject.read(folder / TOKENIZER)
    most = said.get("model_max_length")
    none = most is None or (isinstance(most, int | float) and most >= _NO_LIMIT)
    return None if none else said.size("model_max_length")


def _pooling_metadata(config: JsonObject, architecture: str) -> tuple[dict[str, Any], list[str]]:
    """How rows become one, and what is not supported of that."""
    name = _pooling(config)
    metadata: dict[str, Any] = {f"{_PREFIX}include_prompt": config.flag("include_prompt", True)}
    if name in _KINDS:
        return metadata | {f"{architecture}.pooling_type": _KINDS[name]}, []
    if name in _OWN_KINDS:
        return metadata | {f"{_PREFIX}pooling": _OWN_KINDS[name]}, []
    return metadata, [f"pooling by {name}"]


def _pooling(config: JsonObject) -> str:
    """By the names of old files and of new ones; the mean is what both take for granted."""
    if (mode := config.text("pooling_mode")) is not None:
        return {"lasttoken": "last"}.get(mode, mode)
    on = [name for key, name in _MODES.items() if config.flag(key, name == "mean")]
    return " and ".join(on) or "nothing"


def _activation(config: JsonObject) -> str:
    """Of a dense layer: torch's class, as ``model.pooling`` calls it."""
    name = (config.text("activation_function") or "torch.nn.modules.activation.Tanh").split(".")[-1]
    known = {"Identity": "identity", "Tanh": "tanh", "GELU": "gelu", "ReLU": "relu"}
    if name not in known:
        config.refuse("activation_function", f"{', '.join(known)} are")
    return known[name] + (_PLUS_INPUT if config.flag("use_residual") else "")


def dense_tensors(folder: Path) -> dict[str, NDArray[np.float32]]:
    """The matrices and biases of dense layers after pooling, by GGUF's names."""
    found: dict[str, NDArray[np.float32]] = {}
    paths = [folder / path for kind, path in modules(folder) if kind == "Dense"]
    for i, path in enumerate(paths):
        if not (path / _WEIGHTS).is_file():
            raise FormatError(
                f"{path}: the folder has no {_WEIGHTS}; save the model as safetensors"
            )
        with closing(Shards([path / _WEIGHTS])) as file:
            for name in file:
                end = name.removeprefix("linear.")
                if end not in ("weight", "bias", "residual.weight"):
                    raise FormatError(f"{path / _WEIGHTS}: the tensor {name!r:.40} has no place")
                found[f"dense_{i + 2}.{end}"] = np.asarray(file.part(name), np.float32).copy()
    return found


def modules(folder: Path) -> list[tuple[str, PurePosixPath]]:
    """(kind, folder) of each module, in order; none without modules.json."""
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
