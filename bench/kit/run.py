"""Tries this machine's GPUs: arithmetic, a model's bits, times. Needs numpy and wgpu alone.

python run.py [--software] [--fused native,f64,int]

Every adapter is tried. --software also times software drivers, which says nothing about any card.
--fused names the ways to compute a multiply-add that are tried, if the adapter has them.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import wgpu

sys.path.insert(0, str(Path(__file__).parent))
from gpu_replay import Replay

KIT = Path(__file__).parent
WAYS = ("native", "f64", "int")
FILL = 0x2C2C2C2C  # of a matrix that is timed: small numbers, whatever they mean


def findings(device: Any, fused: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield of each operation how many results were asked, wrong, and wrong without denormals."""
    replay = Replay(device, KIT / "probe", fused)
    for step in replay.steps:
        replay.run(step)
        results = replay.read(step["read"]).view(np.uint32)
        right = replay.bytes(step["right"]).view(np.uint32)
        kinds = replay.bytes(step["kinds"])  # 0: not asked; 2: with a denormal
        wrong = (results != right) & (kinds > 0)
        if step["ignores_sign"]:
            wrong &= (results | right) & np.uint32(0x7FFFFFFF) != 0
        yield (
            step["name"],
            int((kinds > 0).sum()),
            int(wrong.sum()),
            int((wrong & (kinds == 1)).sum()),
        )


def hashes(device: Any, fused: str) -> Iterator[tuple[str, bool, float]]:
    """Yield each of the model's steps, whether it has the CPU's logits, and its seconds."""
    replay = Replay(device, KIT / "model", fused)
    for step in replay.steps:
        started = perf_counter()
        replay.run(step)
        logits = replay.read(step["read"])
        seconds = perf_counter() - started
        yield step["name"], sha256(logits.tobytes()).hexdigest() == step["sha256"], seconds


def times(device: Any, fused: str) -> Iterator[str]:
    """Yield what a dispatch costs, and how fast one matrix is read and multiplied."""
    replay = Replay(device, KIT / "times", fused, FILL)

    def least(step: dict[str, Any], launches: list[list[int]]) -> float:
        seconds = []
        for _ in range(4):
            started = perf_counter()
            replay.run(step, launches)
            replay.read(step["read"], 4)
            seconds.append(perf_counter() - started)
        return min(seconds)

    many, one = replay.steps
    tiny = one["launches"][1]
    idle = least(one, [tiny])
    yield f"submit and read back {idle * 1e3:.2f} ms"
    yield f"a dispatch {(least(one, [tiny] * 1001) - idle) / 1000 * 1e6:.2f} µs"
    for step, unit, name, scale in (
        (one, "bytes", "GB/s", 1e9),
        (many, "products", "TMAC/s", 1e12),
    ):
        matrix, repeats = step["launches"][0], 16 if step is one else 2
        longer = least(step, [matrix] * (repeats + 1)) - least(step, [matrix])
        yield f"{step['rows']} rows {step[unit] * repeats / longer / scale:.3f} {name}"


def try_adapter(adapter: Any, ways: list[str], *, is_timed: bool) -> bool:
    """Print all about an adapter; return whether a way had all of the CPU's bits."""
    has_f64 = "shader-f64" in adapter.features
    device = adapter.request_device_sync(required_features=["shader-f64"] if has_f64 else [])
    is_right = False
    for fused in ways:
        if fused == "f64" and not has_f64:
            print("  f64: this adapter has no numbers of 64 bits")
            continue
        print(f"  multiply-add by {fused}:")
        rounds_once, flushes = True, False
        for name, asked, wrong, normal in findings(device, fused):
            rounds_once &= normal == 0
            flushes |= wrong > normal
            words = f"{wrong} of {asked} differ, {normal} of them without denormals"
            print(f"    {name:16} {words if wrong else 'equal'}")
        if not rounds_once:
            print("    so it cannot be used")
            continue
        if flushes:
            print("    denormals are flushed")
        steps = list(hashes(device, fused))
        same = sum(is_same for _, is_same, _ in steps)
        print(f"    model: {same} of {len(steps)} steps have the CPU's bits", end="")
        print("".join(f"; not {name}" for name, is_same, _ in steps if not is_same))
        is_right |= same == len(steps)
        if is_timed:
            print("    times: " + "; ".join(times(device, fused)), flush=True)
    return is_right


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--software", action="store_true")
    parser.add_argument("--fused", default=",".join(WAYS))
    args = parser.parse_args()
    ways = [way for way in args.fused.split(",") if way in WAYS]
    adapters = [
        adapter
        for adapter in wgpu.gpu.enumerate_adapters_sync()
        if adapter.info["backend_type"] != "OpenGL"
    ]
    results = []
    for adapter in adapters:
        info = adapter.info
        print(
            info["device"],
            info["description"],
            info["backend_type"],
            info["adapter_type"],
            sep=" | ",
        )
        is_card = info["adapter_type"] != "CPU"
        if not is_card and not args.software:
            print("  a software driver, not a card: no times")
        results.append(try_adapter(adapter, ways, is_timed=is_card or args.software))
    if not results:
        print("wgpu finds no adapter: is a Vulkan, Metal or Direct3D 12 driver installed?")
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
