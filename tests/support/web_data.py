"""Expected values of the page's own tests, computed in Python.

``first.jsonl`` is a run of SmolLM2, and ``six.jsonl`` a fork that shares a later run of tokens:

    cutaway generate "One, two, three," --max-tokens 30 --temperature 0.3 --top-k 20 \\
      --seed 18446744073709551615 --candidates 2 --trace first.jsonl
    cutaway trace branch first.jsonl --at 3 --token " six" --max-tokens 30 --trace six.jsonl

``held.jsonl`` is a run under a grammar:

    cutaway generate "Is the sky blue? Answer:" --json-schema \\
      '{"type": "object", "properties": {"blue": {"type": "boolean"}}, "required": ["blue"],
        "additionalProperties": false}' \\
      --max-tokens 16 --seed 7 --candidates 2 --trace held.jsonl

``canvas.jsonl`` is a canvas of the mock model that masks cells again: the sixth of
``support.canvas_traces``.

``chains/`` has the first steps of runs with other chains. The JSON files are written anew by
``python tests/support/web_data.py``.
"""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from cutaway.trace import Trace, diff_texts, why
from cutaway.trace.canvas import canvas_figures, cell_life, standing
from cutaway.trace.differences import _common_runs
from cutaway.trace.endings import constraint_sentences, status_sentence, wanted_sentence

ENDS = (
    ("end_token", 2976), ("stop_token", 28), ("stop_string", "\n\n"), ("max_tokens", None),
    ("context_full", None), ("aborted", None),
)  # fmt: skip
CHAINS = ("penalties", "biased", "llama.cpp")
DATA = Path(__file__).parents[1] / "trace" / "web" / "data"


def difference() -> dict[str, Any]:
    """``diff.json``."""
    differences = diff_texts(*(Trace.read(DATA / name) for name in ("first.jsonl", "six.jsonl")))
    plain: dict[str, Any] = json.loads(json.dumps(differences.to_dict()))
    return plain


def sentences() -> dict[str, Any]:
    """``sentences.json``: the end and every step of each trace, in words."""
    cases: dict[str, Any] = {}
    for name in ("first.jsonl", "six.jsonl", *(f"chains/{c}.jsonl" for c in CHAINS)):
        trace = Trace.read(DATA / name)
        answer = why(trace)
        moments = [status_sentence(trace, moment) for moment in answer.moments]
        cases[name] = {"why": answer.sentence, "moments": moments}
    held_trace = Trace.read(DATA / "held.jsonl")
    cases["held"] = {
        "text": [*constraint_sentences(held_trace)],
        "steps": [wanted_sentence(held_trace, step) for step in held_trace.steps],
    }
    first = Trace.read(DATA / "first.jsonl")
    assert first.end is not None
    cases["ends"] = []
    for reason, matched in ENDS:
        end = replace(first.end, reason=reason, matched=matched, error=None)
        sentence = why(replace(first, end=end)).sentence
        cases["ends"].append({"reason": reason, "matched": matched, "why": sentence})
    return cases


def common_runs() -> list[dict[str, Any]]:
    """``common_runs.json``: texts of few words, edited copies and loops, with their common runs."""
    draw, cases = Random(7), []
    for size in range(60):
        words = 2 + size % 5
        a = [draw.randrange(words) for _ in range(size * 2)]
        b = _edit(a, draw) if size % 2 else [draw.randrange(words) for _ in range(size * 2)]
        cases.append((a, b, min(size % 4, len(a), len(b))))
    loop = [1, 2, 3] * 12
    cases += [(loop, [*loop[1:], 4, *loop], 0), ([5] * 30, [5] * 21 + [6] + [5] * 25, 2)]
    return [
        {
            "a": a,
            "b": b,
            "start": start,
            "common_runs": [[m.a, m.b, m.length] for m in _common_runs(a, b, start)],
        }
        for a, b, start in cases
    ]


def _edit(text: list[int], draw: Random) -> list[int]:
    """Return a copy with parts removed, moved or replaced."""
    edited = list(text)
    for _ in range(3):
        i, j = sorted(draw.randrange(len(edited) + 1) for _ in range(2))
        cut, edited = edited[i:j], edited[:i] + edited[j:]
        at = draw.randrange(len(edited) + 1)
        edited[at:at] = draw.choice([cut, [7], cut + cut])
    return edited


def canvas() -> dict[str, Any]:
    """``canvas.json``: the states, figures and cell histories of ``canvas.jsonl``."""
    trace = Trace.read(DATA / "canvas.jsonl")
    first, figures = len(trace.head.prompt_token_ids), canvas_figures(trace)
    cells = range(figures.cells)
    return {
        "stands": [[now.get(first + cell, -1) for cell in cells] for now in standing(trace.passes)],
        "figures": figures.to_dict(),
        "lives": [
            [
                [entry.index, entry.place, entry.event, entry.masked]
                for entry in cell_life(trace, cell)
            ]
            for cell in cells
        ],
    }


FIGURES = {"canvas": canvas, "diff": difference, "common_runs": common_runs, "sentences": sentences}

if __name__ == "__main__":
    for name, make in FIGURES.items():
        (DATA / f"{name}.json").write_text(json.dumps(make(), separators=(",", ":")) + "\n")
