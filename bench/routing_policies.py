"""Ways to choose one of many replicas: cutaway's router, and others to compare.

Each gets a text's keys and its conversation, and may look at the replicas' current state; only
cutaway's uses figures that are a second old.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Protocol

from cutaway.features.cluster.prompt_blocks import Prompt, digest
from cutaway.features.cluster.routing import Load, Router
from routing_replicas import Replica

FIRST_BLOCKS = 4


class Way(Protocol):
    """Chooses replicas by their number."""

    def choose(self, prompt: Prompt, conversation: int) -> int:
        """The replica that gets the text."""
        ...

    def tell(self) -> None:
        """Called when the replicas report their figures."""
        ...


class Simple:
    """A choice from a text's keys, its conversation and the replicas' current state alone."""

    def __init__(self, function: Callable[[Prompt, int], int]) -> None:
        self.choose = function

    def tell(self) -> None:
        """Do nothing: this way remembers nothing."""


class Ours:
    """Cutaway's router, one for each Front; each text comes to a random Front."""

    def __init__(self, replicas: Sequence[Replica], fronts: int, seed: int) -> None:
        self._replicas, self._random, self._jobs = replicas, Random(seed), count()
        self.routers = [Router() for _ in range(fronts)]
        self._received = [[0] * len(replicas) for _ in range(fronts)]
        for router in self.routers:
            router.update(map(str, range(len(replicas))))

    def choose(self, prompt: Prompt, conversation: int) -> int:  # noqa: ARG002
        """Choose by the prompt alone, without the conversation."""
        front = self._random.randrange(len(self.routers))
        choice = self.routers[front].choose([prompt])
        assert choice is not None
        self.routers[front].note_sent(str(next(self._jobs)), [prompt], choice)
        chosen = int(choice.replica)
        self._received[front][chosen] += 1
        return chosen

    def tell(self) -> None:
        """Report each replica's load to every Front."""
        for number, one in enumerate(self._replicas):
            came = tuple(one.came)
            one.came.clear()
            for router, received in zip(self.routers, self._received, strict=True):
                load = Load(one.rows_waiting, one.texts, received[number], came)
                router.report(str(number), load)


def ways(replicas: Sequence[Replica], fronts: int, seed: int) -> dict[str, Callable[[], Way]]:
    """Map each way's name to a function that makes it."""
    number, random, turn = len(replicas), Random(seed), count()

    def two(prompt: Prompt, conversation: int) -> int:  # noqa: ARG001
        pair = random.sample(range(number), min(2, number))
        return min(pair, key=lambda one: replicas[one].texts)

    def hashed(key: int) -> int:
        return int.from_bytes(digest(key.to_bytes(16, "little")), "little") % number

    def by_first_blocks(prompt: Prompt, conversation: int) -> int:
        return hashed(prompt.keys[:FIRST_BLOCKS][-1] if prompt.keys else conversation)

    functions: dict[str, Callable[[Prompt, int], int]] = {
        "random": lambda _prompt, _conversation: random.randrange(number),
        "round robin": lambda _prompt, _conversation: next(turn) % number,
        "the shorter queue of two": two,
        "hash of the conversation": lambda _prompt, conversation: hashed(conversation),
        "hash of the first blocks": by_first_blocks,
    }
    made: dict[str, Callable[[], Way]] = {"cutaway": lambda: Ours(replicas, fronts, seed)}
    return made | {name: partial(Simple, function) for name, function in functions.items()}
