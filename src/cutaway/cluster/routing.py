"""Which replica a job goes to: the one where its first token costs the fewest rows.

Knows how much each replica has to do, and which of them come into question. Refuses to know how
jobs travel, clocks, and Ray: every answer is a function of what was told before.

All is counted in rows of a step:

    cost = rows that wait there + rows of these prompts that it would still have to read × READ
           + texts there × TEXT_ROWS

A prompt's blocks are known to be at a replica from the moment a job is routed there, not when it
has ended: the second of many equal prompts finds the first. What the prefix cache has beyond
prompts (answers) or has lost since is not known here; it costs rows, and never a token.

Few replicas are considered: some of those that know most of the prompt, and two by rendezvous
hashing of its first block that nobody knows, for which routers that do not talk name the same two.
A prefix that everybody asks for spreads by itself: as soon as those that know it have more waiting
than reading it again costs, another becomes one of them. There is no threshold, and what one
replica has to do changes nothing for prompts that it knows nothing of.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_int
from cutaway.cluster.known_blocks import Known, KnownBlocks
from cutaway.cluster.prompts import Prompt, digest

Scores = NDArray[np.uint64]

READ = 2
"""What a row costs that somebody must read: it is waited for by this text, and by others there. At
1 the second of two equal prompts would as soon read all again elsewhere as wait for the first."""

TEXT_ROWS = 64
"""What a text that is written costs one that comes, in rows. It takes one of each step, of those
that read the other's prompt and of those that write its answer, and a row costs about as much
whether it reads or writes. With 16 texts pile up where much is known, with 128 less is found there
(bench/routing.py)."""

MOST_KEYS = 2**20
KNOWING, DRAWN = 4, 2
"""How many are considered of those that know most, and by rendezvous."""


# -- what is answered ------------------------------------------------------------------------------


class Load(NamedTuple):
    """What a replica has to do.

    rows      of prompts that are still to be read
    texts     that are written or wait
    received  how many jobs of this router had come when that was counted
    prompts   keys of each prompt that came lately, so that routers know of each other's
    """

    rows: int = 0
    texts: int = 0
    received: int = 0
    prompts: Sequence[Sequence[int]] = ()


class Candidate(NamedTuple):
    """A replica that was considered; rows and texts there were there before."""

    replica: str
    matched: int
    rows: int
    texts: int
    cost: int


@dataclass(frozen=True)
class Choice:
    """A replica, and why.

    matched     of all the prompts' tokens, how many it knows
    rows, texts that were there before
    considered  all that were, in their order
    """

    replica: str
    matched: int
    tokens: int
    rows: int
    texts: int
    considered: tuple[Candidate, ...]

    def __str__(self) -> str:
        return (
            f"replica {self.replica}: {self.matched} of {self.tokens} tokens known, "
            f"{self.rows} rows wait"
        )


# -- the router ------------------------------------------------------------------------------------


class _Cost(NamedTuple):
    """What a job adds to what a replica has to do."""

    rows: int
    texts: int


class _Replica:
    """What a replica said last, and what it was sent since: the sum is what it has to do."""

    def __init__(self, name: str, place: int) -> None:
        self.name, self.place, self.bit = name, place, 1 << place
        self.load, self.sent = Load(), dict[str, _Cost]()
        self.rows = self.texts = 0

    def told(self, load: Load) -> None:
        self.rows += load.rows - self.load.rows
        self.texts += load.texts - self.load.texts
        self.load = load

    def take(self, job: str, cost: _Cost) -> None:
        self.sent[job] = cost
        self.rows, self.texts = self.rows + cost.rows, self.texts + cost.texts

    def drop(self, job: str) -> None:
        cost = self.sent.pop(job)
        self.rows, self.texts = self.rows - cost.rows, self.texts - cost.texts


class Router:
    """One Front's view of its replicas. One thread at a time may use it.

    most_keys  how many blocks are known at most; those asked for least recently go first
    text_rows  see TEXT_ROWS
    """

    def __init__(self, most_keys: int = MOST_KEYS, text_rows: int = TEXT_ROWS) -> None:
        self._known = KnownBlocks(check_int("most_keys", most_keys, 1))
        self.text_rows = check_int("text_rows", text_rows, 0)
        self._replicas: dict[str, _Replica] = {}
        self._places: list[_Replica | None] = []
        self._seeds: NDArray[np.uint64] = np.empty(0, np.uint64)  # by place
        self._there = 0  # a bit for each place that is taken
        self._jobs: dict[str, _Replica] = {}  # not counted by their replicas yet
        self._routed = 0

    # -- replicas --------------------------------------------------------------------------------

    def update(self, names: Iterable[str]) -> None:
        """These are there now. Others are forgotten, with what they knew."""
        there = dict.fromkeys(names)
        gone = [one for name, one in self._replicas.items() if name not in there]
        if gone:
            self._forget(gone)
        for name in there:
            if name not in self._replicas:
                self._add(name)

    def told(self, name: str, load: Load) -> None:
        """What a replica has to do by its own count, which may lack what was sent just now."""
        one = self._replicas.get(name)
        if one is None:
            return
        for job in list(one.sent)[: max(0, load.received - one.load.received)]:
            self.ended(job)
        one.told(load)
        for keys in load.prompts:
            self._known.learn(one.bit, keys)

    def _add(self, name: str) -> None:
        place = self._places.index(None) if None in self._places else len(self._places)
        one = self._replicas[name] = _Replica(name, place)
        self._places[place : place + 1] = [one]
        self._seeds = np.resize(self._seeds, len(self._places))
        self._seeds[place] = int.from_bytes(digest(name.encode()), "little")
        self._there |= one.bit

    def _forget(self, gone: Sequence[_Replica]) -> None:
        lost = 0
        for one in gone:
            del self._replicas[one.name]
            self._places[one.place] = None
            lost |= one.bit
            for job in one.sent:
                del self._jobs[job]
        self._there &= ~lost
        self._known.forget(lost)

    # -- a job -----------------------------------------------------------------------------------

    def choose(self, prompts: Sequence[Prompt], avoid: Collection[str] = ()) -> Choice | None:
        """The cheapest that is not to be avoided; None where no other is left."""
        return next(iter(self.rank(prompts, avoid)), None)

    def rank(self, prompts: Sequence[Prompt], avoid: Collection[str] = ()) -> list[Choice]:
        """All that were considered, the cheapest first; of equal ones the shorter queue."""
        free = self._there
        for name in avoid:
            if name in self._replicas:
                free &= ~self._replicas[name].bit
        if not free:
            return []
        found = [self._known.of(prompt) for prompt in prompts]
        scores, tokens = self._scores(found), sum(prompt.tokens for prompt in prompts)
        costed = []
        for place in self._considered(found, scores, free):
            one = self._places[place]
            assert one is not None
            matched = sum(known.matched(one.bit) for known in found)
            cost = one.rows + (tokens - matched) * READ + one.texts * self.text_rows
            candidate = Candidate(one.name, matched, one.rows, one.texts, cost)
            costed.append((cost, one.texts, -int(scores[place]), candidate))
        considered = tuple(candidate for *_, candidate in sorted(costed))
        return [
            Choice(one.replica, one.matched, tokens, one.rows, one.texts, considered)
            for one in considered
        ]

    def sent(self, job: str, prompts: Sequence[Prompt], choice: Choice) -> None:
        """The job goes there; sent again it goes there instead. All that it adds counts at once."""
        self.ended(job)
        one = self._replicas.get(choice.replica)
        if one is None:
            return
        self._routed += 1
        cost = _Cost(choice.tokens - choice.matched, sum(prompt.texts for prompt in prompts))
        self._jobs[job] = one
        one.take(job, cost)
        for prompt in prompts:
            self._known.learn(one.bit, prompt.keys)

    def ended(self, job: str) -> bool:
        """It is over, or never came there; one that its replica has counted is the replica's.

        Whether the replica has not counted it: then what it counts next may have this one in it.
        """
        one = self._jobs.pop(job, None)
        if one:
            one.drop(job)
        return one is not None

    # -- who is considered -----------------------------------------------------------------------

    def _considered(self, found: list[Known], scores: Scores, free: int) -> list[int]:
        """Places: of those that know most, and the two that come first by rendezvous."""
        taken: list[int] = []
        left = free
        for who, _ in (level for known in found for level in reversed(known.levels)):
            taken += _best(who & left, scores, KNOWING - len(taken))
            left &= ~who
            if len(taken) == KNOWING:
                break
        return list(dict.fromkeys(taken + _best(free, scores, DRAWN)))

    def _scores(self, found: list[Known]) -> Scores:
        """Each place's luck with the first block that nobody knows.

        Where every block is known somewhere, or there is none, it is the luck of the draw, so that
        equal prompts do not meet the same few replicas for ever.
        """
        keys = (known.next_key for known in found if known.next_key is not None)
        return _mixed(self._seeds ^ np.uint64(next(keys, self._routed)))


def _best(who: int, scores: Scores, most: int) -> list[int]:
    """Places of bits, those of the highest scores where there are more than wanted."""
    if who & (who - 1) == 0:
        return [who.bit_length() - 1] if who and most else []
    packed = np.frombuffer(who.to_bytes(who.bit_length() // 8 + 1, "little"), np.uint8)
    places = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    if len(places) > most:
        places = places[np.argpartition(scores[places], len(places) - most)[len(places) - most :]]
    return [int(place) for place in places]


def _mixed(x: Scores) -> Scores:
    """Numbers of which each bit depends on all of x's: the finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
