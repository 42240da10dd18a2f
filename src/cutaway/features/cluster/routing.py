"""Chooses the replica of a job: the one where its first token costs the fewest rows.

A choice depends only on the calls before it, not on a clock or on Ray. Costs are in rows:

    cost = rows waiting there + rows of these prompts that are not in its cache × READ
           + texts there × TEXT_ROWS

A replica counts as having a prompt's blocks as soon as a job is routed there, so the second of many
equal prompts finds the first. The router does not know the blocks of answers, or evictions; this
costs rows, and changes no token.

The router computes the cost of only a few replicas: some that have most of the prompt, and two that
rendezvous hashing of the prompt's first unknown block picks. So independent routers pick the same
two. A popular prefix spreads without a threshold: another replica computes the prefix as soon as
that costs less than waiting for a replica that has it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutaway.base.checks import check_int
from cutaway.features.cluster.prompt_blocks import Prompt, PromptBlocks, PromptMatches, digest

Scores = NDArray[np.uint64]

READ = 2
"""The cost of a prompt row: its own text waits for it, and so do the replica's other texts. With
1, the second of two equal prompts might be computed elsewhere instead of waiting for the first."""

TEXT_ROWS = 64
"""The cost of a running text, in rows: the text takes one row of each step while the new prompt and
its answer are computed. With 16, texts pile up where much is cached; with 128, caches are used less
(bench/routing.py)."""

MOST_KEYS = 2**20
MOST_HOLDERS, MOST_HASHED = 4, 2
"""The most replicas whose cost is computed because they have most of the prompt, and the most that
hashing picks."""


# -- loads, costs and choices ----------------------------------------------------------------------


class Load(NamedTuple):
    """A replica's load by its own count.

    rows      prompt rows that are still to be computed
    texts     number of texts, running or waiting
    received  number of this router's jobs that had arrived when the replica counted
    prompts   keys of each recent prompt, so that routers learn of each other's prompts
    """

    rows: int = 0
    texts: int = 0
    received: int = 0
    prompts: Sequence[Sequence[int]] = ()


class ReplicaCost(NamedTuple):
    """A replica and its cost. rows, texts: the replica's load before this job."""

    replica: str
    cached_tokens: int
    rows: int
    texts: int
    cost: int


@dataclass(frozen=True)
class Choice:
    """The chosen replica, and the reason.

    cached_tokens  number of the prompts' tokens that are in the replica's cache
    rows, texts    the replica's load before this job
    candidates     all replicas whose cost was computed, the cheapest first
    """

    replica: str
    cached_tokens: int
    tokens: int
    rows: int
    texts: int
    candidates: tuple[ReplicaCost, ...]

    def __str__(self) -> str:
        return (
            f"replica {self.replica}: {self.cached_tokens} of {self.tokens} tokens cached, "
            f"{self.rows} rows wait"
        )


# -- the router ------------------------------------------------------------------------------------


class _Cost(NamedTuple):
    """What a job adds to a replica's load."""

    rows: int
    texts: int


class _Replica:
    """A replica's last report and the jobs sent since. rows, texts: the sums of report and jobs."""

    def __init__(self, name: str, place: int) -> None:
        self.name, self.place, self.bit = name, place, 1 << place
        self.load, self.jobs = Load(), dict[str, _Cost]()
        self.rows = self.texts = 0

    def report(self, load: Load) -> None:
        self.rows += load.rows - self.load.rows
        self.texts += load.texts - self.load.texts
        self.load = load

    def take(self, job: str, cost: _Cost) -> None:
        self.jobs[job] = cost
        self.rows, self.texts = self.rows + cost.rows, self.texts + cost.texts

    def drop(self, job: str) -> None:
        cost = self.jobs.pop(job)
        self.rows, self.texts = self.rows - cost.rows, self.texts - cost.texts


