"""An append-only log of receipts in a folder: it shows when a receipt was removed later.

Knows two files: ``receipts.jsonl``, a line for each receipt, and ``heads.jsonl``, where each line
is the signed root of the Merkle tree over the entries so far. A signed head kept elsewhere shows
whether the log was shortened or rewritten; the folder alone proves only that it agrees with itself.

A receipt that could not be written, as on a full disk, is lost. The next line is then a gap: the
signed number of lost receipts.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from hashlib import sha256
from io import FileIO
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from cutaway.base import system
from cutaway.base.strict_json import parse
from cutaway.base.whole_files import only_owner
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.features.evidence.merkle_tree import Tree, root_by_proof
from cutaway.features.evidence.receipt import Receipt
from cutaway.features.evidence.signing_keys import PrivateKey, PublicKey
from cutaway.trace import check

_HEAD_PREFIX = b"cutaway receipts head 1\n"
_GAP_PREFIX = b"cutaway receipts gap 1\n"
_HEAD_FIELDS = {"size", "root", "public_key", "signature"}
_GAP_FIELDS = {"lost", "index", "public_key", "signature"}
_MOST_LINE = 1 << 28  # bytes
_BLOCK = 1 << 16  # bytes that are read at once
_MOST_SIZE = (1 << 63) - 1  # entries: a head's message has eight bytes for them


class LogEntry(NamedTuple):
    """A line of the log: a receipt, or a gap.

    answer      the id of the receipt's answer; "" for a gap
    leaf        the bytes that are the entry in the Merkle tree
    lost_count  how many receipts are missing at a gap; 0 for a receipt
    offset      the offset of the line in the file, in bytes
    """

    answer: str
    leaf: bytes
    lost_count: int
    offset: int


class ReceiptLog:
    """A folder's receipts, and the key that signs what is added. Safe for several threads."""

    def __init__(self, folder: str | os.PathLike[str], key: PrivateKey) -> None:
        """Open or create a log. InputError where it cannot be written, is in use or is damaged.

        An incomplete last line counts as a lost receipt.
        """
        self.folder, self.key = Path(folder), key
        self._tree, self._lock = Tree(), Lock()
        self._places: dict[str, list[tuple[int, int]]] = {}  # id -> (index, offset in the file)
        with ExitStack() as stack:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._receipts, self._heads = (
                    stack.enter_context(closing(_Lines(self.folder / name)))
                    for name in ("receipts.jsonl", "heads.jsonl")
                )
                for entry in check_log(self.folder):
                    self._add(entry.answer, entry.leaf, entry.offset)
                self._lost_count = int(self._receipts.cut_back())  # no gap yet
                self._heads.cut_back()
            except BlockingIOError:
                raise InputError(f"{folder}: another server adds to this log; stop it") from None
            except OSError as error:
                raise InputError(
                    f"{folder}: the log cannot be written: {error.strerror}"
                ) from error
            except FormatError as error:
                raise InputError(f"{folder}: nothing is added to a damaged log: {error}") from error
            stack.pop_all()

    def __len__(self) -> int:
        return len(self._tree.leaves)

    def append(self, answer: str, receipt: Receipt) -> int:
        """Write a receipt under its answer's id, then a signed head; return its index.

        CutawayError where the folder cannot be written: the receipt is lost, or has no head of its
        own. Even then the files end with a whole line, and the next receipt can be written.
        """
        line = {"id": answer, "receipt": receipt.document}
        with self._lock:
            try:
                self._write((answer, bytes.fromhex(receipt.root), line))
            except OSError as error:
                self._lost_count += 1
                raise CutawayError(f"{self.folder}: a receipt is lost: {error.strerror}") from error
            self._sign_head()
            return len(self) - 1

    def head(self) -> dict[str, Any]:
        """The signed root of all entries so far."""
        with self._lock:
            return self._head()

    def find(self, answer: str) -> list[dict[str, Any]]:
        """Return the receipts of an answer, one for each text, each with its proof of inclusion."""
        with self._lock:
            head = self._head()
            return [self._prove(index, at, head) for index, at in self._places.get(answer, [])]

    def close(self) -> None:
        """Write a gap for losses; close the files. CutawayError where the gap cannot be written."""
        try:
            with self._lock:
                if self._lost_count:
                    self._write()
                    self._sign_head()
        except OSError as error:
            raise CutawayError(
                f"{self.folder}: {self._lost_count} receipts are lost, and the log could not say "
                f"so: {error.strerror}"
            ) from error
        finally:
            self._receipts.close()
            self._heads.close()

    def _prove(self, index: int, offset: int, head: dict[str, Any]) -> dict[str, Any]:
        with (self.folder / "receipts.jsonl").open("rb") as file:
            file.seek(offset)
            receipt = parse(file.readline(), "its line", max_values=None)["receipt"]
        path = [node.hex() for node in self._tree.inclusion(index)]
        return {"receipt": receipt, "log": {"index": index, "path": path, "head": head}}

    def _write(self, *lines: tuple[str, bytes, Any]) -> None:
        """Write these (answer, leaf, line), after a gap for losses. OSError: no line is written."""
        if self._lost_count:
            lines = (self._gap(), *lines)
        offsets = self._receipts.append(*(line for _, _, line in lines))
        for (answer, leaf, _), offset in zip(lines, offsets, strict=True):
            self._add(answer, leaf, offset)
        self._lost_count = 0

    def _gap(self) -> tuple[str, bytes, Any]:
        index = len(self)
        message = _gap_message(index, self._lost_count)
        gap = {
            "lost": self._lost_count, "index": index,
            "public_key": self.key.public.hex, "signature": self.key.sign(message),
        }  # fmt: skip
        return "", sha256(message).digest(), {"gap": gap}

    def _sign_head(self) -> None:
        """Write a signed head. CutawayError where that fails; the next head covers all entries."""
        try:
            self._heads.append(self._head())
        except OSError as error:
            raise CutawayError(
                f"{self.folder}: a receipt has no head of its own: {error.strerror}"
            ) from error

    def _add(self, answer: str, leaf: bytes, offset: int) -> None:
        index = self._tree.append(leaf)
        if answer:
            self._places.setdefault(answer, []).append((index, offset))

    def _head(self) -> dict[str, Any]:
        size, root = len(self._tree.leaves), self._tree.root
        signature = self.key.sign(_head_message(size, root))
        return {
            "size": size, "root": root.hex(),
            "public_key": self.key.public.hex, "signature": signature,
        }  # fmt: skip


