"""cutaway under load: random requests of all kinds, some of which are aborted.

    python bench/soak.py [-m MODEL] [--requests 300] [--seed 0] [--concurrency 16 | --rate R]
        [--kv-tokens 1536] [--prompt-tokens 256] [--max-tokens 96] [--check 20] [--json]

Prompts and answers have mixed lengths; some prompts share a beginning; some readers leave in the
queue, in prefill or in decode; some requests ask for several samples, drafts, stop strings or
priority. With --rate, R requests a second arrive at random, however many are open. With few
--kv-tokens texts wait, and are preempted.

A random sample of the finished texts is then written again, each alone and with an empty cache. The
exit code is 1 if a text differs in a token or in a bit of its logits, or if a KV block is not free
at the end.
"""

import asyncio
import sys
from argparse import Namespace
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import Any

import load
from cutaway import LLM
from cutaway.engine import (
    AsyncEngine,
    Ended,
    Engine,
    Event,
    FinishReason,
    Inboxes,
    Request,
    Speculation,
    Started,
    Step,
)
from cutaway.requests.options import parse_options
from load import Visit

PHASES = ("queue", "prefill", "decode")


@dataclass
class Text:
    """One sample's text, and the times at which it was requested, began and ended, in seconds.

    whole   whether the text was read to its end
    cached  number of prompt tokens that were in the prefix cache; None if the text never began
    left    the phase in which the text was aborted
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


# -- asking --------------------------------------------------------------------------------------


class Soak:
    """The readers of one engine, and their observations.

    rss  bytes in memory after a quarter, a half, … of the requests
    """

    def __init__(self, llm: LLM, args: Namespace) -> None:
        self.llm, self.args = llm, args
        self.texts: list[Text] = []
        self.rss: list[int] = []
        self.done = 0
        self.seconds = 0.0
        self._leaving = _Leaving(llm.engine)

    async def run(self) -> None:
        """Run all requests to their ends."""
        args, started = self.args, perf_counter()
        room = asyncio.Semaphore(args.requests if args.rate else args.concurrency)
        async with AsyncEngine(self.llm.engine) as running, asyncio.TaskGroup() as readers:
            asked = load.visits(self.llm, args, PHASES, "prefill", args.rate)
            for visit in islice(asked, args.requests):
                await asyncio.sleep(visit.pause)
                await room.acquire()
                reader = readers.create_task(self._visit(running, visit))
                reader.add_done_callback(lambda _: room.release())
        self.seconds = perf_counter() - started

    async def _visit(self, running: AsyncEngine, visit: Visit) -> None:
        """Read the samples of one request; only the first sample's reader may leave early."""
        options = parse_options(visit.options)
        request = options.request(visit.prompt)
        if visit.leaves == "prefill":
            self._leaving.requests.append(request)
        asked = perf_counter()
        inboxes = await running.submit([(request, options.n)])
        texts = [Text(visit, s.seed, asked) for s in inboxes.sequences]
        self.texts += texts
        with closing(inboxes):
            await _read(running, inboxes, texts)
        self._note()

    def _note(self) -> None:
        self.done += 1
        if self.done * 4 // self.args.requests > (self.done - 1) * 4 // self.args.requests:
            self.rss.append(load.rss())


class _Leaving:
    """Aborts texts in prefill, from the engine's own thread before a step.

    A prefill may take only a millisecond, so a task of the event loop would come too late.
    """

    def __init__(self, engine: Engine) -> None:
        self.requests: list[Request] = []
        self._engine, self._step = engine, engine.step
        engine.step = self._abort_and_step  # type: ignore[method-assign]

    def _abort_and_step(self) -> list[Event]:
        for sequence in [*self._engine.running]:
            if sequence.request not in self.requests:
                continue
            self.requests.remove(sequence.request)
            if not sequence.output_token_ids:
                self._engine.abort(sequence)
        return self._step()


async def _read(running: AsyncEngine, inboxes: Inboxes, texts: list[Text]) -> None:
    """Read to the end; abort the first sample in the phase in which its reader leaves."""
    leaves, first = texts[0].visit.leaves, inboxes.sequences[0]
    if leaves == "queue":
        await running.call(running.engine.abort, first)
    while news := await inboxes.read():
        for which, emission in news:
            _note_event(texts[which], emission.event, emission.emitted_at)
        if leaves == "decode" and len(texts[0].token_ids) >= texts[0].visit.steps:
            leaves = None
            await running.call(running.engine.abort, first)


def _note_event(text: Text, event: Event, made: float) -> None:
    match event:
        case Started():
            text.cached = event.cached_tokens
        case Step():
            text.ended, text.began = made, text.began or made
            text.token_ids.append(event.token_id)
            text.fingerprint = event.fingerprint
        case Ended():
            text.speculation = event.speculation
            text.whole = event.reason != FinishReason.ABORTED
            if not text.whole:
                begun = "decode" if text.token_ids else "prefill"
                text.left = "queue" if text.cached is None else begun


# -- checks and report ---------------------------------------------------------------------------


def differing(llm: LLM, texts: list[Text]) -> int:
    """Count the texts that differ from the same request alone."""
    return sum((text.token_ids, text.fingerprint) != alone(llm, text) for text in texts)


def alone(llm: LLM, text: Text) -> tuple[list[int], int]:
    """Write the same text alone, without a cache; return its token ids and fingerprint."""
    completion = load.alone(llm, text.visit.prompt, text.visit.options, text.seed)
    return list(completion.token_ids), int(completion.fingerprint, 16)


def report(soak: Soak) -> dict[str, Any]:
    """The JSON document; times in seconds, memory in MB."""
    llm, texts, args = soak.llm, soak.texts, soak.args
    blocks = {"free": llm.engine.blocks.free, "all": llm.engine.blocks.count}
    tokens = sum(len(t.token_ids) for t in texts)
    sample = load.sample([t for t in texts if t.whole], args)
    begun = [t for t in texts if t.cached is not None]
    return {
        "benchmark": "soak",
        "model": llm.name,
        "requests": soak.done,
        "texts": len(texts),
        "tokens": tokens,
        "seconds": soak.seconds,
        "tokens_per_s": tokens / soak.seconds,
        "ttft_s": load.percentiles([t.began - t.asked for t in texts if t.began]),
        "tpot_s": load.percentiles(
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
        **load.memory(soak.rss),
        "blocks": blocks,
        "checked": len(sample),
        "differing": differing(llm, sample),
    }


def lines(r: dict[str, Any]) -> dict[str, Any]:
    prompts, told = r["prompt_tokens"], r["speculation"]
    return {
        "requests": f"{r['requests']}, {r['texts']} texts, {r['tokens']} tokens",
        **load.common_lines(r),
        "prefix cache": f"{prompts['cached']} of {prompts['all']} prompt tokens found",
        "preemptions": r["preemptions"],
        "drafts": f"{told['accepted']} of {told['proposed']} tokens accepted",
        "aborted": ", ".join(f"{n} in {phase}" for phase, n in r["cancelled"].items()),
    }


def parse(argv: list[str] | None) -> Namespace:
    parser = load.parser(__doc__, kv_tokens=1536, check=20)
    parser.add_argument("--requests", type=int, default=300)
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=int, default=16, help="requests open at once")
    pace.add_argument("--rate", type=float, help="requests a second")
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
    load.tell(found, args, lines)
    blocks = found["blocks"]
    return int(found["differing"] > 0 or blocks["free"] < blocks["all"])


if __name__ == "__main__":
    sys.exit(main())
