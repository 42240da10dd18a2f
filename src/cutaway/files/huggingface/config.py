"""config.json as GGUF's metadata: the model's family, its sizes, its rotary positions.

Knows the sizes that every family has, and transformers' defaults for absent keys, which
tools/transformers_defaults.py writes from transformers' classes into the table class_defaults.json.
Models without a class in transformers share the defaults of another class.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.families import FAMILIES, UNSUPPORTED, VARIANTS
from cutaway.files.huggingface.families.family import SCORE, Family, has_draft_head
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization import quantization_of
from cutaway.files.huggingface.rope import rope_metadata

CONFIG, GENERATION = "config.json", "generation_config.json"
_WIDEST_HEAD = 1 << 16


class Config:
    """A model's config as metadata. `FormatError` names a key that is missing, absurd or refused.

    metadata  the metadata by GGUF's keys
    tensors   tensors of GGUF that the folder's files lack: factors of rotary positions
    quantization  how matrices are quantised; None if they are not
    layers    number of the model's own layers, in all stacks, without draft layers
    tied      whether the output matrix is the embedding
    is_body   whether the model was saved without a head, by one of transformers' ...Model classes
    draft_layers  number of layers that follow the model's own and draft for it: 1 or 0
    behind    the numbers of the blocks after the draft layers; they draft further tokens
    sees_all  whether each token sees the whole text
    """

    def __init__(self, folder: Path, tensors: Iterable[str] = ()) -> None:
        """Read a folder's config. tensors: the names of the tensors in its files."""
        config = JsonObject.read(folder / CONFIG)
        self.family = _family(config, tensors)
        text = complete(_text(config), config.text("model_type"))
        self.settings = s = text.with_defaults(self.family.names, self.family.defaults)
        self.quantization = quantization_of(s, folder, tensors)
        self.heads = s.size("num_attention_heads", 1 << 16)
        self.kv_heads = self.heads
        if self.family.grouped and s.get("num_key_value_heads") is not None:
            self.kv_heads = s.size("num_key_value_heads", 1 << 16)
        self.layers = layers = _layers(s, stacks=len(self.family.stacks))
        ahead = s.get("num_nextn_predict_layers")
        more = s.size("num_nextn_predict_layers", 1 << 16) if ahead else 0
        drafts = "eh_proj" in self.family.layer and has_draft_head(tensors, layers)
        self.draft_layers = 1 if drafts else 0
        self.behind = range(layers + self.draft_layers, layers + more)
        self.tied = s.flag("tie_embedding", s.flag("tie_word_embeddings"))
        classes = s.get("architectures")
        self.is_body = isinstance(classes, list) and bool(classes) and all(map(_is_body, classes))
        self.is_body &= self.family.attention == "causal"  # DreamModel writes
        self.experts = 0
        self.metadata, self.tensors = self._read(folder)
        self.sees_all = self.metadata.get(f"{self.family.architecture}.attention.causal") is False

    def _read(self, folder: Path) -> tuple[dict[str, Any], Mapping[str, NDArray[np.float32]]]:
        s, family = self.settings, self.family
        hidden, head = s.size("hidden_size"), self._head_dim()
        values: dict[str, Any] = {
            "context_length": s.size("max_position_embeddings"),
            "embedding_length": hidden,
            "block_count": self.layers + self.draft_layers,
            "feed_forward_length": 0,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": head,
            "attention.value_length": head,
        }
        if family.layer_norm:
            values["attention.layer_norm_epsilon"] = s.positive("layer_norm_epsilon")
        else:
            values["attention.layer_norm_rms_epsilon"] = s.positive("rms_norm_eps")
        tensors: Mapping[str, NDArray[np.float32]] = {}
        if family.rope:
            rope, tensors = rope_metadata(s, head, family.rope, "full_attention")
            values |= rope
        for key, allowed in family.must_be.items():
            s.must_be(key, *(allowed if isinstance(allowed, tuple) else (allowed,)))
        extra = family.metadata(s)
        if "feed_forward_length" not in extra:
            values["feed_forward_length"] = s.size("intermediate_size")
        values |= extra
        if self.draft_layers:
            values["nextn_predict_layers"] = self.draft_layers
        self.experts = values.get("expert_count", 0)
        besides = self._attention(values) | self._rank(values) | self._noise(folder)
        metadata = {f"{family.architecture}.{key}": value for key, value in values.items()}
        metadata["general.architecture"] = family.architecture
        metadata["general.name"] = folder.resolve().name
        return metadata | besides, tensors

    def _rank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of a head that scores texts, which GGUF lacks."""
        s, family = self.settings, self.family
        if not family.is_rank:
            return {}
        values["pooling_type"] = 4
        if len(labels := _labels(s)) > 1:
            values["classifier.output_labels"] = labels
        pooling = "last" if family.rank is SCORE else s.text("classifier_pooling") or "cls"
        if pooling not in ("cls", "mean", "last"):
            s.refuse("classifier_pooling", "cls and mean are")
        besides: dict[str, Any] = {
            "cutaway.rank.activation": family.rank_activation,
            "cutaway.embedding.rank_pooling": pooling,
        }
        if family.layer_norm:
            besides["cutaway.rank.norm_epsilon"] = s.positive("layer_norm_epsilon")
        return besides

    def _attention(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of a diffusion model's attention that GGUF lacks."""
        s, family = self.settings, self.family
        if family.attention == "causal":
            return {}
        values["attention.causal"] = False
        besides: dict[str, Any] = {"diffusion.shift_logits": family.shifts}
        if s.get("block_size") is None:
            return besides
        if family.attention == "bidirectional":
            s.refuse("block_size", "of such models only those that see the whole text are")
        return besides | {"cutaway.block_size": s.size("block_size")}

    def _noise(self, folder: Path) -> dict[str, Any]:
        """Return the keys of a canvas that begins as noise; its sampler's are in another file."""
        s = self.settings
        if s.get("canvas_length") is None:
            return {}
        metadata: dict[str, Any] = {"diffusion.canvas_length": s.size("canvas_length")}
        generation = JsonObject.read(folder / GENERATION)
        sampler = generation.part("sampler_config")
        for name, key, read in (
            ("max_denoising_steps", "eb_max_steps", generation.size),
            ("stability_threshold", "eb_stability_threshold", generation.number),
            ("t_max", "eb_t_max", generation.positive),
            ("t_min", "eb_t_min", generation.positive),
            ("confidence_threshold", "eb_confidence_threshold", generation.positive),
            ("entropy_bound", "eb_entropy_bound", sampler.positive),
        ):
            source = sampler if name == "entropy_bound" else generation
            if source.get(name) is not None:
                metadata[f"diffusion.{key}"] = read(name)
        return metadata

    def _head_dim(self) -> int:
        s = self.settings
        if self.family.head_dim is not None:
            return self.family.head_dim(s)
        if s.get("head_dim") is not None:
            return s.size("head_dim", _WIDEST_HEAD)
        hidden = s.size("hidden_size")
        if hidden % self.heads or hidden // self.heads > _WIDEST_HEAD:
            s.fail("hidden_size", f"a whole number of times the {self.heads} attention heads")
        return hidden // self.heads


