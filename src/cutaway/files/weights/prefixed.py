"""PrefixedFile: another file, in which the names of all tensors begin with a prefix.

So the tensors of two files have names of their own, such as those of a model and its drafter.
"""

from collections.abc import Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cutaway.files.weights.file import ModelFile, TensorBytes


class PrefixedFile(ModelFile):
    """A file with a prefix before its tensors' names.

    metadata  replaces the file's
    unread    names of tensors that are left out
    """

    def __init__(
        self, file: ModelFile, prefix: str, metadata: Mapping[str, Any], unread: Container[str] = ()
    ) -> None:
        self._file, self._prefix = file, prefix
        self.path, self.metadata = file.path, metadata
        self.tensors = MappingProxyType({
            f"{prefix}{name}": replace(info, name=f"{prefix}{name}")
            for name, info in file.tensors.items() if name not in unread
        })  # fmt: skip

    def raw(self, name: str) -> TensorBytes:
        """See ``ModelFile``."""
        self.info(name)
        return self._file.raw(name.removeprefix(self._prefix))

    def close(self) -> None:
        """See ``ModelFile``."""
        self._file.close()
