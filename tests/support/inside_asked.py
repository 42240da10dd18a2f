"""A recorded run, and the page's request about one of its steps."""

from cutaway import LLM
from cutaway.trace import Trace


def run_of(model, folder) -> Trace:
    """Return the trace of eight tokens that a model generated."""
    path = folder / "run.jsonl"
    LLM(model, threads=1).generate("ab a", trace=path, max_tokens=8, seed=3, ignore_eos=True)
    return Trace.read(path)


def asked_about(trace: Trace, index: int):
    """Return the body of the request about a step."""
    step = trace.steps[index]
    return {
        "prompt": list(trace.head.prompt_token_ids),
        "generated": list(trace.output_token_ids),
        "step": index,
        "row": f"{step.logits_hash:016x}",
        "drawn": step.sampled_id,
        "settings": {**trace.head.params, "seed": trace.head.seed},
    }
