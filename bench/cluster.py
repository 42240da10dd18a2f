"""The costs and gains of replicas, compared with one ``cutaway serve`` on the same cores.

    python bench/cluster.py [-m MODEL] [--rounds 9] [--tokens 128] [--streams 16] [--json]
        [--write docs/scale.md]

    first     milliseconds to the first token of one stream: a server, and a Front with one replica
    token     milliseconds between its tokens, and of processor time for each token, of all threads
              of all processes except those that compute
    streams   tokens a second of many streams: one replica on all cores, beside one on each core
    prefix    share of prompt tokens found in prefix caches, for conversations that share a few
              system prompts: replicas behind our router, beside as many servers of which a client
              takes one at random
    memory    of every process, in MB that it shares with no other process

Both servers run at once and are asked in turns; while one is asked, the other is idle. The
processor time of idle processes is measured, too, and subtracted. Times are medians over the
rounds. --write puts the table between <!-- cluster:begin --> and <!-- cluster:end -->. The last
line is one JSON document. The script needs cutaway[ray].
"""

import asyncio
import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import perf_counter
from typing import Any

import httpx

from cutaway.base.progress import say
from peers.client import cpu_seconds
from script import check_page, grid, parser_of, publish
from server_client import Answer, Question, ask
from server_process import Server, serving

PROMPT = "Once upon a time in a small village by the sea there lived"
IDLE_S = 10.0
SYSTEMS, USERS, TURNS, AT_ONCE = 6, 24, 3, 4


@dataclass(frozen=True)
class Side:
    """A server, and the client that asks it."""

    name: str
    server: Server
    client: httpx.AsyncClient

    async def ask(self, tokens: int, seed: int) -> Answer:
        """Read one stream to its end."""
        options = {"max_tokens": tokens, "temperature": 0.8, "seed": seed, "ignore_eos": True}
        question = Question("/v1/completions", f"{seed}. {PROMPT}", options, True, None, 0)
        answer = await ask(self.client, question)
        assert answer.whole, answer.cut
        return answer

    def cpu_s(self) -> dict[Path, float]:
        """The processor seconds of each thread of the server's processes so far."""
        tasks = (Path(f"/proc/{pid}/task") for pid in tree(self.server.pid))
        return {thread: cpu_seconds(thread / "stat") for task in tasks for thread in _threads(task)}


# -- processes -------------------------------------------------------------------------------------


def tree(pid: int) -> list[int]:
    """The ids of a process and of all its descendants."""
    parents: dict[int, list[int]] = {}
    for each, parent in _parents():
        parents.setdefault(parent, []).append(each)
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += parents.get(found[-1], [])
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        yield int(stat.parent.name), int(fields[1])


def _threads(task: Path) -> list[Path]:
    try:
        return [*task.iterdir()]
    except OSError:  # the process has ended
        return []


def beside(before: dict[Path, float], after: dict[Path, float], computing: int) -> float:
    """Processor seconds of all threads except the ``computing`` busiest, which compute."""
    each = sorted(seconds - before.get(thread, 0.0) for thread, seconds in after.items())
    return sum(each[: len(each) - computing])


