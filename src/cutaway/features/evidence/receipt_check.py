"""Check a receipt against the model: compute every step again, or a random sample of them.

The model reads the recorded tokens at the rate of a prompt. The logits are, bit for bit, those of
decoding one by one. Head, end and text need no logits and are derived first: the engine, which
decides on a text and its end, gets the recorded tokens instead of computing tokens. ``receipt``
defines the document.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from math import comb
from typing import Any

from cutaway.api.llm import LLM
from cutaway.base.progress import Progress, silent
from cutaway.compute.backends import bits_of
from cutaway.engine import Ended, FinishReason, Sequence, Step
from cutaway.engine.events import Phases, chain_as_data
from cutaway.errors import InputError
from cutaway.features.evidence.receipt import (
    Receipt,
    check_repeatable,
    flat,
    is_signed,
    plain,
    same,
)
from cutaway.features.inside.steps import Redraw
from cutaway.requests.prepared import Prepared, prepare
from cutaway.requests.recording import head_of
from cutaway.rerun.request import Disagreement, bound, check_room, refuse_others, settings_of
from cutaway.sampling import Sampled
from cutaway.sampling.luck import derive_seed
from cutaway.sampling.observe import row_hash
from cutaway.trace import Head
from cutaway.trace.write import end_of

_ENDLESS = 1 << 62  # tokens: a context that no text fills
_LATER = ("head.params", "head.sizes")
"""Objects that gain fields over time: an older release's receipt may lack some of them."""


@dataclass(frozen=True, slots=True)
class ReceiptMismatch:
    """The first difference. ``what`` names a part of ``step``, or a field if ``step`` is None."""

    step: int | None
    what: str
    recorded: Any
    now: Any


@dataclass(frozen=True, slots=True)
class Derived:
    """The parts of a run that follow from its settings and tokens, without logits.

    head    the head that the same request to this model has
    end     the receipt's ``end`` and ``text``; {} where a step is broken
    broken  the first step that cannot follow the steps before it; None where all steps can
    """

    head: Head
    end: Mapping[str, Any]
    broken: ReceiptMismatch | None


def derive(llm: LLM, receipt: Receipt) -> Derived:
    """Give the engine the receipt's tokens and settings. InputError where it cannot run them."""
    head = receipt.head
    check_repeatable(head, receipt.end)
    prepared = prepare(llm, list(head.prompt_token_ids), llm.parse_options(settings_of(head)))
    request = prepared.request
    _check_ids("head.prompt_token_ids", request.prompt_token_ids, llm.tokenizer.vocab_size)
    sequence = _sequence(llm, prepared, receipt)
    text, broken = "", None
    for n, step in enumerate(receipt.steps):
        if broken := _find_break(llm, sequence, n, step.token_id):
            break
        sampled = Sampled(step.token_id, step.sampled_id, 0, 0.0, int(step.logits_hash, 16))
        text += sequence.append(sampled, "", Phases()).text
        if sequence.error:
            broken = ReceiptMismatch(n, "token_id", step.token_id, str(sequence.error))
            break
    now = head_of(prepared, chain_as_data(request.stages), llm.model)
    now = replace(now, prompt=_prompt(llm, head))
    if bits_of(now.backend) == bits_of(head.backend):
        now = replace(now, backend=head.backend)  # which of the two it was, the signer says
    return Derived(now, {} if broken else _end(sequence, receipt, text), broken)


def differing(receipt: Receipt, derived: Derived) -> Iterator[ReceiptMismatch]:
    """Yield fields of head, end and text that differ from the derived ones, except ``SIGNED``."""
    recorded = _fields({name: receipt.document[name] for name in ("head", "end", "text")})
    computed = _fields(plain({"head": derived.head.to_json(), **derived.end}))
    for path in dict.fromkeys([*recorded, *computed]):
        if path != "end.reason" and is_signed(path, receipt.end.reason):
            continue  # a signed reason is compared, too: the text must have no other end
        if path not in recorded and path.startswith(_LATER):
            continue
        was, value = recorded.get(path), computed.get(path)
        if (path in recorded) != (path in computed) or not same(was, value):
            yield ReceiptMismatch(None, path, was, value)


