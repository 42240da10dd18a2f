"""Typed look-ups in a folder's JSON files; an error names the file, the key and what it must be."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from cutaway.errors import FormatError, InputError

_LARGEST = 1 << 27  # bytes; the largest tokenizers have some 10⁷
_MAX_NUMBER = 1e38  # within what float32 can represent; ints of any length are compared with it


class JsonObject:
    """The values of one JSON object; null counts as absent, unless ``nulls`` has the key.

    names: the file's name of a key, where it differs from the name asked for
    defaults: values of keys that the file lacks
    nulls: the file's names of keys whose value is null, and for which null and absent differ
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        file: str,
        names: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        nulls: Collection[str] = (),
    ) -> None:
        self._values, self.file, self._nulls = values, file, nulls
        self._names, self._defaults = names or {}, defaults or {}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; no file means no values. `FormatError` if it is no JSON object."""
        return cls(_read(path), path.name)

    def with_defaults(self, names: Mapping[str, str], defaults: Mapping[str, Any]) -> "JsonObject":
        """Return the same values, with further names and defaults."""
        names, defaults = {**self._names, **names}, {**self._defaults, **defaults}
        return JsonObject(self._values, self.file, names, defaults, self._nulls)

    def with_fallback(self, other: "JsonObject") -> "JsonObject":
        """Return these values, and the other object's values for keys that are absent here."""
        values = {k: v for k, v in self._values.items() if v is not None}
        return JsonObject({**other._values, **values}, self.file)

    def alike(self, *keys: str) -> "JsonObject":
        """Return the same values, each list of equal elements replaced by the element.

        FormatError for a list of different elements.
        """
        values = dict(self._values)
        for key in (self._names.get(key, key) for key in keys):
            if isinstance(elements := values.get(key), list) and elements:
                if any(element != elements[0] for element in elements):
                    self.refuse(key, "only the same for all layers is")
                values[key] = elements[0]
        return JsonObject(values, self.file, self._names, self._defaults, self._nulls)

    @property
    def values(self) -> Mapping[str, Any]:
        """All values, by the file's own names."""
        return self._values

    def get(self, key: str) -> Any:
        """Return any value; None if it is absent."""
        value = self._values.get(self._names.get(key, key))
        return self._defaults.get(key) if value is None else value

    def size(self, key: str, maximum: int = 2**31 - 1) -> int:
        """Return a whole number, 1 to maximum."""
        value = self.get(key)
        if type(value) is not int or not 1 <= value <= maximum:
            self.fail(key, f"a whole number from 1 to {maximum}")
        return value

    def id(self, key: str) -> int:
        """Return a token's id: a whole number, 0 or above."""
        value = self.get(key)
        if type(value) is not int or value < 0:
            self.fail(key, "a token's id")
        return value

    def number(self, key: str) -> float:
        """Return a number within float32's range."""
        value = self.get(key)
        if not _is_number(value):
            self.fail(key, "a number of an ordinary size")
        return float(value)

    def positive(self, key: str) -> float:
        """Return a number above 0, within float32's range."""
        value = self.number(key)
        if value < 1 / _MAX_NUMBER:
            self.fail(key, "above 0")
        return value

    def numbers(self, key: str, count: int | None = None) -> list[float]:
        """Return a list of numbers within float32's range; count: how many it must have."""
        value = self.get(key)
        if not isinstance(value, list) or not all(map(_is_number, value)):
            self.fail(key, "a list of numbers of an ordinary size")
        if count is not None and len(value) != count:
            self.fail(key, f"a list of {count} numbers")
        return [float(number) for number in value]

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false; the default if the key is absent."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            self.fail(key, "true or false")
        return default if value is None else bool(value)

    def text(self, key: str) -> str | None:
        """Return a string; None if it is absent."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            self.fail(key, "a text")
        return value

    def part(self, key: str) -> "JsonObject":
        """Return an object inside this one; without values if it is absent."""
        value = self.get(key)
        if value is not None and value is not False and not isinstance(value, dict):
            self.fail(key, "an object")  # RND1 writes false for none
        return JsonObject(value or {}, f"{self.file}: {key}")

    def must_be(self, key: str, *allowed: Any) -> None:
        """Refuse a value that is not allowed; an absent key without a default means the first."""
        value = self.get(key)
        is_absent = value is None and self._names.get(key, key) not in self._nulls
        if not is_absent and value not in allowed:
            self.refuse(key, f"only {' or '.join(map(repr, allowed))} is")

    def fail(self, key: str, requirement: str) -> NoReturn:
        """Raise a `FormatError`: the value is not what it must be."""
        value = self.get(key)
        problem = "is missing" if value is None else f"is {value!r:.40}"
        raise FormatError(
            f"{self.file}: {self._names.get(key, key)} {problem}; it must be {requirement}"
        )

    def refuse(self, key: str, but: str) -> NoReturn:
        """Raise a `FormatError`: the value is valid, but not supported."""
        name = self._names.get(key, key)
        raise FormatError(
            f"{self.file}: {name} is {self.get(key)!r:.40}, which is not supported; {but}"
        )

    def __bool__(self) -> bool:
        return bool(self._values)


def _is_number(value: Any) -> bool:
    """Whether float32 can represent it; false for NaN."""
    return type(value) in (int, float) and -_MAX_NUMBER <= value <= _MAX_NUMBER


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _LARGEST:
            raise FormatError(f"{path}: the file is too large for what it is; download it again")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: the file cannot be opened: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{path}: the file is no sound JSON ({ascii(str(error))[:80]}); download it again"
        ) from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: the file is no JSON object; download it again")
    return value
