"""An hour of a coding agent: how long it waits for each answer, and what is read again.

    python bench/agent_hour.py [--peer-python PYTHON] [--models NAME,…] [--scale S] [--turns 60]
        [--threads N] [--write docs/prefix.md]

agent_session.py makes the session: 60 turns with 40 tools, in each of which the answer is one call.
Every turn is asked of all servers before the next: of ``cutaway serve`` with its cache in memory
alone, of one with --cache-dir, and of llama-cpp-python's server, where PYTHON has that. After half
of the turns all of them are ended and started anew. Figures:

    first token  seconds until the first character of the call's arguments: the median of the turns
    read again   tokens of the prompt that were computed, though an earlier prompt had them
    calls        whose arguments satisfy the tool's schema, by ``jsonschema``

--scale is that of the texts' lengths; at 1 the system prompt has 8,000 tokens, and the last prompt
25,500; at 0.2 they have 1,600 and 10,700. The last line is one JSON document with every turn. The
exit code is 1 if, with --cache-dir, a turn read again the 32 tokens of a block.
"""

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from operator import eq
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Protocol

import httpx
import jsonschema

from agent_models import CONTEXT, MODELS, token_counter, write_model
from agent_session import TURNS, AgentSession, Turn, make_session
from cutaway.base.progress import say
from peers.llama_server import llama_serving
from script import check_page, grid, parser_of, publish, words
from server_process import serving

MAX_TOKENS = 64
BLOCK = 32
FEWEST = 4  # turns, two before the restart and two after it: each figure is of at least one
MEMORY, DISK, LLAMA = "cutaway, in memory", "cutaway, `--cache-dir`", "llama.cpp"


class AgentServer(Protocol):
    """A server that answers in OpenAI's form.

    tokens_read  returns how many tokens of the last prompt were computed; None: its usage says so
    """

    url: str
    tokens_read: Any


@dataclass(frozen=True)
class CutawayServer:
    """``cutaway serve``, whose usage says which tokens it did not compute."""

    url: str
    tokens_read: None = None


Start = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass
class Answered:
    """A turn, as one server answered it.

    first_s, seconds  until the first character of the arguments, and until the end
    read, read_again  tokens of the prompt that were computed; those that an earlier prompt had
    call              "by schema", "against schema", or "not JSON" where it was cut
    """

    first_s: float
    seconds: float
    read: int
    read_again: int
    call: str


# -- servers -------------------------------------------------------------------------------------


@asynccontextmanager
async def cutaway_serving(
    model: Path, context: int, threads: int, *flags: str
) -> AsyncIterator[CutawayServer]:
    """Serve a model by cutaway; at the end SIGTERM lets it write what is not on the disk yet."""
    sizes = ("--context", str(context), "--threads", str(threads))
    async with serving("-m", str(model), *sizes, *flags) as server:
        yield CutawayServer(server.url)
        await server.stop()


def ways(model: Path, context: int, args: Namespace) -> dict[str, Start]:
    """Return how each server is started."""
    sizes = (model, context, args.threads)
    starts: dict[str, Start] = {
        MEMORY: partial(cutaway_serving, *sizes),
        DISK: partial(cutaway_serving, *sizes, "--cache-dir", str(model.with_suffix(".cache"))),
    }
    if args.peer_python:
        starts[LLAMA] = partial(llama_serving, args.peer_python, *sizes)
    return starts


# -- one turn ------------------------------------------------------------------------------------


def body_of(session: AgentSession, turn: Turn, *, ids: bool) -> dict[str, Any]:
    """Return the request of a turn. ids: whether the answer shall have the prompt's token ids"""
    return {
        "messages": turn.messages,
        "tools": session.tools,
        "tool_choice": {"type": "function", "function": {"name": turn.tool}},
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    } | ({"return_token_ids": True, "stream_options": {"include_usage": True}} if ids else {})


async def ask(
    server: AgentServer, session: AgentSession, turn: Turn, earlier: Sequence[int], ids: list[int]
) -> Answered:
    """Ask a turn. earlier: the last prompt; ids: this one, which cutaway's answer fills."""
    is_cutaway = server.tokens_read is None
    arguments, first, usage = "", 0.0, None
    started = perf_counter()
    async with httpx.AsyncClient(timeout=None) as client:
        async for event in events(client, server.url, body_of(session, turn, ids=is_cutaway)):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                ids[:] = choice.get("prompt_token_ids") or ids
                for call in choice["delta"].get("tool_calls") or ():
                    arguments += call["function"].get("arguments") or ""
                    first = first or (perf_counter() - started if arguments else 0.0)
    seconds = perf_counter() - started
    cached = usage["prompt_tokens_details"]["cached_tokens"] if is_cutaway and usage else 0
    read = len(ids) - cached if is_cutaway else await server.tokens_read()
    shared = sum(1 for _ in takewhile(lambda pair: eq(*pair), zip(ids, earlier, strict=False)))
    again = max(0, shared - (len(ids) - read))
    return Answered(first, seconds, read, again, judged(arguments, session.parameters(turn.tool)))


