"""A ``Pass`` over a canvas as a line of a trace, and back.

The cells are columns. What the request observed of each cell is not recorded here, but in the
steps of the draws that stayed. The sequence's number is 0 when read.
"""

from typing import Any

from cutaway.engine.events import Pass, PassCell
from cutaway.trace import check
from cutaway.trace.record import Json, without
from cutaway.trace.steps import milliseconds, phases, word


def pass_to_json(made: Pass) -> Json:
    """A line, short because the cells are columns."""
    columns: Json = dict(zip(PassCell._fields, zip(*made.cells, strict=True), strict=True))
    likely = columns.pop("likely")
    return {
        "kind": "pass",
        "index": made.index,
        "block": made.block,
        "rows": made.rows,
        "cells": without(columns, "observed", "logits_hash")
        | {
            "likely": [[token_id for token_id, _ in of_cell] for of_cell in likely],
            "likely_logprob": [[logprob for _, logprob in of_cell] for of_cell in likely],
            "logits_hash": [f"{one:016x}" for one in columns["logits_hash"]],
        },
        "masked_again": made.masked_again,
        "bound": made.bound,
        "redraw": made.redraw,
        "ms": milliseconds(made.phases),
        "fingerprint": f"{made.fingerprint:016x}",
    }


def pass_from_json(line: Json) -> Pass:
    """The inverse. ValueError, with a sentence, where the line is no pass."""
    known = check.fields(without(line, "kind"), _PASS)
    known["phases"] = known.pop("ms")
    return Pass(id=0, **known)


def tokens_of(made: Pass) -> set[int]:
    """The ids that the line names."""
    ids = {token_id for cell in made.cells for token_id, _ in cell.likely}
    for cell in made.cells:
        ids.update(one for one in (cell.token_id, cell.was, cell.now) if one is not None)
    return ids


# -- what each field may hold --------------------------------------------------------------------


def _cells(value: Any) -> tuple[PassCell, ...]:
    columns = check.fields(value, _CELL)
    if len({*map(len, columns.values())}) > 1 or not columns["position"]:
        raise ValueError("must be columns of one length, for one cell or more")
    columns["likely"] = tuple(map(_pairs, columns["likely"], columns.pop("likely_logprob")))
    columns["observed"] = (None,) * len(columns["position"])
    return tuple(map(PassCell._make, zip(*(columns[f] for f in PassCell._fields), strict=True)))


def _pairs(ids: tuple[int, ...], logprobs: tuple[float, ...]) -> tuple[tuple[int, float], ...]:
    if len(ids) != len(logprobs):
        raise ValueError("likely_logprob must say as much of each cell as likely")
    return tuple(zip(ids, logprobs, strict=True))


def _span(value: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = check.items(check.integer)(value)
    if len(found) != 2 or found[0] >= found[1]:
        raise ValueError("must be two positions: the first, and the one behind the last")
    return found


_CELL = {
    "position": check.items(check.integer),
    "token_id": check.items(check.integer),
    "logprob": check.items(check.number),
    "entropy": check.items(check.number),
    "figure": check.items(check.number),
    "was": check.items(check.optional(check.integer)),
    "now": check.items(check.optional(check.integer)),
    "likely": check.items(check.items(check.integer)),
    "likely_logprob": check.items(check.items(check.number)),
    "logits_hash": check.items(word),
}
_PASS = {
    "index": check.integer,
    "block": _span,
    "rows": check.integer,
    "cells": _cells,
    "masked_again": check.items(check.integer),
    "bound": check.number,
    "redraw": check.integer,
    "ms": phases,
    "fingerprint": word,
}
