"""A file whose tensors are read when they are wanted, whole or piece by piece.

It is not mapped: the system ends a process that touches mapped bytes that are gone, where a read of
them is an error of its own.
"""

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from cutaway.errors import FormatError, InputError
from cutaway.files.weights.cursor import quoted

if TYPE_CHECKING:
    from cutaway.base._native import FileBytes


def open_bytes(path: Path, suffix: str) -> "FileBytes":
    """The bytes of a regular file that is not empty; suffix: of the files that can be named."""
    from cutaway.base import _native  # what is only listed needs no kernels

    try:
        if not path.exists():
            raise InputError(f"{path}: there is no such file")
        if not path.is_file():  # opening a pipe would wait for ever
            raise FormatError(f"{path}: this is not a regular file; name the {suffix} file itself")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise FormatError(f"{path}: the file is empty; download it again")
            name = str(path).encode(errors="backslashreplace").decode()
            return _native.FileBytes(file.fileno(), name)
    except OSError as error:
        raise InputError(f"{path}: the file cannot be opened: {error.strerror}") from error


class TensorFile(ABC):
    """The tensors of a file."""

    path: Path
    _bytes: "FileBytes | None"

    @abstractmethod
    def _span(self, name: str) -> tuple[int, int]:
        """A tensor's first byte in the file, and the one after its last; raises as `raw` does."""

    def raw(self, name: str) -> "FileBytes":
        """See `ModelFile`; nothing is read yet."""
        start, end = self._span(name)
        if self._bytes is None:
            raise InputError(f"{self.path}: the file is closed, so {quoted(name)} cannot be read")
        return self._bytes.part(start, end)

    def expect(self, name: str) -> None:
        """See `ModelFile`."""
        start, end = self._span(name)
        if self._bytes is not None:
            self._bytes.part(start, end).expect()

    def close(self) -> None:
        """Close the file, as soon as nothing is left that `raw` returned."""
        self._bytes = None
