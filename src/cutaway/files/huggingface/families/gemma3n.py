"""The family of Gemma 3n: keys, and the names of its tensors, most of which are Gemma 4's.

Its graph is in ``compute/model/architectures/gemma3n.py``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.files.huggingface.families import keys
from cutaway.files.huggingface.families.family import Family
from cutaway.files.huggingface.families.gemma import GEMMA4
from cutaway.files.huggingface.families.keys import FULL, SLIDING
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rope import USUAL, settings_of


def gemma3n(config: JsonObject) -> dict[str, Any]:
    """Return the keys of Gemma 3n: windows, streams, and which layers cut their gates."""
    config.must_be("hidden_activation", "gelu_pytorch_tanh")
    config.must_be("altup_correct_scale", True)
    layers, rope = config.size("num_hidden_layers"), settings_of(config, SLIDING)
    rope.must_be("rope_type", "default")
    return keys.flagged_windows(config, lambda layer: SLIDING if (layer + 1) % 5 else FULL) | {
        "rope.freq_base_swa": keys.local_base(config, "rope_local_base_freq"),
        "attention.shared_kv_layers": config.id("num_kv_shared_layers"),
        "embedding_length_per_layer_input": config.size("hidden_size_per_layer_input"),
        "feed_forward_length": _widths(config, layers),
        "altup.num_inputs": config.size("altup_num_inputs"),
        "altup.active_idx": config.id("altup_active_idx"),
        "activation_sparsity_scale": _sparsity(config, layers),
        **keys.caps(config),
    }  # fmt: skip


def _widths(config: JsonObject, layers: int) -> NDArray[np.int32]:
    """Return the width of each layer's MLP: config.json has one for all of them, or a list."""
    key = "intermediate_size"
    if not isinstance(config.get(key), list):
        return np.full(layers, config.size(key), np.int32)
    widths = config.numbers(key, layers)
    if any(not 1 <= width < 2**31 or width % 1 for width in widths):
        config.fail(key, f"whole numbers from 1 to {2**31 - 1}")
    return np.array(widths, np.int32)


def _sparsity(config: JsonObject, layers: int) -> NDArray[np.float32]:
    """Return how many deviations above the mean a gate must be to pass, by layer.

    config.json has the share of gates that do not pass, 0 if all do.
    """
    from statistics import NormalDist  # imports decimal numbers, which a start does not need

    usual = [0.95] * (10 if layers > 10 else 0)
    config = config.with_defaults({}, {
        "activation_sparsity_pattern": [*usual, *[0.0] * (layers - len(usual))]
    })  # fmt: skip
    shares = config.numbers("activation_sparsity_pattern", layers)
    if any(share >= 1 for share in shares):
        config.fail("activation_sparsity_pattern", "a list of shares below 1")
    cuts = [NormalDist().inv_cdf(share) if share > 0 else -np.inf for share in shares]
    return np.array(cuts, np.float32)


_GEMMA3N = replace(
    GEMMA4, architecture="gemma3n", metadata=gemma3n, head_dim=None, rope=USUAL, defaults={},
    outside={
        **GEMMA4.outside,
        "altup_projections.{}": "altup_proj", "altup_unembed_projections.{}": "altup_unembd_proj",
    },
    layer={
        **GEMMA4.layer,
        "altup.correction_coefs": "altup_correct_coef", "altup.router_norm": "altup_router_norm",
        "altup.prediction_coefs": "altup_predict_coef", "altup.modality_router": "altup_router",
        "laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r",
        "laurel.post_laurel_norm": "laurel_post_norm",
    },
    whole={"altup.correct_output_scale": "altup_correct_scale.weight"},
)  # fmt: skip

ROWS: Mapping[str, Family] = {"gemma3n": _GEMMA3N, "gemma3n_text": _GEMMA3N}
