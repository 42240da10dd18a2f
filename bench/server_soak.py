"""``cutaway serve`` under load: many streams at once through HTTP, some of which hang up.

    python bench/server_soak.py [-m MODEL] [--seconds 120] [--concurrency 64] [--seed 0]
        [--kv-tokens 8192] [--prompt-tokens 256] [--max-tokens 96] [--check 40] [--json]

The server is a process of its own; the clients are in this one. They ask for chats and completions,
most of them streamed, of as many kinds as in bench/soak.py. Some clients hang up: at once, between
two events, or within one.

When all clients have left, the server must report that no request runs or waits and that every KV
block is free, and must exit with 0 at SIGTERM. ``LLM`` in this process then writes a random sample
of the finished texts again, each alone and with an empty cache. The exit code is 1 if a text
differs, a block is not free, a stream was cut, the log has a warning, or the server exits with
another code.
"""

import asyncio
import sys
from argparse import Namespace
from collections.abc import Iterator
from random import Random
from time import perf_counter, process_time
from typing import Any

import httpx

import load
from cutaway import LLM
from cutaway.sampling import derive_seed
from load import Visit
from server_client import WAYS, Answer, Question, ask, texts
from server_process import Server, figures, serving

_IDLE_S = 60.0  # for the server to notice that all clients have left
_PATIENCE = httpx.Timeout(300)
_KINDS = ("chat", "text", "tokens")
_PHASES = ("queue", "prefill", "decode")


# -- requests ------------------------------------------------------------------------------------


def questions(llm: LLM, args: Namespace) -> Iterator[Question]:
    """Yield requests without end; the same for the same seed."""
    rng = Random(args.seed)
    for visit in load.visits(llm, args, WAYS):
        yield _question(llm, visit, rng.choice(_KINDS), rng.random() < 0.85)


def _question(llm: LLM, visit: Visit, kind: str, stream: bool) -> Question:
    options = {name: value for name, value in visit.options.items() if name != "priority"}
    prompt = _prompt(llm, visit.prompt, kind)
    stream = stream or visit.leaves not in (None, "at once")
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    return Question(path, prompt, options, stream, visit.leaves, visit.steps)


def _prompt(llm: LLM, ids: list[int], kind: str) -> Any:
    if kind == "tokens":
        return ids
    text = llm.detokenize(ids)
    return text if kind == "text" else [{"role": "user", "content": text}]


# -- asking --------------------------------------------------------------------------------------


class Soak:
    """The clients of one server, and their observations.

    seconds  during which clients sent requests; then the open requests were read to their ends
    cpu      processor seconds in that time: of the server, of its event loop's thread, of the
             clients
    rss      bytes of the server at each quarter of that time
    figures  the server's metrics at the end
    code     its exit code
    """

    def __init__(self, llm: LLM, args: Namespace) -> None:
        self.args, self.answers = args, list[Answer]()
        self.started = self.seconds = 0.0
        self.cpu: dict[str, float] = {}
        self.rss: list[int] = []
        self.figures: dict[str, float] = {}
        self.code: int | None = None
        self.errors: list[str] = []
        self._questions = questions(llm, args)

    async def run(self) -> None:
        """Run the server and all clients."""
        args = self.args
        flags = {"-m": args.model, "--threads": args.threads, "--kv-tokens": args.kv_tokens}
        given = [str(word) for flag in flags.items() if flag[1] is not None for word in flag]
        async with serving(*given) as server:
            limits = httpx.Limits(keepalive_expiry=2)  # the server hangs up later
            async with httpx.AsyncClient(
                base_url=server.url, timeout=_PATIENCE, limits=limits, trust_env=False
            ) as client:
                await self._ask_all(client, server)
                self.figures = await _when_idle(client)
            self.code, self.errors = await server.stop(), server.errors

    async def _ask_all(self, client: httpx.AsyncClient, server: Server) -> None:
        before = _cpu_s(server)
        self.started = perf_counter()
        async with asyncio.TaskGroup() as clients:
            for _ in range(self.args.concurrency):
                clients.create_task(self._client(client))
            for quarter in range(1, 5):
                then = self.started + self.args.seconds * quarter / 4
                await asyncio.sleep(then - perf_counter())
                self.rss.append(load.rss(server.pid))
            self.seconds = perf_counter() - self.started
            self.cpu = {name: now - before[name] for name, now in _cpu_s(server).items()}

    async def _client(self, client: httpx.AsyncClient) -> None:
        """Send requests one after the other, while there is time."""
        while True:
            self.answers.append(await ask(client, next(self._questions)))
            if perf_counter() > self.started + self.args.seconds:
                return


def _cpu_s(server: Server) -> dict[str, float]:
    return server.cpu_s() | {"clients": process_time()}


async def _when_idle(client: httpx.AsyncClient) -> dict[str, float]:
    """Return the server's metrics once no request runs or waits, or after a minute."""
    patience = perf_counter() + _IDLE_S
    while True:
        told = figures((await client.get("/metrics")).text)
        busy = told["cutaway_requests_running"] or told["cutaway_requests_waiting"]
        if not busy or perf_counter() > patience:
            return told
        await asyncio.sleep(0.05)


