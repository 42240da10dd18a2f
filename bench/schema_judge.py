"""The cost of the second judge of structured output: a schema of some 4 kB, a text of 4,000 tokens.

    python bench/schema_judge.py

Prints the time of one judgement, the best of five, and its peak memory.
"""

import json
import random
import time
import tracemalloc
from typing import Any

from cutaway.text.grammar.schema_checks import WHOLE, judge_of

BYTES = 16_000  # of the text: about four a token
KINDS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": 40, "pattern": "^[A-Za-z0-9 .,]+$"},
    {"type": "number", "minimum": 0, "maximum": 1_000_000},
    {"enum": ["red", "green", "blue", "a longer name"]},
    {"type": "array", "items": {"$ref": "#/$defs/point"}},
]


def closed(properties: dict[str, Any]) -> dict[str, Any]:
    keys = {"properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "object", **keys}


def value(kind: int, rng: random.Random) -> Any:
    point = {"x": rng.random(), "y": 2.5, "day": "2024-02-29"}
    return ["abc def" * 3, rng.random() * 1000, "green", [point, point]][kind]


def main() -> None:
    rng = random.Random(1)
    fields = {f"field_{i}": KINDS[i % 4] for i in range(48)}
    day = {"type": "string", "format": "date"}
    schema = closed({"rows": {"type": "array", "items": closed(fields)}})
    number = {"type": "number"}
    schema["$defs"] = {"point": closed({"x": number, "y": number, "day": day})}
    rows: list[Any] = []
    while len(text := json.dumps({"rows": rows}).encode()) < BYTES:
        rows.append({name: value(i % 4, rng) for i, name in enumerate(fields)})
    judge = judge_of(schema)
    assert judge.takes(WHOLE, text)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        judge.takes(WHOLE, text)
        times.append(time.perf_counter() - begun)
    tracemalloc.start()
    judge.takes(WHOLE, text)
    peak = tracemalloc.get_traced_memory()[1]
    print(
        f"schema {len(json.dumps(schema))} bytes, text {len(text)} bytes: "
        f"{min(times) * 1e3:.1f} ms, {peak / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main()
