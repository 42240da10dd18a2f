"""A text read by BASE and by changed models: every position's logits, compared as they come.

BASE's logits are kept in a nameless file on the disk, so that each changed model reads the text
once and BASE itself once at all.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile, gettempdir

import numpy as np
from numpy.typing import NDArray

from cutaway.base.progress import megabytes
from cutaway.compute.backends import KV_BLOCK, Backend, Batch, Logits
from cutaway.engine.scheduled import lay_rows
from cutaway.errors import CutawayError
from cutaway.features.measure.doctor.damage import Floats, Positions

Ids = tuple[int, ...]
Row = NDArray[np.float32]
Tell = Callable[[int], object]
"""Called with how many positions are done."""

_ROWS = 64  # of a step: what is between two looks at Ctrl-C


def windows(ids: Sequence[int], size: int, begin: int | None) -> list[Ids]:
    """A text in windows of at most ``size`` tokens, each after the begin token if there is one.

    A window of one token, which predicts none, is left out.
    """
    first = () if begin is None else (begin,)
    rest = ids[1:] if first and tuple(ids[:1]) == first else ids
    step = size - len(first)
    cut = [(*first, *rest[at : at + step]) for at in range(0, len(rest), step)]
    return [window for window in cut if len(window) > 1]


class BaseReading:
    """What BASE says at every position of the windows that has a next token."""

    def __init__(
        self, backend: Backend, texts: Sequence[Ids], vocab: int, top: int, tell: Tell = int
    ) -> None:
        """top: how many of the likeliest tokens are compared. CutawayError for a full disk."""
        self.texts, self.top, self._vocab = texts, min(top, vocab), vocab
        self.count = sum(len(ids) - 1 for ids in texts)
        self._log_z = np.empty(self.count)
        self._best = np.empty((self.count, self.top), np.int64)  # the likeliest first
        self._next = np.concatenate([np.array(ids[1:]) for ids in texts])
        with ExitStack() as opened:
            self._file = opened.enter_context(TemporaryFile(buffering=0))
            for at, rows in steps(backend, texts):
                self._write(rows)
                for i, row in zip(range(at.start, at.stop), rows, strict=True):
                    self._log_z[i] = _log_z(row)
                    self._best[i] = _likeliest(row, self.top)
                tell(at.stop)
            self.close = opened.pop_all().close

    def beside(self, backend: Backend, tell: Tell = int) -> Positions:
        """What a changed model says at the same positions."""
        kl, loss, overlap = (np.empty(self.count) for _ in range(3))
        flipped = np.empty(self.count, np.bool_)
        for at, rows in steps(backend, self.texts):
            for i, base, row in zip(range(at.start, at.stop), self._read(at), rows, strict=True):
                kl[i], loss[i], overlap[i], flipped[i] = self._compare(i, base, row)
            tell(at.stop)
        return Positions(kl, flipped, loss, overlap)

    def _write(self, rows: Logits) -> None:
        try:
            self._file.write(np.ascontiguousarray(rows).data)
        except OSError as error:
            needed = megabytes(4 * self.count * self._vocab)
            raise CutawayError(
                f"BASE's logits take {needed} in {gettempdir()}: {error.strerror}; read fewer "
                "tokens, or set TMPDIR to a folder with more room"
            ) from error

    def _read(self, at: slice) -> Logits:
        size = 4 * self._vocab
        self._file.seek(at.start * size)
        found = np.fromfile(self._file, np.float32, (at.stop - at.start) * self._vocab)
        return found.reshape(-1, self._vocab)

    def _compare(self, i: int, base: Row, row: Row) -> tuple[float, float, float, bool]:
        p = base.astype(np.float64) - self._log_z[i]
        lost: Floats = p - (row.astype(np.float64) - _log_z(row))
        kl = float(np.exp(p) @ lost)
        best, mine = self._best[i], _likeliest(row, self.top)
        overlap = len({*best.tolist()} & {*mine.tolist()}) / self.top
        return max(kl, 0.0), float(lost[self._next[i]]), overlap, bool(best[0] != mine[0])


def steps(backend: Backend, texts: Sequence[Ids]) -> Iterator[tuple[slice, Logits]]:
    """(which positions, their logits), a step of the model at a time; valid until the next."""
    done = 0
    for ids in texts:
        blocks = [*range(-(-len(ids) // KV_BLOCK))]
        for start in range(0, len(ids) - 1, _ROWS):
            part = ids[start : min(start + _ROWS, len(ids) - 1)]
            every = np.arange(len(part), dtype=np.int32)
            rows = backend.run(Batch(*lay_rows([(start, part, blocks)]), every))
            if not np.isfinite(rows).all():
                raise CutawayError("the model's logits are not finite on this text")
            yield slice(done, done + len(part)), rows
            done += len(part)


def _log_z(row: Row) -> float:
    most = float(row.max())
    return most + float(np.log(np.exp(row.astype(np.float64) - most).sum()))


def _likeliest(row: Row, top: int) -> NDArray[np.int64]:
    """The first of equals is the likelier, as when sampling."""
    some = np.argpartition(-row, top - 1)[:top]
    least = row[some].min()
    every = np.flatnonzero(row >= least)
    return every[np.argsort(-row[every], kind="stable")][:top]
