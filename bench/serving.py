"""The gains of serving: draft tokens, shared prefixes, many streams, a prompt beside a stream.

    python bench/serving.py [-m MODEL] [--threads N] [--repeats 5] [--streams 16]
        [--prompt 2000] [--json] [--write docs/speed.md]

    drafts    tokens a second with --speculate ngram and jacobi, divided by those without, on tasks
              that repeat or edit a given passage, and on free text; the texts must be equal
    prefix    seconds to the first token if the prompt's beginning is cached, by the cold time
    streams   tokens a second of many streams, divided by those of one
    beside    seconds between a stream's tokens while another request's long prompt is read

Everything is measured in turns in one process; figures are medians. The last line is one JSON
document. The exit code is 1 where a draft token changed a text.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

import serving_runs as runs
from cutaway import LLM
from cutaway.base.progress import say
from cutaway.features.measure.bench import MOST_STREAMS
from script import check_page, grid, parser_of, publish

PASSAGE = (
    "The lighthouse keeper climbed the narrow stairs every evening at dusk. He carried a small "
    "lantern and a book of tide tables. From the gallery he could see the fishing boats return to "
    "the harbour one by one. On stormy nights he stayed awake until dawn, watching the waves break "
    "over the reef."
)
TASKS = {
    "repeat": [f"Repeat this passage exactly:\n\n{PASSAGE}"],
    "edit": [f"Rewrite this passage, with 'keeper' changed to 'guard':\n\n{PASSAGE}"],
}
FREE = [
    "Once upon a time in a small village",
    "The future of energy is",
    "def quicksort(xs):",
    "My favourite recipe for soup begins with",
]
TEMPERATURES = (0.0, 0.7, 1.0)
DRAFTS = {"ngram": "n-gram", "jacobi": "look-ahead"}
MAX_TOKENS = 128


def drafts(llm: LLM, repeats: int) -> list[dict[str, Any]]:
    """Measure a row for every kind of drafts, task and temperature."""
    tasks: Mapping[str, list[Any]] = {
        name: [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts]
        for name, texts in TASKS.items()
    } | {"free text": FREE}
    rows = []
    for name, prompts in tasks.items():
        for temperature in TEMPERATURES:
            done: dict[str, list[runs.Decoded]] = {mode: [] for mode in ("off", *DRAFTS)}
            for _ in range(repeats):
                for mode, texts in done.items():
                    options = {"temperature": temperature, "max_tokens": MAX_TOKENS}
                    texts.append(runs.decode(llm, prompts, mode, **options))
            for mode in DRAFTS:
                found = _compared(done[mode], done["off"])
                rows.append({"drafts": mode, "task": name, "temperature": temperature} | found)
                say(f"  {mode}: {name} at temperature {temperature}: {found['ratio']:.2f}×")
    return sorted(rows, key=lambda row: [*DRAFTS].index(row["drafts"]))


def _compared(drafted: list[runs.Decoded], off: list[runs.Decoded]) -> dict[str, Any]:
    pairs, last = list(zip(drafted, off, strict=True)), drafted[-1]
    return {
        "off_tokens_per_s": median(run.rate for run in off),
        "tokens_per_s": median(run.rate for run in drafted),
        "ratio": median(a.rate / b.rate for a, b in pairs),
        "accepted": last.accepted,
        "proposed": last.proposed,
        "equal": all(a.texts == b.texts for a, b in pairs),
    }


def prefix(llm: LLM, rng: np.random.Generator, repeats: int) -> dict[str, Any]:
    times = [runs.shared_prefix(llm, rng) for _ in range(repeats)]
    return {
        "prompt_tokens": runs.SHARED + runs.OWN,
        "cached_tokens": times[-1][2],
        "cold_s": median(cold for cold, _, _ in times),
        "warm_s": median(warm for _, warm, _ in times),
        "ratio": median(warm / cold for cold, warm, _ in times),
    }


def streams(llm: LLM, rng: np.random.Generator, repeats: int, count: int) -> dict[str, Any]:
    pairs = [(runs.streams(llm, rng, 1), runs.streams(llm, rng, count)) for _ in range(repeats)]
    return {
        "streams": count,
        "one_tokens_per_s": median(one.rate for one, _ in pairs),
        "many_tokens_per_s": median(many.rate for _, many in pairs),
        "ratio": median(many.rate / one.rate for one, many in pairs),
        "outside_plan": median(many.outside for _, many in pairs),
    }


def beside(llm: LLM, rng: np.random.Generator, repeats: int, tokens: int) -> dict[str, Any]:
    found = [runs.beside(llm, rng, tokens) for _ in range(repeats)]
    during = [seconds for run in found for seconds in run.during]
    return {
        "prompt_tokens": tokens,
        "itl_alone_s": median(seconds for run in found for seconds in run.before),
        "itl_beside_s": median(during),
        "itl_beside_worst_s": max(during),
        "ttft_alone_s": median(run.alone for run in found),
        "ttft_beside_s": median(run.ttft for run in found),
    }


def measure(llm: LLM, args: Namespace) -> dict[str, Any]:
    """Make all measurements; rates per second, times in seconds."""
    rng, repeats = np.random.default_rng(0), args.repeats
    runs.decode(llm, FREE[:1], "off", max_tokens=32)  # warms up
    with runs.without_prefix_cache(llm):
        found = {
            "drafts": drafts(llm, repeats),
            "streams": streams(llm, rng, repeats, args.streams),
            "beside": beside(llm, rng, repeats, args.prompt),
        }
    return found | {"prefix": prefix(llm, rng, repeats)}


def markdown(found: Mapping[str, Any]) -> str:
    """A table for people, and for docs/speed.md."""
    p, s, b = found["prefix"], found["streams"], found["beside"]
    rows = [
        (f"speculative decoding ({DRAFTS[row['drafts']]}): {row['task']}, "
         f"temperature {row['temperature']:g}",
         f"{row['off_tokens_per_s']:.0f} tokens/s", f"{row['tokens_per_s']:.0f} tokens/s",
         f"**{row['ratio']:.2f}×**{'' if row['equal'] else ', TEXTS DIFFER'}; "
         f"{row['accepted']} of {row['proposed']} draft tokens accepted")
        for row in found["drafts"]
    ]  # fmt: skip
    rows += [
        (f"prefix cache: first token, {p['cached_tokens']} of {p['prompt_tokens']} prompt tokens "
         "in the cache",
         f"{p['cold_s'] * 1e3:.0f} ms cold", f"{p['warm_s'] * 1e3:.0f} ms",
         f"**{p['ratio']:.2f}×**"),
        (f"continuous batching: {s['streams']} streams at once",
         f"{s['one_tokens_per_s']:.0f} tokens/s of one", f"{s['many_tokens_per_s']:.0f} tokens/s",
         f"**{s['ratio']:.2f}×**"),
        (f"a long prompt beside: between two tokens, while {b['prompt_tokens']} are read",
         f"{b['itl_alone_s'] * 1e3:.0f} ms alone", f"{b['itl_beside_s'] * 1e3:.0f} ms",
         f"at most {b['itl_beside_worst_s'] * 1e3:.0f} ms"),
        ("a long prompt beside: its own first token", f"{b['ttft_alone_s']:.2f} s alone",
         f"{b['ttft_beside_s']:.2f} s", f"**{b['ttft_beside_s'] / b['ttft_alone_s']:.2f}×**"),
    ]  # fmt: skip
    return grid(("", "without", "with", ""), rows)


def parse(argv: list[str] | None) -> Namespace:
    parser = parser_of(__doc__, write="docs/speed.md")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=2000, help="tokens of the long prompt")
    parser.add_argument("--json", action="store_true", help="print the JSON document only")
    args = parser.parse_args(argv)
    if min(args.repeats, args.prompt) < 1 or not 2 <= args.streams <= MOST_STREAMS:
        parser.error(f"--repeats and --prompt must be above 0, --streams 2 to {MOST_STREAMS}")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    check_page(args.write, "serving")
    llm = LLM(args.model, threads=args.threads, progress=not args.json)
    found = measure(llm, args)
    document = {"benchmark": "serving", "model": llm.name} | found
    publish(markdown(found), document, args.write, "serving", only_json=args.json)
    return int(not all(row["equal"] for row in found["drafts"]))


if __name__ == "__main__":
    sys.exit(main())
