"""How long other clients wait during the largest answers: many texts with all figures of tokens.

    python bench/largest_answers.py toy-writer

Meanwhile another process asks for /health, as ``asked_beside.py`` says. Each answer is requested
three times, and the least wait counts. The script writes a table, with waits in milliseconds.
"""

import argparse
import asyncio
import os
from typing import Any, NamedTuple

import httpx

from asked_beside import Beside
from server_process import serving

_TIMES = 3
ASKED: dict[str, dict[str, Any]] = {
    "128 texts of 8 tokens, 1,000 log-probabilities each, streamed":
        {"n": 128, "max_tokens": 8, "logprobs": 1000, "stream": True},
    "64 texts of 400 tokens, 20 log-probabilities each, whole":
        {"n": 64, "max_tokens": 400, "logprobs": 20},
    "a prompt of 240 tokens, 1,000 log-probabilities each, streamed":
        {"prompt": "ab " * 80, "max_tokens": 1, "logprobs": 1000, "echo": True, "stream": True},
    "128 traces of 4 tokens, 1,000 candidates each, streamed":
        {"n": 128, "max_tokens": 4, "trace": True, "candidates": 1000, "stream": True},
    "64 traces of 400 tokens, 20 candidates each, whole":
        {"n": 64, "max_tokens": 400, "trace": True, "candidates": 20},
}  # fmt: skip


class Row(NamedTuple):
    """size: of the answer, in bytes; health: the longest wait, in seconds."""

    name: str
    size: int
    health: float


def measure(client: httpx.Client, beside: Beside, name: str) -> Row:
    """Ask for an answer, several times."""
    fields = {"prompt": "ab", "ignore_eos": True, "seed": 1, **ASKED[name]}
    size, waits = 0, []
    for _ in range(_TIMES):
        beside.begin()
        answer = client.post("/v1/completions", json=fields).raise_for_status()
        waits.append(beside.end().health)
        size = len(answer.content)
    return Row(name, size, min(waits))


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    async with serving("-m", parser.parse_args().model) as server:
        with (
            Beside(server.url, server.pid, of_texts=False) as beside,
            httpx.Client(base_url=server.url, timeout=600) as client,
        ):
            rows = [await asyncio.to_thread(measure, client, beside, name) for name in ASKED]
    print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors\n")
    print("| answer of /v1/completions | MB | /health |\n|---|---|---|")
    for name, size, health in rows:
        print(f"| {name} | {size / 1e6:.1f} | {health * 1e3:.0f} |")


if __name__ == "__main__":
    asyncio.run(main())
