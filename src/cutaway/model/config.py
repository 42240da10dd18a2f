"""ModelConfig: the sizes and constants of one model, read from its file's metadata.

Knows the metadata keys that the architectures share, and what each takes for granted where
its files do not say; refuses, by name, what is not supported. Refuses to know how the layers
are wired (architectures/).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutaway.errors import FormatError
from cutaway.model.rope import Rope, Yarn

MAX_CONTEXT = 2**24
"""Tokens. No model has more, and its KV cache would not fit into any machine."""

_MOST_LAYERS = 10_000

_LARGEST = 1e15  # so that neither a number nor its inverse leaves float32

_ROPE_TYPES = ("none", "linear", "yarn", "longrope")

# What files of an architecture leave unsaid, as llama.cpp has it.
_NEIGHBOURS = ("llama", "granite", "smollm3")  # turned in pairs of neighbours, not of halves
_FULL_EVERY = {"gemma2": 2, "gemma3": 6}  # layers up to and including one that sees all
_GEMMA2_LARGE = 46  # layers of the one Gemma 2 whose heads are not its measure


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The numbers that a graph is built from. Sizes are in elements, context in tokens.

    rope, rope_local   of the layers that see the whole text, and of those that see a window
    is_stretched       whether texts may be longer than the model was first trained for
    windows            tokens that each layer sees, itself included; 0: all
    attention_scale    of scores before the softmax
    *_softcap          largest score or logit, approached smoothly; 0: none
    *_scale            of the embedding and of what a layer adds; logits are divided by logit_scale
    experts            of a layer, 0 where it has one MLP; experts_used of them compute a token
    """

    architecture: str
    context_length: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope
    rope_local: Rope
    is_stretched: bool
    windows: tuple[int, ...]
    attention_scale: float
    attention_softcap: float
    logit_softcap: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    norm_eps: float
    is_parallel: bool  # attention and MLP of a layer read the same input
    experts: int
    experts_used: int
    experts_share_one: bool  # the weights of a token's experts add up to 1


