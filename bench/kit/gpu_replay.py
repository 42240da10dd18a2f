"""Replays a recording on a device, with numpy and wgpu alone; cutaway's record.py says what it has.

The same is recording.js in a browser.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import wgpu
from numpy.typing import NDArray

OP_BYTES = 256
Bytes = NDArray[np.uint8]


class Replay:
    """A recording's buffers, bind groups and pipelines on a device."""

    def __init__(
        self, device: Any, path: Path, fused: str, fill: int = 0, *, has_dot: bool = True
    ) -> None:
        """path: without a suffix; fill: a word that buffers without a content are filled with.

        has_dot: whether the device's own dot4I8Packed is used
        """
        self.device = device
        self.document = json.loads(path.with_suffix(".json").read_text("utf-8"))
        self._data = np.fromfile(path.with_suffix(".bin"), np.uint8)
        self._layout = self._bind_group_layout()
        first = "const FLUSHES = false;\n" + ("" if has_dot else self.document["packed_dot"])
        texts = [*self.document["texts"], self.document["fused"][fused]]  # whose piece is -1
        self._pipelines = [
            self._pipeline(first + "".join(texts[piece] for piece in pieces))
            for _, pieces in self.document["pipelines"]
        ]
        self._buffers = [
            self._buffer(nbytes, is_uniform, content, fill)
            for nbytes, is_uniform, content in self.document["buffers"]
        ]
        self._groups = [self._group(group) for group in self.document["groups"]]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps, in order."""
        steps: list[dict[str, Any]] = self.document["steps"]
        return steps

    def bytes(self, place: list[int]) -> Bytes:
        """Return bytes of the recording's file."""
        first, nbytes = place
        return self._data[first : first + nbytes]

    def run(self, step: dict[str, Any], launches: list[list[int]] | None = None) -> None:
        """Write what a step writes, and submit its launches, or others."""
        for buffer, at, *place in step["writes"]:
            self.write(buffer, at, self.bytes(place))
        self.launch(step["launches"] if launches is None else launches)

    def write(self, buffer: int, at: int, numbers: NDArray[Any]) -> None:
        """Write numbers to a buffer, from byte ``at`` on."""
        self.device.queue.write_buffer(self._buffers[buffer], at, numbers)

    def launch(self, launches: list[list[int]]) -> None:
        """Submit launches."""
        encoder = self.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for pipeline, group, op, *grid in launches:
            compute.set_pipeline(self._pipelines[pipeline])
            compute.set_bind_group(0, self._groups[group], [OP_BYTES * op])
            compute.dispatch_workgroups(*grid)
        compute.end()
        self.device.queue.submit([encoder.finish()])

    def read(self, place: list[int], most: int | None = None) -> Bytes:
        """Wait; return bytes of a buffer (its index, from where on, how many), or the first few."""
        buffer, at, nbytes = place
        found = self.device.queue.read_buffer(
            self._buffers[buffer], at, min(nbytes, most or nbytes)
        )
        return np.frombuffer(found, np.uint8)

    def _bind_group_layout(self) -> Any:
        kinds = wgpu.BufferBindingType
        read, write = kinds.read_only_storage, kinds.storage
        bound = [kinds.uniform, kinds.uniform, read, write, write, read, read, write]
        entries = [
            {
                "binding": i,
                "visibility": wgpu.ShaderStage.COMPUTE,
                "buffer": {"type": kind, "has_dynamic_offset": i == 1},
            }
            for i, kind in enumerate(bound)
        ]
        return self.device.create_bind_group_layout(entries=entries)

    def _pipeline(self, text: str) -> Any:
        module = self.device.create_shader_module(code=text)
        layout = self.device.create_pipeline_layout(bind_group_layouts=[self._layout])
        stage = {"module": module, "entry_point": "main"}
        return self.device.create_compute_pipeline(layout=layout, compute=stage)

    def _buffer(self, nbytes: int, is_uniform: bool, content: Any, fill: int) -> Any:
        kinds = wgpu.BufferUsage
        usage = (kinds.UNIFORM if is_uniform else kinds.STORAGE) | kinds.COPY_DST | kinds.COPY_SRC
        buffer = self.device.create_buffer(size=nbytes, usage=usage)
        if content is not None:
            self.device.queue.write_buffer(buffer, 0, self.bytes(content))
        elif fill:
            words = np.full(nbytes // 4, fill, np.uint32)
            self.device.queue.write_buffer(buffer, 0, words)
        return buffer

    def _group(self, group: list[int]) -> Any:
        buffers = [self._buffers[i] for i in group]
        entries = [
            {
                "binding": i,
                "resource": {
                    "buffer": buffer, "offset": 0, "size": OP_BYTES if i == 1 else buffer.size
                },
            }
            for i, buffer in enumerate(buffers)
        ]  # fmt: skip
        return self.device.create_bind_group(layout=self._layout, entries=entries)
