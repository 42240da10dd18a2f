"""Finds the tensors of GGUF that a folder has, and the source of each in its files.

Knows names and rewrites; a tensor is rewritten when it is read. If a file has the experts of a
layer in one tensor, their matrices may be transposed or not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError
from cutaway.files.huggingface.config import Config
from cutaway.files.huggingface.families.family import Family, as_layer
from cutaway.files.huggingface.quantization import FACTOR
from cutaway.files.huggingface.rewrites import (
    GroupedVector,
    OfHeads,
    Rewrite,
    Squeezed,
    TiledColumns,
    add_one,
    as_it_is,
    changes_matrices,
    flat,
    swap_column_halves,
    transpose,
)
from cutaway.files.huggingface.shards import (
    PARAMETRIZED,
    Shards,
    Sources,
    TensorSource,
    plain_name,
    unread_part,
)
from cutaway.files.weights import FORMATS, TensorInfo
from cutaway.files.weights.cursor import quote

# -- the experts of a layer in one tensor ----------------------------------------------------------


_PART = {"ffn_gate_exps": 0, "ffn_up_exps": 1, "ffn_down_exps": None}
_STACKS = ("altup_proj", "altup_unembd_proj")
"""Names of tensors with a matrix for each stream; folders have a tensor for each matrix."""
FUSED = frozenset(_PART)
"""GGUF's names of tensors with all experts of a layer; folders have gate and up in one tensor."""


