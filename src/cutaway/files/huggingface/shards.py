"""The weights of a folder, in one safetensors file or in several with an index, and the sources of
GGUF's tensors in them.

Knows which files those are, which file has a tensor, and how transformers names tensors that do not
belong to the text model, which are skipped. Does not know what a tensor is for.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import FormatError, InputError
from cutaway.files.huggingface.json_object import JsonObject
from cutaway.files.huggingface.rewrites import Rewrite, as_it_is
from cutaway.files.weights import FORMATS, ModelFile, TensorBytes, TensorInfo, dequantize
from cutaway.files.weights.cursor import quote
from cutaway.files.weights.safetensors import SafetensorsFile

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_ELEMENTS = {"F32": "<f4", "F16": "<u2", "BF16": "<u2"}  # 16-bit floats are moved, not read
_INTEGERS = {
    "F8_E4M3": "u1",
    "F8_E8M0": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "U32": "<u4",
    "I8": "i1",
    "U8": "u1",
}


def shard_paths(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, by name. `FormatError` if one is missing."""
    index = folder / INDEX
    if index.is_file():
        names = JsonObject.read(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise FormatError(f"{index}: weight_map is no object of file names; download it again")
        beside = {path.name for path in folder.iterdir() if path.is_file()}
        if missing := sorted(set(names.values()) - beside):
            raise FormatError(
                f"{folder}: {INDEX} names {quote(missing[0])}, which is no file beside it; "
                "download it"
            )
        return [folder / name for name in sorted(set(names.values()))]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    torch_files = [path.name for path in folder.glob("*.bin")] + [
        p.name for p in folder.glob("*.pt*")
    ]
    hint = "; it has a .bin file: save the model as safetensors" if torch_files else ""
    raise FormatError(f"{folder}: the folder has neither {SINGLE} nor {INDEX}{hint}")


class Shards:
    """All tensors of some files.

    Raises what `SafetensorsFile` raises, and `FormatError` if a tensor is in two files.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._file_of: dict[str, SafetensorsFile] = {}
        self._files = [SafetensorsFile(path) for path in paths]
        for file in self._files:
            for name in file.names:
                if name in self._file_of:
                    raise FormatError(
                        f"{file.path.parent}: the tensor {quote(name)} is in two files"
                    )
                self._file_of[name] = file

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def info(self, name: str) -> TensorInfo:
        """Return a tensor's format and shape."""
        return self._file_of[name].info(name)

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor's elements in its shape: float32, or 16-bit floats' bits as uint16."""
        info = self.info(name)
        elements: NDArray[Any] = self.raw(name)[:].view(np.dtype(_ELEMENTS[info.format]))
        return elements.reshape(info.shape)

    def raw(self, name: str) -> TensorBytes:
        """Return the bytes of a tensor's elements; they are read when they are sliced."""
        return self._file_of[name].raw(name)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    @property
    def metadata(self) -> Mapping[str, str]:
        """The texts that the files have beside their tensors, by key."""
        return {key: text for file in self._files for key, text in file.metadata.items()}

    def dtype(self, name: str) -> str:
        """Return a tensor's dtype, as its file calls it."""
        return self._file_of[name].dtype_and_shape(name)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, whatever its dtype."""
        return self._file_of[name].dtype_and_shape(name)[1]

    def part(self, name: str) -> NDArray[Any]:
        """Return a part of a quantised matrix in its shape: integers, or floats as float32."""
        dtype, shape = self._file_of[name].dtype_and_shape(name)
        data = self._file_of[name].part(name)[:]
        if dtype in _ELEMENTS:
            return dequantize(FORMATS[dtype], data).reshape(shape)
        numbers: NDArray[Any] = data.view(np.dtype(_INTEGERS[dtype]))
        return numbers.reshape(shape)

    def close(self) -> None:
        """Close the files; what `read` returned stays valid."""
        for file in self._files:
            file.close()


# -- parts that read pictures, and blocks that guess tokens ahead (MTP) ----------------------------


UNREAD = "cutaway.unread"
"""The metadata key of the parts that were skipped."""

PICTURES, SOUND, AHEAD = "pictures", "sound", "tokens ahead"
PARAMETRIZED = ".parametrizations.weight.0."
"""Part of the names of tensors that torch adds to a matrix; `adapters` reads them."""
_ORIGINAL = ".parametrizations.weight.original"
_LAYER = re.compile(r"\blayers\.(\d{1,5})\.")
_PICTURES = re.compile(
    r"(model\.)?(encoder\.)?(visual|vision_(tower|model|adapter|projection)|multi_modal_projector"
    r"|embed_vision)\."
)
_SOUND = re.compile(r"(model\.)?(audio_tower|embed_audio)\.")
_AHEAD = re.compile(r"(model\.)?(mtp|mtp_layers)\.")


def plain_name(name: str) -> str:
    """Return a matrix's name without what torch adds to the name."""
    base = name.removesuffix(_ORIGINAL)
    return f"{base}.weight" if base != name else name


def unread_part(name: str, behind: range) -> str:
    """Return the part that a tensor belongs to; "" for the text model itself.

    behind: the numbers of the blocks that follow the model's own
    """
    if _PICTURES.match(name):
        return PICTURES
    if _SOUND.match(name):
        return SOUND
    layer = _LAYER.search(name)
    return AHEAD if _AHEAD.match(name) or (layer and int(layer[1]) in behind) else ""


def unread(names: Iterable[str], behind: range) -> list[str]:
    """Return all skipped parts that a folder has."""
    return sorted({unread_part(name, behind) for name in names} - {""})


# -- how a tensor of GGUF is computed when it is read ----------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorSource(TensorInfo):
    """A tensor, and its source: one tensor of the files, one for each expert, or values."""

    sources: tuple[str, ...]
    rewrite: Rewrite = as_it_is
    values: NDArray[np.float32] | None = None

    def make(self, shards: Shards) -> TensorBytes:
        """Return the bytes, in `format`: (nbytes,), read-only."""
        if self.values is not None:
            elements: NDArray[Any] = self.values
        elif len(self.sources) > 1:
            elements = np.empty(self.nbytes, np.uint8)
            for place, source in zip(
                np.split(elements, len(self.sources)), self.sources, strict=True
            ):
                place[:] = _flat_bytes(self._rewritten(shards, source))
        elif self.rewrite is as_it_is and shards.info(self.sources[0]).format == self.format:
            return shards.raw(self.sources[0])
        else:
            elements = self._rewritten(shards, self.sources[0])
        data = _flat_bytes(elements)
        data.flags.writeable = False
        return data

    def _rewritten(self, shards: Shards, source: str) -> NDArray[Any]:
        return self.rewrite(self._read(shards, source))

    def _read(self, shards: Shards, source: str) -> NDArray[Any]:
        elements = shards.read(source)
        stored = shards.info(source).format
        if stored == self.format:
            return elements
        return dequantize(FORMATS[stored], elements.reshape(-1).view(np.uint8)).reshape(
            elements.shape
        )


def _flat_bytes(elements: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8)


Sources = dict[str, TensorSource]
"""The sources of tensors, by GGUF's names."""


class SourcedFile(ModelFile):
    """A folder whose tensors are computed, when read, from those of its safetensors files."""

    tensors: Mapping[str, TensorSource]

    def __init__(self, path: Path, paths: Iterable[Path]) -> None:
        self.path = path
        self._shards: Shards | None = Shards(paths)

    def raw(self, name: str) -> TensorBytes:
        """See `ModelFile`; bytes that are not rewritten are read when they are sliced."""
        self.info(name)
        if self._shards is None:
            raise InputError(f"{self.path}: the folder is closed, so {name} cannot be read")
        return self.tensors[name].make(self._shards)

    def close(self) -> None:
        """See `ModelFile`."""
        if self._shards is not None:
            self._shards.close()
        self._shards = None
