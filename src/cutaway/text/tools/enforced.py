"""The tools of one request, with the schemas that their calls keep to.

A schema of which a grammar cannot be made is loosened, part by part, unless its tool is strict.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from threading import Lock
from typing import Any

from cutaway.errors import CompileLimitError, InputError, Name
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import Read, UncompiledError, check_compiles
from cutaway.text.grammar.schemas import check_keywords
from cutaway.text.tools.dialect import Dialect
from cutaway.text.tools.grammar import grammar
from cutaway.text.tools.loosening import Loosened, Trials, loosen
from cutaway.text.tools.tool import Tool, ToolChoice

_MOST_PLACES = 8
"""Places of a schema that a note names."""
_MOST_CACHED = 4 << 20
"""Characters of the schemas that are kept, as JSON."""


class _Cache:
    """The last schemas that were loosened, so that a client's next request need not wait."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: OrderedDict[str, tuple[Loosened, int]] = OrderedDict()
        self._size = 0

    def find(self, dialect: Dialect, tool: Tool) -> Loosened | None:
        with self._lock:
            return self._last.get(_key(dialect, tool), (None, 0))[0] if self._last else None

    def put(self, dialect: Dialect, tool: Tool, loosened: Loosened) -> None:
        key = _key(dialect, tool)
        size = len(key) + len(json.dumps([loosened.schema, loosened.left_out]))
        with self._lock:
            self._size += size - self._last.pop(key, (None, 0))[1]
            self._last[key] = loosened, size
            while self._size > _MOST_CACHED:
                self._size -= self._last.popitem(last=False)[1][1]


_CACHE = _Cache()


def _key(dialect: Dialect, tool: Tool) -> str:
    text = f"{dialect}\n{json.dumps(tool.parameters)}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class EnforcedTools:
    """The tools that calls may name.

    fields   the client's name of each tool's schema, for errors
    dialect  the form of calls; its control tokens are read as their names
    read     see ``GrammarCompiler``
    """

    def __init__(
        self, tools: Sequence[Tool], fields: Sequence[Name], dialect: Dialect, read: Read
    ) -> None:
        """InputError for a schema that is none by JSON Schema's own rules."""
        self._tools, self._fields, self._read = tools, fields, read
        self._dialect = replace(dialect, control={})
        for field, tool in zip(fields, tools, strict=True):
            try:
                check_keywords(tool.schema())
            except InputError as error:
                raise InputError(field, f" of {tool.name}", error.reason) from None
        self._loosened = [None if tool.strict else self._find(tool) for tool in tools]

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, with the schemas that their calls keep to."""
        return tuple(
            replace(tool, parameters=loosened.schema) if loosened and loosened.left_out else tool
            for tool, loosened in zip(self._tools, self._loosened, strict=True)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for each tool whose calls need not keep to all of its schema."""
        return tuple(filter(None, map(_note, self._tools, self._loosened)))

    def loosen(self, allowed: Sequence[Tool], *, ready: bool) -> bool:
        """Loosen each schema that cannot be enforced; return whether there is a new one.

        InputError for a strict tool, for a custom tool's own grammar, and for schemas that take too
        many trials, or too long.

        allowed: the tools that may be called; others need no grammar
        ready: compile nothing; UncompiledError if something must be compiled
        """
        before, names = self._loosened, {tool.name for tool in allowed}
        trials = Trials(len(names))
        self._loosened = [
            self._loosen(i, tool, None if ready else trials) if tool.name in names else None
            for i, tool in enumerate(self._tools)
        ]
        return self._loosened != before

    def _loosen(self, i: int, tool: Tool, trials: Trials | None) -> Loosened | None:
        """Return a tool's schema without what cannot be enforced; None for a custom tool.

        trials: None to compile nothing
        """
        if tool.format is not None:
            if trials is None:
                raise UncompiledError
            try:
                trials.count()
                self._check_call(tool)
            except InputError as error:
                raise InputError(
                    Name("tools", i), f": calls of {tool.name}", error.reason
                ) from None
            return None
        if (loosened := self._find(tool)) is None:
            if trials is None:
                raise UncompiledError
            loosened = self._search(i, tool, trials)
            _CACHE.put(self._dialect, tool, loosened)
        if loosened.left_out and tool.strict:
            place, reason = loosened.left_out[0]
            raise InputError(
                self._fields[i],
                f": {place} cannot be enforced in calls of {tool.name}{_explain(reason)}; "
                "leave it out, or leave out strict",
            )
        return loosened

    def _search(self, i: int, tool: Tool, trials: Trials) -> Loosened:
        def enforce(schema: Mapping[str, Any]) -> None:
            self._check_call(replace(tool, parameters=schema))

        try:
            return loosen(tool.schema(), enforce, trials)
        except CompileLimitError as error:
            raise InputError(self._fields[i], f" of {tool.name}", error.reason) from None

    def _find(self, tool: Tool) -> Loosened | None:
        return None if tool.format is not None else _CACHE.find(self._dialect, tool)

    def _check_call(self, tool: Tool) -> None:
        """Raise InputError if no grammar of one call of this tool can be compiled."""
        calls = grammar(self._dialect, (tool,), ToolChoice("required"), parallel=False)
        check_compiles(Grammar("grammar", calls), self._read)


def _note(tool: Tool, loosened: Loosened | None) -> str:
    """Return a note on what the calls of a tool need not keep to; "" if they keep to all."""
    if loosened is None or not loosened.left_out:
        return ""
    places = [place for place, _ in loosened.left_out]
    more = f" and {len(places) - _MOST_PLACES} more" * (len(places) > _MOST_PLACES)
    return f"tools: not enforced in calls of {tool.name}: {', '.join(places[:_MOST_PLACES])}{more}"


def _explain(reason: str) -> str:
    """Return why a keyword cannot be enforced; "" where no grammar can hold the keyword at all."""
    return "" if "Unimplemented keys" in reason else reason
