"""The page that runs its own model, in a headless Chromium, beside native threads and another page.

    python bench/page_alone.py [-m MODEL] [--rounds 3] [--line MBIT] [--wllama FOLDER] [--json FILE]

exports the page and opens it twice: with one thread, as any host serves it, and cross-origin
isolated, with threads. Each writes 64 tokens, in turns with this engine. The figures are tokens a
second, the time to the first token of a prompt of 64, the time to load the page from this machine,
which should be idle otherwise, and the memory of the browser's process of the page (on Linux), at
the first visit and at the second, which finds the weights in the browser.

--line    how long the page takes to load over a line of so many megabits a second, too, from a
          host that answers each request after 0.15 s and compresses nothing
--wllama  npm's @wllama/wllama, unpacked (npm pack @wllama/wllama; tar xf wllama-*.tgz): llama.cpp
          in the browser, on the same GGUF, takes part with one thread (with two its 3.13 did not
          answer in this Chromium)

The script cannot measure other browsers, or phones.
"""

import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from subprocess import Popen
from time import perf_counter, sleep
from typing import Any

from playwright.sync_api import sync_playwright

from cutaway import LLM
from cutaway.features.page.cores import page_cores
from cutaway.features.page.folder import write_page_folder
from page_frames import browser, find_chromium
from script import parser_of

TOKENS = 64
LOAD = """async () => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  await api.fetchAbout();
}"""
RUN = """async ([prompt, most]) => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  const settings = { temperature: 0, max_tokens: most, ignore_eos: true, cache_prompt: false };
  const request = { kind: "completion", messages: [], forced: [], prompt, settings, seed: "1" };
  const began = performance.now(), times = [];
  for await (const some of api.records(request, new AbortController().signal)) {
    if (some.some(({ kind }) => kind === "step")) times.push(performance.now());
  }
  return { first: times[0] - began, rest: (times.at(-1) - times[0]) / (times.length - 1) };
}"""
LOAD_WLLAMA = """async () => {
  const { Wllama } = await import("/wllama/index.js");
  const paths = { default: "/wllama/wasm/wllama.wasm" };
  window.engine = new Wllama(paths, { suppressNativeLog: true });
  const model = await (await fetch("/model.gguf")).blob();
  await engine.loadModel([model], { n_threads: 1, n_ctx: 512, n_gpu_layers: 0 });
}"""
RUN_WLLAMA = """async ([prompt, most]) => {
  const began = performance.now(), times = [];
  const asked = { prompt, max_tokens: most, temperature: 0, ignore_eos: true, stream: true };
  for await (const _ of await engine.createCompletion(asked)) times.push(performance.now());
  return { first: times[0] - began, rest: (times.at(-1) - times[0]) / (times.length - 1) };
}"""


LATENCY = 0.15


class Server(ThreadingHTTPServer):
    """A host's settings: whether its pages are isolated, and the bytes a second of its line."""

    isolated = False
    rate: float | None = None
    sent: set[str]  # names of files
    turn = threading.Lock()  # all answers share the line


class Host(SimpleHTTPRequestHandler):
    """Serves a folder without a log; isolated, and slow, where the server says so."""

    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer, and note the file."""
        super().do_GET()
        self.server.sent.add(Path(self.path).name)

    def end_headers(self) -> None:
        """Add the headers of an isolated page, if the server says so."""
        if self.server.isolated:
            self.send_header("cross-origin-opener-policy", "same-origin")
            self.send_header("cross-origin-embedder-policy", "require-corp")
        super().end_headers()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Send a file at the line's rate."""
        if (rate := self.server.rate) is None:
            super().copyfile(source, outputfile)
            return
        sleep(LATENCY)
        while some := source.read(1 << 14):
            with self.server.turn:
                sleep(len(some) / rate)
            outputfile.write(some)


@contextmanager
def hosted(folder: Path, *, isolated: bool = False, rate: float | None = None) -> Iterator[str]:
    """Serve the folder; yield the server's address."""
    with serving(folder) as server:
        server.isolated, server.rate = isolated, rate
        yield f"http://127.0.0.1:{server.server_port}/"


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """Serve the folder; yield the server."""
    server = Server(("127.0.0.1", 0), partial(Host, directory=folder))
    server.sent = set()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


class Tab:
    """An open page, which writes texts."""

    def __init__(self, chromium: Any, address: str, load: str, run: str, *asked: Any) -> None:
        self.page, self.run = chromium.new_context(service_workers="block").new_page(), run
        began = perf_counter()
        self.page.goto(address)
        self.page.evaluate(load, *asked)
        self.loaded = perf_counter() - began

    def write(self, prompt: Any) -> dict[str, float]:
        """Write a text; return the milliseconds of the first token, and of each later token."""
        took: dict[str, float] = self.page.evaluate(self.run, [prompt, TOKENS])
        return took


def resident(chromium: Any) -> float:
    """The megabytes of the browser's largest page process."""
    told = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    pages = [Path(f"/proc/{one['id']}/status") for one in told if one["type"] == "renderer"]
    return max(int(page.read_text().split("VmRSS:")[1].split()[0]) / 1e3 for page in pages)


READY = """async () => {
  const { $state_api: api } = await import(document.querySelector("script[src]").src);
  await api.whenReady();
}"""


