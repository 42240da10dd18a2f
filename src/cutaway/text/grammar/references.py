"""What the ``$ref`` of a schema name, within the schema alone.

Knows JSON pointers, anchors and the ``$id`` by which parts of a schema are named.
"""

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from cutaway.errors import InputError
from cutaway.text.grammar.schema_values import check_values
from cutaway.text.grammar.subschemas import subschemas


class References:
    """The places of a schema that references may name."""

    def __init__(self, root: Any) -> None:
        self._home: dict[int, str] = {}  # by a schema's id: the URI of the resource that holds it
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._targets: dict[int, Any] = {}
        self._walk(root, "")
        self._root_uri = self._home.get(id(root), "")

    def target(self, schema: dict[str, Any]) -> Any:
        """The schema that ``$ref`` means here; InputError where it is not within the root."""
        if id(schema) in self._targets:
            return self._targets[id(schema)]
        reference = schema["$ref"]
        home = self._home.get(id(schema), self._root_uri)
        whole = home + reference if reference.startswith("#") else urljoin(home, reference)
        uri, fragment = urldefrag(whole)
        try:
            named = self._within(uri, unquote(fragment))
        except (KeyError, IndexError, ValueError, TypeError):
            raise InputError(
                f"json_schema: $ref {reference!r} names nothing within the schema"
            ) from None
        check_values(named, f"{reference}: ")
        self._targets[id(schema)] = named
        return named

    def _within(self, uri: str, fragment: str) -> Any:
        if fragment and not fragment.startswith("/"):
            return self._anchors[uri, fragment]
        place = self._resources[uri]
        for part in fragment.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            place = place[int(name)] if isinstance(place, list) else place[name]
        return place

    def _walk(self, schema: Any, uri: str) -> None:
        if not isinstance(schema, dict):
            return
        if isinstance(own := schema.get("$id"), str):
            uri, fragment = urldefrag(urljoin(uri, own))
            if fragment:  # as drafts before 2019-09 name an anchor
                self._anchors[uri, fragment] = schema
            else:
                self._resources[uri] = schema
        if isinstance(anchor := schema.get("$anchor"), str):
            self._anchors[uri, anchor] = schema
        self._home[id(schema)] = uri
        for _, one in subschemas(schema):
            self._walk(one, uri)
