"""How long prompts delay the streams that decode beside them, and how streams delay a prompt.

    python bench/beside_streams.py [-m MODEL] [--threads N] [--repeats 3] [--streams 10]
        [--prompt 4154] [--prompts 1,3] [--step-ms 0,200,1] [--shared] [--json]
        [--write docs/server.md]

For streams alone, and for every number of prompts that come at once and every target of a step
(``step_ms``: 0 is no target, 1 is twice the time of a step of the streams alone):

    gap      seconds between two tokens of a stream: the median, the 95th percentile, the longest
    prompts  seconds until each prompt has its first token, and how much slower this is than the
             same prompts without streams

On a machine that others use, --shared takes one thread, and times are processor times.
All settings are measured in turns, several times, in one process; figures are medians of the turns.
The last line is one JSON document. The exit code is 1 if a target changed a text.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from cutaway import LLM
from cutaway.base.progress import say
from cutaway.engine import Engine
from cutaway.engine import Sequence as EngineSequence
from cutaway.features.measure.bench import MOST_STREAMS
from script import check_page, grid, parser_of, publish, words
from serving_runs import CONTEXT, add_text, random_tokens

ALONE = 32
"""Tokens of each stream before prompts come; the first WARM gaps do not count."""
WARM = 4
Prompts = Sequence[list[int]]


@dataclass(frozen=True)
class Run:
    """One run of streams beside prompts. Times are in seconds.

    alone   times between a stream's tokens before the prompts come; beside: times between them
            until each prompt has its first token
    seconds from the prompts' arrival until each has its first token
    texts   of the streams, then of the prompts
    """

    alone: list[float]
    beside: list[float]
    seconds: float
    texts: list[tuple[int, ...]]


def run(llm: LLM, streams: Prompts, prompts: Prompts, step_ms: float) -> Run:
    """Start all streams, then add all prompts at once."""
    engine, room = llm.engine, llm.engine.limits.context_length - CONTEXT
    engine.scheduler.policy = replace(engine.scheduler.policy, step_ms=step_ms)
    writing = [add_text(engine, prompt, room) for prompt in streams]
    reading: list[EngineSequence] = []
    try:
        while not all(s.output_token_ids for s in writing):
            engine.step()
        alone = [_timed_step(engine) for _ in range(ALONE if writing else 0)]
        reading = [add_text(engine, prompt, 1) for prompt in prompts]
        beside = []
        while not all(s.output_token_ids for s in reading):
            beside.append(_timed_step(engine))
        texts = [tuple(s.output_token_ids) for s in (*writing, *reading)]
    finally:
        for sequence in (*writing, *reading):
            engine.abort(sequence)
        engine.take_events()
    return Run(alone[WARM:], beside, sum(beside), texts)


def _timed_step(engine: Engine) -> float:
    """Run a step; return its seconds, for which each stream waits for its next token."""
    clock: Callable[[], float] = vars(sys.modules[Engine.__module__])["perf_counter"]
    started = clock()
    engine.step()
    return clock() - started


@contextmanager
def processor_time() -> Iterator[None]:
    """Replace the engine's clock, by which it learns the times of steps, by processor time."""
    engine = vars(sys.modules[Engine.__module__])
    before, engine["perf_counter"] = engine["perf_counter"], process_time
    try:
        yield
    finally:
        engine["perf_counter"] = before


def measure(llm: LLM, args: Namespace) -> dict[str, Any]:
    """Measure times in seconds, for every number of prompts and every target."""
    rng = np.random.default_rng(0)
    streams = [random_tokens(llm, rng, CONTEXT) for _ in range(args.streams)]
    prompts = [random_tokens(llm, rng, args.prompt) for _ in range(max(args.prompts))]
    unaided: dict[int, list[Run]] = {count: [] for count in args.prompts}
    done: dict[tuple[int, float], list[Run]] = {
        (count, step_ms): [] for count in args.prompts for step_ms in args.step_ms
    }
    for turn in range(args.repeats):
        for count in args.prompts:
            unaided[count].append(run(llm, [], prompts[:count], 0))
            for step_ms in args.step_ms[:: -1 if turn % 2 else 1]:  # ABBA: load drifts
                found = run(llm, streams, prompts[:count], step_ms)
                done[count, step_ms].append(found)
                say(f"  turn {turn + 1}, {count} prompts, target {_name(step_ms)}: "
                    f"{found.seconds:.1f} s, gap {median(found.beside) * 1e3:.0f} ms")  # fmt: skip
    return {
        "streams": args.streams,
        "prompt_tokens": args.prompt,
        "alone": _gaps([r.alone for runs in done.values() for r in runs]),
        "beside": [
            {"prompts": count, "step_ms": step_ms, **_gaps([r.beside for r in runs]),
             **_slower(runs, unaided[count])}
            for (count, step_ms), runs in done.items()
        ],
        "equal": all(_are_equal([r.texts for key, runs in done.items() if key[0] == count
                                 for r in runs]) for count in args.prompts),
    }  # fmt: skip