def undrawn(receipt: Receipt) -> ReceiptMismatch | None:
    """Find the first token that neither the luck drew nor the settings forced; else None."""
    forced = receipt.head.params.get("forced", ())
    for n, step in enumerate(receipt.steps):
        token_id = forced[n] if n < len(forced) else step.sampled_id
        if step.token_id != token_id:
            return ReceiptMismatch(n, "token_id", step.token_id, token_id)
    return None


def signed_alone(receipt: Receipt) -> dict[str, Any]:
    """Return the fields that only the signer knows, by path, with their values."""
    fields = _fields({name: receipt.document[name] for name in ("head", "end")})
    return {path: fields[path] for path in fields if is_signed(path, receipt.end.reason)}


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    return dict(pair for name, value in document.items() for pair in flat(name, value))


def _sequence(llm: LLM, prepared: Prepared, receipt: Receipt) -> Sequence:
    """Make the request's sequence. Its context is full at the run's end if the receipt says so."""
    vocabulary, request = llm.engine.vocabulary, prepared.request
    count = len(request.prompt_token_ids) + len(receipt.steps)
    room = count if receipt.end.reason == "context_full" else _ENDLESS
    limits = replace(vocabulary.limits, context_length=room)
    return Sequence(0, request, replace(vocabulary, limits=limits), room)


def _find_break(llm: LLM, sequence: Sequence, n: int, token_id: int) -> ReceiptMismatch | None:
    if sequence.finish_reason:
        return ReceiptMismatch(n, "the end", "a step", "the text has ended")
    if token_id >= llm.tokenizer.vocab_size:
        return ReceiptMismatch(n, "token_id", token_id, "there is no such token")
    return None


def _end(sequence: Sequence, receipt: Receipt, text: str) -> dict[str, Any]:
    """Return end and text. The receipt gives the reasons that only its signer can know."""
    goes_on = sequence.finish_reason is None
    if goes_on:  # stopping a text releases its held-back characters
        sequence.finish_reason = FinishReason.ABORTED
    [event] = sequence.ending_events()
    assert isinstance(event, Ended)
    end = end_of(event).to_json()
    if goes_on:
        stopped = receipt.end.reason in ("aborted", "error")
        end["reason"] = receipt.end.reason if stopped else "the text goes on"
    return {"end": end, "text": text + end["text"]}


def _prompt(llm: LLM, head: Head) -> str | None:
    """Return the recorded prompt if it encodes to the recorded ids, else the text of these ids.

    None if the receipt records no prompt.
    """
    text, ids, heal = head.prompt, list(head.prompt_token_ids), head.params.get("heal")
    if text is None:
        return None
    if type(heal) is int:
        ids.append(heal)
    could_be = llm.tokenizer.min_tokens(text) <= len(ids)  # megabytes are slow to tokenize
    if could_be and any(llm.tokenize(text, special) == ids for special in (False, True)):
        return text
    return llm.tokenizer.decode(ids, special=True)


def _check_ids(name: str, ids: tuple[int, ...], size: int) -> None:
    if wrong := [i for i in ids if i >= size]:
        raise InputError(name, f": {wrong[0]} is no token of this model, which has {size}")


# -- the steps -------------------------------------------------------------------------------------


_OPENED = ("weights", "tokenizer", "backend")
"""Fields of the head that differ where another model was opened."""


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    """The result of a check against the model.

    steps        how many steps were computed again
    of           how many steps the receipt has
    forced       how many of the run's first tokens the request gave: the model did not draw them
    signer_says  the fields that no check can confirm, with their values: see ``receipt.SIGNED``
    mismatch     the first difference; None where all other fields are the same to the last bit
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
        """The probability that this check misses ``wrong`` wrong steps, wherever they are."""
        right = max(0, self.of - wrong)
        return comb(right, self.steps) / comb(self.of, self.steps) if self.of else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return a dict that can be written as JSON."""
        return {"same": self.same, **asdict(self), "miss_of_one": self.miss()}