async def events(
    client: httpx.AsyncClient, url: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a streamed chat."""
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise SystemExit(f"{url}: {response.status_code} {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def judged(arguments: str, schema: dict[str, Any]) -> str:
    """Say whether a call's arguments satisfy the schema."""
    try:
        jsonschema.validate(json.loads(arguments), schema)
    except ValueError:
        return "not JSON"
    except jsonschema.ValidationError:
        return "against schema"
    return "by schema"


# -- the session ---------------------------------------------------------------------------------


async def replay(session: AgentSession, starts: dict[str, Start]) -> dict[str, list[Answered]]:
    """Ask all turns of all servers in turn, with a restart after half of them."""
    answered: dict[str, list[Answered]] = {name: [] for name in starts}
    half, ids = len(session.turns) // 2, list[int]()
    for turns in (session.turns[:half], session.turns[half:]):
        async with AsyncExitStack() as stack:
            servers = {
                name: await stack.enter_async_context(start()) for name, start in starts.items()
            }
            for turn in turns:
                earlier = [*ids]
                for name, server in servers.items():
                    answered[name].append(await ask(server, session, turn, earlier, ids))
        say(f"  {sum(map(len, answered.values()))} answers")
    return answered


def check_prompts(answered: dict[str, list[Answered]]) -> None:
    """Raise SystemExit unless all servers read as many tokens at the first turn."""
    counts = {name: turns[0].read for name, turns in answered.items()}
    if len({*counts.values()}) > 1:
        raise SystemExit(f"the servers read different prompts: {counts}")


def reads_blocks_again(found: dict[str, dict[str, list[Answered]]]) -> bool:
    """Return whether, with --cache-dir, a turn of a model read a whole block again."""
    return any(turn.read_again >= BLOCK for answers in found.values() for turn in answers[DISK])


def row(model: str, name: str, turns: list[Answered]) -> list[str]:
    """Return a server's line of the table."""
    half = len(turns) // 2
    parts = turns[:1], turns[1:half], turns[half : half + 1], turns[half + 1 :]
    firsts = [f"{median(turn.first_s for turn in part):.2f} s" for part in parts]
    again = [f"{sum(turn.read_again for turn in part):,}" for part in parts[1:]]
    right = sum(turn.call == "by schema" for turn in turns)
    whole = f"{sum(turn.seconds for turn in turns):.0f} s"
    return [model, name, *firsts, *again, whole, f"{right} of {len(turns)}"]


def table(found: dict[str, dict[str, list[Answered]]]) -> str:
    """Return the table of all models."""
    count = len(next(iter(next(iter(found.values())).values())))
    spans = [f"2–{count // 2}", f"{count // 2 + 1}, restarted", f"{count // 2 + 2}–{count}"]
    head = ["model", "server", "first token, turn 1", *spans]
    head += [f"read again, {span}" for span in spans] + ["all turns", "calls by schema"]
    return grid(head, [row(model, *way) for model, all in found.items() for way in all.items()])


def parse(argv: list[str] | None) -> Namespace:
    parser = parser_of(__doc__, model=False, write="docs/prefix.md")
    parser.add_argument("--peer-python", help="an interpreter that has llama-cpp-python[server]")
    parser.add_argument("--models", type=words, default=[*MODELS])
    parser.add_argument("--scale", type=float, default=0.2)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args(argv)
    if args.turns < FEWEST:
        parser.error(f"--turns must be at least {FEWEST}, not {args.turns}: two before a restart, "
                     "and two after it")  # fmt: skip
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    check_page(args.write, "agent-hour")
    session = make_session(args.scale, token_counter(), args.turns)
    found: dict[str, dict[str, list[Answered]]] = {}
    with TemporaryDirectory() as folder:
        for name in args.models:
            say(name)
            path = write_model(name, Path(folder))
            found[name] = asyncio.run(replay(session, ways(path, CONTEXT, args)))
            check_prompts(found[name])
    document = {"benchmark": "agent_hour", "scale": args.scale} | {
        model: {name: [asdict(turn) for turn in turns] for name, turns in ways.items()}
        for model, ways in found.items()
    }
    publish(table(found), document, args.write, "agent-hour")
    return int(reads_blocks_again(found))


if __name__ == "__main__":
    sys.exit(main())
