"""Choosing one of many replicas for a text: a simulation of cutaway's router and others.

    python bench/routing.py [--replicas 8] [--load 0.5] [--seconds 600] [--fronts 2] [--seed 0]
        [--way NAME …] [--stats-s 1] [--json] [--write docs/scale.md]

Conversations of a chat service's shape (routing_traces.py: Zipf-shared system prompts, turns that
extend a text, lognormal lengths and times to think, bursts of equal questions) are answered by
replicas whose steps take as long as a 1B model's (routing_replicas.py). Every way of routing has
the same conversations; a turn is asked after the previous answer and a time to think.

    load       1 would keep all replicas busy if no token were read twice
    hits       share of prompt tokens that the replica's cache had
    queue      from the arrival to the first row that is read
    first      from the arrival to the first token
    imbalance  rows computed by the busiest replica, by the mean

Times are in seconds of the simulation, from its second quarter on. Equal settings give equal
figures. The last line is one JSON document.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import asdict
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from cutaway.base.progress import say
from cutaway.compute.backends import KV_BLOCK
from cutaway.features.cluster.prompt_blocks import Prompt
from routing_policies import Way, ways
from routing_replicas import Machine, Replica, Text
from routing_traces import Conversation, Shape, conversations, rows_of
from script import check_page, grid, parser_of, publish

_TOGETHER = 16  # texts that share a step, for the estimate of the load


class Simulation:
    """Events in the order of their times; of equal times, the event that was added first."""

    def __init__(self, replicas: int, machine: Machine) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.replicas = [Replica(machine, self._wake) for _ in range(replicas)]
        self.texts: list[Text] = []

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Add an event at this time."""
        heappush(self._events, (time, next(self._order), event))

    def run(self, way: Way, asked: list[Conversation], seconds: float, stats_s: float) -> None:
        """Simulate so many seconds; texts that are unfinished then are left out."""
        for one in asked:
            self.at(one.start_s, lambda one=one: self._ask(way, one, 0))  # type: ignore[misc]
        self.at(stats_s, lambda: self._tell(way, stats_s))
        while self._events and self._events[0][0] <= seconds:
            self.now, _, event = heappop(self._events)
            event()

    def _wake(self, time: float, replica: Replica) -> None:
        def due() -> None:
            if replica.next_due == time:  # else the replica's next step has changed meanwhile
                replica.due(time)

        self.at(time, due)

    def _tell(self, way: Way, stats_s: float) -> None:
        way.tell()
        self.at(self.now + stats_s, lambda: self._tell(way, stats_s))

    def _ask(self, way: Way, one: Conversation, turn: int) -> None:
        tokens, answer = one.prompts[turn]
        keys = one.keys(tokens)

        def ended(now: float) -> None:
            if turn + 1 < len(one.turns):
                think = one.turns[turn + 1].think_s
                self.at(now + think, lambda: self._ask(way, one, turn + 1))

        text = Text(self.now, keys, one.keys(tokens + answer), tokens, answer, ended)
        prompt = Prompt(keys, (tokens - 1) // KV_BLOCK, tokens, 1)
        self.texts.append(text)
        self.replicas[way.choose(prompt, one.number)].add(text, self.now)


def simulate(args: Namespace, shape: Shape, machine: Machine, name: str) -> dict[str, Any]:
    """Simulate one way of routing; return its figures."""
    simulation = Simulation(args.replicas, machine)
    way = ways(simulation.replicas, args.fronts, args.seed)[name]()
    asked = conversations(
        shape, _rate(args, shape, machine), args.seconds, args.replicas, args.seed
    )
    simulation.run(way, asked, args.seconds, args.stats_s)
    texts = [text for text in simulation.texts if text.arrived >= args.seconds / 4]
    end = args.seconds
    queue = [(text.began if text.began >= 0 else end) - text.arrived for text in texts]
    first = [(text.first_token if text.first_token >= 0 else end) - text.arrived for text in texts]
    admitted = [text for text in texts if text.began >= 0]
    rows = [replica.rows_done for replica in simulation.replicas]
    return {
        "way": name,
        "texts": len(texts),
        "hits": sum(text.matched for text in admitted) / sum(text.tokens for text in admitted),
        "queue_p50_s": _percentile(queue, 50),
        "queue_p99_s": _percentile(queue, 99),
        "first_p50_s": _percentile(first, 50),
        "first_p99_s": _percentile(first, 99),
        "imbalance": max(rows) / (sum(rows) / len(rows)),
        "rows": sum(rows),
        "steps": sum(replica.steps for replica in simulation.replicas),
        "answered": sum(text.first_token >= 0 for text in texts) / len(texts),
    }


def _rate(args: Namespace, shape: Shape, machine: Machine) -> float:
    """The conversations a second, for all replicas together, that give the load."""
    read, written = rows_of(shape)
    each_s = read * machine.row_s + written * (machine.row_s + machine.step_s / _TOGETHER)
    beside = shape.burst * shape.turns / shape.burst_s if shape.burst_s else 0.0
    turns = max(args.load / each_s - beside, 0.0)
    return float(args.replicas * turns / shape.turns)


def _percentile(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def markdown(found: Mapping[str, Any]) -> str:
    """A table for people, and for docs/scale.md."""
    keys = ("queue_p50_s", "queue_p99_s", "first_p50_s", "first_p99_s", "imbalance")
    head = (
        f"{found['replicas']:,} replicas, load {found['load']:g}", "prompt tokens found",
        "queue p50, s", "p99", "first token p50, s", "p99", "imbalance",
    )  # fmt: skip
    return grid(head, (
        (row["way"], f"{row['hits']:.0%}", *(f"{row[key]:.2f}" for key in keys))
        for row in found["ways"]
    ))  # fmt: skip


def parse(argv: list[str] | None) -> Namespace:
    names = [*ways([], 1, 0)]
    parser = parser_of(__doc__, model=False, write="docs/scale.md")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--load", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--fronts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stats-s", type=float, default=1.0, help="between a replica's figures")
    parser.add_argument("--way", action="append", choices=names, help="these alone")
    parser.add_argument("--json", action="store_true", help="print the JSON document only")
    args = parser.parse_args(argv)
    if min(args.replicas, args.fronts) < 1 or min(args.load, args.seconds, args.stats_s) <= 0:
        parser.error("--replicas, --fronts, --load, --seconds and --stats-s must be above 0")
    args.way = args.way or names
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    name = f"routing-{args.replicas}-{args.load:g}"
    check_page(args.write, name)
    shape, machine, rows = Shape(), Machine(), []
    for way in args.way:
        rows.append(simulate(args, shape, machine, way))
        if not args.json:
            say(f"  {way}: {rows[-1]['hits']:.0%} of the prompts' tokens found")
    settings = {
        k: getattr(args, k) for k in ("replicas", "load", "seconds", "fronts", "seed", "stats_s")
    }
    found = settings | {"ways": rows}
    assumed = {"benchmark": "routing", "shape": asdict(shape), "machine": asdict(machine)}
    publish(markdown(found), assumed | found, args.write, name, only_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
