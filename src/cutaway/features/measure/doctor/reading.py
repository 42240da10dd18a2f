"""BASE and changed models read a text, and their logits are compared position by position.

A nameless file on disk keeps BASE's logits, so that BASE reads the text only once, and so does each
changed model. Measurements are recorded as they are made, so that an interrupted examination
can continue.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway.base.progress import megabytes
from cutaway.compute.backends import KV_BLOCK, Backend, Batch, Logits
from cutaway.engine.scheduled import lay_rows
from cutaway.errors import CutawayError
from cutaway.features.measure.doctor.findings import Floats, Positions
from cutaway.files.hub import cache_dir

Ids = tuple[int, ...]
Row = NDArray[np.float32]
Tell = Callable[[int], object]
"""Called with the number of positions done so far."""

_ROWS = 64  # per step: Ctrl-C is checked between two steps


def windows(ids: Sequence[int], size: int, begin: int | None) -> list[Ids]:
    """Cut a text into windows of at most ``size`` tokens.

    Each window starts with ``begin``, unless ``begin`` is None. A window of one token is left out:
    it has no next token.
    """
    first = () if begin is None else (begin,)
    rest = ids[1:] if first and tuple(ids[:1]) == first else ids
    step = size - len(first)
    cut = [(*first, *rest[at : at + step]) for at in range(0, len(rest), step)]
    return [window for window in cut if len(window) > 1]


class BaseReading:
    """BASE's logits at every position that has a next token in its window."""

    def __init__(
        self, backend: Backend, texts: Sequence[Ids], vocab: int, top: int, tell: Tell = int
    ) -> None:
        """Let BASE read the texts; a full disk raises CutawayError. top: tokens to compare."""
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

    def compare(self, backend: Backend, tell: Tell = int) -> Positions:
        """Let a changed model read the texts, and compare it with BASE at each position."""
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
            size = megabytes(4 * self.count * self._vocab)
            raise CutawayError(
                f"BASE's logits take {size} in {gettempdir()}: {error.strerror}; read fewer "
                "tokens, or set TMPDIR to a folder with more room"
            ) from error

    def _read(self, at: slice) -> Logits:
        size = 4 * self._vocab
        self._file.seek(at.start * size)
        numbers = np.fromfile(self._file, np.float32, (at.stop - at.start) * self._vocab)
        return numbers.reshape(-1, self._vocab)

    def _compare(self, i: int, base: Row, row: Row) -> tuple[float, float, float, bool]:
        p = base.astype(np.float64) - self._log_z[i]
        log_ratios: Floats = p - (row.astype(np.float64) - _log_z(row))
        kl = float(np.exp(p) @ log_ratios)
        best, likeliest = self._best[i], _likeliest(row, self.top)
        overlap = len({*best.tolist()} & {*likeliest.tolist()}) / self.top
        return (
            max(kl, 0.0),
            float(log_ratios[self._next[i]]),
            overlap,
            bool(best[0] != likeliest[0]),
        )


def steps(backend: Backend, texts: Sequence[Ids]) -> Iterator[tuple[slice, Logits]]:
    """Yield (positions, their logits (n, vocab)) step by step, valid until the next step.

    CutawayError where a logit is not finite.
    """
    done = 0
    for ids in texts:
        blocks = [*range(-(-len(ids) // KV_BLOCK))]
        for start in range(0, len(ids) - 1, _ROWS):
            part = ids[start : min(start + _ROWS, len(ids) - 1)]
            row_ids = np.arange(len(part), dtype=np.int32)
            rows = backend.run(Batch(*lay_rows([(start, part, blocks)]), row_ids))
            if not np.isfinite(rows).all():
                raise CutawayError("the model's logits are not finite on this text")
            yield slice(done, done + len(part)), rows
            done += len(part)


def _log_z(row: Row) -> float:
    peak = float(row.max())
    return peak + float(np.log(np.exp(row.astype(np.float64) - peak).sum()))


def _likeliest(row: Row, top: int) -> NDArray[np.int64]:
    """Find the ``top`` likeliest tokens, best first; of equals, the lower id comes first."""
    top_ids = np.argpartition(-row, top - 1)[:top]
    least = row[top_ids].min()
    candidates = np.flatnonzero(row >= least)
    return candidates[np.argsort(-row[candidates], kind="stable")][:top]


# -- the record: a file in the user's cache for each question --------------------------------------


class Record:
    """Answers by key, in a file of one JSON line per answer. An unwritable cache is no error."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        """Read earlier answers. question: all that the answers depend on, ready for JSON."""
        text = json.dumps(question, sort_keys=True)
        self._lines: dict[str, Any] = {}
        self._path: Path | None = None
        with suppress(OSError, CutawayError):
            path = cache_dir() / "doctor" / f"{sha256(text.encode()).hexdigest()[:32]}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._path = path
            self._read(path.read_bytes())

    def __contains__(self, key: str) -> bool:
        return key in self._lines

    def get(self, key: str) -> Any:
        """Return the recorded answer; None where there is none."""
        return self._lines.get(key)

    def put(self, key: str, answer: Any) -> None:
        """Record an answer, in memory and in the file."""
        self._lines[key] = answer
        if self._path is None:
            return
        with suppress(OSError), self._path.open("ab") as file:
            file.write(f"{json.dumps([key, answer])}\n".encode())

    def _read(self, text: bytes) -> None:
        for line in text.splitlines():
            with suppress(ValueError, TypeError):
                key, answer = json.loads(line)
                self._lines[str(key)] = answer
