"""Kill replicas with kill -9 while they write, and compare every text with one engine's alone.

    python bench/kills.py [-m MODEL] [--kills 200] [--replicas 2] [--streams 4] [--seed 0]

Requests are random: samplers, n, stops, penalties, grammars, drafts, recorded figures. Several
streams decode at any time, and for each request the process that writes it is killed after a random
number of tokens. All of a text is compared except times: tokens, text, figures, the hash of every
row, fingerprints, the reason why it ended. The last line is one JSON document. The exit code is 1
if a text was lost or differs. The script needs cutaway[ray].
"""

import asyncio
import json
import os
import sys
from argparse import Namespace
from dataclasses import dataclass, field
from random import Random
from signal import SIGKILL
from time import monotonic
from typing import Any

from cutaway import AsyncLLM
from cutaway.api.async_model import AsyncModel
from cutaway.base.progress import say
from cutaway.engine import Phases, Step
from cutaway.errors import CutawayError
from cutaway.features.cluster.front import ClusterLLM
from cutaway.features.cluster.launch import launch
from cutaway.features.cluster.plan import Plan
from cutaway.requests.generation import Generation
from script import parser_of

PROMPTS = (
    "Once upon a time in a small village by the sea",
    "The three most important things to know about rivers are",
    "def quicksort(xs):\n",
    '{"name": "',
)
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 3},
    {"speculate": "ngram"},
    {"speculate": "jacobi"},
    {"stop": ["\n\n", " the"]},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"candidates": 5, "ledger": True},
    {"logprobs": 3, "prompt_logprobs": 2},
    {"json_schema": {"type": "object"}, "n": 2},
    {"regex": "[a-z ]{10,200}"},
    {"min_tokens": 20, "bad_words": [" and"]},
)


@dataclass
class Tally:
    """Counts of kills and texts, and descriptions of the texts that were lost or differ."""

    kills: int = 0
    texts: int = 0
    tokens: int = 0
    resumed: int = 0
    replayed: int = 0
    differ: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def drawn(random: Random) -> tuple[str, dict[str, Any], int]:
    """Draw a prompt, options, and the number of tokens after which the replica is killed."""
    options = {
        "max_tokens": random.randint(8, 160),
        "temperature": random.choice([0, 0.7, 1.0, 1.5]),
        "top_p": random.choice([1.0, 0.9]),
        "top_k": random.choice([0, 40]),
        "seed": random.getrandbits(31),
        **random.choice(KINDS),
    }
    return random.choice(PROMPTS), options, random.randint(0, options["max_tokens"])


def compared(text: Generation) -> dict[str, Any]:
    """The parts of a text to compare: all but its times and the sources of its drafts."""
    assert text.ended
    return {
        "seed": text.seed,
        "steps": [step._replace(id=0, source="", phases=Phases()) for step in text.steps],
        "prompt": text.prompt_scores,
        "ended": (text.ended.reason, text.ended.matched, text.ended.fingerprint),
        "text": text.completion().text,
    }


async def write(
    llm: AsyncModel, prompt: str, options: dict[str, Any], killer: "Killer | None" = None
) -> tuple[list[dict[str, Any]], Any]:
    """Write the texts of a request; return them without times, and their ``Route``."""
    texts = await llm.submit([prompt], llm.parse(options))
    count = 0
    with texts:
        while events := await texts.read():
            count += sum(isinstance(event, Step) for _, event in events)
            if killer and texts.route:
                killer.written(count, texts.route.reasons[-1])
    return [compared(text) for text in texts.generations], texts.route


class Killer:
    """Kills the process that writes one request, once."""

    def __init__(self, front: ClusterLLM, after: int, tally: Tally) -> None:
        self._front, self._after, self._tally, self._done = front, after, tally, False

    def written(self, tokens: int, why: str) -> None:
        """Note how many tokens have come; `why` names the replica that writes them."""
        if self._done or tokens < self._after:
            return
        self._done = True
        for remote in self._front.exchange.remotes:
            if remote.name in why:
                os.kill(remote.pid, SIGKILL)
                self._tally.kills += 1


async def stream(front: ClusterLLM, random: Random, args: Namespace, tally: Tally) -> list[Any]:
    """Send one request after the other, until there were enough kills; return (request, texts)."""
    pairs = []
    while tally.kills < args.kills:
        prompt, options, after = drawn(random)
        try:
            texts, route = await write(front, prompt, options, Killer(front, after, tally))
        except CutawayError as error:
            tally.lost.append(f"{options}: {error}")
            continue
        tally.texts += len(texts)
        tally.tokens += sum(len(text["steps"]) for text in texts)
        tally.resumed += route.resumed
        tally.replayed += route.replayed
        pairs.append((prompt, options, texts))
    return pairs


async def soak(front: ClusterLLM, args: Namespace, tally: Tally) -> list[Any]:
    """Run several streams at once."""
    random = Random(args.seed)
    async with front:
        streams = [stream(front, Random(random.random()), args, tally) for _ in range(args.streams)]
        telling = asyncio.create_task(_tell(tally))
        found = await asyncio.gather(*streams)
        telling.cancel()
    return [pair for pairs in found for pair in pairs]


async def _tell(tally: Tally) -> None:
    while True:
        await asyncio.sleep(10)
        say(f"{tally.kills} kills, {tally.texts} texts, {tally.resumed} resumed")


async def compare(model: str | None, pairs: list[Any], tally: Tally) -> None:
    """Compare each text with the text of one engine alone."""
    async with AsyncLLM(model) as alone:
        for prompt, options, texts in pairs:
            expected, _ = await write(alone, prompt, options)
            if texts != expected:
                tally.differ.append(json.dumps([prompt, options]))


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tally, started = Tally(), monotonic()
    model = {"model": args.model} if args.model else {}
    with launch(Plan.from_arguments(args.replicas, 1, model, {})) as front:
        pairs = asyncio.run(soak(front, args, tally))
    seconds = monotonic() - started
    asyncio.run(compare(args.model, pairs, tally))
    print(json.dumps({**vars(tally), "seconds": round(seconds)}))
    return 1 if tally.differ or tally.lost else 0


if __name__ == "__main__":
    sys.exit(main())
