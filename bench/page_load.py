"""What the page fetches, and how far it moves, when it is opened for the first and the second time.

    python bench/page_load.py [-m toy-writer] [--write docs/page.md]

Opens the page of `cutaway serve`, and the folder of `cutaway export --page` on a plain static
host, twice in one profile each. Counted are the requests that reached the network, with the bytes
of their answers, heads included. A static host may compress its files or not: there the bytes are
those of the files under gzip, and the model's own files are left out. CLS is the browser's
cumulative layout shift: below 0.1 is good. Prints what moved, too.

Then opens the page, the class, the list of lessons and two lessons on a slow line, each in a
profile of its own: what a first visit loads, and in how many seconds it is there.

Needs `pip install playwright` and a Chromium: that of CHROMIUM in the environment, or of the PATH.
"""

import gzip
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from cutaway import LLM
from cutaway.features.page.cores import page_cores
from cutaway.features.page.folder import write_page_folder
from page_alone import hosted
from page_frames import browser, served
from script import check_page, grid, parser_of, publish

SIZES: dict[str, dict[str, Any]] = {
    "window": {"viewport": {"width": 1400, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
WATCH = """
  window.shifts = [];
  const name = (node) => (node?.nodeType === 1 ? node : node?.parentElement)?.localName ?? "?";
  new PerformanceObserver((list) => shifts.push(...list.getEntries().map((entry) =>
    [entry.value, entry.sources.map(({ node }) => name(node))])))
    .observe({ type: "layout-shift", buffered: true });
"""
SHOWN = "() => document.querySelector('token-strip .chip[aria-current]')"
THREADS = ("worker.js", "thread.js")
LATER = 1500  # milliseconds, in which fonts, figures and the settings arrive
READ = "() => document.readyState === 'complete'"
FIRST = {
    "": SHOWN,
    "class": READ,
    "lessons": READ,
    "lessons/softmax": SHOWN,
    "lessons/induction": SHOWN,
}
"""What a first visit opens, and when it is there. Induction is the largest lesson."""
SLOW = {"latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 0.75e6 / 8}


class Visit(NamedTuple):
    """The bytes of each answer by its path, the layout shifts with what moved, and the time."""

    answers: dict[str, float]
    shifts: list[tuple[float, list[str]]]
    seconds: float

    @property
    def cls(self) -> float:
        """The sum of the shifts: all are within one session of the measure, of five seconds."""
        return sum(value for value, _ in self.shifts)


def visit(context: Any, address: str, shown: str = SHOWN, *, slow: bool = False) -> Visit:
    """Open the address in a tab of its own, until it is shown.

    slow: on a line of 1.6 Mbit/s, with 150 ms there and back
    """
    page = context.new_page()
    fetched = list[str]()  # by the page's threads, too, of which the tools do not tell
    page.on("requestfinished", lambda request: fetched.append(urlsplit(request.url).path))
    tools, asked, answers = context.new_cdp_session(page), dict[str, str](), dict[str, float]()

    def note(told: Any) -> None:
        if told["encodedDataLength"]:  # none: it came from the browser's cache
            answers[asked[told["requestId"]]] = told["encodedDataLength"]

    tools.on(
        "Network.requestWillBeSent",
        lambda told: asked.update({told["requestId"]: urlsplit(told["request"]["url"]).path}),
    )
    tools.on("Network.loadingFinished", note)
    tools.send("Network.enable")
    if slow:
        tools.send("Network.emulateNetworkConditions", {"offline": False, **SLOW})
    page.add_init_script(WATCH)
    page.goto(address)
    page.wait_for_function(shown, timeout=60_000)
    seconds = page.evaluate("performance.now()") / 1e3
    page.wait_for_timeout(LATER)
    page.wait_for_load_state("networkidle")
    if answers:
        answers |= {path: 0.0 for path in fetched if path.endswith(THREADS)}
    seen = Visit(answers, page.evaluate("shifts"), seconds)
    page.close()
    return seen


def of_the_page(answers: dict[str, float], folder: Path) -> dict[str, float]:
    """The answers that are no files of the model, with the bytes of the files under gzip."""
    paths = {name: folder / (name.strip("/") or "index.html") for name in answers}
    return {
        name: len(gzip.compress(path.read_bytes(), 9))
        for name, path in paths.items()
        if "model" not in path.relative_to(folder).parts
    }


def measure(chromium: Any, address: str, folder: Path | None) -> dict[str, Any]:
    """Open the address twice in windows of each size."""
    found = dict[str, Any]()
    for name, size in SIZES.items():
        context = chromium.new_context(**size)
        visits = [visit(context, address) for _ in range(2)]
        context.close()
        for number, seen in enumerate(visits, 1):
            answers = of_the_page(seen.answers, folder) if folder else seen.answers
            found[f"{name}, visit {number}"] = {
                "requests": len(answers),
                "kB": sum(answers.values()) / 1e3,
                "largest": dict(Counter(answers).most_common(5)),
                "CLS": seen.cls,
                "moved": [one for one in seen.shifts if one[0] > 0.001],
            }
    return found


def measure_first(chromium: Any, url: str) -> dict[str, Any]:
    """Open each page of the server as somebody who has nothing of it yet, on a slow line."""
    found = dict[str, Any]()
    for path, shown in FIRST.items():
        context = chromium.new_context(**SIZES["phone"])
        seen = visit(context, f"{url}/{path}", shown, slow=True)
        context.close()
        found[f"/{path}"] = {
            "requests": len(seen.answers),
            "kB": sum(seen.answers.values()) / 1e3,
            "seconds": seen.seconds,
            "CLS": seen.cls,
        }
    return found


def main() -> None:
    parser = parser_of(__doc__, write="docs/page.md")
    args = parser.parse_args()
    for name in ("page-load", "first-visits"):
        check_page(args.write, name)
    model = args.model or "toy-writer"
    llm = LLM(model, progress=False)
    with tempfile.TemporaryDirectory() as temporary, browser() as chromium:
        folder = Path(temporary) / "page"
        write_page_folder(llm.model, folder, context=512, cores=page_cores())
        with served(Path(model)) as url, hosted(folder) as alone:
            first = measure_first(chromium, url)
            found = {
                "served": measure(chromium, url, None),
                "exported": measure(chromium, alone, folder),
            }
        chromium.close()
    rows = [
        [f"{kind}, {name}", one["requests"], f"{one['kB']:.1f}", f"{one['CLS']:.3f}"]
        for kind, each in found.items()
        for name, one in each.items()
    ]
    table = grid(["", "requests", "kB, compressed", "CLS"], rows)
    publish(table, found, args.write, "page-load")
    rows = [
        [
            f"`{path}`",
            one["requests"],
            f"{one['kB']:.1f}",
            f"{one['seconds']:.1f}",
            f"{one['CLS']:.3f}",
        ]
        for path, one in first.items()
    ]
    table = grid(["", "requests", "kB, compressed", "seconds", "CLS"], rows)
    publish(table, first, args.write, "first-visits")


if __name__ == "__main__":
    main()
