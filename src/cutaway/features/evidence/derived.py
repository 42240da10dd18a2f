"""What follows from a receipt's settings and tokens before any logits: head, end and text.

Knows how to write the run's tokens once more without computing them: the text, and what ends it, is
the engine's own to decide. Whether they are the model's tokens is for ``checked``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cutaway.api.llm import LLM
from cutaway.engine import Ended, FinishReason, Sequence
from cutaway.engine.events import Phases, chain_as_data
from cutaway.errors import InputError
from cutaway.features.evidence.fields import flat, is_signed, plain, same
from cutaway.features.evidence.receipt import Receipt, check_repeatable
from cutaway.requests.base import Prepared, prepare
from cutaway.requests.recording import head_of
from cutaway.rerun.request import settings_of
from cutaway.sampling import Sampled, build_chain
from cutaway.trace import Head
from cutaway.trace.write import end_of

_ENDLESS = 1 << 62  # tokens, of a context that ends no text
_LATER = ("head.params", "head.sizes")
"""Of these, what a release did not have yet is missing in its receipts."""


@dataclass(frozen=True, slots=True)
class ReceiptMismatch:
    """The first thing that differs: ``what`` of a step, or the field where ``step`` is None."""

    step: int | None
    what: str
    recorded: Any
    now: Any


@dataclass(frozen=True, slots=True)
class Derived:
    """The run as it follows from its settings and tokens.

    head    of the same request to this model
    end     the fields of the receipt's end, and its text; {} where the tokens cannot be written
    broken  the first step that cannot follow those before it, if there is one
    """

    head: Head
    end: Mapping[str, Any]
    broken: ReceiptMismatch | None


def derive(llm: LLM, receipt: Receipt) -> Derived:
    """Write the receipt's tokens under its settings. InputError where its settings are none."""
    head = receipt.head
    check_repeatable(head, receipt.end)
    prepared = prepare(llm, list(head.prompt_token_ids), llm.parse_options(settings_of(head)))
    request = prepared.request
    _check_ids("head.prompt_token_ids", request.prompt_token_ids, llm.tokenizer.vocab_size)
    sequence = _sequence(llm, prepared, receipt)
    text, broken = "", None
    for n, step in enumerate(receipt.steps):
        if broken := _broken(llm, sequence, n, step.token_id):
            break
        drawn = Sampled(step.token_id, step.sampled_id, 0, 0.0, int(step.logits_hash, 16))
        text += sequence.append(drawn, "", Phases()).text
        if sequence.error:
            broken = ReceiptMismatch(n, "token_id", step.token_id, str(sequence.error))
            break
    stages = build_chain(request.sampling, constrained=request.is_constrained)
    now = head_of(prepared, chain_as_data(stages), llm.model)
    now = replace(now, prompt=_prompt(llm, head))
    return Derived(now, {} if broken else _end(sequence, receipt, text), broken)


def differing(receipt: Receipt, derived: Derived) -> Iterator[ReceiptMismatch]:
    """The fields of head, end and text that are not those that follow, and not signed alone."""
    recorded = _fields({name: receipt.document[name] for name in ("head", "end", "text")})
    computed = _fields(plain({"head": derived.head.to_json(), **derived.end}))
    for path in dict.fromkeys([*recorded, *computed]):
        if path != "end.reason" and is_signed(path, receipt.end.reason):
            continue  # a signer's reason is held, too: the text must not have ended otherwise
        if path not in recorded and path.startswith(_LATER):
            continue
        was, value = recorded.get(path), computed.get(path)
        if (path in recorded) != (path in computed) or not same(was, value):
            yield ReceiptMismatch(None, path, was, value)


def undrawn(receipt: Receipt) -> ReceiptMismatch | None:
    """The first token that is neither the drawn one nor forced by the settings."""
    forced = receipt.head.params.get("forced", ())
    for n, step in enumerate(receipt.steps):
        token_id = forced[n] if n < len(forced) else step.sampled_id
        if step.token_id != token_id:
            return ReceiptMismatch(n, "token_id", step.token_id, token_id)
    return None


def signed_alone(receipt: Receipt) -> dict[str, Any]:
    """What nobody but the signer knows, by field."""
    fields = _fields({name: receipt.document[name] for name in ("head", "end")})
    return {path: fields[path] for path in fields if is_signed(path, receipt.end.reason)}


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    return dict(pair for name, value in document.items() for pair in flat(name, value))


def _sequence(llm: LLM, prepared: Prepared, receipt: Receipt) -> Sequence:
    """The request in an engine whose context is full where the receipt says that it was."""
    vocabulary, request = llm.engine.vocabulary, prepared.request
    count = len(request.prompt_token_ids) + len(receipt.steps)
    room = count if receipt.end.reason == "context_full" else _ENDLESS
    limits = replace(vocabulary.limits, context_length=room)
    return Sequence(0, request, replace(vocabulary, limits=limits), room)


def _broken(llm: LLM, sequence: Sequence, n: int, token_id: int) -> ReceiptMismatch | None:
    if sequence.finish_reason:
        return ReceiptMismatch(n, "the end", "a step", "the text has ended")
    if token_id >= llm.tokenizer.vocab_size:
        return ReceiptMismatch(n, "token_id", token_id, "there is no such token")
    return None


def _end(sequence: Sequence, receipt: Receipt, text: str) -> dict[str, Any]:
    """The end and the text. What the signer alone can know of the end is taken from there."""
    goes_on = sequence.finish_reason is None
    if goes_on:  # who stops a text gets what was held back of it
        sequence.finish_reason = FinishReason.ABORTED
    [ended] = sequence.left()
    assert isinstance(ended, Ended)
    end = end_of(ended).to_json()
    if goes_on:
        stopped = receipt.end.reason in ("aborted", "error")
        end["reason"] = receipt.end.reason if stopped else "the text goes on"
    return {"end": end, "text": text + end["text"]}


def _prompt(llm: LLM, head: Head) -> str | None:
    """The prompt's text on record if its tokens are the prompt's, else a text of the tokens."""
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
        raise InputError(f"{name}: {wrong[0]} is no token of this model, which has {size}")
