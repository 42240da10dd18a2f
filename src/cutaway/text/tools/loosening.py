"""Leave out of a tool's schema what no grammar can enforce, and nothing else.

A part of a schema is a keyword, or a name under ``properties`` and the like. Knows which keywords
hold schemas. Whether a schema can be enforced is the caller's to say. What is left out follows from
the schema alone: a search that takes too long is an error, never a looser schema.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from cutaway.errors import CompileLimitError, InputError

Path = tuple[str | int, ...]
Enforce = Callable[[Mapping[str, Any]], None]
"""Raises InputError, with the reason, for a schema that cannot be enforced; CompileLimitError for
one that would take too long to compile."""

_MOST_TRIALS, _LONGEST_S = 2000, 30.0
"""Schemas that are tried for one request, beside the whole one of each tool, and the time."""

_MAPS = ("$defs", "definitions", "properties", "patternProperties")
_LISTS = ("prefixItems", "allOf", "anyOf")
_SINGLES = ("items", "additionalProperties")
_FIRST = (
    *_MAPS, *_LISTS, *_SINGLES, "type", "required", "enum", "const", "$ref", "if", "contains",
)  # fmt: skip
"""Keywords that others need, as a reference needs its target; in this order."""
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "items": ("prefixItems",), "additionalProperties": ("properties", "patternProperties"),
    "then": ("if",), "else": ("if",), "minContains": ("contains",), "maxContains": ("contains",),
}  # fmt: skip
"""Keyword -> the keywords beside it without which it would allow less, or mean nothing."""


@dataclass(frozen=True)
class Loosened:
    """A schema that can be enforced, and (place, reason) of each part that it lacks."""

    schema: Mapping[str, Any]
    left_out: tuple[tuple[str, str], ...] = ()


class Trials:
    """The schemas that may still be tried for one request's tools."""

    def __init__(self, tools: int) -> None:
        self._left, self._end = tools + _MOST_TRIALS, perf_counter() + _LONGEST_S

    def count(self) -> None:
        """Count one more; CompileLimitError if there are too many, or they take too long."""
        self._left -= 1
        if self._left < 0:
            raise CompileLimitError(
                "tools",
                ": with the tools before it, it has too many parts that cannot be enforced; leave "
                "them out, or offer fewer tools",
            )
        if perf_counter() > self._end:
            raise CompileLimitError(
                "tools",
                ": finding the parts of the tools' schemas that cannot be enforced takes more than "
                f"{_LONGEST_S:g} s; leave such parts out, or offer fewer tools",
            )


def loosen(schema: Mapping[str, Any], enforce: Enforce, trials: Trials) -> Loosened:
    """Return a schema without the parts that keep it from being enforced.

    CompileLimitError if that takes too many trials, or too long.
    """
    search = _Search(schema, enforce, trials)
    search.add(search.parts)
    return Loosened(search.schema(search.enforced), tuple(search.left_out))


class _Search:
    """The parts that can be enforced together, added by halves to those before."""

    def __init__(self, schema: Mapping[str, Any], enforce: Enforce, trials: Trials) -> None:
        self._whole, self._enforce, self._trials = schema, enforce, trials
        self._needs = dict(_parts(schema, (), frozenset()))
        self.parts = sorted(self._needs, key=_phase)
        self.enforced = frozenset[Path]()
        self.left_out: list[tuple[str, str]] = []

    def add(self, parts: Sequence[Path]) -> None:
        """Keep as many of these parts as can be enforced, the first ones first."""
        there = self.enforced | {*parts}
        parts = [part for part in parts if self._needs[part] <= there]
        if not parts:
            return
        if (reason := self._reason(self.enforced | {*parts})) is None:
            self.enforced |= {*parts}
        elif len(parts) == 1:
            self.left_out.append((_place(parts[0]), reason))
        else:
            half = len(parts) // 2
            self.add(parts[:half])
            self.add(parts[half:])

    def _reason(self, parts: frozenset[Path]) -> str | None:
        """Return why these parts cannot be enforced together; None if they can."""
        self._trials.count()
        try:
            self._enforce(self.schema(parts))
        except CompileLimitError:
            raise
        except InputError as error:
            return error.reason
        return None

    def schema(self, parts: frozenset[Path]) -> Mapping[str, Any]:
        """Return the schema with these parts alone."""
        schema: Mapping[str, Any] = _keep(self._whole, (), parts)
        return schema


def _parts(
    schema: Mapping[str, Any], place: Path, above: frozenset[Path]
) -> Iterator[tuple[Path, frozenset[Path]]]:
    """Yield each part at or below a place, with the parts that it needs, which come before it."""
    beside: dict[str, frozenset[Path]] = {}
    for name in sorted(schema, key=_order):
        value, part = schema[name], (*place, name)
        needs = above.union(*(beside.get(other, frozenset()) for other in _NEEDS.get(name, ())))
        yield part, needs
        beside[name] = frozenset({part})
        if name in _MAPS and isinstance(value, Mapping):
            paths = {key: (*part, key) for key in value}
            if name == "patternProperties":
                beside[name] |= {*paths.values()}
            for key, path in paths.items():
                yield path, frozenset({part})
                yield from _subparts(value[key], path, frozenset({path}))
        elif name in _SINGLES:
            yield from _subparts(value, part, frozenset({part}))
        elif name in _LISTS and isinstance(value, list):
            for i, subschema in enumerate(value):
                yield from _subparts(subschema, (*part, i), frozenset({part}))


def _subparts(
    value: Any, place: Path, above: frozenset[Path]
) -> Iterable[tuple[Path, frozenset[Path]]]:
    return _parts(value, place, above) if isinstance(value, Mapping) else ()


def _order(name: str) -> int:
    return _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _phase(part: Path) -> int:
    """Return 0 for what holds other parts; the later, the less others need the keyword."""
    name = part[-1]
    of_map = len(part) > 1 and part[-2] in _MAPS
    holds = of_map or name in (*_MAPS, *_LISTS, *_SINGLES)
    return 0 if holds else _order(str(name))


def _keep(schema: Any, place: Path, parts: frozenset[Path]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    part_of: dict[str, Any] = {}
    for name, value in schema.items():
        part = (*place, name)
        if part not in parts:
            continue
        if name in _MAPS and isinstance(value, Mapping):
            part_of[name] = {
                key: _keep(child, (*part, key), parts)
                for key, child in value.items()
                if (*part, key) in parts
            }
        elif name in _LISTS and isinstance(value, list):
            part_of[name] = [_keep(child, (*part, i), parts) for i, child in enumerate(value)]
        else:
            part_of[name] = _keep(value, part, parts) if name in _SINGLES else value
    return part_of


def _place(part: Path) -> str:
    """Return the place of a part as it is written in code: properties.x.anyOf[0].pattern"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in part)[1:]
