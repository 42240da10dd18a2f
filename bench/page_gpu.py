"""What a page that runs its own model takes on a GPU, in a headless Chromium, and without one.

    python bench/page_gpu.py [-m MODEL] [--tokens 40] [--flags "--use-webgpu-adapter=swiftshader"]
    python bench/page_gpu.py [-m MODEL] --seeds 10 [--tokens 4]

exports the page, opens it in a browser with WebGPU and in one without, and writes a text in each.
For both it prints when the page was ready, and when each stage of making a GPU ready began, at the
first visit and at the second, which finds the weights in the browser; the seconds of a token, and
the milliseconds of a processor that the page's own thread takes for it; and the memory of
WebAssembly, and of the browser's processes of the page and of the GPU (on Linux), before and after
Inside is opened, which loads the weights into WebAssembly. Memory is that of the second visit: of
the first, Playwright keeps all that was fetched. A GPU that the page declines is used all the same.
Seconds of a software driver say nothing about a card.

--seeds  write so many texts of each of three prompts on the GPU instead, and print which have this
         engine's fingerprints
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from playwright.sync_api import expect

from cutaway import LLM
from cutaway.features.page.cores import page_cores
from cutaway.features.page.folder import write_page_folder
from page_alone import hosted
from page_frames import browser
from script import parser_of

PROMPTS = ("The sky is", "Once upon a time", "Mr. Darcy")
NEVER = 7 * 86_400_000  # ms: software drivers are slow
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
  const { device, loaded } = message;
  const stage = device?.stage ?? (device && (device.gpu ?? device.reason)) ?? (loaded && "ready");
  if (stage) self.stages.push([stage, Math.round(performance.now() - began) / 1e3]);
  post.call(self, message);
};
"""
READY = """async () => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  await api.whenReady();
}"""
WRITE = """async ([prompt, seed, settings]) => {
  const { session } = document.querySelector("run-picker");
  const request = { kind: "completion", prompt, messages: [], settings, seed, forced: [] };
  const run = await session.start(request);
  await new Promise(requestAnimationFrame);
  return run.trace.end?.fingerprint;
}"""


class Visit:
    """A page in a context of a browser, whose GPU computes if it has one."""

    def __init__(self, chromium: Any, context: Any, address: str) -> None:
        self.chromium, self.tab = chromium, context.new_page()
        self.tab.set_default_timeout(NEVER)
        self.tab.goto(address)
        self.tab.evaluate(READY)
        self.metrics = context.new_cdp_session(self.tab)
        self.metrics.send("Performance.enable")
        line, anyway = self.tab.locator("device-line"), "Use the GPU all the same"
        if line.get_by_role("button", name=anyway).is_visible():
            line.get_by_role("button", name=anyway).click()
            expect(line.get_by_role("button", name="Check again")).to_be_visible(timeout=NEVER)

    @property
    def device(self) -> str:
        """What the page says of the device that computes."""
        text: str = self.tab.locator("device-line span").inner_text()
        return text

    @property
    def stages(self) -> Any:
        """When each stage began, in seconds."""
        return self.tab.workers[0].evaluate("() => self.stages")

    def write(self, prompt: str, seed: int, **settings: Any) -> str:
        """Write a text; return its fingerprint."""
        fingerprint: str = self.tab.evaluate(WRITE, [prompt, str(seed), settings])
        return fingerprint

    def thread_time(self) -> float:
        """Return the seconds of a processor that the page's own thread took so far."""
        told = self.metrics.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in told if one["name"] == "ThreadTime")

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
        yield "device", self.device
        yield "stages of the second visit", self.stages
        self.write(PROMPTS[0], 1, max_tokens=2)
        yield "memory, MB", self.memory()
        thread, began = self.thread_time(), perf_counter()
        self.write(PROMPTS[0], 1, max_tokens=tokens, ignore_eos=True)
        yield "seconds a token", round((perf_counter() - began) / tokens, 3)
        yield (
            "ms of the page's own thread a token",
            round(1e3 * (self.thread_time() - thread) / tokens, 2),
        )
        self.tab.get_by_role("tab", name="Inside").click()
        self.tab.get_by_text("recomputed bit for bit").wait_for()
        yield "memory with Inside, MB", self.memory()


def compare_texts(llm: LLM, visit: Visit, seeds: int, tokens: int) -> None:
    """Print how many texts have the engine's fingerprints, and which have not."""
    how: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.9, "ignore_eos": True}
    equal = 0
    for prompt in PROMPTS:  # so that its keys and values are computed once
        for seed in range(seeds):
            here = llm.generate(prompt, seed=seed, **how).fingerprint
            is_equal = visit.write(prompt, seed, **how) == here
            equal += is_equal
            print(f"{prompt!r}, seed {seed}: {'equal' if is_equal else 'DIFFERS'}", flush=True)
    count = f"{equal} of {len(PROMPTS) * seeds} texts of {tokens} tokens"
    print(f"{count} have the fingerprints of the processor. {visit.device}")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--flags", default="--use-webgpu-adapter=swiftshader")
    parser.add_argument("--cores", type=Path, help="compiled cores, in place of the package's")
    args = parser.parse_args()
    on_gpu = ("--enable-unsafe-webgpu", *args.flags.split())
    with tempfile.TemporaryDirectory() as temporary:
        folder, llm = Path(temporary) / "page", LLM(args.model, progress=False)
        write_page_folder(llm.model, folder, context=args.context, cores=args.cores or page_cores())
        [worker] = (folder / "static").rglob("worker.js")
        worker.write_text(WATCH + worker.read_text())
        if args.seeds:
            with browser(*on_gpu) as chromium, hosted(folder) as address:
                visit = Visit(chromium, chromium.new_context(), address)
                print(f"ready: {json.dumps(visit.stages)}", flush=True)
                return compare_texts(llm, visit, args.seeds, args.tokens)
        for name, flags in (("GPU", on_gpu), ("none", ())):
            with browser(*flags) as chromium, hosted(folder) as address:
                context = chromium.new_context()
                first = Visit(chromium, context, address)
                print(f"{name}: stages of the first visit: {json.dumps(first.stages)}", flush=True)
                first.tab.close()
                for figure, value in Visit(chromium, context, address).figures(args.tokens):
                    print(f"{name}: {figure}: {json.dumps(value)}", flush=True)
    return None


if __name__ == "__main__":
    main()
