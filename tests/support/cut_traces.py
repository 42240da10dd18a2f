"""Traces of runs that were cut, as ``cutaway resume`` finds them."""

import json

KEYWORDS = {"max_tokens": 40, "ignore_eos": True, "seed": 5, "temperature": 1.1}


def record(llm, path, **more):
    """Write a complete trace."""
    path.unlink(missing_ok=True)
    return llm.generate("ab ba", trace=path, **KEYWORDS | more)


def cut_at(llm, path, part, **more):
    """Write a trace, and cut it after its head and this share of the bytes of its steps."""
    record(llm, path, **more)
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    path.write_bytes(data[: first + int(part * (len(data) - first - 300))])
    return path


def lines_of(path, *less):
    """Return the records without times, cached tokens and the fields ``less``."""
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    for record in records:
        if record["kind"] == "end":
            del record["usage"]["cached_tokens"]
        for name in ("ms", *less):
            record.pop(name, None)
    return records


def alter_step(path, index, name):
    """Give a step (negative: from the last) another token or fingerprint; return (index, bytes)."""
    records = [json.loads(line) for line in path.read_bytes().splitlines()[:-1]]
    step = [record for record in records if record["kind"] == "step"][index]
    other = next(i for i in step["candidates"]["id"] if i != step["token_id"])
    step[name] = other if name == "token_id" else "0" * 15 + "1"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return step["index"], path.read_bytes()
