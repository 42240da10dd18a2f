"""What a step's chain and luck make of other rows of logits.

Knows how the engine asks for a draw, and has it ask again. Refuses to know where the rows come
from.
"""

from cutaway.api.llm import LLM
from cutaway.backends import Logits
from cutaway.engine import Sequence, Step
from cutaway.engine.fingerprint import START
from cutaway.engine.scheduled import Scheduled
from cutaway.errors import InputError
from cutaway.rerun.request import settings_of
from cutaway.sampling import RowDraw, sample
from cutaway.trace import Trace


def draws(llm: LLM, trace: Trace, step: Step, rows: Logits) -> list[int] | None:
    """The token that each row would have given; None where the step's draw cannot be repeated.

    That is where the run had processors, a check took tokens back, or nobody knows what was drawn:
    the last row, which is the step's own, must give what is on record.
    """
    draw = None if step.sampled_id < 0 else _draw(llm, trace, step)
    if draw is None:
        return None
    drawn = sample(rows, [draw] * len(rows))
    ids = [-1 if isinstance(one, Exception) else one.token_id for one in drawn]
    return ids if ids[-1] == step.sampled_id else None


def _draw(llm: LLM, trace: Trace, step: Step) -> RowDraw | None:
    try:
        settings = settings_of(trace.head) | {"forced": ()}
    except InputError:  # of functions, which no trace holds
        return None
    prompt, written = list(trace.head.prompt_token_ids), trace.output_token_ids[: step.index]
    asked = llm.read(prompt, llm.parse_options(settings))
    longest = llm.model.context
    sequence = Sequence(0, asked.request, llm.engine.vocabulary, longest)
    sequence.output_token_ids = [*written]
    sequence.rewind(len(written), START)
    if sequence.error:
        return None
    [draw] = sequence.decoder.draws(Scheduled(sequence, len(sequence), [], 0))
    return draw._replace(observe=None)
