"""How smoothly the page goes through a long run: frame times in a headless Chromium.

    python bench/page_frames.py [--tokens 5000] [-m MODEL] [--trace FILE] [--inside] [--json]

Records a run (a small random model, or MODEL), serves the page, opens the run in it as a file, and
then scrolls through all of the text, takes 200 steps with the arrow keys and 50 jumps. A frame's
time is the time between two animation frames; a long task keeps the page busy for 50 ms or more.
--inside serves MODEL, opens the tab Inside at the end of the text, and moves back and forth over 50
steps whose inside it has shown.

Needs `pip install playwright` and a Chromium: that of CHROMIUM in the environment, or of the PATH.
"""

import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from cutaway import LLM

TESTS = Path(__file__).parents[1] / "tests"
PROMPT = "Write a long story about a lighthouse keeper."


class Frames(NamedTuple):
    """Milliseconds of each frame of one part, and of its long tasks."""

    part: str
    ms: list[float]
    long_tasks: list[float]

    def figures(self) -> dict[str, Any]:
        """The part as numbers; shares are 0 to 1."""
        ordered = sorted(self.ms)
        return {
            "part": self.part,
            "frames": len(ordered),
            "median_ms": median(ordered),
            "p95_ms": ordered[int(0.95 * (len(ordered) - 1))],
            "max_ms": ordered[-1],
            "over_16.7_ms": sum(ms > LATE for ms in ordered) / len(ordered),
            "over_50_ms": sum(ms > 50 for ms in ordered) / len(ordered),
            "long_tasks": len(self.long_tasks),
            "longest_task_ms": max(self.long_tasks, default=0.0),
        }


LATE = 16.7 + 0.1
"""A frame of a screen with 60 a second; clocks of browsers round to a tenth."""

Part = tuple[str, str, Any]
"""A part's name, the page's function that does it, and the function's argument."""

# -- in the page ----------------------------------------------------------------------------------

