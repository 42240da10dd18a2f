"""The fields of a receipt: what each is held against, and which are its signer's word.

Knows every field by its path, such as "head.params.top_p". A field is compared with that of the
run computed again unless it stands under ``SIGNED``; so one that is new is compared, until somebody
writes here that nothing shows it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

DERIVED: Mapping[str, str] = {
    "head.kind": "the form of a trace's head",
    "head.format": "the form of a trace's head",
    "head.weights": "SHA-256 of the weights that were opened",
    "head.tokenizer": "SHA-256 of the tokenizer that was opened",
    "head.backend": "the arithmetic that computed again",
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
"""Field -> what it is held against. A part of a field is held as the field is."""

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
"""Field -> what it tells, which changes no token: nobody but the signer knows it."""

SIGNED_REASONS = ("context_full", "aborted", "error")
"""Reasons for an end that follow from no token: the model goes on."""

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
"""Reason for an end -> what was found of it, and what the signer says."""


def entry(path: str, table: Mapping[str, str]) -> str | None:
    """What a table says of a field or of that which it is part of; None where it says nothing."""
    while path not in table:
        path, dot, _ = path.rpartition(".")
        if not dot:
            return None
    return table[path]


def is_signed(path: str, reason: str) -> bool:
    """Whether nothing but the signer's word stands for a field. reason: that of the end."""
    if path == "end.reason":
        return reason in SIGNED_REASONS
    if path == "end.error":
        return reason == "error"
    return entry(path, SIGNED) is not None


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of an object by their paths, those of its objects too; lists are whole."""
    if not isinstance(value, Mapping) or not value:
        yield name, value
        return
    for key, inside in value.items():
        yield from flat(f"{name}.{key}", inside)


def plain(value: Any) -> Any:
    """The value as a reader of its JSON finds it."""
    return json.loads(json.dumps(value))


def same(a: Any, b: Any) -> bool:
    """Whether two JSON values are written alike: 1 is neither 1.0 nor true."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)
