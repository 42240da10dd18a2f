"""A model's file with some of its tensors taken from other files of the same model."""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from cutaway.files.weights.file import ModelFile, TensorBytes, TensorInfo

_OF_FORMATS = ("general.file_type", "general.quantization_version")


class MixedFile(ModelFile):
    """The tensors of ``base``, but those named in ``instead``, which come from there with factors.

    Metadata and order are those of ``base``; what says how the file is quantised, of the file that
    most bytes come from. Closing this closes none of them.
    """

    def __init__(self, base: ModelFile, instead: Mapping[str, ModelFile]) -> None:
        self.path, self._base, self._instead = base.path, base, dict(instead)
        scales = {_scale(name): file for name, file in instead.items()}
        self._instead |= {name: file for name, file in scales.items() if name in file.tensors}
        names = dict.fromkeys((*base.tensors, *self._instead))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {
                name: self._file(name).info(name)
                for name in names
                if name not in scales or name in self._instead
            }
        )
        most = self._most()
        said = {key: most.metadata[key] for key in _OF_FORMATS if key in most.metadata}
        kept = {key: value for key, value in base.metadata.items() if key not in _OF_FORMATS}
        self.metadata = MappingProxyType(kept | said)
        types = {k: t for k, t in base.value_types.items() if k not in _OF_FORMATS}
        self.value_types = types | {k: t for k, t in most.value_types.items() if k in _OF_FORMATS}

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``."""
        return self._file(name).raw(name)

    def expect(self, name: str) -> None:
        """See ``ModelFile``."""
        self._file(name).expect(name)

    def close(self) -> None:
        """Nothing; see the class."""

    def _file(self, name: str) -> ModelFile:
        return self._instead.get(name, self._base)

    def _most(self) -> ModelFile:
        """The file that most bytes come from."""
        files = {id(file): file for file in (self._base, *self._instead.values())}
        sizes = Counter[int]()
        for name, info in self.tensors.items():
            sizes[id(self._file(name))] += info.nbytes
        return files[max(sizes, key=sizes.__getitem__)]


def _scale(name: str) -> str:
    """The tensor of a matrix's factors; see ``ModelFile.factors``."""
    return name.removesuffix(".weight") + ".scale"