WATCH = """() => {
  const seen = window.seen = { frames: [], tasks: [], last: 0, on: false };
  new PerformanceObserver((list) => {
    if (seen.on) seen.tasks.push(...list.getEntries().map((entry) => entry.duration));
  }).observe({ entryTypes: ["longtask"] });
  const frame = (now) => {
    if (seen.on && seen.last) seen.frames.push(now - seen.last);
    seen.last = seen.on ? now : 0;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""

BEGIN = "() => Object.assign(window.seen, { frames: [], tasks: [], last: 0, on: true })"

FINISH = """async () => {
  await new Promise((done) => setTimeout(done, 100)); // long tasks are told late
  window.seen.on = false;
  return window.seen;
}"""

SCROLL = """async () => {
  const box = document.querySelector("token-strip .tokens");
  const frame = () => new Promise(requestAnimationFrame);
  box.scrollTop = 0;
  while (box.scrollTop + box.clientHeight < box.scrollHeight - 1) {
    box.scrollTop += 60;
    await frame();
  }
}"""

PRESS = """async (keys) => {
  for (const key of keys) {
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    await new Promise(requestAnimationFrame);
  }
}"""

JUMP = """async (count) => {
  const chips = document.querySelectorAll("token-strip .chip");
  for (let i = 1, at = 0; i <= count; i++) {
    at = (at + 1009 * i) % chips.length;
    chips[at].click();
    await new Promise(requestAnimationFrame);
  }
}"""

FETCH = """async (count) => {
  const proof = () => document.querySelector("inside-panel .proof").textContent;
  document.querySelector("#tab-inside").click();
  for (let i = 0, before = ""; i <= count; i++) {
    const began = performance.now();
    while (proof() === before && performance.now() - began < 20000) {
      await new Promise((done) => setTimeout(done, 20));
    }
    before = proof();
    const key = i < count ? "ArrowLeft" : "End";
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  }
  await new Promise((done) => setTimeout(done, 500));
}"""

FILE = """(text) => {
  const data = new DataTransfer();
  data.items.add(new File([text], "run.jsonl"));
  return data;
}"""


RUN: tuple[Part, ...] = (
    ("scroll", SCROLL, None),
    ("200 steps", PRESS, ["ArrowRight"] * 200),
    ("50 jumps", JUMP, 50),
)
BACK, FORTH = ["ArrowLeft"] * 50, ["ArrowRight"] * 50
INSIDE: tuple[Part, ...] = (("inside", PRESS, [*BACK, *FORTH] * 4),)


def parts(page: Any, script: tuple[Part, ...]) -> Iterator[Frames]:
    """Measure each part of the script; the whole run is open when the first begins."""
    page.evaluate(WATCH)
    for part, does, argument in script:
        page.evaluate(BEGIN)
        page.evaluate(does, argument)
        seen = page.evaluate(FINISH)
        yield Frames(part, seen["frames"], seen["tasks"])


def opened(page: Any, url: str, trace: Path, tokens: int) -> float:
    """Open the page and the file in it; return seconds from the file to the last token."""
    page.goto(url)
    page.wait_for_selector("token-strip .tokens", state="attached")
    page.wait_for_load_state("networkidle")
    text = trace.read_text()
    page.dispatch_event("body", "drop", {"dataTransfer": page.evaluate_handle(FILE, text)})
    began = page.evaluate("performance.now()")
    page.locator("token-strip .chip").nth(tokens - 1).wait_for(state="attached", timeout=120_000)
    return float(page.evaluate("performance.now()") - began) / 1e3


# -- around it ------------------------------------------------------------------------------------


def tiny(folder: Path, context: int) -> Path:
    """Write a small random model, which writes thousands of tokens a second."""
    sys.path.insert(0, str(TESTS))
    path = folder / "tiny.gguf"
    import_module("support.random_llama").write_tiny_llama(path, context=context)
    return path


def record(model: str | Path, path: Path, tokens: int) -> None:
    llm = LLM(model, context=tokens + 64, progress=False)
    llm.generate(PROMPT, max_tokens=tokens, ignore_eos=True, seed=1, top_k=40, trace=path)


@contextmanager
def served(model: Path) -> Iterator[str]:
    """Run `cutaway serve` until the block ends; yield the page's address."""
    command = [sys.executable, "-m", "cutaway", "serve", "-m", str(model), "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        said = ""
        for line in server.stderr:
            said += line
            if "http://" in line:
                yield "http://" + line.split("http://")[1].split()[0].rstrip("/.,")
                return
        raise SystemExit(f"cutaway serve did not begin: {said}")
    finally:
        server.terminate()
        server.communicate()


@contextmanager
def browser(*flags: str) -> Iterator[Any]:
    try:
        sync_playwright = import_module("playwright.sync_api").sync_playwright
    except ImportError:
        raise SystemExit("page_frames.py needs Playwright: pip install playwright") from None
    path = find_chromium()
    with sync_playwright() as playwright:
        # Without a sandbox, to run as root in a container; Chromium opens only our own page.
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox", *flags])


def find_chromium() -> str:
    """The browser's program."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not path:
        raise SystemExit("no Chromium was found: name its program in CHROMIUM")
    return path


def measure(asked: Namespace, folder: Path) -> dict[str, Any]:
    with browser() as chromium:  # first, since Chromium may be missing
        model = tiny(folder, asked.tokens + 64)
        trace = Path(asked.trace or folder / "run.jsonl")
        if not asked.trace:
            record(asked.model or model, trace, asked.tokens)
        lines = trace.read_text().splitlines()
        tokens = sum(line.startswith('{"kind":"step"') for line in lines)
        with served(asked.model if asked.inside else model) as url:
            page = chromium.new_page(viewport={"width": 1280, "height": 900})
            seconds = opened(page, url, trace, tokens)
            if asked.inside:
                page.keyboard.press("End")
                page.evaluate(FETCH, len(BACK))
            script = INSIDE if asked.inside else RUN
            found = [part.figures() for part in parts(page, script)]
        chromium.close()
    size = trace.stat().st_size / 1e6
    return {"tokens": tokens, "file_mb": size, "open_s": seconds, "parts": found}


def table(done: dict[str, Any]) -> str:
    lines = [
        f"{done['tokens']} tokens, {done['file_mb']:.1f} MB, shown {done['open_s']:.2f} s after "
        "the file was dropped",
        f"{'':10}  frames  median     p95     max  >16.7 ms  >50 ms  long tasks",
    ]
    lines += [
        f"{p['part']:10}{p['frames']:8}{p['median_ms']:8.1f}{p['p95_ms']:8.1f}{p['max_ms']:8.1f}"
        f"{p['over_16.7_ms']:10.1%}{p['over_50_ms']:8.1%}{p['long_tasks']:6}, "
        f"at most {p['longest_task_ms']:.0f} ms"
        for p in done["parts"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("-m", "--model", help="that writes the run; default: a small random one")
    parser.add_argument("--trace", help="a run that is on file already")
    parser.add_argument("--inside", action="store_true", help="steps of the tab Inside, of MODEL")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.inside and not asked.model:
        parser.error("--inside: say with -m which model looks")
    with TemporaryDirectory() as folder:
        done = measure(asked, Path(folder))
    print(json.dumps(done) if asked.json else table(done))


if __name__ == "__main__":
    main()
