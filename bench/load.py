"""Shared parts of both soaks: random requests, the comparison with a text alone, and the report.

Does not know how requests reach the engine.
"""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from cutaway import LLM, Completion
from script import parser_of

T = TypeVar("T")

WORDS = (
    "the a one of and to in that it was he she they boat sea harbour morning light wind old "
    "keeper tower letter bread table child dog road hill went saw took found said never always"
)
STOPS = ["\n", " the", ". ", "and"]
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Visit:
    """One request, the time of its arrival, and the time when its reader leaves.

    pause   seconds after the previous request, if requests arrive at a rate
    leaves  the way in which the reader leaves; None: the reader stays
    steps   number of steps for which the reader waits before it leaves
    """

    prompt: list[int]
    options: dict[str, Any]
    pause: float
    leaves: str | None
    steps: int


# -- requests ------------------------------------------------------------------------------------


def parser(doc: str | None, *, kv_tokens: int, check: int) -> ArgumentParser:
    """Make a parser with the flags of every soak; kv_tokens, check: their defaults."""
    flags = parser_of(doc)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--threads", type=int)
    flags.add_argument("--kv-tokens", type=int, default=kv_tokens)
    flags.add_argument("--prompt-tokens", type=int, default=256, help="of the longest prompt")
    flags.add_argument("--max-tokens", type=int, default=96, help="of the longest answer")
    flags.add_argument("--check", type=int, default=check, help="texts to write again alone")
    flags.add_argument("--json", action="store_true", help="print one JSON document")
    return flags


def visits(
    llm: LLM, args: Namespace, ways: Sequence[str], long: str = "", rate: float | None = None
) -> Iterator[Visit]:
    """Yield requests without end; the same for the same seed.

    ways  ways in which readers leave; long: the way that needs a long prompt
    rate  arrivals a second; None: requests do not wait for a time
    """
    rng, room = Random(args.seed), min(llm.engine.limits.context_length, args.kv_tokens) // 2
    longest = min(args.prompt_tokens, room)
    beginnings = [_ids(llm, rng, longest // 2, longest // 2) for _ in range(4)]
    while True:
        options = _options(rng, min(args.max_tokens, room))
        beginning = rng.choice(beginnings) if rng.random() < 0.4 else []
        leaves = rng.choice(ways) if rng.random() < 0.2 else None
        most = longest - len(beginning)
        own = most if leaves == long else rng.randint(1, most)
        repeats = min(own, 12) if "speculate" in options else own
        prompt = beginning + _ids(llm, rng, own, repeats)
        pause = rng.expovariate(rate) if rate else 0.0
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
        options["speculate"] = rng.choice(["ngram", "jacobi"])
    if rng.random() < 0.15:
        options["stop"] = rng.sample(STOPS, 2)
    if rng.random() < 0.1:
        options["n"] = rng.randint(2, 3)
    return options


def _ids(llm: LLM, rng: Random, count: int, words: int) -> list[int]:
    """Make ``count`` token ids by repeating ``words`` random words."""
    text = " ".join(rng.choices(WORDS.split(), k=words))
    return llm.tokenize(f"{text} " * -(-count // words))[:count]


# -- checks and figures --------------------------------------------------------------------------


def sample(texts: Sequence[T], args: Namespace) -> list[T]:
    """Choose the texts that are written again."""
    return Random(args.seed).sample(texts, min(args.check, len(texts)))


def alone(llm: LLM, prompt: list[int], options: Mapping[str, Any], seed: int) -> Completion:
    """Write one sample of a request, with no other request and an empty prefix cache."""
    blocks = llm.engine.blocks
    blocks.release(blocks.allocate(blocks.free))  # nothing stays in the prefix cache
    completion: Completion = llm.generate(prompt, **{**options, "seed": seed, "n": 1})
    return completion


def rss(process: int | str = "self") -> int:
    """The bytes of a process in memory (resident set size)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def memory(quarters: Sequence[int]) -> dict[str, Any]:
    """Memory in MB at each quarter, and its growth in the second half."""
    megabytes = [round(b / 1e6, 1) for b in quarters]
    return {"rss_mb": megabytes, "rss_growth_mb": round(megabytes[-1] - megabytes[1], 1)}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """By name ("p50"): the smallest value that is not below that percentage of the values."""
    ranked = sorted(values)
    return {f"p{p}": ranked[-(-len(ranked) * p // 100) - 1] for p in PERCENTILES if ranked}


# -- the report ----------------------------------------------------------------------------------


def tell(
    found: dict[str, Any], args: Namespace, lines: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Print one JSON document, or lines for people."""
    if args.json:
        print(json.dumps(found))
        return
    for name, line in lines(found).items():
        print(f"{name:15s} {line}")


def common_lines(r: dict[str, Any]) -> dict[str, Any]:
    """The lines of every soak: speed, memory and the check."""
    return {
        "throughput": f"{r['tokens_per_s']:.1f} tokens/s for {r['seconds']:.1f} s",
        "first token": _times(r["ttft_s"]),
        "per token after": _times(r["tpot_s"]),
        "memory": f"{' → '.join(map(str, r['rss_mb']))} MB at each quarter; "
        f"{r['rss_growth_mb']:+} MB from half to end",
        "KV blocks": f"{r['blocks']['free']} free of {r['blocks']['all']}",
        "written again": f"{r['checked']} texts alone, {r['differing']} differ",
    }


def _times(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {s * 1e3:.1f} ms" for name, s in seconds.items())
