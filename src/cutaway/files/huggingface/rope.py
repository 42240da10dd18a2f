"""Rotary positions: a config's settings as GGUF's metadata and tensors.

Knows where transformers 4 and 5 write these settings, and the kinds of scaling that GGUF can
express.
"""

from math import log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.files.huggingface.json_object import JsonObject

FloatTensors = dict[str, NDArray[np.float32]]
_KIND = "rope_type"


class Ropes(NamedTuple):
    """The kinds of rotary positions that a family may have, in addition to those that all may have.

    partial       only a part of each head is rotated
    proportional  the frequencies of that part are those of a whole head
    longrope      the scaling of Phi 3
    ntk_alpha     "dynamic" with an alpha means a larger base
    truncates     yarn's ramp begins and ends at a pair, not in between
    """

    partial: bool = False
    proportional: bool = False
    longrope: bool = False
    ntk_alpha: bool = False
    truncates: bool = True


USUAL, PARTIAL = Ropes(), Ropes(partial=True)


def settings_of(config: JsonObject, layer_type: str | None = None) -> JsonObject:
    """Return base, kind, and the kind's settings, for all layers or for one kind of layers.

    transformers 5 has one object, or one per kind of layers; transformers 4 has two keys. Given
    both forms, transformers reads only ``rope_scaling`` and loses the base, so both must agree.
    """
    new = config.part("rope_parameters")
    if layer_type is not None and new.get(layer_type) is not None:
        new = new.part(layer_type)
    old = config.part("rope_scaling")
    if new and any(new.get(_KIND if k == "type" else k) != v for k, v in old.values.items()):
        config.refuse("rope_scaling", "rope_parameters is there, too, and differs: remove one")
    kind = {_KIND: new.get(_KIND) or new.get("type") or old.get(_KIND) or old.get("type")}
    return JsonObject(kind, new.file).with_fallback(new).with_fallback(old)


def share_of(config: JsonObject, layer_type: str | None = None) -> float:
    """Return the share of each head that is rotated; FormatError unless it is above 0, up to 1."""
    usual = config.get("rotary_share") or config.get("partial_rotary_factor") or 1.0
    rope = settings_of(config, layer_type).with_defaults({}, {"partial_rotary_factor": usual})
    if (share := rope.positive("partial_rotary_factor")) > 1:
        rope.fail("partial_rotary_factor", "a share of each head, up to 1")
    return share


def rope_metadata(
    config: JsonObject, head_dim: int, kinds: Ropes, layer_type: str | None = None
) -> tuple[dict[str, Any], FloatTensors]:
    """Return metadata, without the architecture's prefix, and tensors."""
    rope = settings_of(config, layer_type)
    share = share_of(config, layer_type)
    base = config.get("rope_theta") or 10000.0
    rope = rope.with_defaults({}, {"rope_theta": base, "partial_rotary_factor": share})
    if (dims := int(head_dim * share)) < 1:
        rope.fail("partial_rotary_factor", "large enough to rotate a number of each head")
    if kinds.proportional and rope.text(_KIND) == "proportional":
        rope.must_be("factor", 1.0)
        tensors = {"rope_freqs.weight": _proportional(head_dim, dims)}
        base = rope.positive("rope_theta")
        return {"rope.freq_base": base, "rope.dimension_count": head_dim}, tensors
    if dims != head_dim and not kinds.partial:
        rope.refuse("partial_rotary_factor", "this family rotates whole heads")
    metadata: dict[str, Any] = {
        "rope.freq_base": rope.positive("rope_theta"),
        "rope.dimension_count": dims,
    }
    more, tensors = _scaling(config, rope, dims, kinds)
    return metadata | more, tensors


def _scaling(
    config: JsonObject, rope: JsonObject, dims: int, kinds: Ropes
) -> tuple[dict[str, Any], FloatTensors]:
    """Return the metadata and tensors of a kind of scaling: see ``rope_metadata``."""
    kind = rope.text(_KIND) or "default"
    if kinds.longrope and kind in ("longrope", "su", "yarn"):  # as transformers reads phi3's
        return _longrope(config, rope, dims)
    if kind == "linear":
        return {"rope.scaling.type": kind, "rope.scaling.factor": rope.positive("factor")}, {}
    if kind == "yarn":
        return _yarn(config, rope, truncates=kinds.truncates), {}
    if kind == "llama3":
        return {}, {"rope_freqs.weight": _llama3(config, rope, dims)}
    is_ntk_alpha = kind == "ntk_alpha" and kinds.ntk_alpha and rope.get("alpha")
    if kind not in ("default", "dynamic", "mrope", "ntk") and not is_ntk_alpha:
        # Dynamic is the plain one in texts of at most max_position_embeddings, mrope in text.
        rope.refuse(_KIND, "default, dynamic, linear, yarn, llama3 are")
    return _larger_base(rope, kind, dims, ntk_alpha=kinds.ntk_alpha), {}


