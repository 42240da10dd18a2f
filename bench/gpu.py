"""The GPU backend on this machine's GPU: what a dispatch costs, and shares of what the card can do.

    python bench/gpu.py [-m MODEL] [--counts NAME,NAME] [--context 64] [--prompt 512] [--rounds 5]
        [--llama-bench PATH] [--software] [--write docs/gpu.md]

First, without a device, a table of counts: dispatches and bytes of weights for a token, of models
and of shapes of bench/shapes.py (as random Q4_K). Then, for each adapter, in turns within a round:

* what a dispatch costs (400 in one pass), and the host's own time for a step;
* decoding: bytes of weights a second, as a share of the device's rate of copying;
* prompts: products of weights a second, as a share of the dot products (dp4a) that a small shader
  reaches;
* the same by llama.cpp, if PATH (or `llama-bench`) is a build for Vulkan.

Ratios are medians over the rounds, with the lowest and the highest. A software driver (llvmpipe,
SwiftShader) says nothing about a card's speed: of it only the host's own time for a step is
measured, unless --software asks for all, to try this script. --write puts the table of counts
between <!-- gpu-counts:begin --> and <!-- gpu-counts:end -->. The last line is one JSON document.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from cutaway.compute.backends import Batch
from cutaway.compute.backends.gpu import GpuBackend
from cutaway.compute.backends.gpu.adapters import adapters
from cutaway.compute.backends.gpu.device import Device
from cutaway.compute.backends.gpu.probe import choose_fused
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from gpu_counts import Counts, count
from script import check_page, grid, parser_of, publish, words

COUNTED = ["smollm2", "llama-1b", "qwen3.5-0.8b", "olmoe-7b"]
PEAK = (Path(__file__).parent / "gpu_peak.wgsl").read_text("utf-8")
COPIED = 1 << 28  # bytes, or as many as a buffer holds
DECODED = 32  # tokens of a round
Figures = dict[str, float]


def table_of(counts: list[Counts]) -> str:
    """A table of Markdown: a row a model."""
    head = ("model", "layers", "dispatches a token", "for a layer", "MB of weights a token")
    return grid(head, (
        (c.model, c.layers, c.dispatches, f"{c.dispatches / c.layers:.1f}",
         f"{c.weights / 1e6:.1f}")
        for c in counts
    ))  # fmt: skip


# -- what the device can do ------------------------------------------------------------------------


def rate_of_copying(device: Device) -> float:
    """Bytes a second, read and written, of copies between two buffers."""
    nbytes = min(COPIED, device.binding) >> (4 if is_software(device.adapter) else 0)
    one, other = (device.storage(nbytes // 4) for _ in range(2))

    def copy(times: int) -> None:
        encoder = device.device.create_command_encoder()
        for _ in range(times):
            encoder.copy_buffer_to_buffer(one, 0, other, 0, nbytes)
        device.queue.submit([encoder.finish()])
        device.read(other, 0, 4)

    return 2 * nbytes * 8 / more(lambda: copy(9), lambda: copy(1))


def rate_of_products(device: Device) -> float:
    """Products of 8-bit numbers a second, of a shader that does nothing else."""
    groups, steps = (1 << 4, 1 << 4) if is_software(device.adapter) else (1 << 12, 1 << 11)
    sums = device.storage(64 * groups)

    def prepare(count: int) -> Callable[[], None]:
        module = device.device.create_shader_module(code=PEAK)
        stage = {"module": module, "entry_point": "main", "constants": {"STEPS": count}}
        pipeline = device.device.create_compute_pipeline(layout="auto", compute=stage)
        entry = {"binding": 0, "resource": {"buffer": sums, "offset": 0, "size": sums.size}}
        group = device.device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=[entry]
        )

        def run() -> None:
            encoder = device.device.create_command_encoder()
            compute = encoder.begin_compute_pass()
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(groups)
            compute.end()
            device.queue.submit([encoder.finish()])
            device.read(sums, 0, 4)

        run()  # compiles
        return run

    seconds = more(prepare(9 * steps), prepare(steps))
    return 64 * groups * 8 * 4 * 8 * steps / seconds


def more(long: Callable[[], None], short: Callable[[], None]) -> float:
    """How many seconds longer one takes than the other: the least of three each."""
    return max(least(long) - least(short), 1e-9)


def least(run: Callable[[], None]) -> float:
    """The seconds of the fastest of three runs."""
    seconds = []
    for _ in range(3):
        started = perf_counter()
        run()
        seconds.append(perf_counter() - started)
    return min(seconds)


# -- what the backend does -------------------------------------------------------------------------


class Steps:
    """Steps of a model on one text, at fixed positions."""

    def __init__(self, backend: GpuBackend, context: int, prompt: int, vocab: int) -> None:
        self.backend, self.context, self.prompt = backend, context, prompt
        blocks = -(-max(context + DECODED, prompt) // KV_BLOCK)
        self.blocks = np.arange(blocks, dtype=np.int32)[None]
        self.tokens = np.random.default_rng(0).integers(vocab, size=prompt).astype(np.int32)

    def run(self, first: int, rows: int) -> None:
        """Run a step; the logits of its last row are read."""
        positions = np.arange(first, first + rows, dtype=np.int32)
        last = np.array([rows - 1], np.int32)
        zeros = np.zeros(rows, np.int32)
        self.backend.run(Batch(self.tokens[:rows], positions, zeros, self.blocks, last))

    def decode(self, tokens: int = DECODED) -> tuple[float, float]:
        """Seconds of a step of one row, and how long this thread computed in it: medians."""
        self.run(0, self.context)
        whole, own = [], []
        for i in range(tokens):
            started, busy = perf_counter(), thread_time()
            self.run(self.context + i, 1)
            whole.append(perf_counter() - started)
            own.append(thread_time() - busy)
        return median(whole[4:]), median(own[4:])

    def prefill(self) -> float:
        """Seconds of a prompt's step."""
        started = perf_counter()
        self.run(0, self.prompt)
        return perf_counter() - started


