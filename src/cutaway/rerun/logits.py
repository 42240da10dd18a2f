"""The full logits of a run on record: computed again from its tokens, and proven by its hashes."""

from cutaway.api.llm import LLM
from cutaway.compute.backends import Logits
from cutaway.errors import CutawayError
from cutaway.rerun.request import bound, check_text
from cutaway.sampling.observe import row_hash
from cutaway.trace import Trace


def logits(llm: LLM, trace: Trace) -> Logits:
    """What every step drew from, bit for bit: float32 (steps, vocab), before the chain.

    Raises InputError where the trace has no steps, the model has another vocabulary or too small a
    context; CutawayError where a row's hash is not the one on record.
    """
    check_text("logits", llm, trace)
    prompt = trace.head.prompt_token_ids
    read = [*prompt, *(step.token_id for step in trace.steps[:-1])]
    rows = llm.logits(read, len(prompt) - 1, bound(llm, trace.head))
    for step, row in zip(trace.steps, rows, strict=True):
        if row_hash(row) != step.logits_hash:
            raise CutawayError(
                f"the logits of step {step.index} are not those on record: "
                "'cutaway trace replay' says what differs"
            )
    return rows
