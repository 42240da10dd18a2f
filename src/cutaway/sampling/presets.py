"""The orders of the sampling chain, by name, as data. Knows nothing else."""

from collections.abc import Mapping

_FIRST = ("logit_bias", "penalties", "processors", "constraint")
# The order of the published definitions and of transformers: every filter judges the
# distribution that the temperature has made, which is the one that is drawn from.
_AS_PUBLISHED = (*_FIRST, "temperature", "top_k", "top_p", "min_p")

PRESETS: Mapping[str, tuple[str, ...]] = {
    "cutaway": _AS_PUBLISHED,
    "hf": _AS_PUBLISHED,
    "vllm": (*_FIRST, "temperature", "min_p", "top_k", "top_p"),
    "llama.cpp": (*_FIRST, "top_k", "top_p", "min_p", "temperature"),
    "mlx-lm": (*_FIRST, "top_p", "min_p", "top_k", "temperature"),
}
"""The order in which each engine applies its stages: the same settings mean different things."""
