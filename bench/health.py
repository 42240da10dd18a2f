"""How long /health takes while a model is loaded on demand beside a stream.

    python bench/health.py smollm2 path/to/large-vocabulary.gguf

The first model writes; the second is loaded by /models/load and unloaded again, --loads times.
"""

import argparse
import asyncio
import json
from statistics import median
from time import perf_counter

import httpx

from server_process import serving

EVERY_S = 0.01


async def serve(first: str, second: str, loads: int) -> list[float]:
    """Run ``measure`` on a server that this call starts."""
    async with serving("-m", first, "-m", f"second={second}") as server:
        return await measure(server.url, "second", loads)


async def measure(url: str, second: str, loads: int) -> list[float]:
    """Measure the milliseconds of each probe while the second model loads."""
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        writing = asyncio.create_task(write(client))
        took: list[float] = []
        for _ in range(loads):
            loading = asyncio.create_task(client.post("/models/load", json={"model": second}))
            while not loading.done():
                took.append(await probe(client))
                await asyncio.sleep(EVERY_S)
            (await loading).raise_for_status()
            (await client.post("/models/unload", json={"model": second})).raise_for_status()
        writing.cancel()
        return took


async def probe(client: httpx.AsyncClient) -> float:
    """Measure the milliseconds of one request for /health."""
    started = perf_counter()
    (await client.get("/health")).raise_for_status()
    return (perf_counter() - started) * 1e3


async def write(client: httpx.AsyncClient) -> None:
    """Stream texts of the first model, until it is cancelled."""
    body = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    while True:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                pass


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs=2)
    parser.add_argument("--loads", type=int, default=5)
    args = parser.parse_args()
    first, second = args.models
    took = sorted(asyncio.run(serve(first, second, args.loads)))
    figures = {"probes": len(took), "median_ms": median(took), "most_ms": took[-1]}
    print(json.dumps({name: round(value, 1) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
