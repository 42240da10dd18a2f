"""How long other clients wait during a request whose field, header or part has the largest size.

    python bench/largest_fields.py smollm2 --table 10          # an hour or two
    python bench/largest_fields.py smollm2 --health            # without a stream and chats

Each place of a request that ``request_fields.py`` finds gets each of its contents; meanwhile other
clients ask, as ``asked_beside.py`` says. A request with a wait above 0.15 s is sent twice more, and
the least of the three waits counts. The script writes a table of the slowest places, in
milliseconds.
"""

import argparse
import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx

from asked_beside import Beside, Waited
from request_fields import MAX_BODY, Place, places
from server_process import serving

AGAIN_S = 0.15
_TIMES = 3


class Row(NamedTuple):
    """The waits during a request with this content; status: of its answer, 0 if none came."""

    place: Place
    content: str
    status: int
    waited: Waited


def rows(client: httpx.Client, beside: Beside, wanted: list[Place]) -> Iterator[Row]:
    """Measure each content of each place."""
    for place in wanted:
        for content, value in place.contents():
            request = place.send(value)
            if len(request.get("content", b"")) <= MAX_BODY:
                yield _row(client, beside, place, content, request)


def _row(client: httpx.Client, beside: Beside, place: Place, content: str, request: Any) -> Row:
    found: list[Row] = []
    while not found or (found[-1].waited.most > AGAIN_S and len(found) < _TIMES):
        beside.begin()
        try:
            status = client.request(**request).status_code
        except (httpx.NetworkError, httpx.ProtocolError, httpx.InvalidURL):  # a head too long
            status = 0
        found.append(Row(place, content, status, beside.end()))
    return min(found, key=lambda row: row.waited.most)


def table(every: list[Row], size: int) -> str:
    """The slowest places as Markdown, each with its slowest content, in milliseconds."""
    slowest: dict[tuple[str, str], Row] = {}
    for row in sorted(every, key=lambda row: row.waited.most):
        slowest[row.place.endpoint, row.place.name] = row
    most = sorted(slowest.values(), key=lambda row: -row.waited.most)[:size]
    lines = ["| field | content | status | /health | stream | chat |", "|---|---|---|---|---|---|"]
    for place, content, status, waited in most:
        figures = " | ".join(f"{seconds * 1e3:.0f}" for seconds in waited)
        lines.append(f"| {place.endpoint} `{place.name}` | {content} | {status} | {figures} |")
    return "\n".join(lines)


def measure(client: httpx.Client, beside: Beside, wanted: list[Place], out: str) -> list[Row]:
    """Measure all rows; append each to the file ``out``, as a line of JSON."""
    every: list[Row] = []
    with Path(out).open("w") as file:
        for row in rows(client, beside, wanted):
            every.append(row)
            said = [row.place.endpoint, row.place.name, row.content, row.status, *row.waited]
            print(json.dumps(said), file=file, flush=True)
    return every


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--only", default="", help="a regular expression of endpoint and field")
    parser.add_argument("--each", type=int, default=1, help="every Nth place alone")
    parser.add_argument("--table", type=int, default=10, help="rows that are printed")
    parser.add_argument("--health", action="store_true", help="only /health is asked beside it")
    parser.add_argument("--out", default=os.devnull, help="a file for all rows, in JSON lines")
    args = parser.parse_args()
    wanted = [p for p in places() if re.search(args.only, f"{p.endpoint} {p.name}")][:: args.each]
    with TemporaryDirectory() as folder:
        async with serving("-m", args.model, "--batches", folder) as server:
            beside = Beside(server.url, server.pid, of_texts=not args.health)
            with beside, httpx.Client(base_url=server.url, timeout=600) as client:
                every = await asyncio.to_thread(measure, client, beside, wanted, args.out)
    contents = f"{len(every)} contents of {len(wanted)} places"
    print(f"{contents}, load {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors\n")
    print(table(every, args.table))


if __name__ == "__main__":
    asyncio.run(main())
