"""config.json as GGUF's metadata: which family it is, its sizes, its rotary positions.

Knows the sizes that every family has.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.families import FAMILIES
from cutaway.files.huggingface.families.class_defaults import TIED, completed
from cutaway.files.huggingface.families.diffusion import (
    DIFFUSION,
    REFUSED,
    meant,
    with_mask,
)
from cutaway.files.huggingface.families.encoders import NOMIC_NAMES
from cutaway.files.huggingface.families.family import Family, has_draft_head
from cutaway.files.huggingface.families.ling import meant as of_ling
from cutaway.files.huggingface.families.mamba import meant as of_mamba
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.quantization import quantization_of
from cutaway.files.huggingface.rope import rope_metadata

CONFIG = "config.json"
_WIDEST_HEAD = 1 << 16


class Config:
    """A model's config, understood. `FormatError` names what is missing, absurd or refused.

    metadata  with GGUF's keys
    tensors   that GGUF has and the folder's files have not: factors of rotary positions
    quantization  how matrices are quantised; None where they are not
    layers    of the model, without those behind
    tied      whether the output matrix is the embedding
    is_body   whether the model was saved without a head, as transformers' classes ...Model are
    draft_layers  how many layers behind the model's own draft for it: 1 or 0
    behind    the numbers of further blocks behind, which guess more tokens ahead
    sees_all  whether each token sees the whole text
    """

    def __init__(self, folder: Path, tensors: Iterable[str] = ()) -> None:
        """tensors: the names of those in the folder's files."""
        found = JsonObject.read(folder / CONFIG)
        self.family = _family(found, tensors)
        text = completed(_text(found), found.text("model_type"))
        self.settings = s = text.meant(self.family.names, self.family.defaults)
        self.quantization = quantization_of(s, folder)
        self.heads = s.size("num_attention_heads", 1 << 16)
        self.kv_heads = self.heads
        if self.family.grouped and s.get("num_key_value_heads") is not None:
            self.kv_heads = s.size("num_key_value_heads", 1 << 16)
        self.layers = layers = _layers(s)
        ahead = s.get("num_nextn_predict_layers")
        more = s.size("num_nextn_predict_layers", 1 << 16) if ahead else 0
        drafts = "eh_proj" in self.family.layer and has_draft_head(tensors, layers)
        self.draft_layers = 1 if drafts else 0
        self.behind = range(layers + self.draft_layers, layers + more)
        self.tied = s.flag("tie_embedding", s.flag("tie_word_embeddings"))
        named = s.get("architectures")
        self.is_body = isinstance(named, list) and bool(named) and all(map(_is_body, named))
        self.is_body &= str(s.get("model_type")) not in DIFFUSION  # DreamModel writes
        self.experts = 0
        self.metadata, self.tensors = self._read(folder)
        self.sees_all = self.metadata.get(f"{self.family.architecture}.attention.causal") is False

    def _read(self, folder: Path) -> tuple[dict[str, Any], Mapping[str, NDArray[np.float32]]]:
        s, family = self.settings, self.family
        hidden, head = s.size("hidden_size"), self._head_dim()
        values: dict[str, Any] = {
            "context_length": self._context(),
            "embedding_length": hidden,
            "block_count": self.layers + self.draft_layers,
            "feed_forward_length": 0 if family.own_width else self._feed_forward(hidden),
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
            rope, tensors = rope_metadata(
                s, head, partial=family.partial_rope, longrope=family.longrope,
                ntk_alpha=family.ntk_alpha, yarn_truncates=family.yarn_truncates,
                layer_type="full_attention", proportional=family.proportional_rope,
            )  # fmt: skip
            values |= rope
        values |= family.own(s)
        if self.draft_layers:
            values["nextn_predict_layers"] = self.draft_layers
        self.experts = values.get("expert_count", 0)
        besides = self._attention(values) | self._rank(values)
        metadata = {f"{family.architecture}.{key}": value for key, value in values.items()}
        metadata["general.architecture"] = family.architecture
        metadata["general.name"] = folder.resolve().name
        return metadata | besides, tensors

    def _rank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Of a head that scores texts, beside GGUF's keys."""
        s, family = self.settings, self.family
        if not family.is_rank:
            return {}
        values["pooling_type"] = 4
        if len(labels := _labels(s)) > 1:
            values["classifier.output_labels"] = labels
        pooling = s.text("classifier_pooling") or "cls"
        if pooling not in ("cls", "mean"):
            s.refuse("classifier_pooling", "cls and mean are")
        besides: dict[str, Any] = {
            "cutaway.rank.activation": family.rank_activation,
            "cutaway.embedding.rank_pooling": pooling,
        }
        if family.layer_norm:
            besides["cutaway.rank.norm_epsilon"] = s.positive("layer_norm_epsilon")
        return besides

    def _attention(self, values: dict[str, Any]) -> dict[str, Any]:
        """A diffusion model's attention, as GGUF has it and beside that."""
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

    def _context(self) -> int:
        s, unused = self.settings, self.family.first_position
        if (rows := s.size("max_position_embeddings")) <= unused:
            s.fail("max_position_embeddings", f"above {unused}, which no token has")
        return rows - unused

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

    def _feed_forward(self, hidden: int) -> int:
        s = self.settings
        plain = self.family.architecture == "gpt2" or self.family.modulated
        if plain and s.get("intermediate_size") is None:
            return 4 * hidden
        return s.size("intermediate_size")


def _layers(config: JsonObject) -> int:
    kinds = config.get("layers_block_type")
    if config.get("num_hidden_layers") is None and isinstance(kinds, list):
        return len(kinds)
    return config.size("num_hidden_layers", 1 << 16)


def _labels(config: JsonObject) -> list[str]:
    """Of a head's classes, in their order; transformers calls them so where nothing is said."""
    named = config.part("id2label").values
    if not named:
        count = config.size("num_labels", 1 << 16) if config.get("num_labels") is not None else 2
        return [f"LABEL_{i}" for i in range(count)]
    if {*named} != {str(i) for i in range(len(named))}:
        config.fail("id2label", "an object of labels, by numbers from 0 on")
    return [str(named[str(i)]) for i in range(len(named))]


def _is_body(name: object) -> bool:
    """Whether a class of transformers has no output matrix (GPT2LMHeadModel has one)."""
    return str(name).endswith("Model") and not str(name).endswith("LMHeadModel")


def _family(config: JsonObject, tensors: Iterable[str]) -> Family:
    if not config:
        raise FormatError(f"{config.file} is missing or empty: the folder holds no model")
    config = completed(config)
    name = of_mamba(meant(config.text("model_type"), config, tensors), config)
    name = of_ling(name, config)
    families = {**FAMILIES, **DIFFUSION}
    if name == "bert" and config.get("position_embedding_type") == "alibi":
        name = "jina_bert"
    if name == "xlm-roberta" and config.get("position_embedding_type") == "rotary":
        name = "jina_embeddings_v3"  # as its publisher calls it
    if config.get("use_bidirectional_attention") and name in ("gemma3", "gemma3_text"):
        name = "gemma_embedding"
    if name == "nomic_bert" and config.get("num_experts"):
        name = "nomic_bert_moe"
    if name is None or name not in families:
        said = "is missing" if name is None else f"{name!r:.40} is not supported"
        said = f"{name!r}: {REFUSED[name]} is not supported" if name in REFUSED else said
        raise FormatError(f"{config.file}: model_type {said}; supported: {', '.join(families)}")
    family = with_mask(name, families[name], config)
    if name == "nomic_bert" and config.get("n_embd") is not None:
        family = replace(family, names=NOMIC_NAMES)
    if name == "jina_embeddings_v3" and config.get("rotary_emb_base") is not None:
        family = replace(family, names={**family.names, "rope_theta": "rotary_emb_base"})
    return with_rank(family, tensors)


def with_rank(family: Family, tensors: Iterable[str]) -> Family:
    """With a head that scores texts, where the folder has one."""
    last = next((name for name, new in family.rank.items() if new == "cls.output"), None)
    if last is None or not any(name.endswith(f"{last}.weight") for name in tensors):
        return family
    first = tuple(f"{name}.{end}" for name in family.rank for end in ("weight", "bias"))
    heads = ("cls", "cls.norm", "output")
    body = {name: new for name, new in family.outside.items() if new not in heads}
    return replace(
        family, outside={**body, **family.rank}, is_rank=True,
        skipped=tuple(end for end in family.skipped if not end.endswith(first)),
    )  # fmt: skip


def _text(config: JsonObject) -> JsonObject:
    """gemma3's own part for text, where it has one beside that for pictures.

    Whether matrices are one says the whole, where it says something.
    """
    text, whole = config.part("text_config").values, config.values
    own = {k: v for k, v in text.items() if k not in whole or (v is not None and k != TIED)}
    return JsonObject({**whole, **own}, config.file)
