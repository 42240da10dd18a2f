"""Writes data/estimates.json: traces, and what other settings would really have given at each step.

Run once, by hand, with the model at hand: ``python tests/web/record_estimates.py``. The tests of
the page hold js/estimate.js against it: every exact figure must lie within its interval.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cutaway import LLM
from cutaway.sampling import SamplingParams
from cutaway.sampling.chain import History, build_chain, choose, states
from cutaway.trace import Trace

RUNS: list[tuple[str, dict[str, Any]]] = [
    ("My favourite animal is", {}),
    ("The capital of France is", {"temperature": 1.5, "top_p": 1.0}),
    ("def add(a, b):", {"temperature": 0.0}),
    (
        "The cat sat on the mat. The cat sat on the",
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "top_k": 40},
    ),
    ("Once upon a time", {"preset": "llama.cpp", "min_p": 0.05, "temperature": 1.2}),
    ("Roses are red, violets are", {"preset": "vllm", "top_k": 8, "min_p": 0.02}),
    (
        "In the year 3000",
        {"logit_bias": {253: -3.0, 260: 2.0, 40000: 14.0}, "repetition_penalty": 0.9},
    ),
]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.2, "top_p": 0.95},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 1.0},
    {"temperature": 1.0, "top_p": 0.8, "top_k": 10},
    {"temperature": 1.2, "top_p": 0.99, "min_p": 0.1},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 1.0, "top_k": 40},
    {"temperature": 2.5, "top_p": 0.3, "min_p": 0.01},
    {"temperature": 0.05, "top_p": 1.0},
]
FULL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}


def exact(params: SamplingParams, row: Any, history: History, step: Any, seed: int) -> Any:
    """The winner, and the probability of each token on record."""
    last = states(build_chain(params), row, history)[-1]
    weights = last.weights() if params.temperature else last.logits == last.logits.max()
    share = weights / weights.sum()
    found = [last.find(c.id) for c in step.candidates]
    told = [0.0 if at is None else float(f"{share[at]:.9e}") for at in found]
    return {"winner": choose(last, params, seed, step.position), "probabilities": told}


def record(llm: LLM, prompt: str, given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run's lines, and by step and setting what is exact."""
    file = folder / "run.jsonl"
    file.unlink(missing_ok=True)
    llm.generate(prompt, max_tokens=10, seed=7, candidates=20, trace=file, **given)
    trace = Trace.read(file)
    ids, start = list(trace.head.prompt_token_ids), len(trace.head.prompt_token_ids)
    text = [*ids, *(step.token_id for step in trace.steps)]
    rows = llm.logits(text, start=start - 1)
    told = []
    for i, step in enumerate(trace.steps):
        history = History(ids, text[start : start + i])
        steps = [SamplingParams(**{**given, **FULL, **other}) for other in SETTINGS]
        told.append([exact(params, rows[i], history, step, trace.head.seed) for params in steps])
    return {"lines": file.read_text("utf-8").splitlines(), "exact": told}


def main() -> None:
    """Write the file."""
    settings = [{**FULL, **other} for other in SETTINGS]
    llm = LLM("smollm2")
    with TemporaryDirectory() as folder:
        runs = [record(llm, prompt, given, Path(folder)) for prompt, given in RUNS]
    text = json.dumps({"settings": settings, "runs": runs}, ensure_ascii=False)
    Path(__file__).with_name("data").joinpath("estimates.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