# -- checks and report ---------------------------------------------------------------------------


def alone(llm: LLM, answer: Answer, index: int) -> tuple[list[int], str, str]:
    """Write the same sample alone, without a cache; return token ids, text and fingerprint."""
    question, options = answer.question, answer.question.options
    chat = question.path.endswith("/chat/completions")
    prompt = llm.chat_prompt(question.prompt) if chat else question.prompt
    seed = derive_seed(options["seed"], index) if index else options["seed"]
    completion = load.alone(llm, prompt, options, seed)
    return list(completion.token_ids), completion.text, completion.fingerprint


def differs(llm: LLM, answer: Answer, index: int) -> bool:
    """Whether a sample differs from the same request alone."""
    said = answer.said[index]
    told = said.token_ids, said.text, said.ending.get("fingerprint")
    return told != alone(llm, answer, index)


def report(llm: LLM, soak: Soak) -> dict[str, Any]:
    """The JSON document; times in seconds, memory in MB."""
    answers, args, told = soak.answers, soak.args, soak.figures
    end, said = soak.started + soak.seconds, [s for a in answers for s in a.said if s.began]
    tokens = sum(n for a in answers for when, n in a.arrived if when <= end)
    whole = texts(answers)
    sample = load.sample(whole, args)
    return {
        "benchmark": "server_soak",
        "model": llm.name,
        "concurrency": args.concurrency,
        "requests": len(answers),
        "texts": len(whole),
        "tokens": tokens,
        "seconds": soak.seconds,
        "tokens_per_s": tokens / soak.seconds,
        "ttft_s": load.percentiles([s.began - a.asked for a in answers for s in a.said if s.began]),
        "tpot_s": load.percentiles(
            [(s.ended - s.began) / (n - 1) for s in said if (n := len(s.token_ids)) > 1]
        ),
        "processors": {name: seconds / soak.seconds for name, seconds in soak.cpu.items()},
        "refused": sum(a.refused for a in answers),
        "left": {w: sum(a.question.leaves == w and not a.whole for a in answers) for w in WAYS},
        "cancelled": {p: int(told[f"cutaway_requests_cancelled_total {p}"]) for p in _PHASES},
        "preemptions": int(told["cutaway_preemptions_total"]),
        "cut": [a.cut for a in answers if a.cut],
        "logged": soak.errors,
        "running": int(told["cutaway_requests_running"]),
        "waiting": int(told["cutaway_requests_waiting"]),
        **load.memory(soak.rss),
        "blocks": {
            "free": int(told["cutaway_kv_blocks free"]),
            "all": int(told["cutaway_kv_blocks free"] + told["cutaway_kv_blocks held"]),
        },
        "exit_code": soak.code,
        "checked": len(sample),
        "differing": sum(differs(llm, *one) for one in sample),
    }


def good(found: dict[str, Any]) -> bool:
    """Whether no text differs or was cut, every block is free, and the server exited well."""
    held = found["blocks"]["all"] - found["blocks"]["free"]
    bad = (found["differing"], held, found["running"], found["waiting"], found["cut"])
    return not any(bad) and not found["logged"] and found["exit_code"] == 0


def lines(r: dict[str, Any]) -> dict[str, Any]:
    return {
        "requests": f"{r['requests']}, {r['texts']} texts to their end, {r['refused']} refused",
        **load.common_lines(r),
        "processors": ", ".join(f"{n:.2f} {name}" for name, n in r["processors"].items()),
        "preemptions": r["preemptions"],
        "hung up": ", ".join(f"{n} {way}" for way, n in r["left"].items()),
        "given up": ", ".join(f"{n} in {phase}" for phase, n in r["cancelled"].items()),
        "in the end": f"{r['running']} run, {r['waiting']} wait; exit code {r['exit_code']}",
        "cut": "; ".join(r["cut"][:3]) or 0,
        "log": "; ".join(r["logged"][:3]) or "no warning",
    }


def parse(argv: list[str] | None) -> Namespace:
    parser = load.parser(__doc__, kv_tokens=8192, check=40)
    parser.add_argument("--seconds", type=float, default=120, help="in which clients come")
    parser.add_argument("--concurrency", type=int, default=64, help="requests open at once")
    args = parser.parse_args(argv)
    if min(args.concurrency, args.seconds, args.prompt_tokens, args.max_tokens) <= 0:
        names = "--concurrency, --seconds, --prompt-tokens and --max-tokens"
        parser.error(f"{names} must be above 0")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    llm = LLM(args.model, threads=args.threads, kv_tokens=args.kv_tokens, progress=not args.json)
    soak = Soak(llm, args)
    asyncio.run(soak.run())
    found = report(llm, soak)
    load.tell(found, args, lines)
    return int(not good(found))


if __name__ == "__main__":
    sys.exit(main())
