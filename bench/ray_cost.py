"""The cost of Ray itself, without a model: the figures of docs/scale.md, "What Ray costs".

    python bench/ray_cost.py [--calls 300] [--write docs/scale.md]

    start     seconds until Ray has started, then until two empty replicas have
    call      milliseconds of a unary call, one after the other, through a router that chooses, and
              of processor time of the caller's process for each call
    killed    milliseconds from kill -9 of a replica to the error at the client that waits
    memory    of every process, in MB that it shares with no other process

--write puts the table between <!-- ray:begin --> and <!-- ray:end -->. The last line is one JSON
document. The script needs cutaway[ray].
"""

import asyncio
import os
import signal
from logging import CRITICAL, getLogger
from statistics import median
from time import perf_counter, process_time
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig

from cluster import memory, tree
from script import check_page, grid, parser_of, publish

ROUTER = "cutaway.features.cluster.serving.PrefixRouter"


class Empty:
    """A replica that computes nothing."""

    async def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    async def wait(self) -> int:
        """Wait until this process is killed."""
        await asyncio.sleep(60)
        return 0


def main() -> None:
    parser = parser_of(__doc__, model=False, write="docs/scale.md")
    parser.add_argument("--calls", type=int, default=300)
    args = parser.parse_args()
    check_page(args.write, "ray")
    found = measured(args.calls)
    publish(table(found), found, args.write, "ray")


def table(found: dict[str, Any]) -> str:
    """Write the figures as Markdown."""
    processes = sorted(found["memory"], key=lambda each: -each[1])
    rows = [
        ("Ray, until ready", f"{found['start_ray_s']:.1f} s"),
        ("two replicas that do nothing, until ready", f"{found['start_replicas_s']:.1f} s"),
        ("a call at a replica, through a router of one's own", f"{found['call_ms']:.1f} ms"),
        ("of these, processor time of who calls", f"{found['call_processor_ms']:.1f} ms"),
        ("from `kill -9` to the error of who waits for an answer", f"{found['killed_ms']:.0f} ms"),
        *((f"memory of `{name}`", f"{megabytes:.0f} MB") for name, megabytes in processes),
    ]
    return grid(("", ""), rows)


def measured(calls: int) -> dict[str, Any]:
    began = perf_counter()
    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        logging_level=CRITICAL,
    )  # fmt: skip
    try:
        getLogger("ray.serve").setLevel(CRITICAL)
        found: dict[str, Any] = {"start_ray_s": perf_counter() - began}
        began = perf_counter()
        serve.start(proxy_location="Disabled")
        empty = serve.deployment(
            Empty, num_replicas=2, max_ongoing_requests=64,
            request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        )  # fmt: skip
        handle = serve.run(empty.bind(), route_prefix=None)
        found["start_replicas_s"] = perf_counter() - began
        found |= asyncio.run(_calls(handle, calls))
        found["memory"] = [memory(pid) for pid in tree(os.getpid())]
    finally:
        ray.shutdown()
    return found


async def _calls(handle: Any, calls: int) -> dict[str, float]:
    await handle.pid.remote()
    each, used = [], process_time()
    for _ in range(calls):
        began = perf_counter()
        await handle.pid.remote()
        each.append(perf_counter() - began)
    used = process_time() - used
    waiting = [asyncio.ensure_future(_wait(handle)) for _ in range(4)]
    await asyncio.sleep(1)
    began = perf_counter()
    os.kill(await handle.pid.remote(), signal.SIGKILL)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    killed = perf_counter() - began
    for one in waiting:
        one.cancel()
    assert isinstance(next(iter(done)).exception(), RayActorError)
    return {
        "call_ms": median(each) * 1e3, "call_processor_ms": used / calls * 1e3,
        "killed_ms": killed * 1e3,
    }  # fmt: skip


async def _wait(handle: Any) -> None:
    await handle.wait.remote()


if __name__ == "__main__":
    main()
