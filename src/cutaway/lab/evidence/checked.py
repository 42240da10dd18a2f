"""Whether a model computes what a receipt says: every step again, or some that are drawn by lot.

Knows how to read the tokens on record at the rate of a prompt; equal bits make that the same
arithmetic as writing them one by one. The document is ``receipt``'s.
"""

from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from cutaway.api.llm import LLM
from cutaway.engine import Step
from cutaway.errors import InputError
from cutaway.lab.evidence.receipt import Receipt
from cutaway.lab.inside.redraw import Redraw
from cutaway.lab.rerun.request import (
    Progress,
    bound,
    disagreements,
    refuse_others,
    settings_of,
    silent,
)
from cutaway.sampling.luck import derive_seed
from cutaway.sampling.row_hash import row_hash
from cutaway.trace import End

_FOLLOWS = ("end_token", "stop_string", "stop_token", "max_tokens", "constraint")
"""Ends that follow from the tokens and the settings."""


@dataclass(frozen=True, slots=True)
class ReceiptMismatch:
    """The first thing that differs: ``what`` of a step, or of the end where ``step`` is None."""

    step: int | None
    what: str
    recorded: Any
    now: Any


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """The result of a check against the model.

    steps     how many were computed again
    of        how many the receipt has
    mismatch  None where all are the same to the last bit
    """

    steps: int
    of: int
    mismatch: ReceiptMismatch | None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.mismatch is None

    def miss(self, wrong: int = 1) -> float:
        """The probability that so many wrong steps, wherever they are, would have been missed."""
        right = max(0, self.of - wrong)
        return comb(right, self.steps) / comb(self.of, self.steps) if self.of else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"same": self.same, **asdict(self), "miss_of_one": self.miss()}


def check_all(llm: LLM, receipt: Receipt, *, progress: Progress = silent) -> ReceiptCheck:
    """Compute every step again: its logits' hash, what the luck draws, then the text and its end.

    InputError where the weights, the tokenizer, the backend, the chain or the grammar are not those
    on record, or the context is too small.
    """
    ids = receipt.token_ids
    if not ids:
        _check_settings(llm, receipt)
        found = ReceiptMismatch(None, "text", receipt.text, "") if receipt.text else None
        return ReceiptCheck(0, 0, found)
    options = settings_of(receipt.head) | {"forced": ids, "max_tokens": len(ids)}
    options |= _as_long(receipt)
    with llm.stream(list(receipt.head.prompt_token_ids), **options) as stream:
        refuse_others(disagreements(receipt.head, llm, stream), receipt.head.model)
        for n, recorded in enumerate(receipt.steps):
            progress("computing again", n + 1, len(ids))
            now = next(stream, None)
            if found := _differs(n, recorded, now):
                return ReceiptCheck(n + 1, len(ids), found)
        left = next(stream, None)
        text, ended = stream.text, stream.ended
    if left is not None:
        found = ReceiptMismatch(None, "the end", len(ids), "the text goes on")
        return ReceiptCheck(len(ids), len(ids), found)
    return ReceiptCheck(len(ids), len(ids), _end_differs(receipt.end, receipt.text, text, ended))


def check_some(
    llm: LLM, receipt: Receipt, count: int, seed: int, *, progress: Progress = silent
) -> ReceiptCheck:
    """Compute ``count`` steps again, which ``seed`` draws: the hash of their logits, and the draw.

    The text between them is read, but its logits are not computed. The seed must not be one that
    the receipt's author could foresee. InputError as for ``check_all``, or where the run is one
    whose draws follow from more than its tokens.
    """
    ids, head = receipt.token_ids, receipt.head
    if not 1 <= count <= len(ids):
        raise InputError(f"--steps must be 1 to {len(ids)}, the steps of the receipt, not {count}")
    _check_settings(llm, receipt)
    prompt, interventions = list(head.prompt_token_ids), bound(llm, head)
    for done, n in enumerate(drawn_steps(len(ids), count, seed), 1):
        progress("computing again", done, count)
        read = prompt + ids[:n]
        [row] = llm.logits(read, len(read) - 1, interventions)
        recorded = receipt.steps[n]
        if (now := f"{row_hash(row):016x}") != recorded.logits_hash:
            found = ReceiptMismatch(n, "logits_hash", recorded.logits_hash, now)
            return ReceiptCheck(done, len(ids), found)
        redraw = Redraw.at(llm, head, ids[:n])
        if redraw is None:
            raise InputError("--steps: these draws follow from more than their tokens; check all")
        [drawn] = redraw.tokens(row[None])
        if drawn != recorded.sampled_id:
            found = ReceiptMismatch(n, "sampled_id", recorded.sampled_id, drawn)
            return ReceiptCheck(done, len(ids), found)
    return ReceiptCheck(count, len(ids), None)


def _check_settings(llm: LLM, receipt: Receipt) -> None:
    """InputError where this is not the model or the chain on record."""
    options = settings_of(receipt.head) | {"forced": (), "max_tokens": 1}
    with llm.stream(list(receipt.head.prompt_token_ids), **options) as stream:
        refuse_others(disagreements(receipt.head, llm, stream), receipt.head.model)


def drawn_steps(of: int, count: int, seed: int) -> list[int]:
    """``count`` different numbers below ``of``, in order: those with the smallest derived seeds."""
    return sorted(sorted(range(of), key=lambda n: derive_seed(seed, n + 1))[:count])


def _as_long(receipt: Receipt) -> dict[str, Any]:
    """The limit on record where the end follows from the tokens: the text then ends by itself."""
    limit = receipt.head.params.get("max_tokens")
    return {"max_tokens": limit} if receipt.end.reason in _FOLLOWS and limit else {}


def _differs(n: int, recorded: Any, now: Step | None) -> ReceiptMismatch | None:
    if now is None:
        return ReceiptMismatch(n, "the end", "a step", "the text has ended")
    pairs = {
        "logits_hash": (recorded.logits_hash, f"{now.logits_hash:016x}"),
        "sampled_id": (recorded.sampled_id, now.sampled_id),
        "token_id": (recorded.token_id, now.token_id),
    }
    differing = ((name, *pair) for name, pair in pairs.items() if pair[0] != pair[1])
    return next((ReceiptMismatch(n, *each) for each in differing), None)


def _end_differs(end: End, was: str, text: str, ended: Any) -> ReceiptMismatch | None:
    if was != text:
        return ReceiptMismatch(None, "text", was, text)
    if end.reason not in _FOLLOWS:
        return None
    now = ended and str(ended.reason)
    return None if end.reason == now else ReceiptMismatch(None, "reason", end.reason, now)