def _gaps(turns: list[list[float]]) -> dict[str, float]:
    each = np.array([(*np.percentile(gaps, (50, 95)), max(gaps)) for gaps in turns])
    return dict(zip(("gap_p50_s", "gap_p95_s", "gap_max_s"), np.median(each, 0), strict=True))


def _slower(runs: list[Run], unaided: list[Run]) -> dict[str, float]:
    pairs = zip(runs, unaided, strict=True)
    return {
        "seconds": median(r.seconds for r in runs),
        "unaided_s": median(r.seconds for r in unaided),
        "slower": median(beside.seconds / alone.seconds for beside, alone in pairs),
    }


def _are_equal(turns: list[list[tuple[int, ...]]]) -> bool:
    """Whether each text is the same in all turns, up to the shorter length."""
    first = turns[0]
    return all(
        one[: len(other)] == other[: len(one)]
        for texts in turns
        for one, other in zip(first, texts, strict=True)
    )


def _name(step_ms: float) -> str:
    return f"{step_ms:g} ms" if step_ms else "none"


def markdown(found: Mapping[str, Any]) -> str:
    """A table for people, and for docs/server.md."""
    alone = ("0", "", *_milliseconds(found["alone"]), "", "")
    rows = [
        (row["prompts"], _name(row["step_ms"]), *_milliseconds(row),
         f"{row['seconds']:.1f} s", f"{row['slower']:.2f}×")
        for row in found["beside"]
    ]  # fmt: skip
    head = ("prompts", "target", "gap, median", "p95", "longest", "read in", "by unaided")
    return grid(head, [alone, *rows])


def _milliseconds(row: Mapping[str, float]) -> list[str]:
    return [f"{row[name] * 1e3:.0f} ms" for name in ("gap_p50_s", "gap_p95_s", "gap_max_s")]


def parse(argv: list[str] | None) -> Namespace:
    parser = parser_of(__doc__, write="docs/server.md")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, default=10)
    parser.add_argument("--prompt", type=int, default=4154, help="tokens of each prompt")
    parser.add_argument("--prompts", default="1,3", help="how many come at once")
    parser.add_argument("--step-ms", default="0,200,1", help="targets in milliseconds; 0: none")
    parser.add_argument("--shared", action="store_true", help="one thread, by processor time")
    parser.add_argument("--json", action="store_true", help="print the JSON document only")
    args = parser.parse_args(argv)
    try:
        args.prompts = [int(text) for text in words(args.prompts)]
        args.step_ms = [float(text) for text in words(args.step_ms)]
    except ValueError as error:
        parser.error(f"--prompts and --step-ms are numbers with commas between them: {error}")
    if min(args.repeats, args.prompt, *args.prompts) < 1:
        parser.error("--repeats, --prompt and --prompts must be above 0")
    if not 1 <= args.streams <= MOST_STREAMS - max(args.prompts):
        parser.error(f"--streams and --prompts must be {MOST_STREAMS} together at most")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    check_page(args.write, "beside-streams")
    tokens = max(args.prompts) * (args.prompt + 32) + args.streams * (args.prompt + 2048)
    llm = LLM(
        args.model, threads=1 if args.shared else args.threads, kv_tokens=tokens,
        prefix_cache=False, progress=not args.json,
    )  # fmt: skip
    with processor_time() if args.shared else nullcontext():
        found = measure(llm, args)
    document = {"benchmark": "beside_streams", "model": llm.name} | found
    publish(markdown(found), document, args.write, "beside-streams", only_json=args.json)
    return int(not found["equal"])


if __name__ == "__main__":
    sys.exit(main())
