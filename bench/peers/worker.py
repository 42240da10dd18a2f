"""One engine in one process: a line of JSON comes in, something is measured, a line goes out.

    python -m peers.worker ENGINE FILE THREADS

First it says {"ready": {…}} or {"error": "…"}. Then it takes
{"do": "decode", "context": C, "batch": B, "seconds": S} and {"do": "prefill", "tokens": N,
"seconds": S}, repeats that until S seconds have passed, and says {"seconds": […]}: one value
per decode step, or per prompt. It ends with its standard input. For vectors of texts it takes
{"do": "embed", "texts": […], "at_once": N, "seconds": S}, with a value per call, and {"do":
"vectors", "texts": […], "to": FILE}, which saves them as NumPy does.

An engine is a class Engine(path, threads) in peers/NAME_engine.py with info, a dictionary, and
decode(context, batch) and prefill(tokens), which return seconds, or vectors(texts).
"""

import json
import os
import sys
from importlib import import_module
from time import perf_counter
from typing import Any


def measure(engine: Any, command: dict[str, Any]) -> list[float]:
    """Seconds of every step, or prompt, until there was enough of it."""
    seconds: list[float] = []
    if command["do"] == "vectors":
        import_module("numpy").save(command["to"], engine.vectors(command["texts"]))
        return seconds
    end = perf_counter() + command["seconds"]
    while not seconds or perf_counter() < end:
        if command["do"] == "embed":
            seconds += embed(engine, command["texts"], command["at_once"])
        elif command["do"] == "decode":
            seconds += engine.decode(command["context"], command["batch"])
        else:
            found = engine.prefill(command["tokens"])
            if not found:  # not of this engine
                break
            seconds += found
    return seconds


def embed(engine: Any, texts: list[str], at_once: int) -> list[float]:
    """Seconds of each call, of so many texts."""
    seconds = []
    for first in range(0, len(texts), at_once):
        started = perf_counter()
        engine.vectors(texts[first : first + at_once])
        seconds.append(perf_counter() - started)
    return seconds


def main(name: str, path: str, threads: int) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is not an answer

    def say(**document: Any) -> None:
        print(json.dumps(document), file=answers, flush=True)

    try:
        engine = import_module(f"peers.{name}_engine").Engine(path, threads)
        say(ready=engine.info)
        for line in sys.stdin:
            say(seconds=measure(engine, json.loads(line)))
    except Exception as error:
        say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
