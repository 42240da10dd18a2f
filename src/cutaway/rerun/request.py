"""Turn a trace's head back into a request, and find the fields that differ in this run."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from cutaway._version import __version__
from cutaway.api.llm import LLM
from cutaway.base.checks import check_ids
from cutaway.compute.backends import bits_of
from cutaway.engine import ConstraintParams, StopParams
from cutaway.errors import InputError
from cutaway.requests.completion import Completion
from cutaway.requests.sync_llm import Stream
from cutaway.sampling import SamplingParams
from cutaway.trace import Head, Trace
from cutaway.trace.figures import chain_label
from cutaway.trace.record import GrammarRecord

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions, Intervention

_SETTINGS = tuple(
    f.name for part in (SamplingParams, StopParams, ConstraintParams) for f in fields(part)
)
UNSTOPPED = {"ignore_eos": True, "stop": (), "stop_token_ids": ()}
"""Settings with which a text runs to max_tokens; a grammar may still end it."""

_DECISIVE = ("weights", "tokenizer", "backend", "chain", "grammar")


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A field of the head that differs in this run."""

    field: str
    recorded: Any
    now: Any

    @property
    def is_decisive(self) -> bool:
        """Whether bits or tokens may differ because of this field."""
        return self.field in _DECISIVE

    def __str__(self) -> str:
        describe = chain_label if self.field == "chain" else _short
        return f"{self.field}: {describe(self.recorded)} on record, {describe(self.now)} now"


def settings_of(head: Head) -> dict[str, Any]:
    """Return the keywords that draw the recorded text again, including forced tokens."""
    settings = {name: head.params[name] for name in _SETTINGS if name in head.params}
    if settings.pop("processors", ()):
        raise InputError(
            "processors", " are functions, which a trace cannot record: this run had some"
        )
    if settings.get("check") not in (None, "arithmetic"):
        raise InputError(
            "check", ": a trace cannot record a user's own object, and this run had one"
        )
    forced = check_ids("forced", head.params.get("forced", ()))
    if head.decoder:
        settings["denoise"] = head.decoder.rule
        settings |= {
            name: head.params[name] for name in ("suffix", "special") if name in head.params
        }
    return settings | {"seed": head.seed, "forced": forced, "interventions": head.interventions}


def prompt_of(llm: LLM, head: Head) -> list[int]:
    """Return the request's prompt ids, including ids after a canvas but not its suffix."""
    after = head.decoder.suffix_ids if head.decoder else ()
    if suffix := head.params.get("suffix"):
        special = head.params.get("special", False)
        after = after[len(llm.tokenizer.encode(suffix, special=special, goes_on=True)) :]
    return [*head.prompt_token_ids, *after]


def bound(llm: LLM, head: Head, more: "Iterable[Intervention]" = ()) -> "BoundInterventions | None":
    """Bind the interventions of a run, and ``more``, for the rows of its text."""
    return bound_to(llm, (*head.interventions, *more), len(head.prompt_token_ids))


def bound_to(
    llm: LLM, interventions: "Sequence[Intervention]", prompt_tokens: int
) -> "BoundInterventions | None":
    """Bind interventions for a prompt of this length; None if there are none."""
    if not interventions:
        return None
    from cutaway.engine.interventions import bind

    return bind(interventions, llm.graph, prompt_tokens)


def disagreements(recorded: Head, llm: LLM, stream: Stream) -> tuple[Disagreement, ...]:
    """Return the fields that differ in this run of the recorded request; decisive ones first."""
    identity, backend = llm.model.identity, llm.backend
    grammar = GrammarRecord.from_grammar(stream.request.constraint.source)
    now = {
        "weights": identity.weights,
        "tokenizer": identity.tokenizer,
        "backend": backend.name,
        "chain": stream.chain,
        "grammar": grammar and grammar.sha256,
        "cutaway": __version__,
        "model": llm.name,
        "tier": backend.tier,
        "threads": backend.threads,
        "grammar engine": grammar and grammar.engine,
    }
    was = {
        "grammar": recorded.grammar and recorded.grammar.sha256,
        "grammar engine": recorded.grammar and recorded.grammar.engine,
    }
    fields_now = (
        Disagreement(name, was[name] if name in was else getattr(recorded, name), value)
        for name, value in now.items()
    )
    return tuple(
        d for d in fields_now if _comparable(d.field, d.recorded) != _comparable(d.field, d.now)
    )


def _comparable(field: str, value: Any) -> Any:
    """Return the part of a field's value that must be equal; for a backend, whose bits it has."""
    return bits_of(value) if field == "backend" else _plain(value)


def refuse_others(differing: Iterable[Disagreement], model: str, otherwise: str = "") -> None:
    """Raise InputError if a difference is decisive.

    otherwise: an alternative, which ends the error's sentence
    """
    if decisive := [str(difference) for difference in differing if difference.is_decisive]:
        raise InputError(
            f"this is not what the trace was written with ({'; '.join(decisive)}): "
            f"use the recorded one, of the model {model!r:.80}{otherwise}"
        )


def check_vocabulary(llm: LLM, trace: Trace) -> None:
    """Raise InputError unless every recorded token has the same bytes in this model."""
    size = llm.tokenizer.vocab_size
    if size != trace.head.vocab_size:
        raise InputError(
            f"the trace has a vocabulary of {trace.head.vocab_size} tokens and {llm.name} one of "
            f"{size}: use a model with the same tokens"
        )
    for token in trace.tokens.values():
        if (here := llm.tokenizer.token_bytes(token.id)) != token.bytes:
            raise InputError(
                f"token {token.id} is {token.bytes!r} in the trace and {here!r} in {llm.name}: "
                "use a model with the same tokens"
            )


def check_from_left(purpose: str, trace: Trace) -> None:
    """Raise InputError if the trace is of a canvas."""
    if trace.head.decoder:
        raise InputError(
            f"{purpose}: this trace is of a canvas; take one of a text that was written from left "
            "to right"
        )


def check_text(purpose: str, llm: LLM, trace: Trace) -> None:
    """Raise InputError unless this model can compute the trace's steps; a canvas has none."""
    check_from_left(purpose, trace)
    if not trace.steps:
        raise InputError(f"{purpose}: the trace has no steps")
    check_vocabulary(llm, trace)
    check_room(llm, trace.head, len(trace.steps))


def check_room(llm: LLM, head: Head, steps: int, record: str = "trace") -> None:
    """Raise InputError unless all recorded tokens fit the context the model was opened with."""
    count, room = len(head.prompt_token_ids) + steps, llm.model.context
    if count > room:
        raise InputError(
            f"the {record} has {count} tokens with its prompt, and the context has room for {room}:"
            " give the model more context"
        )


def run_together(
    llm: LLM,
    requests: Iterable[tuple[list[int], Mapping[str, Any]]],
    report: Callable[[int], object],
) -> list[Completion]:
    """Generate texts of (prompt ids, options) in one batch.

    report: called with the number of tokens so far, of all texts
    """
    done = 0
    with ExitStack() as stack:
        streams = [stack.enter_context(llm.stream(ids, **options)) for ids, options in requests]
        writing = streams
        while writing:
            writing = [stream for stream in writing if next(stream, None)]
            done += len(writing)
            report(done)
        return [stream.completion() for stream in streams]


def _plain(value: Any) -> str:
    """Return a value as JSON, where a tuple is a list and every key a string."""
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
