"""Describes a model from its file: its sizes, formats and special tokens, and the tokens' keys."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from cutaway.compute import backends
from cutaway.compute.loading.open import model_name, size_of
from cutaway.compute.loading.parts import Parts, open_as
from cutaway.compute.model import Graph, ModelConfig, has_draft_head
from cutaway.compute.model.ops.linear import Linear
from cutaway.compute.model.ops.mixture import Experts, expert_shares
from cutaway.files.weights import ModelFile, TensorInfo
from cutaway.text import Tokenizer
from cutaway.text.chat import FIELD, ORIGIN
from cutaway.text.tokenizers.vocabulary import BEGIN_ORIGIN

_UNREAD = ("pictures", "sound", "tokens ahead")
_SAMPLING = "general.sampling."


@dataclass(frozen=True, slots=True)
class Stored:
    """The tensors of one format: how many there are, and how many bytes they have together."""

    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Special:
    """A token that begins or ends texts; origin: the file's key that defines it."""

    id: int
    name: str
    origin: str


@dataclass(frozen=True)
class ModelInfo:
    """A model as its file describes it.

    parameters  how many numbers all tensors have
    active_parameters  how many of them compute one token: only the chosen experts of a layer count
    active_bytes  how many bytes of weights in the file a step with one row reads
    formats     the formats by name, the one with the most bytes first
    left_bytes  bytes of tensors that are not loaded: their rows are read from the file
    canvas_bytes  bytes of the transpose of the embedding, which self-conditioning reads
    kv_bytes    bytes of one token's keys and values
    kv          how keys and values are stored
    template    the text of the chat template; None if the model cannot chat
    template_origin  the metadata key of the template; None without a template
    begin       the token that texts begin with; add_begin: whether it is put before every text
    ends        the tokens that end a text
    behind      the token that the model expects after every text
    unread      parts of the file that are not run: "pictures", "sound", "tokens ahead" (MTP)
    mask        the token that marks a place to be filled in
    sampling    sampling settings that the file recommends, by the file's names for them; they are
                only reported
    """

    name: str
    path: Path
    file_bytes: int
    config: ModelConfig
    vocab_size: int
    parameters: int
    active_parameters: int
    active_bytes: int
    formats: Mapping[str, Stored]
    left_bytes: int
    canvas_bytes: int
    kv_bytes: int
    kv: backends.KVLayout
    template: str | None
    template_origin: str | None
    begin: Special | None
    add_begin: bool
    ends: tuple[Special, ...]
    behind: Special | None
    mask: Special | None
    unread: tuple[str, ...]
    sampling: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, quantize: str | None = None, kv: str = "f16") -> "ModelInfo":
        """Read a model's file. FormatError says why the model cannot be run.

        quantize, kv: the settings of a load; see ``LLM``
        """
        kv = backends.check_kv(kv)
        with open_as(path, quantize) as file:
            parts = Parts.read(file)
            config, tokenizer = parts.config, parts.tokenizer
            layout = backends.kv_layout(parts.graph, kv)
            field = file.metadata.get(FIELD)
            template = field if isinstance(field, str) else None
            return cls(
                name=model_name(path),
                path=path,
                file_bytes=size_of(path),
                config=config,
                vocab_size=tokenizer.vocab_size,
                parameters=parts.parameters,
                active_parameters=parts.parameters - _idle(parts.graph, file.tensors, _numbers),
                active_bytes=read_bytes(parts.graph, file.tensors),
                formats=group_by_format(file.tensors.values()),
                left_bytes=backends.stored_bytes(parts.graph, file.tensors),
                canvas_bytes=_canvas_bytes(config, file),
                kv_bytes=layout.bytes_per_token,
                kv=layout,
                template=template,
                template_origin=template and str(file.metadata.get(ORIGIN, FIELD)),
                begin=_special_token(
                    tokenizer, tokenizer.bos_id, "bos", file.metadata.get(BEGIN_ORIGIN)
                ),
                add_begin=tokenizer.add_bos,
                ends=tuple(
                    Special(token_id, tokenizer.token_name(token_id), origin)
                    for token_id, origin in tokenizer.end_ids.items()
                ),
                behind=_special_token(tokenizer, tokenizer.sep_id, "seperator"),
                mask=_special_token(tokenizer, tokenizer.mask_id, "mask"),
                unread=_unread(file.metadata, config),
                sampling=_sampling(file.metadata),
            )

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all tensors that are loaded; packing them adds nothing."""
        in_file = sum(stored.bytes for stored in self.formats.values())
        return in_file - self.left_bytes + self.canvas_bytes

    def memory(self, context: int) -> int:
        """Return the bytes of weights, keys and values for a text of this many tokens."""
        return self.weight_bytes + self.kv.bytes_stored(context)


def _canvas_bytes(config: ModelConfig, file: ModelFile) -> int:
    if config.attention != "canvas":
        return 0
    from cutaway.compute.loading.canvas import transpose_embedding  # few models have it

    return sum(info.nbytes for info in transpose_embedding(file).tensors.values())


def _unread(metadata: Mapping[str, Any], config: ModelConfig) -> tuple[str, ...]:
    parts = metadata.get("cutaway.unread")
    names = parts if isinstance(parts, list) else []
    ahead = ["tokens ahead"] if config.unrun_layers and not has_draft_head(config) else []
    return tuple(sorted({*filter(_UNREAD.__contains__, names), *ahead}))


def _sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(_SAMPLING): value
        for name, value in metadata.items()
        if name.startswith(_SAMPLING) and isinstance(value, (bool, int, float, str))
    }


def _shares(graph: Graph, tensors: Mapping[str, TensorInfo]) -> dict[str, float]:
    return expert_shares(graph.ops, {name: tensor.shape for name, tensor in tensors.items()})


def _numbers(tensor: TensorInfo) -> int:
    return prod(tensor.shape)


def _idle(
    graph: Graph, tensors: Mapping[str, TensorInfo], size: Callable[[TensorInfo], int]
) -> int:
    """Return the size of the experts that one row does not choose."""
    shares = _shares(graph, tensors)
    return round(sum((1 - share) * size(tensors[name]) for name, share in shares.items()))


def read_bytes(graph: Graph, tensors: Mapping[str, TensorInfo]) -> int:
    """Return the bytes of matrices that one row multiplies by; its embedding is not counted.

    A matrix that layers read at several depths is counted at each.
    """
    linear = [op.matrix for op in graph.ops if isinstance(op, Linear)]
    whole = sum(_part_bytes(tensors[name], last - first) for name, first, last in linear)
    shares = _shares(graph, tensors)
    mixtures = [name for op in graph.ops if isinstance(op, Experts) for name in op.matrix_names]
    return whole + round(sum(shares[name] * tensors[name].nbytes for name in mixtures))


def _part_bytes(tensor: TensorInfo, rows: int) -> int:
    """Return the bytes of so many rows of a matrix."""
    return tensor.nbytes // prod(tensor.shape[:-1]) * rows


def group_by_format(tensors: Iterable[TensorInfo]) -> dict[str, Stored]:
    """Count the tensors of each format; the format with the most bytes comes first."""
    groups: dict[str, Stored] = {}
    for info in tensors:
        before = groups.get(info.format, Stored(0, 0))
        groups[info.format] = Stored(before.tensors + 1, before.bytes + info.nbytes)
    return dict(sorted(groups.items(), key=lambda item: -item[1].bytes))


def _special_token(
    tokenizer: Tokenizer, token_id: int | None, name: str, origin: str | None = None
) -> Special | None:
    if token_id is None:
        return None
    origin = origin or f"tokenizer.ggml.{name}_token_id"
    return Special(token_id, tokenizer.token_name(token_id), origin)
