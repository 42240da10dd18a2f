"""The page's memory over many runs: each is written and removed, or kept.

    python bench/page_memory.py [MODEL] [--runs 500] [--tokens 120] [--kept]

The heap is read after a collection. Without --kept it should not grow.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from cutaway import LLM

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.browser import CHROMIUM
from support.served import serve

WRITE = """async ([count, tokens, kept]) => {
  const picker = document.querySelector("run-picker");
  const { store, session } = picker;
  const settings = { max_tokens: tokens, ignore_eos: true };
  for (let i = 0; i < count; i++) {
    const request = { kind: "completion", prompt: "Once", messages: [], settings, seed: null,
      forced: [] };
    const run = await session.start(request);
    await new Promise(requestAnimationFrame);
    if (!kept) session.remove(run);
  }
}"""


def heap(client: Any) -> float:
    """Return the heap after a collection, in MB."""
    client.send("HeapProfiler.collectGarbage")
    return float(client.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="toy-writer")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--kept", action="store_true", help="keep the runs on the page")
    args = parser.parse_args()
    with serve(LLM(args.model, progress=False)) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.goto(served.url)
        tab.wait_for_selector("token-strip .chip")
        client = tab.context.new_cdp_session(tab)
        step = max(1, args.runs // 10)
        tab.evaluate(WRITE, [1, args.tokens, args.kept])
        print(f"run 1: {heap(client):.1f} MB", flush=True)
        for done in range(step, args.runs + 1, step):
            tab.evaluate(WRITE, [step, args.tokens, args.kept])
            print(f"run {done}: {heap(client):.1f} MB", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
