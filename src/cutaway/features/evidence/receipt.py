"""A receipt: what a run depended on and what it computed, in one signed chain of hashes.

Knows the document and its chain, and each field by its path, such as "head.params.top_p".
``signing_keys`` has the keys that sign; ``receipt_check`` checks a receipt against the model;
``receipt_log`` keeps receipts.

The chain's first link is SHA-256 of a prefix and the head; a step's link is SHA-256 of the previous
link and the step; the root is SHA-256 of the last link, the end and the text. Head, step, end and
text are JSON with sorted keys, without spaces, in UTF-8. If a field is changed or added, or a step
is moved or left out, the root changes.

A check computes the run again and compares each field, unless ``SIGNED`` lists the field; so a new
field is compared until somebody lists it there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from os import PathLike
from typing import Any, NamedTuple, Self

from cutaway.base.strict_json import parse
from cutaway.base.whole_files import read_bounded
from cutaway.engine import Step
from cutaway.errors import FormatError, InputError
from cutaway.features.evidence.signing_keys import PrivateKey, PublicKey
from cutaway.trace import End, Head, check

# -- fields: those that a check compares, and those that are the signer's word ---------------------


DERIVED: Mapping[str, str] = {
    "head.kind": "the form of a trace's head",
    "head.format": "the form of a trace's head",
    "head.weights": "SHA-256 of the weights that were opened",
    "head.tokenizer": "SHA-256 of the tokenizer that was opened",
    "head.backend": "the arithmetic that computed again, which cpu and gpu share",
    "head.vocab_size": "the model's",
    "head.end_ids": "the model's",
    "head.sizes": "the model's",
    "head.prompt": "a text whose tokens are those of the prompt",
    "head.prompt_token_ids": "what the model read before the first step",
    "head.chain": "follows from the settings",
    "head.params": "the settings under which each step was drawn again",
    "head.seed": "the luck of every draw",
    "head.grammar": "follows from the settings",
    "head.interventions": "what was changed while the model computed again",
    "steps.token_id": "the token that was drawn, or that head.params.forced gives",
    "steps.sampled_id": "what the luck draws from the row of logits",
    "steps.logits_hash": "of the row that the model computed",
    "end.kind": "the form of a trace's end",
    "end.reason": "follows from the tokens and the settings",
    "end.matched": "follows from the tokens and the settings",
    "end.usage": "counted",
    "end.fingerprint": "of the hashes of all steps",
    "end.text": "follows from the tokens and the settings",
    "text": "follows from the tokens and the settings",
}
"""Field -> what it is compared with. The same holds for the parts of a field."""

SIGNED: Mapping[str, str] = {
    "head.version": "how the head is written",
    "head.cutaway": "the release",
    "head.model": "the model's name",
    "head.tier": "the processor's instructions",
    "head.threads": "how many computed",
    "head.kv_bytes_per_token": "memory",
    "head.candidates": "what was noted of a step",
    "head.tracked_ids": "what was noted of a step",
    "head.parent": "the run that it is a branch of",
    "head.grammar.engine": "what computed the grammar's masks",
    "head.params.candidates": "what was noted of a step",
    "head.params.ledger": "what was noted of a step",
    "head.params.logprobs": "what was noted of a step",
    "head.params.prompt_logprobs": "what was noted of the prompt",
    "head.params.track": "what was noted of a step",
    "head.params.cache_prompt": "how it was computed",
    "head.params.kv_cache": "how it was computed",
    "head.params.priority": "how it was computed",
    "head.params.speculate": "how it was computed",
    "end.usage.cached_tokens": "how it was computed",
    "end.speculation": "how it was computed",
    "end.error": "what failed",
}
"""Field -> what it says. Only the signer knows these fields; none changes a token."""

SIGNED_REASONS = ("context_full", "aborted", "error")
"""Reasons for an end that no token shows: the model would have continued."""

ENDS: Mapping[str, str] = {
    "end_token": "it ends by its last token, an end token of the model",
    "stop_token": "it ends by its last token, a stop token of the request",
    "stop_string": "it ends before a stop string of the request",
    "max_tokens": "it ends at the request's limit of tokens; the model goes on",
    "constraint": "it ends where its grammar has no more to come",
    "context_full": "the model goes on after its last token; the signer says: its context was full",
    "aborted": "the model goes on after its last token; the signer says: it was stopped",
    "error": "the model goes on after its last token; the signer says: an error ended it",
}
"""Reason for an end -> what a check found out about the end, and what only the signer says."""


def entry(path: str, table: Mapping[str, str]) -> str | None:
    """Return the table's entry for a field or for a field around it; None if there is none."""
    while path not in table:
        path, dot, _ = path.rpartition(".")
        if not dot:
            return None
    return table[path]


