"""The last rows of many texts that begin like one: each as soon as it is computed.

Knows that the one's keys and values are to be there for all, and how many texts run at once.
Refuses to know what the texts are.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice

from cutaway.api.row import held
from cutaway.api.runner import Runner
from cutaway.api.stream import LogitsReader
from cutaway.backends import Logits
from cutaway.engine import Request, Score

_MOST = 16  # texts at once: more would not fill a step better, and hold more memory


def last_rows(
    runner: Runner,
    like: tuple[int, ...],
    requests: Iterable[Request],
    vocab: int,
    stopped: Callable[[], bool],
) -> Iterator[tuple[int, Logits]]:
    """See ``LLM.last_rows``."""
    waiting, running = enumerate(requests), dict[int, LogitsReader]()
    with ExitStack() as stack:
        stack.enter_context(held(runner, like, priority=1))
        while not stopped():
            for index, request in islice(waiting, _MOST - len(running)):
                last = len(request.prompt_token_ids) - 1
                scored = replace(request, decoder=Score(logits_from=last))
                running[index] = LogitsReader(1, vocab, last)
                stack.enter_context(runner.running(scored, running[index]))
            if not running:
                return
            runner.turn()
            for index in [index for index, reader in running.items() if reader.ended]:
                yield index, running.pop(index).logits()[0]
