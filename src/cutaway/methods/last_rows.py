"""The last rows of many texts with a common prefix, which is computed once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from cutaway.compute.backends import Logits
from cutaway.engine import Score
from cutaway.methods.pinned import pinned
from cutaway.requests.prefill import each_ended
from cutaway.requests.stream import LogitsReader
from cutaway.requests.sync_llm import SyncLLM

if TYPE_CHECKING:
    from cutaway.engine.interventions import BoundInterventions


def last_rows(
    llm: SyncLLM,
    like: Sequence[int],
    texts: Iterable[tuple[Sequence[int], "BoundInterventions | None"]],
    stopped: Callable[[], bool],
) -> Iterator[tuple[int, Logits]]:
    """See ``LLM.last_rows``."""
    vocab = llm.tokenizer.vocab_size
    jobs = (
        (
            llm.request(ids, decoder=Score(logits_from=len(ids) - 1), interventions=made),
            LogitsReader(1, vocab, len(ids) - 1),
        )
        for ids, made in texts
    )
    with pinned(llm, like, priority=1):
        for index, reader in each_ended(llm.owner, jobs, stopped):
            yield index, reader.logits()[0]
