"""The page that runs its own model, in a headless Chromium, beside one native thread.

    python bench/page_alone.py [-m MODEL] [--rounds 3] [--json FILE]

exports the page, opens it, and writes 64 tokens, in turns with this engine: tokens a second, the
first token of a prompt of 64, and how long the page takes to load from this machine, which should
have nothing else to do.

What it cannot show: other browsers, phones, and what a network takes.
"""

import json
import statistics
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import perf_counter
from typing import Any

from cutaway import LLM
from cutaway.lab.page_folder import write_page_folder
from page_frames import browser
from script import parser_of

TOKENS = 64
RUN = """async ([prompt, most]) => {
  const { records } = await import(new URL("static/js/state/api.js", location.href));
  const settings = { temperature: 0, max_tokens: most, ignore_eos: true, cache_prompt: false };
  const request = { kind: "completion", messages: [], forced: [], prompt, settings, seed: "1" };
  const began = performance.now(), times = [];
  for await (const some of records(request, new AbortController().signal)) {
    if (some.some(({ kind }) => kind === "step")) times.push(performance.now());
  }
  return { first: times[0] - began, rest: (times.at(-1) - times[0]) / (times.length - 1) };
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a word."""

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def native(llm: LLM, prompt: list[int]) -> dict[str, float]:
    """Milliseconds of the first token, and of each of the others, as RUN has them."""
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "seed": 1}
    began = perf_counter()
    llm.generate(prompt, max_tokens=1, **options)
    first = perf_counter()
    llm.generate(prompt, max_tokens=TOKENS, **options)
    rest = (perf_counter() - first - (first - began)) / (TOKENS - 1)
    return {"first": 1e3 * (first - began), "rest": 1e3 * rest}


def measured(tab: Any, llm: LLM, prompt: list[int], rounds: int) -> dict[str, float]:
    """Medians over rounds, in which the page and this engine take turns."""
    page, here = list[dict[str, float]](), list[dict[str, float]]()
    for _ in range(rounds):
        page.append(tab.evaluate(RUN, [prompt, TOKENS]))
        here.append(native(llm, prompt))
    rate, own = (1e3 / statistics.median(one["rest"] for one in of) for of in (page, here))
    return {
        "page, tokens a second": rate,
        "one native thread, tokens a second": own,
        "page, of native": rate / own,
        f"page, first token of {TOKENS}, ms": statistics.median(one["first"] for one in page),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    llm = LLM(args.model, threads=1, prefix_cache=False, progress=False)
    prompt = llm.tokenizer.encode("The sky is wide and " * 40)[:TOKENS]
    with tempfile.TemporaryDirectory() as temporary:
        write_page_folder(llm.model, folder := Path(temporary) / "page", context=512)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser() as chromium:
            tab, began = chromium.new_page(), perf_counter()
            tab.goto(f"http://127.0.0.1:{server.server_port}/")
            tab.evaluate("async () => (await import('/static/js/state/api.js')).aboutServer()")
            loaded = perf_counter() - began
            found = measured(tab, llm, prompt, args.rounds) | {"loading, s": loaded}
        server.shutdown()
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
