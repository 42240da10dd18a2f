"""What a page that runs its own model takes on a GPU, in a headless Chromium, and without one.

    python bench/page_gpu.py [-m MODEL] [--tokens 40] [--flags "--use-webgpu-adapter=swiftshader"]

exports the page, opens it in a browser with WebGPU and in one without, and writes a text in each.
For both it prints when the page was ready, and when each stage of making a GPU ready began, at the
first visit and at the second, which finds the weights in the browser; the seconds of a token; and
the memory of WebAssembly, and of the browser's processes of the page and of the GPU (on Linux),
before and after Inside is opened, which loads the weights into WebAssembly. Memory is that of the
second visit: of the first, Playwright keeps all that was fetched.
Seconds of a software driver say nothing about a card.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from cutaway import LLM
from cutaway.features.page.cores import page_cores
from cutaway.features.page.folder import write_page_folder
from page_alone import hosted
from page_frames import browser
from script import parser_of

PROMPT = "The sky is"
WATCH = """
self.stages = [];
self.cores = [];
const began = performance.now(), { instantiate } = WebAssembly, post = self.postMessage;
WebAssembly.instantiate = async (...of) => {
  const made = await instantiate(...of);
  self.cores.push(made.exports.memory ?? of[1].env.memory);
  return made;
};
self.postMessage = (message) => {
  const stage = message.device?.stage ?? (message.loaded && "ready");
  if (stage) self.stages.push([stage, Math.round(performance.now() - began) / 1e3]);
  post.call(self, message);
};
"""
READY = """async () => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  await api.whenReady();
}"""
WRITE = """async ([prompt, tokens]) => {
  const { session } = document.querySelector("run-picker");
  const settings = { max_tokens: tokens, ignore_eos: true };
  const request = { kind: "completion", prompt, messages: [], settings, seed: "1", forced: [] };
  await session.start(request);
  await new Promise(requestAnimationFrame);
}"""


class Visit:
    """A page in a context of a browser."""

    def __init__(self, chromium: Any, context: Any, address: str) -> None:
        self.chromium, self.tab = chromium, context.new_page()
        self.tab.set_default_timeout(1_800_000)
        self.tab.goto(address)
        self.tab.evaluate(READY)

    @property
    def stages(self) -> Any:
        """When each stage began, in seconds."""
        return self.tab.workers[0].evaluate("() => self.stages")

    def memory(self) -> dict[str, float]:
        """Return megabytes: of WebAssembly's memory, and resident, of the processes."""
        heap = "() => Math.max(...self.cores.map(({ buffer }) => buffer.byteLength))"
        told = {"WebAssembly": self.tab.workers[0].evaluate(heap) / 1e6}
        session = self.chromium.new_browser_cdp_session()
        for process in session.send("SystemInfo.getProcessInfo")["processInfo"]:
            name = {"renderer": "page's process", "GPU": "GPU's process"}.get(process["type"])
            if name:
                resident = Path(f"/proc/{process['id']}/status").read_text().split("VmRSS:")[1]
                told[name] = max(told.get(name, 0), int(resident.split()[0]) / 1e3)
        return {name: round(size, 1) for name, size in told.items()}

    def figures(self, tokens: int) -> Iterator[tuple[str, Any]]:
        """Write texts and open Inside; yield what was measured."""
        yield "device", self.tab.locator("device-line").inner_text()
        yield "stages of the second visit", self.stages
        self.tab.evaluate(WRITE, [PROMPT, 2])
        yield "memory, MB", self.memory()
        began = perf_counter()
        self.tab.evaluate(WRITE, [PROMPT, tokens])
        yield "seconds a token", round((perf_counter() - began) / tokens, 3)
        self.tab.get_by_role("tab", name="Inside").click()
        self.tab.get_by_text("recomputed bit for bit").wait_for()
        yield "memory with Inside, MB", self.memory()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--flags", default="--use-webgpu-adapter=swiftshader")
    parser.add_argument("--cores", type=Path, help="compiled cores, in place of the package's")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, model = Path(temporary) / "page", LLM(args.model, progress=False).model
        write_page_folder(model, folder, context=args.context, cores=args.cores or page_cores())
        [worker] = (folder / "static").rglob("worker.js")
        worker.write_text(WATCH + worker.read_text())
        for name, flags in (("GPU", ["--enable-unsafe-webgpu", *args.flags.split()]), ("none", [])):
            with browser(*flags) as chromium, hosted(folder) as address:
                context = chromium.new_context()
                first = Visit(chromium, context, address)
                print(f"{name}: stages of the first visit: {json.dumps(first.stages)}", flush=True)
                first.tab.close()
                for figure, value in Visit(chromium, context, address).figures(args.tokens):
                    print(f"{name}: {figure}: {json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main()
