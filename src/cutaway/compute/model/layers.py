"""What differs from layer to layer: what each attends to, which keep a state, learned constants.

Read from a file's metadata: windows, latents, heads, recurrent states, xIELU. Knows GGUF's keys of
these, and no architecture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cutaway.compute.model.graph import Graph, Tensor
from cutaway.compute.model.metadata import MetadataReader
from cutaway.errors import FormatError

# -- windows and latents ---------------------------------------------------------------------------


Attention = str | int
"""See ``ModelConfig``."""


class OwnHeads(NamedTuple):
    """The key-value heads of one layer, where layers differ, and of which layer they are read.

    reads  a layer's number: its own, or an earlier one's, whose keys and values it reads again
    """

    kv_heads: int
    head_dim: int
    reads: int


def own_heads_of(read: MetadataReader, windows: Sequence[int]) -> tuple[OwnHeads, ...]:
    """Of each layer; the last ones, as many as a key says, read those of the last of their kind."""
    layers, heads = len(windows), read.size("attention.head_count")
    found = read.value("attention.head_count_kv", heads)
    counts = found.tolist() if isinstance(found, np.ndarray) else [found] * layers
    width = max(read.size("embedding_length") // heads, 1)
    for ending in ("", "_swa"):
        key = read.size(f"attention.key_length{ending}", width)
        if read.size(f"attention.value_length{ending}", key) != key:
            raise FormatError("values whose head size differs from the keys' are not supported")
    dims = [read.size(f"attention.key_length{'_swa' if w else ''}", width) for w in windows]
    if len(counts) != layers or any(type(n) is not int or n < 1 or heads % n for n in counts):
        raise FormatError(
            f"metadata key {read.prefix}.attention.head_count_kv must say for each of {layers} "
            f"layers how many kv heads share {heads} heads evenly"
        )
    first = layers - read.size_or_zero("attention.shared_kv_layers")
    last = {bool(windows[i]): i for i in range(first)}
    if any(bool(window) not in last for window in windows[max(first, 0) :]):
        raise FormatError(
            f"{read.prefix}.attention.shared_kv_layers leaves no layer whose keys could be read"
        )
    reads = [i if i < first else last[bool(windows[i])] for i in range(layers)]
    return tuple(OwnHeads(counts[i], dims[i], reads[i]) for i in range(layers))


class Latent(NamedTuple):
    """A latent attention (DeepSeek-V2, arXiv 2405.04434): what is stored of a token, and its heads.

    rank     numbers that keys and values are made of
    rotated  numbers of a key that all heads share, with positions
    keys     numbers of a head's key that have none
    values   numbers of a head's value
    """

    rank: int
    rotated: int
    keys: int
    values: int


def latent_of(read: MetadataReader) -> Latent:
    """As files say it, those of before 2025, too, whose heads are as long as they are computed."""
    of_heads = "_mla" if read.value("attention.key_length_mla") is not None else ""
    key = read.size(f"attention.key_length{of_heads}")
    rank, rotated = read.size("attention.kv_lora_rank"), read.size("rope.dimension_count")
    if rotated >= key:
        raise FormatError(f"{rotated} numbers of a key of {key} are rotated, which leaves none")
    return Latent(rank, rotated, key - rotated, read.size(f"attention.value_length{of_heads}"))


def windows_of(
    read: MetadataReader, layers: int, attention: Attention,
    *, usual: int, full_every: int, full_first: bool,
) -> tuple[int, ...]:  # fmt: skip
    """How many tokens each layer sees: ``ModelConfig.windows``.

    usual, full_every, full_first: ``window`` … of ``Architecture``
    """
    window = read.size_or_zero("attention.sliding_window", usual)
    if window and isinstance(attention, int):
        raise FormatError(f"windows are not supported where tokens see blocks of {attention}")
    if window == 1 and attention == "bidirectional":
        raise FormatError(f"{read.prefix}.attention.sliding_window is 1, which holds no neighbour")
    if attention == "bidirectional":  # files say the whole window, both sides together
        window //= 2
    key = "attention.sliding_window_pattern"
    pattern = read.value(key)
    if isinstance(pattern, np.ndarray) and pattern.dtype == np.bool_:
        if pattern.shape != (layers,):
            raise FormatError(f"metadata key {read.prefix}.{key} is not one flag a layer")
        return tuple(window if slides else 0 for slides in pattern.tolist())
    every = read.size_or_zero(key, full_every)
    first = 0 if full_first else every - 1
    return tuple(0 if every and i % every == first else window for i in range(layers))


# -- recurrent states, and the sizes of heads ------------------------------------------------------


_KV_HEADS = "attention.head_count_kv"


class StateHeads(NamedTuple):
    """The heads of a recurrent layer: how many of keys and of values, and how wide each is."""

    k_heads: int
    heads: int
    keys: int
    values: int


def recurrent_layers(
    read: MetadataReader, layers: int, *, has_states: bool, attends_every: int
) -> tuple[bool, ...]:
    """Whether each layer has a state: has_states and attends_every as in ``Architecture``.

    Files say 0 kv heads, and nothing else but a width of 0 for the MLP where it is a layer.
    """
    if attends_every:
        every = read.size("full_attention_interval", attends_every)
        flags = read.value("attention.recurrent_layers")
        if isinstance(flags, np.ndarray) and flags.dtype == np.bool_ and len(flags) >= layers:
            return tuple(flags[:layers].tolist())
        return tuple((layer + 1) % every > 0 for layer in range(layers))
    if has_states and read.value("attention.head_count") == 0:
        return (True,) * layers
    found, widths = read.value(_KV_HEADS), read.value("feed_forward_length")
    if not has_states or not isinstance(found, np.ndarray):
        return (False,) * layers
    if found.shape != (layers,) or found.dtype.kind not in "iu":
        raise FormatError(f"metadata key {read.prefix}.{_KV_HEADS} is not one number a layer")
    is_mlp = np.zeros(layers, bool)
    if isinstance(widths, np.ndarray) and widths.shape == (layers,) and (widths == 0).any():
        is_mlp = widths != 0
    return tuple(((found == 0) & ~is_mlp).tolist())


def state_heads(read: MetadataReader) -> StateHeads | None:
    """None where the file says nothing of any."""
    if read.value("ssm.inner_size") is None:
        return None
    k_heads, heads = read.size("ssm.group_count"), read.size("ssm.time_step_rank")
    if (inner := read.size("ssm.inner_size")) % heads or heads % k_heads:
        raise FormatError(f"{inner} values are no {heads} heads that share {k_heads} of keys")
    return StateHeads(k_heads, heads, read.size("ssm.state_size"), inner // heads)


def heads_of(read: MetadataReader, hidden: int, *, has_states: bool) -> tuple[int, int, int]:
    """Query heads, key-value heads, and how many numbers each has; 0 where nothing attends."""
    heads = read.size_or_zero("attention.head_count")
    if not heads and has_states:
        return 0, 0, 0
    heads = read.size("attention.head_count")
    found = read.value(_KV_HEADS)
    if has_states and isinstance(found, np.ndarray):
        if not len(others := found[found != 0]):
            raise FormatError("a model without any attention is not supported")
        others = np.where(found == 0, others[0], found)
        read = MetadataReader({**read.metadata, f"{read.prefix}.{_KV_HEADS}": others}, read.prefix)
    kv_heads = read.size(_KV_HEADS, heads)
    if heads % kv_heads:
        raise FormatError(f"{heads} heads cannot be shared evenly by {kv_heads} kv heads")
    head_dim = read.size("attention.key_length", max(hidden // heads, 1))
    if read.size("attention.value_length", head_dim) != head_dim:
        raise FormatError("values whose head size differs from the keys' are not supported")
    return heads, kv_heads, head_dim


# -- xIELU: the activation whose constants each layer has learned ----------------------------------


_NEAR_ZERO = 1e-5


@dataclass(frozen=True, slots=True)
class Xielu:
    """above·x² + linear·x above 0; below·(e^x - 1 - x) + linear·x below.

    Huang & Schlag 2024, arXiv 2411.13010.
    """

    above: float
    below: float
    linear: float

    def of(self, g: Graph, x: Tensor) -> Tensor:
        """Of each number: (M, n) -> (M, n)."""
        curved = g.add(g.scale(g.relu2(x), self.above), g.scale(g.elu_less_x(x), self.below))
        return g.add(curved, g.scale(x, self.linear))


def xielu_of(metadata: Mapping[str, Any], layers: int) -> tuple[Xielu, ...]:
    """Of each layer; empty where the file has none.

    Files hold what softplus is taken of, as ``xielu.alpha_p`` and ``xielu.alpha_n``.
    """
    if "xielu.alpha_p" not in metadata:
        return ()
    p, n, beta, eps = (
        _constants(metadata, f"xielu.{key}", layers)
        for key in ("alpha_p", "alpha_n", "beta", "eps")
    )
    if (abs(eps) > _NEAR_ZERO).any():
        raise FormatError(
            f"metadata key xielu.eps must be within {_NEAR_ZERO} of 0; no other is supported"
        )
    above, below = np.logaddexp(0, p), beta + np.logaddexp(0, n)  # softplus
    return tuple(map(Xielu, above.tolist(), below.tolist(), beta.tolist()))


def _constants(metadata: Mapping[str, Any], key: str, layers: int) -> np.ndarray[Any, Any]:
    """One a layer: (layers,); files also write one number for all."""
    value = metadata.get(key)
    try:
        found = np.broadcast_to(np.asarray(value, np.float64), (layers,))
    except (TypeError, ValueError):
        found = np.full(layers, np.nan)
    if value is None or not np.isfinite(found).all():
        raise FormatError(f"metadata key {key} must be a number for each of {layers} layers")
    return found
