"""A GGUF model in several files, read as one.

Knows the keys that say which part a file is (`split.no`, `split.count`, `split.tensors.count`), and
that all parts must be of one model.
"""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from cutaway.errors import FormatError
from cutaway.files.weights.apart import apart
from cutaway.files.weights.cursor import quoted
from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo
from cutaway.files.weights.gguf import GGUFFile

_NO, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def open_gguf(paths: Sequence[Path]) -> ModelFile:
    """The model in these files, its first part first. FormatError unless they are all its parts."""
    files = [GGUFFile(path) for path in paths]
    for i, file in enumerate(files):
        no, count = file.metadata.get(_NO, 0), file.metadata.get(_COUNT, 1) or 1
        if (no, count) != (i, len(files)):
            raise FormatError(
                f"{file.path}: by its name it is part {i + 1} of {len(files)}, but its split.no "
                f"(from 0) is {no!r:.20} and its split.count {count!r:.20}: give it its own name "
                "back (NAME-00001-of-00003.gguf), or download all parts again"
            )
    return apart(files[0] if len(files) == 1 else SplitGGUF(files))


class SplitGGUF(ModelFile):
    """The parts of a model, in order: the metadata of the first, the tensors of all."""

    def __init__(self, parts: Sequence[GGUFFile]) -> None:
        first = parts[0]
        self.path = first.path
        own = (_NO, _COUNT, _TENSORS)  # of the file, not of the model
        self.metadata = MappingProxyType({k: v for k, v in first.metadata.items() if k not in own})
        self.value_types = first.value_types
        self._parts: dict[str, GGUFFile] = {}
        tensors: dict[str, TensorInfo] = {}
        for part in parts:
            for name, info in part.tensors.items():
                if name in tensors:
                    raise FormatError(
                        f"{part.path}: {self._parts[name].path.name} has the tensor "
                        f"{quoted(name)} too, so the parts are of different models: download "
                        "them again"
                    )
                tensors[name], self._parts[name] = info, part
        self.tensors = MappingProxyType(tensors)
        if first.metadata.get(_TENSORS, len(tensors)) != len(tensors):
            raise FormatError(
                f"{first.path}: the model has {first.metadata[_TENSORS]} tensors, and its "
                f"{len(parts)} parts have {len(tensors)}: download them again"
            )

    def raw(self, name: str) -> TensorBytes:
        """See `ModelFile`."""
        return self._part(name).raw(name)

    def expect(self, name: str) -> None:
        """See `ModelFile`."""
        self._part(name).expect(name)

    def close(self) -> None:
        """Close every part."""
        for part in self._parts.values():
            part.close()

    def _part(self, name: str) -> GGUFFile:
        self.info(name)
        return self._parts[name]
