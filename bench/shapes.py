"""The shapes of published models: their sizes. `shape_tensors` makes the tensors of a shape."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    tied     whether the embedding is also the output matrix
    attends  the layers that attend; None: all
    state    of other layers: width of a key, heads of keys, heads of values, width of all values
    experts  number of experts of a layer, and of those that compute a token; ffn: width of one
    own      metadata that only this architecture has, without the prefix of its name
    others   format of tensors outside of experts, if published files have another one for them
    """

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool = True
    rope_base: float = 500_000.0
    context: int = 131_072
    epsilon: float = 1e-5
    attends: tuple[int, ...] | None = None
    state: tuple[int, ...] = ()
    experts: tuple[int, int] = (0, 0)
    own: Mapping[str, Any] = field(default_factory=dict)
    others: str = ""

    @property
    def attending(self) -> tuple[int, ...]:
        """The layers that attend."""
        return tuple(range(self.layers)) if self.attends is None else self.attends


_QWEN: Any = {"rope_base": 1_000_000.0, "context": 40_960, "epsilon": 1e-6}
_QWEN35: Any = {"rope_base": 1e7, "context": 262_144, "epsilon": 1e-6}
_GEMMA4_E2B = {  # of six layers five have a window; the last 20 read other layers' keys
    "attention.key_length_swa": 256, "attention.value_length_swa": 256,
    "attention.sliding_window": 512, "attention.shared_kv_layers": 20,
    "attention.sliding_window_pattern": np.arange(35) % 5 != 4,
    "embedding_length_per_layer_input": 256, "final_logit_softcapping": 30.0,
    "feed_forward_length": np.where(np.arange(35) < 15, 6144, 12_288).astype(np.int32),
    "rope.freq_base_swa": 10_000.0, "rope.dimension_count_swa": 256,
}  # fmt: skip
_DEEPSEEK_V2_LITE = {
    "attention.kv_lora_rank": 512, "attention.key_length_mla": 192,
    "attention.value_length_mla": 128, "attention.value_length": 512,
    "rope.dimension_count": 64, "leading_dense_block_count": 1, "expert_shared_count": 2,
    "expert_weights_scale": 1.0, "expert_weights_norm": False, "expert_gating_func": 1,
    "feed_forward_length": 10_944,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": 0.0707,
}  # fmt: skip
_GPT_OSS = {
    "attention.sliding_window": 128, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
    "rope.scaling.original_context_length": 4096,
}  # fmt: skip
SHAPES = {
    "llama-1b": Shape("llama", 2048, 16, 32, 8, 64, 8192, 128_256),  # Llama 3.2
    "llama-3b": Shape("llama", 3072, 28, 24, 8, 128, 8192, 128_256),
    "llama-8b": Shape("llama", 4096, 32, 32, 8, 128, 14_336, 128_256, tied=False),  # Llama 3.1
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 16, 8, 128, 3072, 151_936, **_QWEN),
    "qwen3-1.7b": Shape("qwen3", 2048, 28, 16, 8, 128, 6144, 151_936, **_QWEN),
    "qwen3-8b": Shape("qwen3", 4096, 36, 32, 8, 128, 12_288, 151_936, **_QWEN, tied=False),
    "qwen2-1.5b": Shape("qwen2", 1536, 28, 12, 2, 128, 8960, 151_936, **_QWEN),  # Qwen2.5
    "qwen2-7b": Shape("qwen2", 3584, 28, 28, 4, 128, 18_944, 152_064, **_QWEN, tied=False),
    "olmoe-7b": Shape(  # 1B of them for a token
        "olmoe", 2048, 16, 16, 16, 128, 1024, 50_304, tied=False, rope_base=10_000.0, context=4096,
        experts=(64, 8),
    ),
    "granite-3b": Shape(  # Granite 3.1 3B-A800M
        "granitemoe", 1536, 32, 24, 8, 64, 512, 49_155, rope_base=10_000_000.0, epsilon=1e-6,
        experts=(40, 8),
    ),
    "qwen3-30b": Shape(  # 3B of them for a token
        "qwen3moe", 2048, 48, 32, 4, 128, 768, 151_936, **_QWEN, tied=False, experts=(128, 8)
    ),
    "gpt-oss-20b": Shape(
        "gpt-oss", 2880, 24, 64, 8, 64, 2880, 201_088, tied=False, rope_base=150_000.0,
        experts=(32, 4), own=_GPT_OSS, others="Q8_0",
    ),
    "deepseek-v2-lite": Shape(
        "deepseek2", 2048, 27, 16, 1, 576, 1408, 102_400, tied=False, rope_base=10_000.0,
        context=163_840, epsilon=1e-6, experts=(64, 6), own=_DEEPSEEK_V2_LITE,
    ),
    "gemma4-e2b": Shape(
        "gemma4", 1536, 35, 8, 1, 512, 6144, 262_144, rope_base=1e6, epsilon=1e-6, own=_GEMMA4_E2B
    ),
    "lfm2-1.2b": Shape(
        "lfm2", 2048, 16, 32, 8, 64, 8192, 65_536, rope_base=1e6, context=128_000,
        attends=(2, 5, 8, 10, 12, 14),
    ),
    "qwen3.5-0.8b": Shape(
        "qwen35", 1024, 24, 8, 2, 256, 3584, 248_320, **_QWEN35, attends=tuple(range(3, 24, 4)),
        state=(128, 16, 16, 2048),
    ),
    "qwen3.5-4b": Shape(
        "qwen35", 2560, 32, 16, 4, 256, 9216, 248_320, **_QWEN35, attends=tuple(range(3, 32, 4)),
        state=(128, 16, 32, 4096),
    ),
    "granite4-h-1b": Shape(
        "granitehybrid", 1536, 40, 12, 4, 128, 4096, 100_352, rope_base=10_000.0,
        attends=(5, 15, 25, 35), state=(128, 1, 48, 3072),
    ),
}  # fmt: skip