def _layers(config: JsonObject, stacks: int) -> int:
    kinds = config.get("layers_block_type")
    if config.get("num_hidden_layers") is None and isinstance(kinds, list):
        return len(kinds)
    if stacks and config.get("num_layers_per_stack") is not None:
        return stacks * config.size("num_layers_per_stack", 1 << 16)
    return (stacks or 1) * config.size("num_hidden_layers", 1 << 16)


def _labels(config: JsonObject) -> list[str]:
    """Return the labels of a head's classes in order; LABEL_0, … as in transformers by default."""
    labels = config.part("id2label").values
    if not labels:
        count = config.size("num_labels", 1 << 16) if config.get("num_labels") is not None else 2
        return [f"LABEL_{i}" for i in range(count)]
    if {*labels} != {str(i) for i in range(len(labels))}:
        config.fail("id2label", "an object of labels, by numbers from 0 on")
    return [str(labels[str(i)]) for i in range(len(labels))]


def _is_body(name: object) -> bool:
    """Whether a class of transformers has no output matrix (GPT2LMHeadModel has one)."""
    return str(name).endswith("Model") and not str(name).endswith("LMHeadModel")


def _family(config: JsonObject, tensors: Iterable[str]) -> Family:
    if not config:
        raise FormatError(f"{config.file} is missing or empty: the folder holds no model")
    config, name = complete(config), config.text("model_type")
    if name is None and isinstance(config.get("graph"), dict) and config.get("noise") is not None:
        name = "sedd"
    if name is None or name not in FAMILIES:
        problem = "is missing" if name is None else f"{name!r:.40} is not supported"
        if reason := UNSUPPORTED.get(name or ""):
            problem = f"{name!r}: {reason}"
        raise FormatError(f"{config.file}: model_type {problem}; supported: {', '.join(FAMILIES)}")
    variant = VARIANTS[name](config, tensors) if name in VARIANTS else None
    return (variant or FAMILIES[name]).ranking(tensors)