@dataclass(frozen=True)
class Fused:
    """A rewrite that takes rows of each expert from a tensor (experts, outputs, inputs).

    is_turned: whether the tensor is (experts, inputs, outputs)
    rows: which of the outputs
    """

    shape: tuple[int, ...]
    is_turned: bool
    rows: slice

    @classmethod
    def matrix(
        cls, name: str, info: TensorInfo, hidden: int, experts: int,
        *, is_turned: bool | None, alternate: bool,
    ) -> "Fused":  # fmt: skip
        """Return the rewrite of a tensor of matrices.

        name: one of FUSED; is_turned: as in the class, or None if the shape decides;
        alternate: whether outputs of gate and up alternate.
        FormatError if the tensor does not fit, or would fit both ways.
        """
        part, (count, *sides) = _PART[name], info.shape
        if is_turned is None:
            fits = sides.count(hidden) == 1
            is_turned = sides[0 if part is None else 1] != hidden
        else:
            fits = sides[1 if is_turned == (part is None) else 0] == hidden
        if count != experts or not fits:
            raise FormatError(
                f"the tensor {quote(info.name)} is {info.shape}, which is not {experts} experts "
                f"with one side of {hidden}"
            )
        outputs, inputs = reversed(sides) if is_turned else sides
        rows = _rows(part, outputs, alternate=alternate)
        return cls((experts, outputs if part is None else outputs // 2, inputs), is_turned, rows)

    @classmethod
    def bias(cls, name: str, info: TensorInfo, *, alternate: bool) -> "Fused":
        """Return the rewrite of biases, (experts, outputs). name: one of FUSED."""
        part, (experts, outputs) = _PART[name], info.shape
        rows = _rows(part, outputs, alternate=alternate)
        return cls((experts, outputs if part is None else outputs // 2), False, rows)

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return (experts, outputs, inputs), or (experts, outputs)."""
        return (x.swapaxes(1, 2) if self.is_turned else x)[:, self.rows]


def _rows(part: int | None, outputs: int, *, alternate: bool) -> slice:
    if part is None:
        return slice(None)
    half = outputs // 2
    return slice(part, None, 2) if alternate else slice(part * half, (part + 1) * half)


# -- each tensor of GGUF, and where its numbers are ------------------------------------------------


_LAYER = re.compile(
    r"(?:layers|blocks|h|(?:encoder|transformer)\.layer|albert_layer_groups\.0\.albert_layers)"
    r"\.(\d{1,5})\.(.+)"
)
_ENDINGS = {
    "weight": "weight", "bias": "bias",
    "gamma": "weight", "beta": "bias",  # norms of old files
    "embedding": "weight",  # MDLM's
    "order": "order",  # of a quantised matrix's columns
    "factor": "scale",  # of products with a quantised matrix
}  # fmt: skip
_WHOLE = {  # names that end in themselves
    "gate_up_proj": "weight", "down_proj": "weight",  # of all experts of a layer
    "gate_up_proj_bias": "bias", "down_proj_bias": "bias",
    "e_score_correction_bias": "bias", "expert_bias": "bias", "sinks": "weight",
    "z_L_init": "weight",  # of HRM-Text
    "attention_sink_bias": "weight",
}  # fmt: skip
_EMBEDDING, _OUTPUT = "token_embd.weight", "output.weight"
_PIECE = 1 << 24  # bytes compared at once
_OF_MLX = ".switch_mlp."
"""Where mlx-lm's names have all experts of a layer in one tensor for gate, up and down."""
_EXPERT = re.compile(r"(.*(?:experts|norms)\.)(\d{1,5})(\..+)?")


def tensor_sources(config: Config, shards: Shards) -> Sources:
    """Return the source of each tensor by GGUF's name, in the order of the files.

    `FormatError` for a tensor that the family does not have.
    """
    family = config.family
    rewrites = {
        **family.rewrites(config.heads, config.kv_heads), **family.rewrites_of(config.settings)
    }  # fmt: skip
    sources: dict[str, dict[int, str]] = {}  # GGUF's name -> expert's number, or 0 -> the files'
    for name, (new, expert) in _match_tensors(config, shards):
        if expert in sources.setdefault(new, {}):
            twice = f"{quote(name)} and {quote(sources[new][expert])}"
            raise FormatError(f"the tensors {twice} are one and the same: save the model again")
        sources[new][expert] = name
    if config.tied and _is_copy(sources, shards):
        del sources[_OUTPUT]
    _check_output(config, sources)
    tensors = {
        new: _tensor_source(new, parts, config, rewrites, shards) for new, parts in sources.items()
    }
    for new, values in config.tensors.items():
        tensors[new] = TensorSource(new, "F32", values.shape, (), values=values)
    return tensors


def _is_copy(sources: Mapping[str, Mapping[int, str]], shards: Shards) -> bool:
    """Whether there is an output matrix with the same bytes as the embedding.

    If the two differ, transformers uses both, although the config says that they are tied.
    """
    if _OUTPUT not in sources or _EMBEDDING not in sources:
        return False
    names = [sources[key][0] for key in (_EMBEDDING, _OUTPUT)]
    first, second = (shards.info(name) for name in names)
    if (first.shape, first.format) != (second.shape, second.format):
        return False
    contents = [shards.raw(name) for name in names]
    pieces = (slice(at, at + _PIECE) for at in range(0, first.nbytes, _PIECE))
    return all(np.array_equal(contents[0][piece], contents[1][piece]) for piece in pieces)


def _tensor_source(
    name: str,
    parts: dict[int, str],
    config: Config,
    rewrites: Mapping[str, Rewrite],
    shards: Shards,
) -> TensorSource:
    base = name.removesuffix(".weight").removesuffix(".bias").split(".")[-1]
    is_bias = name.endswith(".bias")
    rewrite = flat if base == "exp_probs_b" else rewrites.get(base, as_it_is)
    if rewrite is add_one and is_bias:
        rewrite = as_it_is
    info = shards.info(next(iter(parts.values())))
    if base == "scale" and info.name.endswith(FACTOR):
        factors = np.concatenate([shards.read(parts[expert]) for expert in sorted(parts)])
        return TensorSource(name, "F32", factors.shape, (), values=factors)
    if _OF_MLX in info.name and len(info.shape) == 3:
        return TensorSource(name, info.format, info.shape, (info.name,))
    if base in FUSED and len(parts) == 1 and len(info.shape) == (2 if is_bias else 3):
        return _fused_source(name, base, info, config)
    _check_quantised(name, info, rewrite)
    if len(info.shape) == 1 and rewrite is transpose:
        rewrite = as_it_is
    shape = _rewritten(info.shape, rewrite)
    if isinstance(rewrite, OfHeads) and len(info.shape) == 2:
        return _head_source(name, info, rewrite)
    is_convolution = isinstance(rewrite, Squeezed)
    if len(shape) > 2 and not is_convolution:
        raise FormatError(f"the tensor {quote(info.name)} has {len(shape)} dimensions, not 1 or 2")
    # GGUF stores vectors of any shape, and the weights of convolutions, as F32.
    is_vector = 1 in (len(info.shape), len(shape)) or isinstance(rewrite, GroupedVector)
    format = "F32" if is_vector or is_convolution or changes_matrices(rewrite) else info.format
    if base not in (*_PART, *_STACKS, *config.family.experts.values()):
        return TensorSource(name, format, shape, (info.name,), rewrite)
    kind, count = _stack_of(base, config)
    if len(parts) != count or max(parts) >= count:
        raise FormatError(f"{name} is made of {len(parts)} {kind}, and {count} are announced")
    infos = [shards.info(parts[i]) for i in range(count)]
    if any((other.shape, other.format) != (info.shape, info.format) for other in infos):
        raise FormatError(f"the {kind} of {name} differ in shape or format")
    names = tuple(other.name for other in infos)
    return TensorSource(name, format, (count, *shape), names, rewrite)


def _stack_of(base: str, config: Config) -> tuple[str, int]:
    """Return what a tensor is stacked from, experts, heads or streams, and how many of them."""
    if base in _STACKS:
        return "streams", config.settings.size("altup_num_inputs") - 1
    heads = {"attn_q_norm": config.heads, "attn_k_norm": config.kv_heads}
    return ("heads", heads[base]) if base in heads else ("experts", config.experts)


def _head_source(name: str, info: TensorInfo, rewrite: OfHeads) -> TensorSource:
    """Return the source of all heads' matrices; quantised ones become F32 if transposed."""
    is_quantised = FORMATS[info.format].quant_block_elements > 1
    format = "F32" if is_quantised and rewrite.is_transposed else info.format
    return TensorSource(name, format, rewrite.shape(info.shape[1]), (info.name,), rewrite)


def _rewritten(shape: tuple[int, ...], rewrite: Rewrite) -> tuple[int, ...]:
    """Return a tensor's shape after its rewrite."""
    if rewrite is flat:
        return (prod(shape),)
    if rewrite is transpose:
        return shape[::-1]
    new_shape: tuple[int, ...] = rewrite.shape(shape) if hasattr(rewrite, "shape") else shape
    return new_shape


def _fused_source(name: str, base: str, info: TensorInfo, config: Config) -> TensorSource:
    """Return the source of a tensor that has all experts of a layer."""
    family, alternate = config.family, config.family.experts_alternate
    if name.endswith(".bias"):
        fused = Fused.bias(base, info, alternate=alternate)
        return TensorSource(name, "F32", fused.shape, (info.name,), fused)
    is_quantised = FORMATS[info.format].quant_block_elements > 1  # whose rows are whole
    fused = Fused.matrix(
        base, info, config.settings.size("hidden_size"), config.experts,
        is_turned=False if is_quantised else family.experts_turned, alternate=alternate,
    )  # fmt: skip
    return TensorSource(name, info.format, fused.shape, (info.name,), fused)


def _check_quantised(name: str, info: TensorInfo, rewrite: Rewrite) -> None:
    if FORMATS[info.format].quant_block_elements > 1 and rewrite is transpose:
        raise FormatError(
            f"the tensor {quote(info.name)} is quantised in a model that keeps its matrices "
            "the other way round, which is not supported; take it as a .gguf file"
        )
    if FORMATS[info.format].quant_block_elements > 1 and changes_matrices(rewrite):
        raise FormatError(
            f"the tensor {quote(info.name)} is quantised in a model whose matrices are multiplied "
            "by factors, which is not supported; take it as a .gguf file"
        )
    moves_columns = isinstance(rewrite, TiledColumns) or rewrite is swap_column_halves
    if FORMATS[info.format].quant_block_elements > 1 and moves_columns:
        raise FormatError(
            f"the tensor {quote(info.name)} is quantised in a model whose columns GGUF has in "
            "another order, which is not supported; take it as a .gguf file"
        )
    if name.endswith("_exps.order"):
        raise FormatError(
            f"{quote(info.name.removesuffix('.order'))} has act-order (desc_act), which is not "
            "supported for experts; take the model quantised without it, or a .gguf file"
        )


def _match_tensors(config: Config, shards: Shards) -> Iterator[tuple[str, tuple[str, int]]]:
    family, layers = config.family, config.layers
    for name in shards:
        plain = as_layer(name, layers) if config.draft_layers else name
        plain = family.join_stacks(family.plain_name(plain), layers)
        if family.architecture == "jina-bert-v3":
            plain = plain_name(name)
            if PARAMETRIZED in name:
                continue
        if plain.endswith(family.skipped) or unread_part(plain, config.behind):
            continue
        new = gguf_name(family, plain)
        if new is None:
            raise FormatError(
                f"the tensor {quote(name)} has no place in this family of models; "
                "this variant is not supported"
            )
        for target in _apart(new[0]):
            yield name, (target, new[1])
            for layer in range(1, layers if family.shared and target.startswith("blk.0.") else 1):
                yield name, (target.replace("blk.0.", f"blk.{layer}.", 1), new[1])


def _apart(name: str) -> list[str]:
    """Split a name of two tensors: blk.0.a+b.weight is blk.0.a.weight and blk.0.b.weight."""
    base, _, ending = name.rpartition(".")
    block, dot, names = base.rpartition(".")
    return [f"{block}{dot}{name}.{ending}" for name in names.split("+")]


def gguf_name(family: Family, name: str) -> tuple[str, int] | None:
    """Return GGUF's name, and an expert's number or 0; None if the family has no such tensor."""
    prefix = next(filter(name.startswith, family.prefixes), "")
    name = name.removeprefix(prefix)
    if whole := _whole_name(family, name):
        return whole, 0
    base, _, ending = name.rpartition(".")
    if ending in _WHOLE:
        is_matrix_s = ending.endswith("_proj_bias")
        base, ending = name.removesuffix("_bias") if is_matrix_s else name, _WHOLE[ending]
    if (ending := _ENDINGS.get(ending, "")) == "":
        return None
    if (once := family.outside.get(base)) is not None:
        return f"{once}.{ending}", 0
    stack, _, number = base.rpartition(".")
    if number.isdecimal() and (once := family.outside.get(f"{stack}.{{}}")) is not None:
        return f"{once}.{ending}", int(number)
    if (layer := _LAYER.fullmatch(base)) is None:
        return None
    inside, expert = layer[2], 0
    new = family.layer.get(inside)
    if new is None and _OF_MLX in inside:
        new = family.experts.get(inside.replace(_OF_MLX, ".experts.{}."))
    if new is None and (match := _EXPERT.fullmatch(inside)) is not None:
        new, expert = family.experts.get(f"{match[1]}{{}}{match[3] or ''}"), int(match[2])
    return None if new is None else (f"blk.{int(layer[1])}.{new}.{ending}", expert)


def _whole_name(family: Family, name: str) -> str | None:
    """Return GGUF's name of a layer's tensor that is listed by its whole name."""
    layer = _LAYER.fullmatch(name)
    new = family.whole.get(layer[2]) if layer else None
    return f"blk.{int(layer[1])}.{new}" if layer and new else None


def _check_output(config: Config, sources: Mapping[str, object]) -> None:
    if _EMBEDDING not in sources:
        raise FormatError("the files hold no embedding of tokens: the folder holds no model")
    is_encoder = config.sees_all and config.family.attention == "causal"  # and no canvas
    is_body = config.family.is_rank or config.is_body
    is_body |= is_encoder and "cls.weight" not in sources
    if not config.tied and _OUTPUT not in sources and not is_body:
        raise FormatError(
            f"{config.settings.file}: tie_word_embeddings is false, and the files hold no output "
            "matrix; download the model again"
        )