def _larger_base(rope: JsonObject, kind: str, dims: int, *, ntk_alpha: bool) -> dict[str, Any]:
    """Return the base, for kinds that only change the base; {} if it is the model's own."""
    base = rope.positive("rope_theta")
    if kind == "ntk":  # GTE's: all frequencies are lower, too
        factor = rope.positive("factor")
        return {
            "rope.freq_base": base * factor, "rope.scaling.type": "linear",
            "rope.scaling.factor": factor ** (2 / dims),
        }  # fmt: skip
    if kind in ("dynamic", "ntk_alpha") and ntk_alpha and rope.get("alpha"):
        if dims == 2:
            rope.fail("alpha", "absent where only two numbers of each head are rotated")
        larger = base * rope.positive("alpha") ** (dims / (dims - 2))
        return {"rope.freq_base": float(np.float32(larger))}  # as a file will hold it
    return {}


def _yarn(config: JsonObject, rope: JsonObject, *, truncates: bool) -> dict[str, Any]:
    if rope.flag("truncate", True) != truncates:
        rope.refuse("truncate", f"of this family only {str(truncates).lower()} is")
    factor = rope.positive("factor")
    metadata: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": _original(config, rope),
    }
    for key in ("beta_fast", "beta_slow"):
        if rope.get(key) is not None:
            metadata[f"rope.scaling.yarn_{key}"] = rope.number(key)
    if (attention := _yarn_attention(rope, factor)) is not None:
        # GGUF's factor multiplies the usual one, transformers' replaces it.
        metadata["rope.scaling.attn_factor"] = attention / _mscale(factor, 1)
    return metadata


def _yarn_attention(rope: JsonObject, factor: float) -> float | None:
    """Return the factor of attention; None for the YaRN paper's own."""
    if rope.get("attention_factor") is not None:
        return rope.positive("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        whole = _mscale(factor, rope.positive("mscale_all_dim"))
        return _mscale(factor, rope.positive("mscale")) / whole
    return None


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * log(factor) + 1 if factor > 1 else 1.0


def _proportional(head_dim: int, dims: int) -> NDArray[np.float32]:
    """Return divisors of frequencies, (head_dim / 2,): 1, then a number that stops rotation."""
    return np.where(np.arange(head_dim // 2) < dims // 2, 1.0, 1e30).astype(np.float32)


def _llama3(config: JsonObject, rope: JsonObject, dims: int) -> NDArray[np.float32]:
    """Return the divisor of each frequency, (dims / 2,): 1 for high ones, the factor for low ones,
    and a value between the two for those in between."""
    factor, original = rope.positive("factor"), _original(config, rope)
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    base = rope.positive("rope_theta")
    divisors = []
    for i in range(0, dims, 2):
        turns = original * base ** (-i / dims) / (2 * pi)  # in the original context
        share = min(max((turns - low) / (high - low), 0.0), 1.0) if high > low else 1.0
        divisors.append(1 / ((1 - share) / factor + share))
    return np.array(divisors, np.float32)


def _longrope(
    config: JsonObject, rope: JsonObject, dims: int
) -> tuple[dict[str, Any], FloatTensors]:
    original = _original(config, rope)
    tensors = {}
    for length in ("long", "short"):
        factors = np.array(rope.numbers(f"{length}_factor"), np.float32)
        if len(factors) != dims // 2:
            rope.fail(f"{length}_factor", f"a list of {dims // 2} numbers")
        tensors[f"rope_factors_{length}.weight"] = factors
    if rope.get("long_mscale") is not None:  # Phi 3.5 MoE
        attention = rope.positive("long_mscale")
        rope.must_be("short_mscale", attention)
    elif rope.get("attention_factor") is not None:
        attention = rope.positive("attention_factor")
    else:
        has_factor = rope.get("factor") is not None
        longest = config.size("max_position_embeddings")
        factor = rope.positive("factor") if has_factor else longest / original
        attention = sqrt(1 + log(factor) / log(max(original, 2))) if factor > 1 else 1.0
    return {
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": attention,
    }, tensors


def _original(config: JsonObject, rope: JsonObject) -> int:
    """Return the context length before scaling; phi3 has it in the config itself."""
    for place in (config, rope):
        if place.get("original_max_position_embeddings") is not None:
            return place.size("original_max_position_embeddings")
    return config.size("max_position_embeddings")