def _text(config: JsonObject) -> JsonObject:
    """Return the text model's config, if a model of pictures and text has a config for each.

    The key for tied matrices is the outer config's, if the outer config has such a key.
    """
    text, whole = config.part("text_config").values, config.values
    overrides = {k: v for k, v in text.items() if k not in whole or (v is not None and k != TIED)}
    return JsonObject({**whole, **overrides}, config.file)


# -- transformers' defaults for keys that config.json lacks, by model_type -------------------------


_LIKE = {  # publishers' own classes, derived from those of transformers
    "Dream": "qwen2", "a2d-llama": "llama", "a2d-qwen2": "qwen2", "a2d-qwen3": "qwen3",
    "kimi_k2": "deepseek_v3", "mimo": "qwen2", "mistral3": "mistral", "new": "gte",
    "lfm2_bidirectional": "lfm2", "rnd1": "qwen3_moe", "sdar": "qwen3", "sdar_moe": "qwen3_moe",
}  # fmt: skip
_ROPE, _OLD_ROPE, _OTHER_NAMES = "rope_parameters", "rope_scaling", "attribute_map"
TABLE, TIED = Path(__file__).parent / "families/class_defaults.json", "tie_word_embeddings"


def complete(config: JsonObject, whole: str | None = None) -> JsonObject:
    """Return the config with transformers' defaults for absent keys; null stays null.

    A value that a class knows by two names gets both. whole: the model_type of a model that reads
    pictures; its class has the default for tied matrices of the text model.
    """
    defaults = _defaults(config.text("model_type"))
    defaults = {**defaults, **{k: v for k, v in _defaults(whole).items() if k == TIED}}
    explicit = {k: v for k, v in config.values.items() if k != _ROPE or v is not None}
    values = {**defaults, **explicit}
    if explicit.get(_OLD_ROPE):
        values[_ROPE] = explicit.get(_ROPE)
    for alias, name in values.pop(_OTHER_NAMES, {}).items():
        candidates = [
            source[k] for source in (explicit, defaults) for k in (name, alias) if k in source
        ]
        values |= dict.fromkeys((alias, name), candidates[0] if candidates else None)
    nulls = {k for k, v in explicit.items() if v is None and defaults.get(k) is not None}
    return JsonObject(values, config.file, nulls=nulls)


def _defaults(name: str | None) -> Mapping[str, Any]:
    return _table().get(_LIKE.get(name, name), {}) if name else {}


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(TABLE.read_text("utf-8"))
    return table
