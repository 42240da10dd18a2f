"""Rescore: the recorded tokens under another model of the same vocabulary, or other settings."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cutaway.api.llm import LLM
from cutaway.engine import Step
from cutaway.errors import InputError
from cutaway.requests.completion import Completion
from cutaway.rerun.request import UNSTOPPED, check_text, settings_of
from cutaway.text.grammar.source import KINDS
from cutaway.trace import Trace
from cutaway.trace.figures import bits


@dataclass(frozen=True, slots=True)
class Reading:
    """A token's figures under one model and one chain.

    bits        its surprise, -log2 p under the model's own logits
    rank        under them; 1 is the likeliest
    final_bits  its surprise among the survivors of the chain; None where it was removed
    own         the token that the chain and the luck draw here
    """

    bits: float
    rank: int
    final_bits: float | None
    own: int


@dataclass(frozen=True, slots=True)
class Rescored:
    """Two readings of the same tokens: recorded and new, one per step of the trace.

    completion  of the new reading, with its observations
    """

    token_ids: tuple[int, ...]
    old: tuple[Reading, ...]
    new: tuple[Reading, ...]
    completion: Completion

    @property
    def perplexity(self) -> tuple[float, float]:
        """(recorded, now)"""
        return perplexity(r.bits for r in self.old), perplexity(r.bits for r in self.new)

    @property
    def agreement(self) -> float:
        """The share of steps at which the new reading would have chosen the recorded token."""
        pairs = zip(self.token_ids, self.new, strict=True)
        return sum(token_id == r.own for token_id, r in pairs) / len(self.token_ids)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        names = {"token_ids": self.token_ids, "perplexity": self.perplexity}
        readings = {"old": [asdict(r) for r in self.old], "new": [asdict(r) for r in self.new]}
        return {**names, "agreement": self.agreement, **readings}


def perplexity(surprises: Iterable[float]) -> float:
    """Two to the mean of the surprises, which are in bits."""
    every = list(surprises)
    return float(2.0 ** (sum(every) / len(every)))


def rescore(llm: LLM, trace: Trace, /, **changes: Any) -> Rescored:
    """Read the recorded tokens again, each after those before it.

    changes  options of LLM.generate that differ, such as temperature, top_p or seed;
             trace=PATH writes the new reading as a trace, with as many candidates as the old one

    No stop condition ends the text early. Raises InputError where the model has another
    vocabulary or too small a context, the trace has no steps, or a grammar forbids a token of it.
    """
    check_text("rescore", llm, trace)
    ids, head = trace.output_token_ids, trace.head
    observe = {"candidates": head.candidates, "track": head.tracked_ids}
    options: dict[str, Any] = settings_of(head) | observe | changes
    options |= {"forced": ids, "max_tokens": len(ids), **UNSTOPPED}
    options["ignore_eos"] = not any(options.get(kind) for kind in KINDS)  # they have an end
    done = llm.stream(list(trace.head.prompt_token_ids), **options).finish()
    return Rescored(ids, tuple(map(_reading, trace.steps)), tuple(map(_reading, done.steps)), done)


def _reading(step: Step) -> Reading:
    if step.observed is None:  # neither candidates nor a watch
        raise InputError("candidates must be 1 or more to rescore")
    final = step.observed.final_logprob
    surprise = None if final is None else bits(final)
    return Reading(bits(step.logprob), step.observed.rank, surprise, step.sampled_id)
