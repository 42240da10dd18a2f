"""MetadataReader: typed look-ups in a model file's metadata."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cutaway.errors import FormatError

_LARGEST = 1e15  # so that neither a number nor its inverse leaves float32
LARGEST_SIZE = 2**31 - 1  # the largest size, since kernels count in 32 bits


class MetadataReader:
    """Typed look-ups; an error says in one sentence which key is missing or absurd.

    defaults: values of keys that the file lacks; the keys are without the prefix
    """

    def __init__(
        self, metadata: Mapping[str, Any], prefix: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.metadata, self.prefix, self.defaults = metadata, prefix, defaults or {}

    def value(self, key: str, default: Any = None) -> Any:
        """Return the file's value; else the value in the reader's defaults; else ``default``."""
        return self.metadata.get(f"{self.prefix}.{key}", self.defaults.get(key, default))

    def number(self, key: str, default: float | None = None) -> float:
        """Read a positive number; FormatError if it is not, or is missing and has no default."""
        value = self.value(key, default)
        if value is None:
            raise FormatError(f"the model file lacks the metadata key {self.prefix}.{key}")
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            self._check_layers(key, value.size)
            value = value.flat[0].item()  # there is one value per layer, and all are the same
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and 1 / _LARGEST <= value <= _LARGEST:  # which NaN is not
            return float(value)
        raise FormatError(
            f"metadata key {self.prefix}.{key} must be a positive number of an ordinary size"
        )

    def _check_layers(self, key: str, size: int) -> None:
        """Raise FormatError if layers have too few values; more are for blocks that do not run."""
        layers = self.value("block_count")
        if isinstance(layers, int) and size < layers:
            raise FormatError(
                f"metadata key {self.prefix}.{key} has {size} values for {layers} layers"
            )

    def or_zero(self, key: str, default: float = 0.0) -> float:
        """Read a number; it is 0 if the file has 0, or lacks the key and there is no default."""
        value = self.value(key, default)
        return 0.0 if type(value) in (int, float) and value == 0 else self.number(key, default)

    def size(self, key: str, default: int | None = None, largest: int = LARGEST_SIZE) -> int:
        """Read a positive whole number up to ``largest``."""
        return self._whole(key, self.number(key, default), largest)

    def size_or_zero(self, key: str, default: int = 0) -> int:
        """Read a size; it is 0 if the file has 0, or lacks the key and there is no default."""
        return self._whole(key, self.or_zero(key, default), LARGEST_SIZE)

    def _whole(self, key: str, value: float, largest: int) -> int:
        if value != int(value) or value > largest:
            raise FormatError(
                f"metadata key {self.prefix}.{key} must be a whole number up to {largest}"
            )
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        """Read true or false."""
        value = self.value(key, default)
        if not isinstance(value, bool):
            raise FormatError(f"metadata key {self.prefix}.{key} must be true or false")
        return value

    def must_be(self, key: str, *values: float) -> None:
        """Raise FormatError for any other value; an absent key stands for the first value."""
        value = self.value(key, values[0])
        if type(value) not in (int, float, bool) or value not in values:
            raise FormatError(
                f"metadata key {self.prefix}.{key} is {value!r:.40}, which is not supported; "
                f"only {' or '.join(str(allowed).lower() for allowed in values)} is"
            )
