"""Records what a page runs on its reader's GPU: the program, and texts that check it.

Knows the recording that js/local/gpu reads, and which step the program is recorded with. Decides
nothing about a step.
"""

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cutaway.base import _native
from cutaway.compute.backends.base import Batch
from cutaway.compute.backends.gpu.batches import Bounds
from cutaway.compute.backends.gpu.compile import compile_plan
from cutaway.compute.backends.gpu.memory import make_memory
from cutaway.compute.backends.gpu.program import SPLIT_ROWS
from cutaway.compute.backends.gpu.record import (
    BINDING,
    PaperBuffer,
    PaperDevice,
    Recorder,
    Recording,
    probe_recording,
)
from cutaway.compute.backends.gpu.run import CHUNK, STEP_FIELDS, DeviceRunner
from cutaway.compute.backends.gpu.shaders import FEW_ROWS
from cutaway.compute.backends.gpu.weights import DeviceWeights
from cutaway.compute.backends.layout import DRAFT_STATES, KV_BLOCK
from cutaway.compute.calls import plain
from cutaway.compute.lowering.packing import Packing

if TYPE_CHECKING:
    from cutaway.compute.backends.gpu.device import Device

ROWS = 64
"""The most tokens of one step, so that a page can stop between two."""
WAYS = ("native", "int")
"""How a browser may compute a multiply-add: it has no numbers of 64 bits."""
_TRIPLES = 128  # of each kind, for the probe
_TEXTS = (1, 2, 4, 8, 40, CHUNK + 5)
"""How many tokens the texts have with which a device is checked: each kernel of few rows and of
many runs, and attention in one chunk and in two."""


def record_page(packing: Packing, context: int) -> dict[str, Recording]:
    """Return what a page reads: "gpu", see ``record_program``, and "probe".

    OutOfMemoryError if a buffer would be larger than every browser allows.
    """
    return {
        "gpu": record_program(packing, context),
        "probe": probe_recording(_TRIPLES, WAYS),
    }


class WeightFile(PaperDevice):
    """A device whose panels come from the page's file of weights.

    pieces  buffer -> what is copied into it: (first byte in the file, first byte here, bytes)
    """

    def __init__(self, packing: Packing, binding: int = BINDING) -> None:
        super().__init__(binding)
        first = next(iter(packing.packed.values()))
        self._first_byte = _address(_native.packed(first))
        self.pieces: dict[PaperBuffer, list[tuple[int, int, int]]] = {}
        self.panels = DeviceWeights(cast("Device", self))
        sizes = [_native.packed(matrix).nbytes for matrix in packing.packed.values()]
        self._is_loading = True
        self.panels.put(packing.packed.items(), sizes, packing.file)
        self._is_loading = False

    def write(self, buffer: PaperBuffer, at: int, numbers: NDArray[Any]) -> None:
        """Note where panels come from; keep other numbers."""
        if not self._is_loading:
            return super().write(buffer, at, numbers)
        place = _address(numbers) - self._first_byte
        self.pieces.setdefault(buffer, []).append((place, at, numbers.nbytes))
        return None


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def record_program(packing: Packing, context: int, binding: int = BINDING) -> Recording:
    """Return a program's recording, with room for steps of up to ``ROWS`` tokens of one text.

    binding: the most bytes of a buffer. Beside what ``compute.backends.gpu.record`` says, its
    document has:

    weights     for each buffer of packed matrices, (buffer, what is copied into it)
    dispatches  (pipeline, group, and the fields of ``Grid``); its place is that of its op's numbers
    step        the buffer of the step's numbers; fields: their names
    lists       the buffer of the step's lists, in the order of ``DeviceRunner``
    floats      the buffer of tensors; output: the first byte of the logits, and how many they have
    rotations   what makes cosines and sines
    tiles       for each list of tiles, the most rows of a tile
    rows        the most rows of a step; split_rows: the most for which attention is split;
                few_rows: the most for which kernels of few rows run
    blocks      how many KV blocks there are; block: their tokens; chunk: those of a chunk
    window      how far layers with a window see, 0 if none has one; has_states: of recurrent layers
    texts_to_check  token ids, and the SHA-256 of the logits after the last one
    """
    device, blocks = WeightFile(packing, binding), -(-context // KV_BLOCK)
    runner = make_runner(packing, device, context)
    program, memory = runner.program, runner.program.memory
    last = np.arange(context - min(ROWS, context), context)
    runner.run(one_text(last, last * 0, context))  # which makes room for the largest step
    recorder = Recorder(device.steps)
    for buffer in (runner.step, runner.lists):
        buffer.bytes = None
    dispatches = [
        (*recorder.bind(d.kernel, runner.group(d.weights, d.memory)), *d.grid)
        for d in program.dispatches
    ]
    return recorder.finish(
        WAYS,
        weights=[(recorder.buffers[buffer], of) for buffer, of in device.pieces.items()],
        dispatches=dispatches,
        step=recorder.buffers[runner.step], fields=STEP_FIELDS,
        lists=recorder.buffers[runner.lists], floats=recorder.buffers[runner.floats],
        output=runner.find_output(),
        rotations=[
            ([*r.frequencies], *r[1:])
            for r, _ in program.rotations.values()
        ],
        tiles=program.tiles, rows=ROWS, blocks=blocks, block=KV_BLOCK, chunk=CHUNK,
        split_rows=SPLIT_ROWS, few_rows=FEW_ROWS[-1],
        window=memory.window if memory.windows.records.strides else 0,
        has_states=memory.has_states,
        texts_to_check=[*_checks(packing, context)],
    )  # fmt: skip


def make_runner(packing: Packing, device: WeightFile, context: int) -> DeviceRunner:
    """Return a runner of the plan, which records what it does, with memory for one text."""
    blocks, paper = -(-context // KV_BLOCK), cast("Device", device)
    memory = make_memory(paper, packing.calls, "f16", blocks, packing.graph, slots=1)
    memory.windows.records.reach(blocks)
    memory.windows.places = np.arange(blocks, dtype=np.int32)  # a place for each block
    memory.states.places = np.zeros(blocks, np.int32)  # a text's one state, wherever it ends
    bounds = Bounds(0, 0, context, blocks)
    program = compile_plan(packing.calls, device.panels, memory, "f16", bounds)
    return DeviceRunner(paper, program, [])


def _checks(packing: Packing, context: int) -> Iterator[dict[str, Any]]:
    """Yield texts, each with the SHA-256 of the logits after its last token."""
    pool, blocks = _native.Pool(1), -(-context // KV_BLOCK)
    plan = _native.Plan(pool, "", blocks, context, "", "f16", DRAFT_STATES)
    plan.add(plain(packing.calls), [*packing.packed.values()], [])
    for count in _TEXTS:
        if count <= context:
            ids = (np.arange(count) + count) * 7919 % packing.graph.ops[-1].out.width
            logits = np.ascontiguousarray(plan.run(one_text(np.arange(count), ids, context)))
            yield {"tokens": ids.tolist(), "sha256": sha256(logits.tobytes()).hexdigest()}


def one_text(positions: NDArray[Any], ids: NDArray[Any], context: int) -> Batch:
    """Return a batch of one text's tokens, of which the last one's logits are wanted."""
    rows, table = len(positions), np.arange(-(-context // KV_BLOCK), dtype=np.int32)[None]
    return Batch(
        ids.astype(np.int32), positions.astype(np.int32), np.zeros(rows, np.int32), table,
        np.array([rows - 1], np.int32),
    )  # fmt: skip