def dispatch_seconds(device: Device) -> float:
    """What a dispatch costs that does nothing, beside others in the same pass."""
    module = device.device.create_shader_module(code="@compute @workgroup_size(64) fn main() {}")
    stage = {"module": module, "entry_point": "main"}
    pipeline = device.device.create_compute_pipeline(layout="auto", compute=stage)
    unread = device.storage(64)

    def run(times: int) -> None:
        encoder = device.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        for _ in range(times):
            compute.dispatch_workgroups(1)
        compute.end()
        device.queue.submit([encoder.finish()])
        device.read(unread, 0, 4)

    run(1)
    return more(lambda: run(4001), lambda: run(1)) / 4000


# -- llama.cpp -------------------------------------------------------------------------------------


class Llama:
    """llama.cpp's own benchmark, of a build for Vulkan."""

    def __init__(self, program: str, path: Path) -> None:
        self.command = [program, "-m", str(path), "-ngl", "99", "-r", "1", "-o", "json"]

    @classmethod
    def find(cls, program: str | None, path: Path) -> "Llama | str":
        """Return it, or a sentence that says why there is none."""
        found = shutil.which(program or "llama-bench")
        if found is None:
            return "llama.cpp is not compared: there is no llama-bench (see --llama-bench)."
        llama = cls(found, path)
        try:
            backends = llama.ask(1, 0)["backends"]
        except (OSError, subprocess.CalledProcessError, ValueError, LookupError) as error:
            return f"llama.cpp is not compared: {found} failed ({type(error).__name__})."
        if "vulkan" not in backends.lower():
            return f"llama.cpp is not compared: {found} is a build for {backends}, not for Vulkan."
        return llama

    def ask(self, prompt: int, decoded: int) -> dict[str, Any]:
        """Run it once; return what it measured."""
        command = [*self.command, "-p", str(prompt), "-n", str(decoded)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row: dict[str, Any] = json.loads(done.stdout)[0]
        return row

    def rates(self, prompt: int) -> Figures:
        """Tokens a second, in decoding and in a prompt."""
        return {
            "llama decode": self.ask(0, DECODED)["avg_ts"],
            "llama prompt": self.ask(prompt, 0)["avg_ts"],
        }


# -- rounds ----------------------------------------------------------------------------------------


@contextmanager
def loaded(model: str, device: Device) -> Iterator[tuple[GpuBackend, int, str]]:
    """Load a model on this device: the backend, tokens of the vocabulary, and the model's path."""
    opened = LoadedModel.open(model, Setup(), weights=False)
    with opened.open_file() as file:
        backend = GpuBackend(opened.graph, file, kv_blocks=64, context=64 * KV_BLOCK, device=device)
    yield backend, opened.tokenizer.vocab_size, str(opened.path)


def measure(device: Device, counts: Counts, args: Any) -> dict[str, Any]:
    """The figures of each round on a device, and what they were compared with."""
    with loaded(args.model, device) as (backend, vocab, path):
        steps = Steps(backend, args.context, args.prompt, vocab)
        if is_software(device.adapter) and not args.software:
            rounds = [{"ms of a token the host's": 1e3 * steps.decode(8)[1]}]
            llama: Llama | str = ""
        else:
            llama = Llama.find(args.llama_bench, Path(path))
            steps.decode()
            steps.prefill()  # compiles
            rounds = [
                figures_of(device, steps, counts, llama if isinstance(llama, Llama) else None)
                for _ in range(args.rounds)
            ]
    return {
        "device": device.name, "fused": device.fused, "rounds": rounds,
        "llama": llama if isinstance(llama, str) else "",
    }  # fmt: skip


def figures_of(device: Device, steps: Steps, counts: Counts, llama: Llama | None) -> Figures:
    """The figures of a round."""
    copying, products = rate_of_copying(device), rate_of_products(device)
    (decode, host), prefill = steps.decode(), steps.prefill()
    figures = {
        "µs a dispatch": 1e6 * dispatch_seconds(device),
        "ms a token": 1e3 * decode, "ms of a token the host's": 1e3 * host,
        "decode / copying": counts.weights / decode / copying,
        "prompt / dp4a": steps.prompt * counts.products / prefill / products,
        "GB/s of copying": copying / 1e9, "TMAC/s of dp4a": products / 1e12,
    }  # fmt: skip
    if llama:
        theirs = llama.rates(steps.prompt)
        figures["decode / llama.cpp"] = 1 / decode / theirs["llama decode"]
        figures["prompt / llama.cpp"] = steps.prompt / prefill / theirs["llama prompt"]
    return figures


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['device']}, fma {found['fused']}:"
    for name in found["rounds"][0]:
        values = [figures[name] for figures in found["rounds"]]
        yield f"  {name:20} {median(values):8.3g}   {min(values):.3g} to {max(values):.3g}"
    if found["llama"]:
        yield f"  {found['llama']}"


def is_software(adapter: Any) -> bool:
    return str(adapter.info["adapter_type"]) == "CPU"


def main() -> None:
    parser = parser_of(__doc__, write="docs/gpu.md")
    parser.add_argument("--counts", type=words, default=COUNTED)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama-bench", metavar="PATH")
    parser.add_argument("--software", action="store_true")
    args = parser.parse_args()
    args.model = args.model or "smollm2"
    check_page(args.write, "gpu-counts")
    counts = [count(name) for name in args.counts]
    found: list[dict[str, Any]] = []
    for adapter in adapters():
        if is_software(adapter):
            print(f"{adapter.info['device']} is a software driver, not a card: no figure of speed.")
        device = Device(adapter)
        choose_fused(device)
        found.append(measure(device, count(args.model), args))
        print(*lines_of(found[-1]), sep="\n", end="\n\n")
    if not adapters():
        print("There is no GPU, and no driver that stands for one.\n")
    rows = [c._asdict() | {"dispatches": c.dispatches} for c in counts]
    publish(table_of(counts), {"counts": rows, "devices": found}, args.write, "gpu-counts")


if __name__ == "__main__":
    main()