def is_signed(path: str, reason: str) -> bool:
    """Whether only the signer's word supports a field. reason: why the receipt's run ended."""
    if path == "end.reason":
        return reason in SIGNED_REASONS
    if path == "end.error":
        return reason == "error"
    return entry(path, SIGNED) is not None


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each field of nested objects; a list is one field."""
    if not isinstance(value, Mapping) or not value:
        yield name, value
        return
    for key, inside in value.items():
        yield from flat(f"{name}.{key}", inside)


def plain(value: Any) -> Any:
    """The value after a round trip through JSON: tuples become lists."""
    return json.loads(json.dumps(value))


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are written alike: 1 is neither 1.0 nor true."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


# -- the document and its chain --------------------------------------------------------------------


FORMAT, VERSION = "cutaway-receipt", 1
_PREFIX = b"cutaway receipt 1\n"
_FIELDS = {"format", "version", "head", "steps", "end", "text", "root", "public_key", "signature"}
_MOST_BYTES = 1 << 26  # of a receipt's file: a million steps
_STEP = (check.integer, check.integer, check.hexadecimal(16))


class ReceiptStep(NamedTuple):
    """One step: the token that was appended, the token that the luck drew, the hash of the logits.

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
        """The Ed25519 key that signed, 64 hex digits."""
        return str(self.document["public_key"])

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        return [step.token_id for step in self.steps]

    @classmethod
    def sign_run(cls, head: Head, steps: Iterable[Step], end: End, key: PrivateKey) -> Self:
        """Make the signed receipt of a run that has ended.

        InputError where nobody could compute the run again: a canvas, a check, the caller's own
        functions, a scored prompt; or where ``steps`` are not all steps of the run.
        """
        check_repeatable(head, end)
        run_steps = tuple(steps)
        if end.usage["completion_tokens"] != len(run_steps):
            raise InputError("receipt", ": these are not all steps of the run; read it to its end")
        text = "".join(step.text for step in run_steps) + end.text
        lines = [ReceiptStep(s.token_id, s.sampled_id, f"{s.logits_hash:016x}") for s in run_steps]
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

        FormatError where it is no receipt, where anything in it was changed, or where the key that
        it names did not sign it. The document does not show whose key that is.
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
        PublicKey.from_hex(document["public_key"]).check(document["signature"], bytes.fromhex(root))
        try:
            steps = tuple(map(_step, document["steps"]))
            head, end = Head.from_json(document["head"]), End.from_json(document["end"])
        except ValueError as error:
            raise FormatError(f"the receipt cannot be read: {error}") from error
        return cls(head, steps, end, document["text"], document)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """Read a file by ``from_json``. InputError where the file cannot be opened."""
        return cls.from_json(read_document(path))


def read_document(path: str | PathLike[str]) -> Any:
    """Read a JSON file. InputError where it cannot be opened, FormatError where it is no JSON."""
    try:
        data = read_bounded(path, _MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: the receipt cannot be read: {error.strerror}") from error
    try:
        return parse(data, "it", max_values=None)
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
    """Raise InputError for a run that nobody could compute again from its receipt."""
    if head.decoder:
        raise InputError(
            "receipt", ": a canvas has no chain of steps; take a text from left to right"
        )
    if head.params.get("check"):
        raise InputError("receipt", ": a check took part, and what it took back is not on record")
    if head.params.get("processors"):
        raise InputError("receipt", ": processors are functions, which nobody else could run again")
    if end.reason == "scored":
        raise InputError("receipt", ": a prompt was scored, and no text was written; ask for one")