class _Lines:
    """A file of JSON lines that no other process appends to. It always ends with a whole line."""

    def __init__(self, path: Path) -> None:
        """Raise BlockingIOError where another process appends to the file."""
        self._file = FileIO(path, "a+", opener=only_owner)
        try:
            system.lock(self._file.fileno())
        except BlockingIOError:
            self._file.close()
            raise
        except OSError:  # a network file system without locks
            pass
        self._end = _whole_size(self._file)

    def cut_back(self) -> bool:
        """Remove an incomplete last line; return whether there was one."""
        is_torn = self._file.seek(0, os.SEEK_END) > self._end
        if is_torn:
            self._file.truncate(self._end)
        return is_torn

    def append(self, *values: Any) -> list[int]:
        """Write lines to the disk, and return their offsets. On OSError no line is added."""
        lines = [
            json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
            for value in values
        ]
        offsets = [*accumulate(map(len, lines), initial=self._end)]
        left = memoryview(b"".join(lines))
        self.cut_back()
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError:
            self.cut_back()
            raise
        self._end = offsets.pop()
        return offsets

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _whole_size(file: FileIO) -> int:
    """Count a file's bytes up to its last line feed."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        if (at := file.read(end - start).rfind(b"\n")) >= 0:
            return start + at + 1
        end = start
    return 0


def check_log(folder: Path, kept_heads: Iterable[Any] = ()) -> list[LogEntry]:
    """Read and check all entries of a log, in order.

    kept_heads: signed heads kept elsewhere; the log's entries must still give their roots

    FormatError where a receipt, a gap or a head was changed, where entries are fewer than a head
    says, or where they do not give a head's root. A crash or a full disk may leave an entry without
    a head, or an incomplete last line: neither is an error.
    """
    entries = list(_entries(folder / "receipts.jsonl"))
    tree, roots = Tree(), [Tree().root]
    for entry in entries:
        tree.append(entry.leaf)
        roots.append(tree.root)
    heads = (line for line, _ in _lines(folder / "heads.jsonl"))
    for number, line in enumerate((*kept_heads, *heads), 1):
        head = check_head(line)
        if head["size"] > len(entries):
            missing = head["size"] - len(entries)
            raise FormatError(f"{missing} receipts are missing: head {number} is of {head['size']}")
        if bytes.fromhex(head["root"]) != roots[head["size"]]:
            raise FormatError(f"the receipts are not those of head {number}: one was changed")
    return entries


def check_head(head: Any) -> dict[str, Any]:
    """Return a signed head. FormatError where its form or its signature is wrong."""
    if not isinstance(head, dict) or head.keys() != _HEAD_FIELDS:
        raise FormatError("a head has the fields size, root, public_key and signature")
    _check_count("a head's size", head["size"])
    root = _hash("a head's root", head["root"])
    message = _head_message(head["size"], root)
    PublicKey.from_hex(head["public_key"]).check(head["signature"], message)
    return head


def check_inclusion(receipt: Receipt, log: Any) -> dict[str, Any]:
    """Check a receipt's proof of inclusion, and return the head of its log.

    FormatError where the proof has another form or does not lead to the head's root.
    """
    if not isinstance(log, dict) or log.keys() != {"index", "path", "head"}:
        raise FormatError("a proof of inclusion has the fields index, path and head")
    head, path = check_head(log["head"]), log["path"]
    _check_count("a proof's index", log["index"])
    if not isinstance(path, list):
        raise FormatError("a proof's path must be a list of hashes in hex")
    hashes: Sequence[bytes] = [_hash("each of a proof's path", text) for text in path]
    root = root_by_proof(bytes.fromhex(receipt.root), log["index"], head["size"], hashes)
    if root is None or root.hex() != head["root"]:
        raise FormatError("the log does not have the receipt: its proof leads elsewhere")
    return head


def _head_message(size: int, root: bytes) -> bytes:
    return _HEAD_PREFIX + size.to_bytes(8, "big", signed=True) + root


def _gap_message(index: int, lost_count: int) -> bytes:
    return _GAP_PREFIX + index.to_bytes(8, "big") + lost_count.to_bytes(8, "big")


def _check_count(label: str, value: Any) -> None:
    if type(value) is not int or not 0 <= value <= _MOST_SIZE:
        raise FormatError(f"{label} must be a whole number, 0 to 2**63 - 1")


def _hash(label: str, value: Any) -> bytes:
    try:
        return bytes.fromhex(check.hexadecimal(64)(value))
    except ValueError as error:
        raise FormatError(f"{label} {error}") from None


def _entries(path: Path) -> Iterator[LogEntry]:
    offset = 0
    for index, (line, size) in enumerate(_lines(path)):
        try:
            yield _entry(line, index, offset)
        except FormatError as error:
            raise FormatError(f"{path.name}, line {index + 1}: {error}") from error
        offset += size


def _entry(line: Any, index: int, offset: int) -> LogEntry:
    match line:
        case {"id": str(answer), "receipt": document, **more} if not more:
            return LogEntry(answer, bytes.fromhex(Receipt.from_json(document).root), 0, offset)
        case {"gap": dict(gap), **more} if not more and gap.keys() == _GAP_FIELDS:
            _check_count("a gap's number of receipts", gap["lost"])
            _check_count("a gap's index", gap["index"])
            if gap["index"] != index or not gap["lost"]:
                raise FormatError("a gap has the number of its line, and how many are lost there")
            message = _gap_message(index, gap["lost"])
            PublicKey.from_hex(gap["public_key"]).check(gap["signature"], message)
            return LogEntry("", sha256(message).digest(), gap["lost"], offset)
    raise FormatError("a line has an id and a receipt, or a gap")


def _lines(path: Path) -> Iterator[tuple[Any, int]]:
    """Yield each complete line, parsed, and its length in bytes; nothing if there is no file.

    FormatError for a line that is too long or no JSON.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(_MOST_LINE + 1), b""), 1):
            if len(raw) > _MOST_LINE:
                raise FormatError(f"{path.name}, line {number}: it is too long for a receipt")
            if not raw.endswith(b"\n"):
                continue
            try:
                yield parse(raw, "its line", max_values=None), len(raw)
            except ValueError as error:
                raise FormatError(f"{path.name}, line {number}: {error}") from error