def check_all(llm: LLM, receipt: Receipt, *, progress: Progress = silent) -> ReceiptCheck:
    """Compute every step again and compare its logits' hash and its draw; then all other fields.

    InputError where the weights, the tokenizer or the backend are not those on record, the settings
    cannot be run, or the context is too small.
    """
    derived = _derive_here(llm, receipt)
    if derived.broken:
        return _check(receipt, 0, derived.broken)
    ids = receipt.token_ids
    options = settings_of(receipt.head) | {"forced": ids, "max_tokens": len(ids)}
    if ids:
        with llm.stream(list(receipt.head.prompt_token_ids), **options) as stream:
            for n, recorded in enumerate(receipt.steps):
                progress("computing again", n + 1, len(ids))
                if mismatch := _compare_step(n, recorded, next(stream, None)):
                    return _check(receipt, n + 1, mismatch)
    return _check(receipt, len(ids), _find_other(receipt, derived))


def check_some(
    llm: LLM, receipt: Receipt, count: int, seed: int, *, progress: Progress = silent
) -> ReceiptCheck:
    """Compute ``count`` steps again, chosen by ``seed``: the hash of their logits, and the draw.

    To compute a step, the model reads all tokens before it. Every field that follows from the
    tokens alone is compared. The receipt's author must not be able to foresee the seed.
    InputError as for ``check_all``, or where the run's draws follow from more than its tokens.
    """
    ids, head = receipt.token_ids, receipt.head
    if not 1 <= count <= len(ids):
        raise InputError(f"--steps must be 1 to {len(ids)}, the steps of the receipt, not {count}")
    derived = _derive_here(llm, receipt)
    if derived.broken:
        return _check(receipt, 0, derived.broken)
    prompt, interventions = list(head.prompt_token_ids), bound(llm, head)
    for done, n in enumerate(drawn_steps(len(ids), count, seed), 1):
        progress("computing again", done, count)
        read = prompt + ids[:n]
        [row] = llm.logits(read, len(read) - 1, interventions, prompt_tokens=len(prompt))
        recorded = receipt.steps[n]
        if (now := f"{row_hash(row):016x}") != recorded.logits_hash:
            mismatch = ReceiptMismatch(n, "logits_hash", recorded.logits_hash, now)
            return _check(receipt, done, mismatch)
        redraw = Redraw.from_tokens(llm, head, ids[:n])
        if redraw is None:
            raise InputError("--steps: these draws follow from more than their tokens; check all")
        [drawn_id] = redraw.tokens(row[None])
        if drawn_id != recorded.sampled_id:
            mismatch = ReceiptMismatch(n, "sampled_id", recorded.sampled_id, drawn_id)
            return _check(receipt, done, mismatch)
    return _check(receipt, count, _find_other(receipt, derived))


def drawn_steps(of: int, count: int, seed: int) -> list[int]:
    """``count`` different numbers below ``of``, in order: those with the smallest derived seeds."""
    return sorted(sorted(range(of), key=lambda n: derive_seed(seed, n + 1))[:count])


def _derive_here(llm: LLM, receipt: Receipt) -> Derived:
    """Derive what needs no logits. InputError for another model, or too small a context."""
    head, identity = receipt.head, llm.model.identity
    now = (identity.weights, identity.tokenizer, bits_of(llm.backend.name))
    pairs = zip(_OPENED, (head.weights, head.tokenizer, bits_of(head.backend)), now, strict=True)
    refuse_others((Disagreement(*field) for field in pairs if field[1] != field[2]), head.model)
    check_room(llm, head, len(receipt.steps), "receipt")
    return derive(llm, receipt)


def _check(receipt: Receipt, steps: int, mismatch: ReceiptMismatch | None) -> ReceiptCheck:
    forced = min(len(receipt.head.params.get("forced", ())), len(receipt.steps))
    return ReceiptCheck(steps, len(receipt.steps), forced, signed_alone(receipt), mismatch)


def _compare_step(n: int, recorded: Any, now: Step | None) -> ReceiptMismatch | None:
    if now is None:
        return ReceiptMismatch(n, "the end", "a step", "the text has ended")
    pairs = {
        "logits_hash": (recorded.logits_hash, f"{now.logits_hash:016x}"),
        "sampled_id": (recorded.sampled_id, now.sampled_id),
    }
    differing = ((name, *pair) for name, pair in pairs.items() if pair[0] != pair[1])
    return next((ReceiptMismatch(n, *difference) for difference in differing), None)


def _find_other(receipt: Receipt, derived: Derived) -> ReceiptMismatch | None:
    """Find the first difference besides logits and draws; None where there is none."""
    return undrawn(receipt) or next(differing(receipt, derived), None)
