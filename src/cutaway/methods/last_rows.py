"""The last rows of many texts that begin like one: each as soon as it is computed.

Knows that the one's keys and values are to be there for all. Refuses to know what the texts are.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from cutaway.compute.backends import Logits
from cutaway.engine import Request, Score
from cutaway.methods.row import held
from cutaway.requests.reading import each_ended
from cutaway.requests.runner import Runner
from cutaway.requests.stream import LogitsReader


def last_rows(
    runner: Runner,
    like: tuple[int, ...],
    requests: Iterable[Request],
    vocab: int,
    stopped: Callable[[], bool],
) -> Iterator[tuple[int, Logits]]:
    """See ``LLM.last_rows``."""
    lasts = ((request, len(request.prompt_token_ids) - 1) for request in requests)
    jobs = (
        (replace(request, decoder=Score(logits_from=last)), LogitsReader(1, vocab, last))
        for request, last in lasts
    )
    with held(runner, like, priority=1):
        for index, reader in each_ended(runner, jobs, stopped):
            yield index, reader.logits()[0]
