"""The cost of the router itself: the time of a choice, and the memory of known blocks.

    python bench/router_cost.py [--replicas 8 100 1000] [--choices 2000] [--json]
        [--write docs/scale.md]

    hash     keys of a prompt, in this process for each request
    choice   choosing and counting one job, of a conversation that is known and of one that is not,
             behind a system prompt that every replica knows
    figures  one replica's figures with one prompt's keys
    removal  forgetting a replica
    memory   bytes of each block that is known, by one replica and by all

Medians, in microseconds. The last line is one JSON document.
"""

import sys
import tracemalloc
from argparse import Namespace
from collections.abc import Callable, Mapping
from itertools import count
from statistics import median
from time import perf_counter
from typing import Any

from cutaway.compute.backends import KV_BLOCK
from cutaway.features.cluster.prompt_blocks import Prompt, block_keys
from cutaway.features.cluster.routing import Load, Router
from script import check_page, grid, parser_of, publish

TOKENS, SYSTEM = 1000, 500
KNOWN = 50_000


def prompt(conversation: int, tokens: int = TOKENS) -> Prompt:
    """Make a prompt: the system prompt of all conversations, then a text of this one."""
    ids = [*range(SYSTEM), *[conversation] * (tokens - SYSTEM)]
    return Prompt(block_keys(ids), (tokens - 1) // KV_BLOCK, tokens, 1)


def seconds(function: Callable[[], object]) -> float:
    started = perf_counter()
    function()
    return perf_counter() - started


def times(replicas: int, choices: int) -> dict[str, float]:
    """Measure the median seconds of each call."""
    router, jobs = Router(), count()
    router.update(map(str, range(replicas)))
    for name in range(replicas):
        router.report(str(name), Load(prompts=[prompt(0, SYSTEM).keys]))

    def route(asked: Prompt) -> None:
        choice = router.choose([asked])
        assert choice is not None
        router.note_sent(str(next(jobs)), [asked], choice)

    asked = [prompt(1 + one) for one in range(choices)]
    new = [seconds(lambda one=one: route(one)) for one in asked]  # type: ignore[misc]
    known = [seconds(lambda one=one: route(one)) for one in asked]  # type: ignore[misc]
    told = []
    for number, one in enumerate(asked):
        load = Load(10, 3, number, [one.keys])
        told.append(seconds(lambda load=load: router.report(str(number % replicas), load)))  # type: ignore[misc] # noqa: B023
    ids, blocks = [*range(TOKENS)], len(router._blocks.by_key)
    return {
        "hash_s": median(seconds(lambda: block_keys(ids)) for _ in range(choices)),
        "new_s": median(new),
        "known_s": median(known),
        "told_s": median(told),
        "removal_s": seconds(lambda: router.update(map(str, range(1, replicas)))),
        "removal_keys": blocks,
    }


def bytes_a_key(replicas: int, by_all: bool) -> float:
    """The bytes that Python allocates for a block's key, if one replica or all have the block."""
    router = Router()
    router.update(map(str, range(replicas)))
    keys = [block_keys([one] * KV_BLOCK) for one in range(KNOWN // (50 if by_all else 1))]
    tracemalloc.start()
    for place in range(replicas if by_all else 1):
        router.report(str(replicas - 1 - place), Load(prompts=keys))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(keys) + sys.getsizeof(keys[0][0])


def markdown(found: Mapping[str, Any]) -> str:
    """A table for people, and for docs/scale.md."""
    head = (
        "replicas", "choice, new conversation", "choice, known", "a replica's figures",
        f"forgetting one, of {found['rows'][0]['removal_keys']:,} blocks",
        "bytes a block, known by one", "by all",
    )  # fmt: skip
    rows = []
    for row in found["rows"]:
        times = [f"{row[key] * 1e6:.0f} µs" for key in ("new_s", "known_s", "told_s")]
        sizes = [f"{row[key]:.0f}" for key in ("bytes_by_one", "bytes_by_all")]
        rows.append([f"{row['replicas']:,}", *times, f"{row['removal_s'] * 1e3:.0f} ms", *sizes])
    return grid(head, rows)


def parse(argv: list[str] | None) -> Namespace:
    parser = parser_of(__doc__, model=False, write="docs/scale.md")
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 100, 1000])
    parser.add_argument("--choices", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="print the JSON document only")
    args = parser.parse_args(argv)
    if min(args.replicas) < 2 or args.choices < 1:
        parser.error("--replicas must be above 1, and --choices above 0")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    check_page(args.write, "router-cost")
    rows = [
        {"replicas": replicas}
        | times(replicas, args.choices)
        | {
            "bytes_by_one": bytes_a_key(replicas, False),
            "bytes_by_all": bytes_a_key(replicas, True),
        }
        for replicas in args.replicas
    ]
    found = {"benchmark": "router-cost", "rows": rows}
    publish(markdown(found), found, args.write, "router-cost", only_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
