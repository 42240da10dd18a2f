"""cutaway under load: requests of all kinds at random, some of which are given up.

    python bench/soak.py [-m MODEL] [--requests 300] [--seed 0] [--concurrency 16 | --rate R]
        [--kv-tokens 1536] [--prompt-tokens 256] [--max-tokens 96] [--check 20] [--json]

Prompts and answers of mixed lengths; some prompts begin alike, some readers leave in the queue,
in prefill or in decode, some ask for several samples, for guesses, stop strings or to go first.
With --rate, R requests a second arrive at random, however many are open. Few --kv-tokens make
texts wait, and leave again for others.

A random sample of the finished texts is then written again, alone and with an empty cache. The
exit code is 1 where one of them differs in a token or in a bit of its logits, or where a KV
block is not free at the end.
"""

import asyncio
import json
import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from cutaway import LLM
from cutaway.engine import AsyncEngine, AsyncStream, Speculation
from cutaway.options import parse_options
from cutaway.sampling import derive_seed

WORDS = (
    "the a one of and to in that it was he she they boat sea harbour morning light wind old "
    "keeper tower letter bread table child dog road hill went saw took found said never always"
)
STOPS = ["\n", " the", ". ", "and"]
PHASES = ("queue", "prefill", "decode")
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Visit:
    """One request: what it asks, when it arrives, and when its reader leaves.

    pause   seconds after the one before, where requests arrive at a rate
    leaves  the phase in which the reader leaves, or None
    steps   how many steps it reads before it leaves in decode
    """

    prompt: list[int]
    options: dict[str, Any]
    pause: float
    leaves: str | None
    steps: int


@dataclass
class Text:
    """What one sample wrote, and when it was asked for, began and ended (seconds).

    whole   whether it was read to its end
    cached  tokens of its prompt that were not computed for it; None where it never began
    left    the phase in which it was given up
    """

    visit: Visit
    seed: int
    asked: float
    token_ids: list[int] = field(default_factory=list)
    fingerprint: int = 0
    whole: bool = False
    began: float = 0.0
    ended: float = 0.0
    cached: int | None = None
    left: str | None = None
    speculation: Speculation = field(default_factory=Speculation)


# -- what is asked -------------------------------------------------------------------------------


