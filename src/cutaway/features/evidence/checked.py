"""Whether a model computes what a receipt says: every step again, or some that are drawn by lot.

Knows how to read the tokens on record at the rate of a prompt; equal bits make that the same
arithmetic as writing them one by one. The document is ``receipt``'s.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from cutaway.api.llm import LLM
from cutaway.engine import Step
from cutaway.errors import InputError
from cutaway.features.evidence.derived import (
    Derived,
    ReceiptMismatch,
    derive,
    differing,
    signed_alone,
    undrawn,
)
from cutaway.features.evidence.receipt import Receipt
from cutaway.features.inside.redraw import Redraw
from cutaway.rerun.request import (
    Disagreement,
    Progress,
    bound,
    refuse_others,
    settings_of,
    silent,
)
from cutaway.sampling.luck import derive_seed
from cutaway.sampling.observe import row_hash

_OPENED = ("weights", "tokenizer", "backend")
"""Fields of the head that differ where another model was opened."""


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """The result of a check against the model.

    steps        how many were computed again
    of           how many the receipt has
    forced       how many of its first tokens the request gave: the model did not draw them
    signer_says  the fields that nothing shows, with their values: see ``fields.SIGNED``
    mismatch     None where all else is the same to the last bit
    """

    steps: int
    of: int
    forced: int
    signer_says: Mapping[str, Any]
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
    """Compute every step again: its logits' hash, and what the luck draws; then all other fields.

    InputError where the weights, the tokenizer or the backend are not those on record, the settings
    cannot be run, or the context is too small.
    """
    derived = _derived(llm, receipt)
    if derived.broken:
        return _check(receipt, 0, derived.broken)
    ids = receipt.token_ids
    options = settings_of(receipt.head) | {"forced": ids, "max_tokens": len(ids)}
    if ids:
        with llm.stream(list(receipt.head.prompt_token_ids), **options) as stream:
            for n, recorded in enumerate(receipt.steps):
                progress("computing again", n + 1, len(ids))
                if found := _differs(n, recorded, next(stream, None)):
                    return _check(receipt, n + 1, found)
    return _check(receipt, len(ids), _other(receipt, derived))


def check_some(
    llm: LLM, receipt: Receipt, count: int, seed: int, *, progress: Progress = silent
) -> ReceiptCheck:
    """Compute ``count`` steps again, which ``seed`` draws: the hash of their logits, and the draw.

    The text between them is read, but its logits are not computed; what follows from the tokens
    alone is compared whole. The seed must not be one that the receipt's author could foresee.
    InputError as for ``check_all``, or where the run is one whose draws follow from more than its
    tokens.
    """
    ids, head = receipt.token_ids, receipt.head
    if not 1 <= count <= len(ids):
        raise InputError(f"--steps must be 1 to {len(ids)}, the steps of the receipt, not {count}")
    derived = _derived(llm, receipt)
    if derived.broken:
        return _check(receipt, 0, derived.broken)
    prompt, interventions = list(head.prompt_token_ids), bound(llm, head)
    for done, n in enumerate(drawn_steps(len(ids), count, seed), 1):
        progress("computing again", done, count)
        read = prompt + ids[:n]
        [row] = llm.logits(read, len(read) - 1, interventions)
        recorded = receipt.steps[n]
        if (now := f"{row_hash(row):016x}") != recorded.logits_hash:
            found = ReceiptMismatch(n, "logits_hash", recorded.logits_hash, now)
            return _check(receipt, done, found)
        redraw = Redraw.at(llm, head, ids[:n])
        if redraw is None:
            raise InputError("--steps: these draws follow from more than their tokens; check all")
        [drawn] = redraw.tokens(row[None])
        if drawn != recorded.sampled_id:
            found = ReceiptMismatch(n, "sampled_id", recorded.sampled_id, drawn)
            return _check(receipt, done, found)
    return _check(receipt, count, _other(receipt, derived))


def drawn_steps(of: int, count: int, seed: int) -> list[int]:
    """``count`` different numbers below ``of``, in order: those with the smallest derived seeds."""
    return sorted(sorted(range(of), key=lambda n: derive_seed(seed, n + 1))[:count])


def _derived(llm: LLM, receipt: Receipt) -> Derived:
    """What follows without logits. InputError where this is another model, or has no room."""
    head, identity = receipt.head, llm.model.identity
    now = (identity.weights, identity.tokenizer, llm.backend.name)
    pairs = zip(_OPENED, (head.weights, head.tokenizer, head.backend), now, strict=True)
    refuse_others((Disagreement(*each) for each in pairs if each[1] != each[2]), head.model)
    count, room = len(head.prompt_token_ids) + len(receipt.steps), llm.model.context
    if count > room:
        raise InputError(
            f"the receipt has {count} tokens with its prompt, and the context has room for {room}: "
            "give the model more context"
        )
    return derive(llm, receipt)


def _check(receipt: Receipt, steps: int, mismatch: ReceiptMismatch | None) -> ReceiptCheck:
    forced = min(len(receipt.head.params.get("forced", ())), len(receipt.steps))
    return ReceiptCheck(steps, len(receipt.steps), forced, signed_alone(receipt), mismatch)


def _differs(n: int, recorded: Any, now: Step | None) -> ReceiptMismatch | None:
    if now is None:
        return ReceiptMismatch(n, "the end", "a step", "the text has ended")
    pairs = {
        "logits_hash": (recorded.logits_hash, f"{now.logits_hash:016x}"),
        "sampled_id": (recorded.sampled_id, now.sampled_id),
    }
    differing = ((name, *pair) for name, pair in pairs.items() if pair[0] != pair[1])
    return next((ReceiptMismatch(n, *each) for each in differing), None)


def _other(receipt: Receipt, derived: Derived) -> ReceiptMismatch | None:
    """What differs besides rows and draws."""
    return undrawn(receipt) or next(differing(receipt, derived), None)