def memory(pid: int) -> tuple[str, float]:
    """A process's name, and the megabytes that it shares with no other process."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    name = words[0] if words[0].startswith("ray::") else Path(words[0]).name
    script = next((Path(word).name for word in words[1:] if word.endswith(".py")), "")
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_"))
    return f"{name} {script}".strip(), private / 1024


# -- measurements ----------------------------------------------------------------------------------


async def one_stream(
    sides: list[Side], rounds: int, tokens: int, cores: int
) -> dict[str, dict[str, float]]:
    """Measure each side's time to the first token, between tokens, and of processors for a token,
    in milliseconds."""
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(-1, rounds):
        for side in sides:
            before, started = side.cpu_s(), perf_counter()
            answer = await side.ask(tokens, seed=turn + 1)
            seconds = perf_counter() - started
            used = beside(before, side.cpu_s(), cores)
            if turn < 0:
                continue  # the first round is cold
            first, last = answer.arrived[0][0], answer.arrived[-1][0]
            own = found.setdefault(side.name, {})
            own.setdefault("first_ms", []).append((first - answer.asked) * 1e3)
            own.setdefault("token_ms", []).append((last - first) / (tokens - 1) * 1e3)
            own.setdefault("cpu_ms", []).append(used / tokens * 1e3)
            own.setdefault("seconds", []).append(seconds)
    summed = ("cpu_ms", "seconds")  # the operating system counts in hundredths of a second
    return {
        side: {key: (fmean if key in summed else median)(each) for key, each in own.items()}
        for side, own in found.items()
    }


async def idle_cpu(sides: list[Side]) -> dict[str, float]:
    """Measure the share of a processor that each side takes while no request runs."""
    before = [side.cpu_s() for side in sides]
    await asyncio.sleep(IDLE_S)
    after = [side.cpu_s() for side in sides]
    taken = (beside(a, b, 0) / IDLE_S for a, b in zip(before, after, strict=True))
    return dict(zip([side.name for side in sides], taken, strict=True))


async def many_streams(side: Side, streams: int, tokens: int, turn: int) -> float:
    """Measure tokens a second of so many streams at once."""
    started = perf_counter()
    await asyncio.gather(*(side.ask(tokens, turn * streams + i) for i in range(streams)))
    return streams * tokens / (perf_counter() - started)


async def conversations(clients: list[httpx.AsyncClient]) -> float:
    """Measure the share of prompt tokens found in caches; a request goes to a random client."""
    random = Random(0)
    said = {user: _system(user % SYSTEMS) for user in range(USERS)}
    prompted = cached = 0

    async def turn(user: int, number: int) -> None:
        nonlocal prompted, cached
        said[user] += f"\nQuestion {number} of user {user}: what follows from that?\nAnswer:"
        body = {"prompt": said[user], "max_tokens": 16, "temperature": 0.7, "seed": user}
        answer = (await random.choice(clients).post("/v1/completions", json=body)).json()
        said[user] += answer["choices"][0]["text"]
        prompted += answer["usage"]["prompt_tokens"]
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    for number in range(TURNS):
        users = random.sample(sorted(said), len(said))
        for i in range(0, len(users), AT_ONCE):
            await asyncio.gather(*(turn(user, number) for user in users[i : i + AT_ONCE]))
    return cached / prompted


def _system(number: int) -> str:
    rules = (f"{chr(65 + number)}{i}. Rule {i} of house {number} must be kept." for i in range(20))
    return "\n".join(rules)


# -- the runs --------------------------------------------------------------------------------------


async def sides_of(stack: AsyncExitStack, flags: dict[str, list[str]]) -> list[Side]:
    """Start a server for each entry of ``flags``."""
    sides = []
    for name, own in flags.items():
        say(f"starting {name}")
        server = await stack.enter_async_context(serving(*own))
        client = httpx.AsyncClient(base_url=server.url, timeout=300)
        sides.append(Side(name, server, await stack.enter_async_context(client)))
    return sides


async def measure(args: Namespace) -> dict[str, Any]:
    """Make all measurements."""
    model = ["-m", args.model] if args.model else []
    cores = len(os.sched_getaffinity(0))
    found: dict[str, Any] = {"cores": cores, "streams_asked": args.streams}
    async with AsyncExitStack() as stack:
        flags = {"alone": model, "cluster": [*model, "--replicas", "1", "--cores", str(cores)]}
        sides = await sides_of(stack, flags)
        found["one"] = await one_stream(sides, args.rounds, args.tokens, cores)
        found["idle"] = await idle_cpu(sides)
        for side in sides:
            one, idle = found["one"][side.name], found["idle"][side.name]
            one["cpu_ms"] -= idle * one.pop("seconds") / args.tokens * 1e3
        found["memory"] = [memory(pid) for pid in tree(sides[1].server.pid)]
        whole = [
            await many_streams(s, args.streams, args.tokens, t) for t in range(3) for s in sides
        ]
        found["streams"] = {"alone": median(whole[::2]), "one replica": median(whole[1::2])}
    async with AsyncExitStack() as stack:
        flags = {
            "alone": model,
            "split": [*model, "--replicas", str(cores), "--cores", "1"],
        }
        sides = await sides_of(stack, flags)
        pairs = [
            [await many_streams(side, args.streams, args.tokens, turn) for side in sides]
            for turn in range(args.rounds // 2 + 1)
        ]
        found["streams"]["one on each core"] = median(split for _, split in pairs)
        found["streams"]["split_ratio"] = median(split / alone for alone, split in pairs)
        found["prefix"] = {"routed": await conversations([sides[1].client])}
    async with AsyncExitStack() as stack:
        flags = {f"server {i}": [*model, "--threads", "1"] for i in range(cores)}
        sides = await sides_of(stack, flags)
        found["prefix"]["random"] = await conversations([side.client for side in sides])
    return found


def table(found: dict[str, Any]) -> str:
    """Write the figures as Markdown."""
    one, streams, cores = found["one"], found["streams"], found["cores"]
    rows = []
    for what, key in (
        ("first token, ms", "first_ms"),
        ("between tokens, ms", "token_ms"),
        ("processor time a token beside computing, ms", "cpu_ms"),
    ):
        alone, cluster = one["alone"][key], one["cluster"][key]
        rows.append((what, f"{alone:.2f}", f"{cluster:.2f}", f"{cluster - alone:+.2f}"))
    split = f"{streams['one on each core']:.0f}, {streams['split_ratio']:.2f} times `cutaway serve`"
    processes = sorted(found["memory"], key=lambda each: -each[1])
    return "\n\n".join([
        grid(("one stream", "`cutaway serve`", "a Front and one replica", "more"), rows),
        grid((f"{found['streams_asked']} streams, tokens/s", ""), (
            (f"`cutaway serve` on {cores} cores", f"{streams['alone']:.0f}"),
            (f"one replica of {cores} cores", f"{streams['one replica']:.0f}"),
            (f"{cores} replicas of one core", split),
        )),
        grid(("prompt tokens that a prefix cache had", ""), (
            (f"{cores} replicas behind the router", f"{found['prefix']['routed']:.0%}"),
            (f"{cores} servers, one taken at random", f"{found['prefix']['random']:.0%}"),
        )),
        grid(("process", "MB of its own"), ((f"`{name}`", f"{mb:.0f}") for name, mb in processes)),
        f"Idle, the processes of the cluster take {found['idle']['cluster']:.1%} of a processor, "
        f"and `cutaway serve` {found['idle']['alone']:.1%}.",
    ])  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__, write="docs/scale.md")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="no table")
    args = parser.parse_args()
    check_page(args.write, "cluster")
    found = asyncio.run(measure(args))
    publish(table(found), found, args.write, "cluster", only_json=args.json)


if __name__ == "__main__":
    main()