def visits(llm: LLM, args: Namespace) -> Iterator[Visit]:
    """Requests without end; the same for the same seed."""
    rng, room = Random(args.seed), min(llm.engine.limits.context_length, args.kv_tokens) // 2
    longest = min(args.prompt_tokens, room)
    beginnings = [_ids(llm, rng, longest // 2, longest // 2) for _ in range(4)]
    while True:
        options = _options(rng, min(args.max_tokens, room))
        beginning = rng.choice(beginnings) if rng.random() < 0.4 else []
        own = rng.randint(1, longest - len(beginning))
        repeats = min(own, 12) if "speculate" in options else own
        prompt = beginning + _ids(llm, rng, own, repeats)
        leaves = rng.choice(PHASES) if rng.random() < 0.2 else None
        pause = rng.expovariate(args.rate) if args.rate else 0.0
        yield Visit(prompt, options, pause, leaves, rng.randint(1, 8))


def _options(rng: Random, max_tokens: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "seed": rng.getrandbits(32),
        "max_tokens": rng.randint(1, max_tokens),
        "temperature": rng.choice([0, 0, 0.7, 1.0]),
    }
    if rng.random() < 0.1:
        options["priority"] = -1
    if rng.random() < 0.3:
        options["speculate"] = "ngram"
    if rng.random() < 0.15:
        options["stop"] = rng.sample(STOPS, 2)
    if rng.random() < 0.1:
        options["n"] = rng.randint(2, 4)
    return options


def _ids(llm: LLM, rng: Random, count: int, words: int) -> list[int]:
    """So many token ids of so many random words, again and again."""
    text = " ".join(rng.choices(WORDS.split(), k=words))
    return llm.tokenize(f"{text} " * -(-count // words))[:count]


# -- asking --------------------------------------------------------------------------------------


class Soak:
    """The readers of one engine, and what they saw.

    rss  bytes in memory when a quarter, a half, … of the requests were done
    """

    def __init__(self, llm: LLM, args: Namespace) -> None:
        self.llm, self.args = llm, args
        self.texts: list[Text] = []
        self.rss: list[int] = []
        self.done = 0
        self.seconds = 0.0

    async def run(self) -> None:
        """All requests, to their ends."""
        args, started = self.args, perf_counter()
        room = asyncio.Semaphore(args.requests if args.rate else args.concurrency)
        async with AsyncEngine(self.llm.engine) as running, asyncio.TaskGroup() as readers:
            for visit in islice(visits(self.llm, args), args.requests):
                await asyncio.sleep(visit.pause)
                await room.acquire()
                reader = readers.create_task(self._visit(running, visit))
                reader.add_done_callback(lambda _: room.release())
        self.seconds = perf_counter() - started

    async def _visit(self, running: AsyncEngine, visit: Visit) -> None:
        """The samples of one request; only the reader of the first may leave."""
        leader, seed = None, visit.options["seed"]
        async with asyncio.TaskGroup() as readers:
            for i in range(visit.options.get("n", 1)):
                text = Text(visit, derive_seed(seed, i) if i else seed, perf_counter())
                options = parse_options({**visit.options, "seed": text.seed})
                stream = await running.submit(
                    visit.prompt, options.sampling, options.stops, options.run, leader=leader
                )
                leader = leader or stream.sequence
                self.texts.append(text)
                readers.create_task(_read(running, stream, text, None if i else visit.leaves))
        self._note()

    def _note(self) -> None:
        self.done += 1
        if self.done * 4 // self.args.requests > (self.done - 1) * 4 // self.args.requests:
            self.rss.append(_rss())


async def _read(running: AsyncEngine, stream: AsyncStream, text: Text, leaves: str | None) -> None:
    """Read to the end, or leave in that phase; where the text is further by then, so be it."""
    sequence, text.speculation = stream.sequence, stream.sequence.speculation
    async with aclosing(stream):
        while leaves == "prefill" and not sequence.finish_reason and not sequence.blocks:
            await running.call(int)  # the next step
        if leaves not in ("queue", "prefill"):
            async for step in stream:
                text.ended = perf_counter()
                text.began = text.began or text.ended
                text.token_ids.append(step.token_id)
                text.fingerprint, text.whole = step.fingerprint, bool(step.finish_reason)
                if leaves and len(text.token_ids) == text.visit.steps:
                    break
        text.cached = sequence.num_cached_tokens
        if not text.whole:
            begun = "decode" if sequence.output_token_ids else "prefill"
            text.left = "queue" if text.cached is None else begun


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


# -- what became of it ---------------------------------------------------------------------------


def differing(llm: LLM, texts: list[Text]) -> int:
    """How many of these differ from the same request alone."""
    return sum((text.token_ids, text.fingerprint) != alone(llm, text) for text in texts)


def alone(llm: LLM, text: Text) -> tuple[list[int], int]:
    """Token ids and fingerprint of a text without company and without a cache."""
    llm.engine.blocks.forget()
    options = {**text.visit.options, "seed": text.seed, "n": 1}
    completion = llm.generate(text.visit.prompt, **options)
    return list(completion.token_ids), int(completion.fingerprint, 16)


def report(soak: Soak) -> dict[str, Any]:
    """Everything that is told, as JSON has it; times in seconds, memory in MB."""
    llm, texts, args = soak.llm, soak.texts, soak.args
    llm.engine.blocks.forget()
    blocks = {"free": llm.engine.blocks.free, "all": llm.engine.blocks.count}
    tokens, rss = sum(len(t.token_ids) for t in texts), [round(b / 1e6, 1) for b in soak.rss]
    whole = [t for t in texts if t.whole]
    sample = Random(args.seed).sample(whole, min(args.check, len(whole)))
    begun = [t for t in texts if t.cached is not None]
    return {
        "benchmark": "soak",
        "model": llm.name,
        "requests": soak.done,
        "texts": len(texts),
        "tokens": tokens,
        "seconds": soak.seconds,
        "tokens_per_s": tokens / soak.seconds,
        "ttft_s": percentiles([t.began - t.asked for t in texts if t.began]),
        "tpot_s": percentiles(
            [(t.ended - t.began) / (n - 1) for t in texts if (n := len(t.token_ids)) > 1]
        ),
        "prompt_tokens": {
            "cached": sum(t.cached or 0 for t in begun),
            "all": sum(len(t.visit.prompt) for t in begun),
        },
        "preemptions": llm.engine.scheduler.preemptions,
        "speculation": {
            "accepted": sum(t.speculation.accepted for t in texts),
            "proposed": sum(t.speculation.proposed for t in texts),
        },
        "cancelled": {p: Counter(t.left for t in texts)[p] for p in PHASES},
        "rss_mb": rss,
        "rss_growth_mb": round(rss[-1] - rss[1], 1),
        "blocks": blocks,
        "checked": len(sample),
        "differing": differing(llm, sample),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """The smallest value that so many percent do not exceed; empty where there is none."""
    ranked = sorted(values)
    return {f"p{p}": ranked[-(-len(ranked) * p // 100) - 1] for p in PERCENTILES if ranked}


def show(r: dict[str, Any]) -> None:
    prompts, told = r["prompt_tokens"], r["speculation"]
    lines = {
        "requests": f"{r['requests']}, {r['texts']} texts, {r['tokens']} tokens",
        "throughput": f"{r['tokens_per_s']:.1f} tokens/s for {r['seconds']:.1f} s",
        "first token": _times(r["ttft_s"]),
        "per token after": _times(r["tpot_s"]),
        "prefix cache": f"{prompts['cached']} of {prompts['all']} prompt tokens found",
        "preemptions": r["preemptions"],
        "guesses": f"{told['accepted']} right of {told['proposed']}",
        "given up": ", ".join(f"{n} in {phase}" for phase, n in r["cancelled"].items()),
        "memory": f"{' → '.join(map(str, r['rss_mb']))} MB at each quarter; "
        f"{r['rss_growth_mb']:+} MB from half to end",
        "KV blocks": f"{r['blocks']['free']} free of {r['blocks']['all']}",
        "written again": f"{r['checked']} texts alone, {r['differing']} differ",
    }
    for name, line in lines.items():
        print(f"{name:15s} {line}")


def _times(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {s * 1e3:.1f} ms" for name, s in seconds.items())


def parse(argv: list[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=int, default=16, help="requests open at once")
    pace.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-tokens", type=int, default=1536)
    parser.add_argument("--prompt-tokens", type=int, default=256, help="of the longest prompt")
    parser.add_argument("--max-tokens", type=int, default=96, help="of the longest answer")
    parser.add_argument("--check", type=int, default=20, help="texts to write again alone")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    args = parser.parse_args(argv)
    if args.requests < 4:
        parser.error("--requests must be 4 or more: memory is told at each quarter")
    rate = 1 if args.rate is None else args.rate
    if min(args.concurrency, args.prompt_tokens, args.max_tokens) < 1 or rate <= 0:
        parser.error("--concurrency, --rate, --prompt-tokens and --max-tokens must be above 0")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    llm = LLM(args.model, threads=args.threads, kv_tokens=args.kv_tokens, progress=not args.json)
    soak = Soak(llm, args)
    asyncio.run(soak.run())
    found = report(soak)
    if args.json:
        print(json.dumps(found))
    else:
        show(found)
    blocks = found["blocks"]
    return int(found["differing"] > 0 or blocks["free"] < blocks["all"])


if __name__ == "__main__":
    sys.exit(main())
