"""The names of a trace's fields in versions 1 to 3 of the format, and their names now.

No other module knows the old names: a record is renamed when it is read, and when a cut trace is
continued, its new lines have the names of its version. The page gets the same table as data
(``catalogue``).
"""

from collections.abc import Mapping
from typing import Any

VERSION = 4
READABLE = (1, 2, 3, VERSION)

Json = dict[str, Any]
Table = Mapping[str, Mapping[str, str]]

RENAMES: Table = {
    "head": {"watch": "tracked_ids", "kv_bytes": "kv_bytes_per_token", "changes": "interventions"},
    "head.params": {"watch": "track"},
    "head.decoder": {"sight": "attention", "behind": "suffix_ids"},
    "head.decoder.rule": {"luck": "noise"},
    "head.decoder.rule.luck": {"held": "reuse"},
    "head.decoder.sight": {"past": "causal", "all": "bidirectional"},
    "step": {
        "own": "sampled_id", "wanted": "unconstrained_id", "passed": "pass_index",
        "sketch": "logit_histogram", "row": "logits_hash", "checks": "refused_by",
    },
    "step.stages": {"victims": "top_removed", "cut": "min_kept_logit"},
    "pass": {"visit": "redraw"},
    "pass.cells": {"row": "logits_hash"},
}  # fmt: skip
"""Path of kind and fields, by old names -> {old name or value: name or value now}."""


def to_current(record: Json, version: int) -> Json:
    """A record from a file of this version, with the current names."""
    return record if version == VERSION else _renamed(record, str(record.get("kind")), RENAMES)


def to_version(record: Json, version: int) -> Json:
    """The inverse, for a file of this version."""
    if version == VERSION:
        return record
    renamed: Json = _renamed(record, str(record["kind"]), _BACK)
    return renamed | ({"version": version} if "version" in renamed else {})


def _renamed(value: Any, where: str, table: Table) -> Any:
    if where not in table:
        return value
    if isinstance(value, (list, tuple)):
        return [_renamed(one, where, table) for one in value]
    if not isinstance(value, Mapping):
        return table[where].get(value, value) if isinstance(value, str) else value
    return {
        table[where].get(name, name): _renamed(one, f"{where}.{name}", table)
        for name, one in value.items()
    }


def _place_now(where: str) -> str:
    parent, _, name = where.rpartition(".")
    return f"{parent}.{RENAMES[parent].get(name, name)}" if parent else where


_BACK: Table = {
    _place_now(where): {new: old for old, new in names.items()} for where, names in RENAMES.items()
}