class _Reader:
    """Typed look-ups with one clear sentence where a key is missing or absurd."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self.metadata, self.prefix = metadata, prefix

    def value(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.prefix}.{key}", default)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.value(key, default)
        if value is None:
            raise FormatError(f"the model file lacks the metadata key {self.prefix}.{key}")
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.flat[0].item()  # one value per layer, all the same
        known = isinstance(value, (int, float)) and not isinstance(value, bool)
        if known and 1 / _LARGEST <= value <= _LARGEST:  # which NaN is not
            return float(value)
        raise FormatError(
            f"metadata key {self.prefix}.{key} must be a positive number of an ordinary size"
        )

    def or_zero(self, key: str, default: float = 0.0) -> float:
        """A number that files also write as 0, or leave out, where there is none."""
        value = self.value(key, default)
        return 0.0 if type(value) in (int, float) and value == 0 else self.number(key, default)

    def size(self, key: str, default: int | None = None, most: int = 2**31) -> int:
        return self._whole(key, self.number(key, default), most)

    def size_or_zero(self, key: str, most: int = 2**31) -> int:
        return self._whole(key, self.or_zero(key), most)

    def _whole(self, key: str, value: float, most: int) -> int:
        if value != int(value) or value > most:
            raise FormatError(
                f"metadata key {self.prefix}.{key} must be a whole number up to {most}"
            )
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise FormatError(f"metadata key {self.prefix}.{key} must be true or false")
        return value

    # -- what takes more than one key --------------------------------------------------------

    def rope(self, head_dim: int) -> Rope:
        dim = self.size("rope.dimension_count", head_dim)
        if dim > head_dim or dim % 2:
            raise FormatError(f"rope dimension {dim} does not fit a head of {head_dim}")
        kind = self.value("rope.scaling.type", "linear")
        if not isinstance(kind, str) or kind not in _ROPE_TYPES:
            raise FormatError(
                f"rope scaling {kind!r:.40} is not supported ({self.prefix}.rope.scaling.type); "
                f"supported: {', '.join(_ROPE_TYPES)}, and llama 3's"
            )
        yarn = self._yarn() if kind == "yarn" else None
        own = self.number("rope.scaling.attn_factor", 1.0)
        return Rope(
            dim=dim,
            base=self.number("rope.freq_base", 10000.0),
            halves=self.prefix not in _NEIGHBOURS,
            stretch=self._stretch() if kind == "linear" else 1.0,
            yarn=yarn,
            magnitude=own * (yarn.magnitude if yarn else 1.0),
        )

    def _stretch(self) -> float:
        """The factor of linear rope scaling, as llama.cpp reads it; 1 is none."""
        for key in ("rope.scaling.factor", "rope.scale_linear"):
            if self.value(key) is not None:
                return self.or_zero(key) or 1.0
        return 1.0

    def _yarn(self) -> Yarn:
        return Yarn(
            factor=self.number("rope.scaling.factor"),
            original_context=self.size("rope.scaling.original_context_length"),
            fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
            slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
        )

    def windows(self, layers: int) -> tuple[int, ...]:
        window = self.size_or_zero("attention.sliding_window")
        key = "attention.sliding_window_pattern"
        pattern = self.value(key, _FULL_EVERY.get(self.prefix, 0))
        if isinstance(pattern, np.ndarray) and pattern.dtype == np.bool_:
            if pattern.shape != (layers,):
                raise FormatError(f"metadata key {self.prefix}.{key} is not one flag a layer")
            return tuple(window if slides else 0 for slides in pattern.tolist())
        every = 0 if pattern == 0 else self.size(key, pattern)
        return tuple(0 if every and (i + 1) % every == 0 else window for i in range(layers))

    def attention_scale(self, layers: int, hidden: int, heads: int, head_dim: int) -> float:
        large = self.prefix == "gemma2" and layers == _GEMMA2_LARGE
        own = self.or_zero("attention.scale")
        return own or float(hidden / heads if large else head_dim) ** -0.5


def config_from_gguf(metadata: Mapping[str, Any], context: int | None = None) -> ModelConfig:
    """Read the sizes from GGUF metadata (keys as in llama.cpp's ``gguf-py/constants.py``).

    context: the tokens that texts may have; None is as many as the model can.
    Raises FormatError naming the key that is missing, absurd or not supported.
    """
    architecture: str = metadata["general.architecture"]
    read = _Reader(metadata, architecture)
    hidden, heads = read.size("embedding_length"), read.size("attention.head_count")
    layers = read.size("block_count", most=_MOST_LAYERS)
    longest = read.size("context_length", most=MAX_CONTEXT)
    head_dim = read.size("attention.key_length", max(hidden // heads, 1))
    kv_heads = read.size("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise FormatError(f"{heads} heads cannot be shared evenly by {kv_heads} kv heads")
    if read.size("attention.value_length", head_dim) != head_dim:
        raise FormatError("values whose head size differs from the keys' are not supported")
    rope = read.rope(head_dim)
    local_base = read.number("rope.freq_base_swa", 10000.0)
    rms = "attention.layer_norm_rms_epsilon"
    capped = architecture == "gemma2"  # whose first files do not say
    original = read.size_or_zero("rope.scaling.original_context_length")
    experts = read.size_or_zero("expert_count")
    return ModelConfig(
        architecture=architecture,
        context_length=longest,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rope=rope,
        rope_local=Rope(dim=rope.dim, base=local_base, halves=rope.halves),
        is_stretched=(context or longest) > (original or longest),
        windows=read.windows(layers),
        attention_scale=read.attention_scale(layers, hidden, heads, head_dim),
        attention_softcap=read.or_zero("attn_logit_softcapping", 50.0 if capped else 0.0),
        logit_softcap=read.or_zero("final_logit_softcapping", 30.0 if capped else 0.0),
        embedding_scale=read.or_zero("embedding_scale") or 1.0,
        residual_scale=read.or_zero("residual_scale") or 1.0,
        logit_scale=read.or_zero("logit_scale") or 1.0,
        norm_eps=read.number(rms if read.value(rms) else "attention.layer_norm_epsilon"),
        is_parallel=read.flag("use_parallel_residual", False),
        experts=experts,
        experts_used=read.size("expert_used_count", most=experts) if experts else 0,
        experts_share_one=read.flag("expert_weights_norm", True),
    )
