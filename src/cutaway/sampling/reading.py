"""Reading rows of logits without drawing: how likely the model found tokens that are known.

logprobs.py is the definition, and is used where ``cutaway.base._native`` is missing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import CutawayError, InputError
from cutaway.sampling.candidates import LogitsRow
from cutaway.sampling.logprobs import ReadRow, read_row
from cutaway.sampling.native import NATIVE, TWIN

if TYPE_CHECKING:
    from cutaway.base._native import Pool

_read_rows: Any = NATIVE and NATIVE.read_rows


def read_rows(
    logits: NDArray[np.float32],
    next_ids: Sequence[int | None],
    top: int,
    *,
    tier: str = "",
    pool: "Pool | None" = None,
) -> list[ReadRow | Exception]:
    """The probability and rank of a given next token in each row, and the likeliest tokens.

    logits: (rows, vocab), not changed. next_ids: one per row, None where no token is given. top:
    how many of the likeliest, at most the vocabulary. tier, pool: as for ``sample``.

    A row that is not finite gives a CutawayError in its place. Raises InputError for an id outside
    the vocabulary.
    """
    rows, vocab = logits.shape
    if rows != len(next_ids):
        raise ValueError(f"{rows} rows of logits for {len(next_ids)} next ids")
    for next_id in next_ids:
        if next_id is not None and not 0 <= next_id < vocab:
            raise InputError(f"next_ids: token id {next_id} is not between 0 and {vocab - 1}")
    if _read_rows is None or tier == TWIN:
        return [
            _by_twin(n, row, next_id, top)
            for n, (row, next_id) in enumerate(zip(logits, next_ids, strict=True))
        ]
    ids = np.array([-1 if next_id is None else next_id for next_id in next_ids], np.int32)
    read = _read_rows(
        np.ascontiguousarray(logits, np.float32), ids, max(0, min(top, vocab)), tier, pool
    )
    return [
        _finish(n, next_id, native)
        for n, (next_id, native) in enumerate(zip(next_ids, read, strict=True))
    ]


def _finish(n: int, next_id: int | None, native: Any) -> ReadRow | Exception:
    finite, log_p, rank, best = native
    if not finite:
        return _not_finite(n)
    return ReadRow(None, None, best) if next_id is None else ReadRow(log_p, rank, best)


def _by_twin(n: int, row: LogitsRow, next_id: int | None, top: int) -> ReadRow | Exception:
    if not np.isfinite(row).all():
        return _not_finite(n)
    return read_row(row, next_id, max(0, top))


def _not_finite(n: int) -> CutawayError:
    return CutawayError(f"the model's logits in row {n} are not finite")
