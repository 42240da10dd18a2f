"""Drawing from other logits with a step's own chain, constraint and luck."""

from collections.abc import Iterable
from dataclasses import dataclass

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.engine import Sequence, Step
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError
from cutaway.requests.base import prepare
from cutaway.rerun.request import settings_of
from cutaway.sampling import RowDraw, sample
from cutaway.trace import Head, Trace


@dataclass(frozen=True)
class Redraw:
    """The draw of one step, with its chain, constraint, luck and history."""

    draw: RowDraw

    @classmethod
    def of(cls, llm: LLM, trace: Trace, step: Step, own: Logits) -> "Redraw | None":
        """Of a step and its row; None where the row does not give the recorded token.

        That is so where the run had processors, a check took tokens back, or the drawn token is
        unknown.
        """
        written = trace.output_token_ids[: step.index]
        again = None if step.sampled_id < 0 else cls.at(llm, trace.head, written)
        return again if again and again.tokens(own[None]) == [step.sampled_id] else None

    @classmethod
    def at(cls, llm: LLM, head: Head, written: Iterable[int]) -> "Redraw | None":
        """Of the step after these tokens; None where the run had processors."""
        draw = _draw(llm, head, list(written))
        return None if draw is None else cls(draw)

    def tokens(self, rows: Logits) -> list[int]:
        """The token that each row gives; -1 where it is an error."""
        drawn = sample(rows, [self.draw] * len(rows))
        return [-1 if isinstance(one, Exception) else one.token_id for one in drawn]


def _draw(llm: LLM, head: Head, written: list[int]) -> RowDraw | None:
    try:
        settings = settings_of(head) | {"forced": ()}
    except InputError:  # the run had functions, which a trace cannot record
        return None
    prepared = prepare(llm, list(head.prompt_token_ids), llm.parse_options(settings))
    longest = llm.model.context
    sequence = Sequence(0, prepared.request, llm.engine.vocabulary, longest)
    sequence.write(written)
    if sequence.error:
        return None
    [draw] = sequence.decoder.draws(Scheduled(sequence, len(sequence), [], 0))
    return draw._replace(observe=None)