VISIT_SECONDS = 300


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Wait; end with what is missing where that takes too long."""
    deadline = perf_counter() + VISIT_SECONDS
    while not is_so():
        if perf_counter() > deadline:
            raise SystemExit(f"after {VISIT_SECONDS} s {what}")
        sleep(0.1)


def debugging_address(log: Path) -> str:
    """Return where Playwright attaches, once the browser has logged the whole line; ""."""
    lines = log.read_text(errors="replace").splitlines(keepends=True)
    told = [line.split()[-1] for line in lines if "DevTools" in line and line.endswith("\n")]
    return told[0] if told else ""


@contextmanager
def browsing(address: str, profile: Path) -> Iterator[str]:
    """Open the page in a browser of its own; yield where Playwright attaches."""
    options = ["--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    log = profile / "stderr.log"
    with log.open("w") as stderr, Popen([find_chromium(), *options, address], stderr=stderr) as run:
        try:
            wait_until(lambda: debugging_address(log), "Chromium has not said where to attach")
            yield debugging_address(log)
            run.wait(VISIT_SECONDS)
        finally:
            run.kill()


def memory_of_visits(folder: Path) -> dict[str, float]:
    """The megabytes of the page's process at the first visit and at the second.

    The browser begins without Playwright, which attaches after the weights have come: to what is
    attached earlier, the page's process keeps all that it fetches.
    """
    last, found = max(path.name for path in (folder / "model").glob("weights-*")), {}
    with tempfile.TemporaryDirectory() as profile, serving(folder) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        for visit in ("first visit", "second visit"):
            with browsing(address, Path(profile)) as debugging, sync_playwright() as playwright:
                wait_until(lambda: last in server.sent, f"the page has not fetched {last}")
                chromium = playwright.chromium.connect_over_cdp(debugging)
                [page] = chromium.contexts[0].pages
                page.evaluate(READY)
                found[visit] = resident(chromium)
                chromium.new_browser_cdp_session().send("Browser.close")
    return found


class Native:
    """The native engine, with a number of threads."""

    def __init__(self, model: str | None, threads: int) -> None:
        self.llm = LLM(model, threads=threads, prefix_cache=False, progress=False)

    def write(self, prompt: Any) -> dict[str, float]:
        """Write a text; return the same figures as ``Tab.write``."""
        options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "seed": 1}
        began = perf_counter()
        self.llm.generate(prompt, max_tokens=1, **options)
        first = perf_counter()
        self.llm.generate(prompt, max_tokens=TOKENS, **options)
        rest = (perf_counter() - first - (first - began)) / (TOKENS - 1)
        return {"first": 1e3 * (first - began), "rest": 1e3 * rest}


def measured(writers: dict[str, Any], prompt: str, rounds: int) -> dict[str, dict[str, float]]:
    """Measure all writers in turns; return medians over the rounds without the first."""
    took: dict[str, list[dict[str, float]]] = {name: [] for name in writers}
    for _ in range(rounds + 1):
        for name, writer in writers.items():
            took[name].append(writer.write(prompt))
    return {
        name: {
            "tokens a second": 1e3 / median(one["rest"] for one in each[1:]),
            f"first token of {TOKENS}, ms": median(one["first"] for one in each[1:]),
        }
        for name, each in took.items()
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--line", type=float, metavar="MBIT")
    parser.add_argument("--wllama", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cores", type=Path, help="compiled cores, in place of the package's")
    args = parser.parse_args()
    natives = {threads: Native(args.model, threads) for threads in (1, 2)}
    llm = natives[1].llm
    cut = llm.tokenizer.encode("The sky is wide and " * 40)[:TOKENS]
    prompt = llm.tokenizer.decode(cut)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "page"
        cores = args.cores or page_cores()
        write_page_folder(llm.model, folder, context=512, cores=cores)
        memory = memory_of_visits(folder)
        chromium = stack.enter_context(browser())
        with hosted(folder) as plain, hosted(folder, isolated=True) as isolated:
            pages = {"page, one thread": Tab(chromium, plain, LOAD, RUN)}
            pages["page, threads"] = Tab(chromium, isolated, LOAD, RUN)
            if args.wllama:
                shutil.copytree(args.wllama / "esm", folder / "wllama")
                (folder / "model.gguf").symlink_to(Path(llm.model.path).resolve())
                (folder / "empty.html").touch()
                address = f"{isolated}empty.html"
                pages["wllama, one thread"] = Tab(chromium, address, LOAD_WLLAMA, RUN_WLLAMA)
            names = {1: "native, one thread", 2: "native, two threads"}
            writers = pages | {names[threads]: native for threads, native in natives.items()}
            found: dict[str, Any] = measured(writers, prompt, args.rounds)
            for name, tab in pages.items():
                found[name]["loading, s"] = tab.loaded
            found["page, one thread"] |= {f"memory, MB, {visit}": memory[visit] for visit in memory}
            if args.line:
                with hosted(folder, rate=args.line * 1e6 / 8) as slow:
                    loaded = Tab(chromium, slow, LOAD, RUN).loaded
                found["page, one thread"][f"loading over {args.line:g} Mbit/s, s"] = loaded
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
