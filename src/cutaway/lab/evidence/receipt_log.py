"""A log of receipts in a folder: appended only, so that a receipt taken out later shows.

Knows two files: ``receipts.jsonl``, a line for each answer, and ``heads.jsonl``, where each line is
the signed root of the Merkle tree over the receipts so far. Who keeps a signed head finds out when
the log is shortened or rewritten; the folder alone proves only that it agrees with itself.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from cutaway.base.strict_json import parse
from cutaway.base.whole_files import only_owner
from cutaway.errors import CutawayError, FormatError, InputError
from cutaway.lab.evidence.merkle import Tree, root_by_proof
from cutaway.lab.evidence.receipt import Receipt
from cutaway.lab.evidence.signing import PrivateKey, PublicKey

_HEAD_PREFIX = b"cutaway receipts head 1\n"
_HEAD_FIELDS = {"size", "root", "public_key", "signature"}


class ReceiptLog:
    """A folder's receipts, and the key that signs what is added. Safe for several threads."""

    def __init__(self, folder: str | os.PathLike[str], key: PrivateKey) -> None:
        """Open or begin a log. InputError where it cannot be written or disagrees with itself."""
        self.folder, self.key = Path(folder), key
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = check_log(self.folder)
            self._receipts = _appended(self.folder / "receipts.jsonl")
            self._heads = _appended(self.folder / "heads.jsonl")
        except OSError as error:
            raise InputError(f"{folder}: the log cannot be written: {error.strerror}") from error
        except FormatError as error:
            raise InputError(f"{folder}: nothing is added to a damaged log: {error}") from error
        self._tree, self._lock = Tree(), Lock()
        self._places: dict[str, list[tuple[int, int]]] = {}  # id -> (index, offset in the file)
        for answer, receipt, offset in known:
            self._add(answer, receipt.root, offset)

    def __len__(self) -> int:
        return len(self._tree.leaves)

    def append(self, answer: str, receipt: Receipt) -> int:
        """Write a receipt under its answer's id, then a signed head; return its index.

        CutawayError where the folder cannot be written.
        """
        line = json.dumps({"id": answer, "receipt": receipt.document}, ensure_ascii=False)
        with self._lock:
            offset = self._receipts.tell()
            try:
                self._write(self._receipts, line)
                index = self._add(answer, receipt.root, offset)
                self._write(self._heads, json.dumps(self._head()))
            except OSError as error:
                raise CutawayError(f"{self.folder}: a receipt is lost: {error.strerror}") from error
            return index

    def head(self) -> dict[str, Any]:
        """The signed root of all receipts so far."""
        with self._lock:
            return self._head()

    def of(self, answer: str) -> list[dict[str, Any]]:
        """The receipts of an answer, one a text, each with its proof of inclusion."""
        with self._lock:
            head = self._head()
            return [self._proven(index, at, head) for index, at in self._places.get(answer, [])]

    def close(self) -> None:
        """Close the files."""
        self._receipts.close()
        self._heads.close()

    def _proven(self, index: int, offset: int, head: dict[str, Any]) -> dict[str, Any]:
        with (self.folder / "receipts.jsonl").open("rb") as file:
            file.seek(offset)
            receipt = parse(file.readline(), "its line", most=None)["receipt"]
        path = [each.hex() for each in self._tree.inclusion(index)]
        return {"receipt": receipt, "log": {"index": index, "path": path, "head": head}}

    def _add(self, answer: str, root: str, offset: int) -> int:
        index = self._tree.append(bytes.fromhex(root))
        self._places.setdefault(answer, []).append((index, offset))
        return index

    def _head(self) -> dict[str, Any]:
        size, root = len(self._tree.leaves), self._tree.root
        signature = self.key.sign(_head_message(size, root))
        return {
            "size": size, "root": root.hex(),
            "public_key": self.key.public.hex, "signature": signature,
        }  # fmt: skip

    @staticmethod
    def _write(file: Any, line: str) -> None:
        file.write(line.encode("utf-8", "surrogatepass") + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _appended(path: Path) -> BinaryIO:
    return open(path, "ab", opener=only_owner)


def check_log(folder: Path, kept: Iterable[Any] = ()) -> list[tuple[str, Receipt, int]]:
    """All (answer, receipt, offset) of a log, in order.

    kept: signed heads that somebody kept elsewhere, which the log must still give

    FormatError where a receipt or a head was changed, where receipts are fewer than a head says, or
    where they do not give a head's root. A receipt without a head, the last, is one whose writing
    was cut by the system's end: it is no error.
    """
    found = list(_receipts(folder / "receipts.jsonl"))
    tree, roots = Tree(), [Tree().root]
    for _, receipt, _ in found:
        tree.append(bytes.fromhex(receipt.root))
        roots.append(tree.root)
    for number, line in enumerate((*kept, *_lines(folder / "heads.jsonl")), 1):
        head = check_head(line)
        if head["size"] > len(found):
            missing = head["size"] - len(found)
            raise FormatError(f"{missing} receipts are missing: head {number} is of {head['size']}")
        if bytes.fromhex(head["root"]) != roots[head["size"]]:
            raise FormatError(f"the receipts are not those of head {number}: one was changed")
    return found


def check_head(head: Any) -> dict[str, Any]:
    """A signed head. FormatError where it is none, or the signature is not its key's."""
    if not isinstance(head, dict) or head.keys() != _HEAD_FIELDS or type(head["size"]) is not int:
        raise FormatError("a head has the fields size, root, public_key and signature")
    try:
        root = bytes.fromhex(head["root"])
    except (TypeError, ValueError):
        raise FormatError("a head's root must be hex digits") from None
    message = _head_message(head["size"], root)
    PublicKey.of_hex(head["public_key"]).check(head["signature"], message)
    return head


def check_inclusion(receipt: Receipt, log: Any) -> dict[str, Any]:
    """The head of a log that has the receipt, by the proof with which it came.

    FormatError where the proof does not lead to the head's root.
    """
    if not isinstance(log, dict) or log.keys() != {"index", "path", "head"}:
        raise FormatError("a proof of inclusion has the fields index, path and head")
    head, index, path = check_head(log["head"]), log["index"], log["path"]
    try:
        hashes: Sequence[bytes] = [bytes.fromhex(each) for each in path]
    except (TypeError, ValueError):
        raise FormatError("a proof's path must be a list of hashes in hex") from None
    size, data = head["size"], bytes.fromhex(receipt.root)
    root = root_by_proof(data, index, size, hashes) if type(index) is int else None
    if root is None or root.hex() != head["root"]:
        raise FormatError("the log does not have the receipt: its proof leads elsewhere")
    return head


def _head_message(size: int, root: bytes) -> bytes:
    return _HEAD_PREFIX + size.to_bytes(8, "big", signed=True) + root


def _receipts(path: Path) -> Iterator[tuple[str, Receipt, int]]:
    offset = 0
    for number, raw in enumerate(_raw_lines(path), 1):
        line = _parsed(path, number, raw)
        if not isinstance(line, dict) or line.keys() != {"id", "receipt"}:
            raise FormatError(f"{path.name}, line {number}: a line has an id and a receipt")
        try:
            receipt = Receipt.from_json(line["receipt"])
        except FormatError as error:
            raise FormatError(f"{path.name}, line {number}: {error}") from error
        yield str(line["id"]), receipt, offset
        offset += len(raw)


def _lines(path: Path) -> Iterator[Any]:
    for number, raw in enumerate(_raw_lines(path), 1):
        yield _parsed(path, number, raw)


def _raw_lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file


def _parsed(path: Path, number: int, raw: bytes) -> Any:
    try:
        return parse(raw, "its line", most=None)
    except ValueError as error:
        raise FormatError(f"{path.name}, line {number}: {error}") from error
