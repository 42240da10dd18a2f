"""What transformers takes for a key that config.json lacks, by model_type.

Knows the table class_defaults.json, which tools/transformers_defaults.py writes of its classes, and
which models that it has no class for have the defaults of one.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cutaway.files.huggingface.json_object import JsonObject

_LIKE = {  # publishers' own classes, made of transformers'
    "Dream": "qwen2", "a2d-llama": "llama", "a2d-qwen2": "qwen2", "a2d-qwen3": "qwen3",
    "kimi_k2": "deepseek_v3", "mistral3": "mistral", "new": "gte", "rnd1": "qwen3_moe",
    "sdar": "qwen3", "sdar_moe": "qwen3_moe",
}  # fmt: skip
_ROPE, _OLD_ROPE, _OTHER_NAMES = "rope_parameters", "rope_scaling", "attribute_map"
TABLE, TIED = Path(__file__).with_suffix(".json"), "tie_word_embeddings"


def completed(config: JsonObject, whole: str | None = None) -> JsonObject:
    """The same, with what transformers takes for absent keys; what is null stays so.

    Of two names that a class has for one thing, both are there. whole: the model_type of a model
    that reads pictures, whose class says whether the matrices of its part for text are one.
    """
    known = _defaults(config.text("model_type"))
    known = {**known, **{k: v for k, v in _defaults(whole).items() if k == TIED}}
    given = {k: v for k, v in config.values.items() if k != _ROPE or v is not None}
    values = {**known, **given}
    if given.get(_OLD_ROPE):
        values[_ROPE] = given.get(_ROPE)
    for other, own in values.pop(_OTHER_NAMES, {}).items():
        named = [source[k] for source in (given, known) for k in (own, other) if k in source]
        values |= dict.fromkeys((other, own), named[0] if named else None)
    nulls = {k for k, v in given.items() if v is None and known.get(k) is not None}
    return JsonObject(values, config.file, nulls=nulls)


def _defaults(name: str | None) -> Mapping[str, Any]:
    return _table().get(_LIKE.get(name, name), {}) if name else {}


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(TABLE.read_text("utf-8"))
    return table
