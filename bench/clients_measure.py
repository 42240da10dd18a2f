"""``cutaway serve`` and llama.cpp's server on the same files, measured by llama-benchy.

    python bench/clients_measure.py MODEL.gguf… --llama-server PATH --tokenizer FOLDER…
        [--benchy llama-benchy] [--threads N] [--prompt 64] [--answer 32] [--streams 1 4]
        [--rounds 3] [--write docs/server.md]

llama-benchy (PyPI) asks both over HTTP, in turns, so that a disturbance of a round affects both.
FOLDER, one for each file, has the file's tokenizer in transformers' form. Make it from a GGUF file
by ``AutoTokenizer.from_pretrained(FOLDER, gguf_file=NAME).save_pretrained(FOLDER)``. Figures are
medians; ratios are medians of each round's ratio. The last line is one JSON document.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from cutaway.base.progress import say
from script import check_page, grid, parser_of, publish

ROOT = Path(__file__).parents[1]
START_S = 120
SHOWN = {"first token, ms": 1, "tokens/s": 1, "requests/s": 2}
"""The figures that the table shows, and their digits."""


def free_port() -> int:
    """Find a port that is free now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        return int(found.getsockname()[1])


@contextmanager
def serving(command: list[str]) -> Iterator[str]:
    """Run a server until the block ends; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*command, "--port", str(port)], stdout=quiet, stderr=quiet) as child:
        try:
            _wait(child, f"{url}/health")
            yield url
        finally:
            child.terminate()


def _wait(child: subprocess.Popen[bytes], url: str) -> None:
    """Wait until a server is healthy; SystemExit if it ends or takes too long."""
    end = time.monotonic() + START_S
    while child.poll() is None and time.monotonic() < end:
        try:
            with urllib.request.urlopen(url):
                return
        except urllib.error.HTTPError as error:
            error.close()
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"the server at {url} did not start")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def book() -> Iterator[str]:
    """Serve the text that prompts are cut from, this repository's own pages; yield its address."""
    with TemporaryDirectory() as folder:
        pages = sorted((ROOT / "docs").glob("*.md"))
        Path(folder, "book.txt").write_text("\n".join(page.read_text() for page in pages))
        with HTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}/book.txt"
            server.shutdown()


def measure(asked: Namespace, tokenizer: str, url: str, text: str) -> dict[int, dict[str, float]]:
    """Measure one server; return its figures for each number of streams."""
    with TemporaryDirectory() as folder:
        told = Path(folder, "told.json")
        command = [
            asked.benchy, "--base-url", f"{url}/v1", "--model", "model", "--tokenizer",
            tokenizer, "--pp", asked.prompt, "--tg", asked.answer, "--exact-tg", "--runs", 1,
            "--no-cache", "--skip-coherence", "--latency-mode", "none", "--book-url", text,
            "--concurrency", *asked.streams, "--format", "json", "--save-result", told,
        ]  # fmt: skip
        subprocess.run([*map(str, command)], check=True, stdout=sys.stderr)
        found = json.loads(told.read_text())["benchmarks"]
    return {one["concurrency"]: figures(one, asked.answer) for one in found}


def figures(one: dict[str, Any], answer: int) -> dict[str, float]:
    """The figures of SHOWN, over all requests of a run."""
    if one["e2e_ttft"] is None:
        raise SystemExit(
            "llama-benchy had no answer in time: measure on a machine that is less busy"
        )
    first = one["e2e_ttft"]["values"]
    rates = one["tg_req_throughput"]["values"]
    whole = [ms / 1000 + answer / rate for ms, rate in zip(first, rates, strict=True)]
    return {
        "first token, ms": mean(first),
        "tokens/s": one["tg_throughput"]["mean"],
        "requests/s": one["concurrency"] / mean(whole),
    }


def table(asked: Namespace, rounds: list[dict[str, Any]]) -> str:
    """Markdown: a row for each figure and number of streams."""
    rows = []
    for streams in asked.streams:
        for name, digits in SHOWN.items():
            theirs, ours = ([r[who][streams][name] for r in rounds] for who in ("theirs", "ours"))
            ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
            cells = [f"{median(values):.{digits}f}" for values in (theirs, ours)]
            what = f"{streams} stream{'s' * (streams > 1)}: {name}"
            rows.append([what, *cells, f"{ratio:.2f}"])
    return grid(["", "llama.cpp's server", "`cutaway serve`", "ours by theirs"], rows)


def parse() -> Namespace:
    parser = parser_of(__doc__, model=False, write="docs/server.md")
    parser.add_argument("model", type=Path, nargs="+")
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--tokenizer", required=True, nargs="+")
    parser.add_argument("--benchy", default="llama-benchy")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--answer", type=int, default=32)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if len(asked.tokenizer) != len(asked.model):
        parser.error("--tokenizer takes a folder for each MODEL.gguf, in their order")
    return asked


def in_turns(asked: Namespace, file: Path, tokenizer: str, text: str) -> list[dict[str, Any]]:
    """Measure both servers in turns; return the figures of both for each round."""
    model = ["-m", str(file), "--threads", str(asked.threads)]
    most = max(asked.streams)
    room = [str(most * 2 * (asked.prompt + asked.answer + 128)), "--parallel", str(most)]
    ours = [sys.executable, "-m", "cutaway", "serve", "--served-model-name", "model", *model]
    theirs = [asked.llama_server, "--ctx-size", *room, *model]
    rounds: list[dict[str, Any]] = []
    with serving(theirs) as their_url, serving(ours) as our_url:
        for number in range(asked.rounds):
            say(f"{file.stem}: round {number + 1} of {asked.rounds}")
            urls = {"theirs": their_url, "ours": our_url}
            rounds.append({who: measure(asked, tokenizer, url, text) for who, url in urls.items()})
    return rounds


def main() -> None:
    """Measure, print, and write the table where asked."""
    asked = parse()
    check_page(asked.write, "measured")
    with book() as text:
        made = {
            model.stem: in_turns(asked, model, tokenizer, text)
            for model, tokenizer in zip(asked.model, asked.tokenizer, strict=True)
        }
    shown = "\n\n".join(f"{name}:\n\n{table(asked, rounds)}" for name, rounds in made.items())
    publish(shown, {"threads": asked.threads, "rounds": made}, asked.write, "measured")


if __name__ == "__main__":
    main()
