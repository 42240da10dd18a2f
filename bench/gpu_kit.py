"""A folder that tries a GPU where there is no cutaway: in Python, or in a browser.

    python bench/gpu_kit.py OUT [--model toy-writer]

Copy OUT to a machine with a GPU. There, `pip install numpy wgpu` and `python OUT/run.py`; or
`python -m http.server -d OUT 8000`, and a browser at http://localhost:8000. For each adapter it
prints which ways to compute a multiply-add round once, what else differs on numbers that are hard
to round, whether denormals are flushed, whether a model has the CPU's logits, hash for hash, with
each way; and how long dispatches and matrices take.

The shaders, and the list of what is dispatched, are the product's (recorded by
cutaway.compute.backends.gpu.record); the answers are NumPy's, the hashes the cpu backend's.
"""

import json
import shutil
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cutaway._version import __version__
from cutaway.base import _native
from cutaway.compute import backends, calls
from cutaway.compute.backends import Batch
from cutaway.compute.backends.gpu import probe, shaders
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.check import batches as batches_of
from cutaway.compute.backends.gpu.compile import compile_plan
from cutaway.compute.backends.gpu.memory import make_memory
from cutaway.compute.backends.gpu.record import PaperDevice, probe_recording, recording
from cutaway.compute.backends.gpu.run import DeviceRunner
from cutaway.compute.backends.gpu.weights import DeviceWeights, PackedMatrix, PanelRange
from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.compute.lowering import matrix_shapes, read_vectors
from cutaway.compute.lowering.compile import spell_out_orders
from cutaway.compute.lowering.packing import PackedWeights
from cutaway.compute.model import Graph
from script import parser_of

KIT = Path(__file__).parent / "kit"
PAGE = files("cutaway.trace.web") / "js/local/gpu"
CONTEXT = 512
COLUMNS, OUTPUTS, ROWS = 4096, 16_384, 512  # of the matrix that is timed


def write_model(out: Path, name: str, steps: int | None = None) -> None:
    """Record a model's steps that check every kernel, with the hash of the CPU's logits."""
    device: Any = PaperDevice()
    opened = LoadedModel.open(name, Setup(), weights=False)
    with opened.open_file() as file:
        vectors, pool = read_vectors(opened.graph, file), _native.Pool(1)
        graph = spell_out_orders(opened.graph, vectors)
        weights = DeviceWeights(device)
        weights.add(matrix_shapes(graph), file, pool)
        cpu = backends.load(
            "cpu", opened.graph, file, kv_blocks=CONTEXT // KV_BLOCK, context=CONTEXT, threads=1
        )
    plan = PackedWeights(weights.matrices, vectors, {}).lower(graph, CONTEXT).calls
    runner = _runner(device, weights, plan, graph)
    batches = list(batches_of(opened.graph, CONTEXT))[:steps]
    for batch in batches:
        runner.run(batch)  # which makes room for the largest
    before = device.steps
    device.start()
    for batch in batches:
        runner.run(batch)
    recorded = recording(before, device.steps, shaders.FUSED)
    for step, batch in zip(recorded.document["steps"], batches, strict=True):
        logits = np.ascontiguousarray(cpu.run(batch))
        rows = len(batch.tokens)
        step["name"] = f"{rows} row{'s' * (rows > 1)} at {batch.positions[0]}"
        step["sha256"] = sha256(logits.tobytes()).hexdigest()
    recorded.document["model"] = opened.name
    recorded.write(out, "model")


def _runner(device: Any, weights: DeviceWeights, plan: Any, graph: Any) -> DeviceRunner:
    blocks = CONTEXT // KV_BLOCK
    memory = make_memory(device, plan, "f16", blocks, graph)
    program = compile_plan(plan, weights, memory, "f16", Bounds(0, 0, CONTEXT, blocks))
    return DeviceRunner(device, program, [])


def write_times(out: Path) -> None:
    """Record steps of one matrix: of one row, and of many; its numbers are filled in there."""
    device: Any = PaperDevice(1 << 30)
    panel, panels = _native.panel_bytes("Q4_K", COLUMNS) // 4, OUTPUTS // 16
    weights = DeviceWeights(device)
    weights.buffers = [device.storage(panel * panels)]
    piece = PanelRange(0, 0, 0, panels)
    weights.matrices = {
        ("w", 0, OUTPUTS): PackedMatrix("Q4_K", OUTPUTS, COLUMNS, 1.0, panel, (piece,))
    }
    plan = [
        calls.AddBuffer(COLUMNS, False), calls.AddBuffer(COLUMNS, True),
        calls.AddBuffer(OUTPUTS, False), calls.AddBuffer(32, False),
        calls.Normalise(False, (0, 0), COLUMNS, calls.Norm(), calls.Places(act=1)),
        calls.LinearCall(
            False, calls.Places((0, 0), 1), calls.Finish(), [calls.LinearPart(0, (2, 0))]
        ),
        calls.Gather((2, 0), (3, 0), 32), calls.SetOutput((3, 0)),
    ]  # fmt: skip
    runner = _runner(device, weights, plan, Graph({}))
    batches = [_rows_apart(rows) for rows in (ROWS, 1)]
    for batch in batches:
        runner.run(batch)
    before = device.steps
    device.start()
    for batch in batches:
        runner.run(batch)
    recorded = recording(before, device.steps, shaders.FUSED)
    for step, rows in zip(recorded.document["steps"], (ROWS, 1), strict=True):
        step |= {
            "rows": rows, "bytes": 4 * panel * panels, "products": rows * OUTPUTS * COLUMNS,
            "launches": step["launches"][1:],  # the matrix, and what hardly computes
        }  # fmt: skip
    recorded.write(out, "times")


def _rows_apart(count: int) -> Batch:
    rows, zeros = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    table = np.zeros((count, 1), np.int32)
    return Batch(zeros, zeros, rows, table, rows[-1:])


def write_kit(out: Path, model: str = "toy-writer", steps: int | None = None) -> None:
    """Write the folder; steps: only the first few of the model's."""
    shutil.copytree(KIT, out, dirs_exist_ok=True)
    for name in ("recording.js", "probe.js"):
        (out / name).write_bytes((PAGE / name).read_bytes())
    (out / "kit.json").write_text(json.dumps({"cutaway": __version__}), encoding="utf-8")
    probe_recording(probe.PER_KIND, shaders.FUSED).write(out, "probe")
    write_model(out, model, steps)
    write_times(out)


def main() -> None:
    parser = parser_of(__doc__, model=False)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="toy-writer")
    args = parser.parse_args()
    write_kit(args.out, args.model)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"{args.out}: {size / 1e6:.1f} MB; python {args.out}/run.py tries this machine's GPUs")


if __name__ == "__main__":
    main()
