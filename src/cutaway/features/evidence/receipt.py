"""A receipt: what a run depended on and what it computed, in one chain of hashes that is signed.

Knows the document and its chain. Keys are for ``signing``, the model for ``checked``, and a log of
many receipts for ``receipt_log``.

The chain: SHA-256 of a prefix and the head, then for each step of the link before it and the step,
then of the last link, the end and the text. Everything is written as JSON with sorted keys, without
spaces, in UTF-8. So no field can be changed, and no step moved or left out, without another root.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike
from typing import Any, NamedTuple, Self

from cutaway.base.strict_json import parse
from cutaway.base.whole_files import read_bounded
from cutaway.engine import Step
from cutaway.errors import FormatError, InputError
from cutaway.features.evidence.signing import PrivateKey, PublicKey
from cutaway.trace import End, Head, check

FORMAT, VERSION = "cutaway-receipt", 1
_PREFIX = b"cutaway receipt 1\n"
_FIELDS = {"format", "version", "head", "steps", "end", "text", "root", "public_key", "signature"}
_MOST_BYTES = 1 << 26  # of a receipt's file: a million steps
_STEP = (check.integer, check.integer, check.hexadecimal(16))


class ReceiptStep(NamedTuple):
    """One step: the token that was appended, the one that the luck drew, the hash of its logits.

    Both ids are equal except where the request forced a token.
    """

    token_id: int
    sampled_id: int
    logits_hash: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """A run that can be checked: its ``head`` and ``end`` are those of its trace.

    document  the JSON object that was signed, as it was read
    """

    head: Head
    steps: tuple[ReceiptStep, ...]
    end: End
    text: str
    document: Mapping[str, Any]

    @property
    def root(self) -> str:
        """The last link of the chain, 64 hex digits: the receipt's name."""
        return str(self.document["root"])

    @property
    def public_key(self) -> str:
        """Whose signature it carries: an Ed25519 key, 64 hex digits."""
        return str(self.document["public_key"])

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        return [step.token_id for step in self.steps]

    @classmethod
    def of(cls, head: Head, steps: Iterable[Step], end: End, key: PrivateKey) -> Self:
        """The signed receipt of a run that has ended.

        InputError where nobody could compute the run again from it: of a canvas, after a check that
        took tokens back, or where functions of the caller's own took part.
        """
        check_repeatable(head, end)
        kept = tuple(steps)
        if end.usage["completion_tokens"] != len(kept):
            raise InputError("receipt: these are not all steps of the run; read it to its end")
        text = "".join(step.text for step in kept) + end.text
        lines = [ReceiptStep(s.token_id, s.sampled_id, f"{s.logits_hash:016x}") for s in kept]
        body = {"head": head.to_json(), "steps": lines, "end": end.to_json(), "text": text}
        body = json.loads(_canonical(body))  # as every reader will find it
        root = chain_root(body)
        signed = {
            "format": FORMAT, "version": VERSION, **body, "root": root,
            "public_key": key.public.hex, "signature": key.sign(bytes.fromhex(root)),
        }  # fmt: skip
        return cls.from_json(signed)

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Check the chain and the signature of a document, and read it.

        FormatError where it is no receipt, where anything in it was changed, or where the signature
        is not that of the key it names. Whose key that is, nobody can read from the document.
        """
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise FormatError(f"this is no receipt: its format is not {FORMAT!r}")
        if document.get("version") != VERSION or type(document["version"]) is not int:
            raise FormatError(f"the receipt's version must be {VERSION}")
        if document.keys() != _FIELDS:
            raise FormatError(f"a receipt has the fields {', '.join(sorted(_FIELDS))}, no others")
        for name, kind in (("head", dict), ("steps", list), ("end", dict), ("text", str)):
            if not isinstance(document[name], kind):
                form = {dict: "an object", list: "a list", str: "a text"}[kind]
                raise FormatError(f"the receipt's {name} must be {form}")
        root = chain_root(document)
        if document["root"] != root:
            raise FormatError(
                "the receipt was changed after it was signed: its contents do not give its root"
            )
        PublicKey.of_hex(document["public_key"]).check(document["signature"], bytes.fromhex(root))
        try:
            steps = tuple(map(_step, document["steps"]))
            head, end = Head.from_json(document["head"]), End.from_json(document["end"])
        except ValueError as error:
            raise FormatError(f"the receipt cannot be read: {error}") from error
        return cls(head, steps, end, document["text"], document)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """``from_json`` of a file. InputError where it cannot be opened."""
        return cls.from_json(read_document(path))


def read_document(path: str | PathLike[str]) -> Any:
    """The JSON of a file. InputError where it cannot be opened, FormatError where it is no JSON."""
    try:
        data = read_bounded(path, _MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: the receipt cannot be read: {error.strerror}") from error
    try:
        return parse(data, "it", most=None)
    except ValueError as error:
        raise FormatError(f"{path}: this is no receipt: {error}") from error


def chain_root(body: Mapping[str, Any]) -> str:
    """The last link of the chain over ``head``, ``steps``, ``end`` and ``text``, in hex."""
    link = sha256(_PREFIX + _canonical(body["head"])).digest()
    for step in body["steps"]:
        link = sha256(link + _canonical(step)).digest()
    return sha256(link + _canonical({"end": body["end"], "text": body["text"]})).hexdigest()


def _canonical(value: Any) -> bytes:
    try:
        text = json.dumps(
            value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
        )
    except (ValueError, TypeError) as error:
        raise FormatError(f"a receipt holds plain JSON: {error}") from None
    return text.encode("utf-8", "surrogatepass")


def _step(value: Any) -> ReceiptStep:
    if not isinstance(value, list) or len(value) != len(_STEP):
        raise ValueError("a step must be [token id, drawn id, hash of its logits]")
    try:
        return ReceiptStep(*(check(part) for check, part in zip(_STEP, value, strict=True)))
    except ValueError as error:
        raise ValueError(f"a number or a hash of a step {error}") from None


def check_repeatable(head: Head, end: End) -> None:
    """InputError for a run that nobody could compute again from its receipt."""
    if head.decoder:
        raise InputError("receipt: a canvas has no chain of steps; take a text from left to right")
    if head.params.get("check"):
        raise InputError("receipt: a check took part, and what it took back is not on record")
    if head.params.get("processors"):
        raise InputError("receipt: processors are functions, which nobody else could run again")
    if end.reason == "scored":
        raise InputError("receipt: a prompt was scored, and no text was written; ask for one")
