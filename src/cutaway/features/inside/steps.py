"""The step of a look: its draw repeated from other logits, and a trace made from token ids.

Knows a step's own chain, constraint and luck. Computes no tensors of the inside.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutaway._version import __version__
from cutaway.api.llm import LLM
from cutaway.base.checks import check_ids, check_int, shown
from cutaway.compute.backends import Logits
from cutaway.engine import Sequence as EngineSequence
from cutaway.engine import Step
from cutaway.engine.events import Phases
from cutaway.engine.interventions import Intervention, check_interventions
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError, Name
from cutaway.requests.prepared import prepare
from cutaway.rerun.request import bound, settings_of
from cutaway.sampling import RowDraw, sample
from cutaway.sampling.observe import row_hash
from cutaway.trace import Head, Trace
from cutaway.trace.record import settings_from_json
from cutaway.trace.steps import word


@dataclass(frozen=True)
class Redraw:
    """The draw of one step, with its chain, constraint, luck and history."""

    draw: RowDraw

    @classmethod
    def from_step(cls, llm: LLM, trace: Trace, step: Step, row: Logits) -> "Redraw | None":
        """Prepare a recorded step's draw; None if the row does not give the recorded token again.

        Examples are a run with processors, a check that took tokens back, and a step without a
        recorded draw.
        """
        output_ids = trace.output_token_ids[: step.index]
        again = None if step.sampled_id < 0 else cls.from_tokens(llm, trace.head, output_ids)
        return again if again and again.tokens(row[None]) == [step.sampled_id] else None

    @classmethod
    def from_tokens(cls, llm: LLM, head: Head, output_ids: Iterable[int]) -> "Redraw | None":
        """Prepare the draw after these tokens; None if it depends on more than the trace has."""
        draw = _draw(llm, head, list(output_ids))
        return None if draw is None else cls(draw)

    def tokens(self, rows: Logits) -> list[int]:
        """Draw a token from each row of (n, vocab); -1 where the draw fails."""
        draws = sample(rows, [self.draw] * len(rows))
        return [-1 if isinstance(sampled, Exception) else sampled.token_id for sampled in draws]


def _draw(llm: LLM, head: Head, output_ids: list[int]) -> RowDraw | None:
    try:
        settings = settings_of(head) | {"forced": ()}
    except InputError:  # the run had functions, which a trace cannot record
        return None
    prepared = prepare(llm, list(head.prompt_token_ids), llm.parse_options(settings))
    longest = llm.model.context
    sequence = EngineSequence(0, prepared.request, llm.engine.vocabulary, longest)
    sequence.write(output_ids)
    if sequence.error:
        return None
    [draw] = sequence.decoder.draws(Scheduled(sequence, len(sequence), [], 0))
    return draw._replace(observe=None)


# -- a trace of token ids alone --------------------------------------------------------------------


def unrecorded_trace(
    llm: LLM,
    prompt: Sequence[int],
    generated: Sequence[int],
    step: int,
    *,
    settings: Mapping[str, Any] | None = None,
    drawn_id: int | None = None,
    row: str | None = None,
    interventions: Sequence[Any] = (),
) -> Trace:
    """Make a trace that ends with this step, from the token ids of a text.

    settings  keywords of ``generate`` with which the text was drawn, the seed included; None: the
              draw is not repeated
    drawn_id  the token drawn at this step, if another token was forced
    row       the hash of the step's logits, as in a trace; None: this model's own logits count as
              the recorded ones
    interventions  the run's interventions, as for ``generate``

    Raises InputError, which names the field.
    """
    vocab = llm.tokenizer.vocab_size
    ids = _ids("prompt", prompt, vocab), _ids("generated", generated, vocab)
    if not all(ids):
        raise InputError("generated" if ids[0] else "prompt", " is empty: it has no step")
    step = check_int("step", step, 0, len(ids[1]) - 1)
    count, room = len(ids[0]) + step + 1, llm.model.context
    if count > room:
        raise InputError(
            "generated",
            f": with its prompt the text has {count} tokens up to this step, and the "
            f"context has room for {room}",
        )
    own_id = ids[1][step] if drawn_id is None else check_int("drawn", drawn_id, 0, vocab - 1)
    before = [*ids[0], *ids[1][:step]]
    head = _head(llm, ids[0], _settings(settings), check_interventions(interventions))
    if row is None:
        last, prompt_tokens = len(before) - 1, len(ids[0])
        rows = llm.logits(before, last, bound(llm, head), prompt_tokens=prompt_tokens)
        hashed = row_hash(rows[0])
    else:
        hashed = _read(row)
    if settings is not None:
        _check(llm, head)
    steps = [_step(i, len(ids[0]), token) for i, token in enumerate(ids[1][: step + 1])]
    sampled_id = -1 if settings is None else own_id
    steps[step] = steps[step]._replace(sampled_id=sampled_id, logits_hash=hashed)
    return Trace(head, {}, tuple(steps), None, "")


def _ids(name: str, ids: Sequence[int], vocab: int) -> tuple[int, ...]:
    token_ids = check_ids(name, ids)
    for token_id in token_ids:
        check_int(Name(name, prose=": a token id"), token_id, 0, vocab - 1)
    return token_ids


def _read(row: str) -> int:
    try:
        return word(row)
    except ValueError as error:
        raise InputError("row", f" {error}, not {shown(row)}") from None


def _settings(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    try:
        return settings_from_json(settings or {})
    except ValueError as error:
        raise InputError("settings", f": {error}") from None


def _check(llm: LLM, head: Head) -> None:
    """Raise InputError for unknown or wrong settings."""
    if unknown := head.params.keys() - llm.parse_options({}).settings(0).keys():
        raise InputError("settings", f": unknown name {min(unknown)!r:.40}")
    try:
        llm.parse_options(settings_of(head) | {"forced": ()})
    except InputError as error:
        raise InputError("settings", f": {error}") from error


def _step(index: int, before: int, token: int) -> Step:
    return Step(
        id=0, index=index, position=before + index, token_id=token, sampled_id=token,
        source="forced", text="", released_bytes=0, logprob=float("nan"), survivors=0,
        observed=None, phases=Phases(), logits_hash=0, fingerprint=0,
    )  # fmt: skip


def _head(
    llm: LLM,
    prompt: tuple[int, ...],
    settings: Mapping[str, Any],
    interventions: tuple[Intervention, ...],
) -> Head:
    identity, backend, tokenizer = llm.model.identity, llm.backend, llm.tokenizer
    return Head(
        cutaway=__version__, model=llm.name, weights=identity.weights,
        tokenizer=identity.tokenizer, backend=backend.name, tier=backend.tier,
        threads=backend.threads, vocab_size=tokenizer.vocab_size, prompt=None,
        prompt_token_ids=prompt, chain=(), params=settings,
        seed=check_int(Name("settings", prose=": seed"), settings.get("seed", 0), 0, 2**64 - 1),
        candidates=0, tracked_ids=(), end_ids=tuple(tokenizer.end_ids),
        kv_bytes_per_token=backend.kv.bytes_per_token, interventions=interventions,
    )  # fmt: skip