class Router:
    """One Front's view of its replicas. One thread at a time may use it.

    most_keys  the most blocks that are remembered; the least recently used are evicted first
    text_rows  see TEXT_ROWS
    """

    def __init__(self, most_keys: int = MOST_KEYS, text_rows: int = TEXT_ROWS) -> None:
        self._blocks = PromptBlocks(check_int("most_keys", most_keys, 1))
        self.text_rows = check_int("text_rows", text_rows, 0)
        self._replicas: dict[str, _Replica] = {}
        self._places: list[_Replica | None] = []
        self._seeds: NDArray[np.uint64] = np.empty(0, np.uint64)  # by place
        self._there = 0  # a bit for each place in use
        self._jobs: dict[str, _Replica] = {}  # not counted by their replicas yet
        self._routed = 0

    # -- replicas --------------------------------------------------------------------------------

    def update(self, names: Iterable[str]) -> None:
        """Set which replicas exist. All other replicas are forgotten, with their blocks."""
        there = dict.fromkeys(names)
        former = [replica for name, replica in self._replicas.items() if name not in there]
        if former:
            self._forget(former)
        for name in there:
            if name not in self._replicas:
                self._add(name)

    def report(self, name: str, load: Load) -> None:
        """Take the load that a replica reports, which may lack jobs that were just sent."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        for job in list(replica.jobs)[: max(0, load.received - replica.load.received)]:
            self.note_ended(job)
        replica.report(load)
        for keys in load.prompts:
            self._blocks.learn(replica.bit, keys)

    def _add(self, name: str) -> None:
        place = self._places.index(None) if None in self._places else len(self._places)
        replica = self._replicas[name] = _Replica(name, place)
        self._places[place : place + 1] = [replica]
        self._seeds = np.resize(self._seeds, len(self._places))
        self._seeds[place] = int.from_bytes(digest(name.encode()), "little")
        self._there |= replica.bit

    def _forget(self, former: Sequence[_Replica]) -> None:
        bits = 0
        for replica in former:
            del self._replicas[replica.name]
            self._places[replica.place] = None
            bits |= replica.bit
            for job in replica.jobs:
                del self._jobs[job]
        self._there &= ~bits
        self._blocks.forget(bits)

    # -- a job -----------------------------------------------------------------------------------

    def choose(self, prompts: Sequence[Prompt], avoid: Collection[str] = ()) -> Choice | None:
        """The cheapest replica that is not in ``avoid``; None if there is no such replica."""
        return next(iter(self.rank(prompts, avoid)), None)

    def rank(self, prompts: Sequence[Prompt], avoid: Collection[str] = ()) -> list[Choice]:
        """Rank the candidates: the cheapest replica first; in a tie, the one with fewer texts."""
        free = self._there
        for name in avoid:
            if name in self._replicas:
                free &= ~self._replicas[name].bit
        if not free:
            return []
        matches = [self._blocks.match(prompt) for prompt in prompts]
        scores, tokens = self._scores(matches), sum(prompt.tokens for prompt in prompts)
        costed = []
        for place in self._candidates(matches, scores, free):
            replica = self._places[place]
            assert replica is not None
            cached_tokens = sum(match.cached_tokens(replica.bit) for match in matches)
            cost = replica.rows + (tokens - cached_tokens) * READ + replica.texts * self.text_rows
            candidate = ReplicaCost(replica.name, cached_tokens, replica.rows, replica.texts, cost)
            costed.append((cost, replica.texts, -int(scores[place]), candidate))
        candidates = tuple(candidate for *_, candidate in sorted(costed))
        return [
            Choice(
                candidate.replica,
                candidate.cached_tokens,
                tokens,
                candidate.rows,
                candidate.texts,
                candidates,
            )
            for candidate in candidates
        ]

    def note_sent(self, job: str, prompts: Sequence[Prompt], choice: Choice) -> None:
        """Note that a job was sent to this replica alone; its cost counts at once."""
        self.note_ended(job)
        replica = self._replicas.get(choice.replica)
        if replica is None:
            return
        self._routed += 1
        cost = _Cost(choice.tokens - choice.cached_tokens, sum(prompt.texts for prompt in prompts))
        self._jobs[job] = replica
        replica.take(job, cost)
        for prompt in prompts:
            self._blocks.learn(replica.bit, prompt.keys)

    def note_ended(self, job: str) -> bool:
        """Note that a job has ended or never arrived.

        Returns True if its replica had not reported the job yet; the next report may include it.
        """
        replica = self._jobs.pop(job, None)
        if replica:
            replica.drop(job)
        return replica is not None

    # -- whose cost is computed ---------------------------------------------------------------

    def _candidates(self, matches: list[PromptMatches], scores: Scores, free: int) -> list[int]:
        """Find the places of replicas that have most of the prompt, and two places by hashing."""
        places: list[int] = []
        left = free
        for holders, _ in (level for match in matches for level in reversed(match.levels)):
            places += _best(holders & left, scores, MOST_HOLDERS - len(places))
            left &= ~holders
            if len(places) == MOST_HOLDERS:
                break
        return list(dict.fromkeys(places + _best(free, scores, MOST_HASHED)))

    def _scores(self, matches: list[PromptMatches]) -> Scores:
        """Each place's rendezvous hash with the first unknown block.

        If all blocks are known, a counter is hashed instead of a block, so that equal prompts go
        to different replicas.
        """
        keys = (match.next_key for match in matches if match.next_key is not None)
        return _mix(self._seeds ^ np.uint64(next(keys, self._routed)))


def _best(bits: int, scores: Scores, count: int) -> list[int]:
    """Return the places of at most ``count`` set bits: those with the highest scores."""
    if bits & (bits - 1) == 0:
        return [bits.bit_length() - 1] if bits and count else []
    packed = np.frombuffer(bits.to_bytes(bits.bit_length() // 8 + 1, "little"), np.uint8)
    places = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    if len(places) > count:
        places = places[np.argpartition(scores[places], len(places) - count)[len(places) - count :]]
    return [int(place) for place in places]


def _mix(x: Scores) -> Scores:
    """Hashes of numbers: the finaliser of SplitMix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
