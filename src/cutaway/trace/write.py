"""Writing a trace while its run goes on: after every step the file can be read.

Knows files, and how a ``TokenStep`` of the engine becomes a record. Refuses to know how the
engine works.
"""

import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Self
from weakref import finalize

from cutaway.errors import CutawayError, InputError
from cutaway.trace.record import End, Head, Json, StageRecord, Step, Token

if TYPE_CHECKING:
    from cutaway.engine import TokenStep

_MS = 1e3
_PHASE_DIGITS = 4  # of a millisecond


class TraceWriter:
    """A trace that grows by a step at a time. Gzipped where the name ends in .gz.

    path     a file that does not exist or is empty, or something to write to: a pipe, a device
    tell     what a token id stands for; asked once for each that occurs

    Raises InputError where such a file cannot be begun, and CutawayError where writing fails.
    """

    def __init__(self, path: str | PathLike[str], head: Head, tell: Callable[[int], Token]) -> None:
        self.path, self._tell = check_path(path), tell
        self._told: set[int] = set()
        self._file = _begin(self.path)
        self._close = finalize(self, os.close, self._file)
        self._zip = zlib.compressobj(wbits=31) if self.path.suffix == ".gz" else None
        self._is_whole = True
        ids = (*head.prompt_token_ids, *head.watch, *head.end_ids)
        self._write(_line(head.to_json()), *self._new_tokens(ids))

    def step(self, step: "TokenStep") -> None:
        """Append a step, which the engine was asked to observe."""
        record = record_of(step)
        ids = {record.own, *(c.id for c in record.candidates)}
        ids.update(*(stage.victims for stage in record.stages))
        self._write(*self._new_tokens(ids), _line(record.to_json()))

    def end(self, end: End) -> None:
        """Append why it ended, and close the file."""
        self._write(_line(end.to_json()))
        self.close()

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""
        return not self._close.alive

    def close(self) -> None:
        """Leave the file as it is: without an end, the run was cut short."""
        if self.closed:
            return
        try:
            if self._zip and self._is_whole:
                self._put(self._zip.flush())
        finally:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_tokens(self, ids: Iterable[int]) -> list[bytes]:
        new = sorted({*ids} - self._told)
        self._told.update(new)
        return [token_line(self._tell(token_id)) for token_id in new]

    def _write(self, *lines: bytes) -> None:
        """Whole lines, at once, so that whoever reads meanwhile sees none that is cut."""
        data = b"".join(lines)
        if not self._is_whole:  # nothing can follow a line that was cut
            return
        self._is_whole = False  # until all is written: Ctrl-C may come between
        if self._zip:
            data = self._zip.compress(data) + self._zip.flush(zlib.Z_SYNC_FLUSH)
        self._put(data)
        self._is_whole = True

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            raise CutawayError(f"trace: {self.path} cannot be written: {error.strerror}") from error


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False
).encode


# -- the file ------------------------------------------------------------------------------------


def check_path(path: str | PathLike[str]) -> Path:
    """The path of a trace that is to be written; InputError where that cannot be."""
    if (
        not isinstance(path, (str, PathLike))
        or not isinstance(fspath(path), str)
        or not fspath(path)
    ):
        raise InputError(f"trace must be the name of a file, not {path!r}")
    file = Path(path)
    try:
        found = file.stat()
    except FileNotFoundError:
        if not os.access(file.parent, os.W_OK | os.X_OK):
            raise InputError(f"trace: no file can be made in {file.parent}") from None
        return file
    except (OSError, ValueError) as error:
        raise InputError(f"trace: {file} cannot be written: {error}") from error
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"trace: {file} is a folder; name a file in it")
    if not os.access(file, os.W_OK):
        raise InputError(f"trace: {file} may not be written to")
    _refuse_to_overwrite(file, found)
    return file


def numbered(path: str | PathLike[str], number: int) -> Path:
    """Where the trace of the n-th of several texts goes: run.jsonl, run.2.jsonl, run.3.jsonl …"""
    file, ending = Path(path), ".gz" if Path(path).suffix == ".gz" else ""
    plain = Path(file.name.removesuffix(ending))
    return file if number == 1 else file.with_name(f"{plain.stem}.{number}{plain.suffix}{ending}")


def _begin(path: Path) -> int:
    """Open what ``check_path`` found, and look again: another may have been faster."""
    how = os.O_WRONLY | os.O_CLOEXEC
    try:
        try:
            return os.open(path, how | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            descriptor = os.open(path, how)
    except OSError as error:
        raise InputError(f"trace: {path} cannot be written: {error.strerror}") from error
    try:
        _refuse_to_overwrite(path, os.fstat(descriptor))
    except InputError:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_to_overwrite(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode) and found.st_size:
        raise InputError(f"trace: {path} exists already; name another file, or remove it")


def _line(record: Json) -> bytes:
    try:
        text = _encode(record)
    except ValueError:
        raise CutawayError("trace: a figure is not finite, for which JSON has no form") from None
    return text.encode("utf-8", "replace") + b"\n"  # a model's name may be no Unicode


def token_line(token: Token) -> bytes:
    """``_line(token.to_json())``, faster where it is plain: a step has many that are new."""
    try:
        text = encode_basestring(token.bytes.decode())
    except UnicodeDecodeError:
        return _line(token.to_json())
    if token.name:
        return _line(token.to_json())
    return f'{{"kind":"tok","id":{token.id},"text":{text}}}\n'.encode()


# -- records -------------------------------------------------------------------------------------


def record_of(step: "TokenStep") -> Step:
    """What a trace keeps of a step. ValueError where it was not observed."""
    seen = step.observed
    if seen is None:
        raise ValueError("a trace needs steps that were observed: ask for candidates")
    phases = step.phases
    return Step(
        index=step.index,
        position=step.position,
        token_id=step.token_id,
        own=step.own,
        source=step.source,
        text=step.text,
        candidates=seen.candidates,
        maximum=seen.maximum,
        log_sum_exp=seen.log_sum_exp,
        entropy=seen.entropy,
        rank=seen.rank,
        logprob=seen.logprob,
        final_rank=seen.final_rank,
        final_logprob=seen.final_logprob,
        final_log_sum_exp=seen.final_log_sum_exp,
        stages=tuple(
            StageRecord(s.survivors, s.removed_mass, s.log_sum_exp, s.cut, s.victims)
            for s in seen.stages
        ),
        sketch=seen.sketch,
        kv_tokens=step.position,  # the row's own and all before it
        ms={
            name: round(getattr(phases, name) * _MS, _PHASE_DIGITS)
            for name in ("schedule", "run", "sample")
        },
        row=f"{step.row:016x}",
        fingerprint=f"{step.fingerprint:016x}",
    )
