"""Texts drawn by the page's core in Node, compared with those of the native tiers."""

import json
from pathlib import Path
from typing import Any

from cutaway import LLM
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.features.page.plan import write_plan
from cutaway.trace.web import __file__ as web
from support.wasm import cores, flags_of_relaxed, run

SCRIPT = Path(__file__).with_name("core.mjs")
CORE_JS = Path(web).parent / "js/local/core.js"
CONTEXT = 256
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.95, "seed": 12},
    {"temperature": 1.3, "min_p": 0.02, "top_k": 40, "frequency_penalty": 0.5, "seed": 2**63 + 5},
)
FIGURES = (
    "token_id", "sampled_id", "log_sum_exp", "entropy", "rank", "logprob", "final_rank",
    "final_logprob", "final_log_sum_exp", "logit_histogram",
)  # fmt: skip
COLUMNS = ("id", "rank", "removed_by", "final_logprob", "luck")
STAGE = ("survivors", "removed_mass", "log_sum_exp", "top_removed")


def write_page(path, folder):
    """Write a model's plan and packed weights into a folder."""
    folder.mkdir()
    model = LoadedModel(path, Setup(), weights=False, progress=False)
    with model.open_file() as file:
        plan, *_ = write_plan(model.graph, file, folder / "weights.bin", CONTEXT)
    size = (folder / "weights.bin").stat().st_size
    (folder / "plan.json").write_text(json.dumps(plan._asdict() | {"bytes": size}))
    return folder


def traces_of(path, folder, prompts):
    """Return the native tier's traces of the prompts, with all settings."""
    folder.mkdir()
    with LLM(path, threads=2, context=CONTEXT, progress=False) as llm:
        for i, prompt in enumerate(prompts):
            for j, settings in enumerate(SETTINGS):
                llm.generate(prompt, max_tokens=8, trace=str(folder / f"{i}{j}.jsonl"), **settings)
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.iterdir())
    ]


def stages_of(head):
    """Return the chain in the core's form: names, and the numbers of the rules."""
    rules = [
        (stage["stage"], {k: v for k, v in stage.items() if k != "stage"})
        for stage in head["chain"]
    ]
    return [[name, [*rule.values()], [], []] for name, rule in rules]


def draw_in_core(page, traces, request_file, relaxed):
    """Return the core's draws at the steps of the traces."""
    heads = [records[0] for records in traces]
    texts = [
        {
            "prompt": head["prompt_token_ids"],
            "greedy": head["params"]["temperature"] == 0,
            "stages": stages_of(head),
            "history": any(rule["stage"] == "penalties" for rule in head["chain"]),
            "seed": str(head["seed"]),
            "candidates": head["candidates"],
            "tracked": head["tracked_ids"],
            "tokens": sum(record["kind"] == "step" for record in records),
        }
        for head, records in zip(heads, traces, strict=True)
    ]
    request_file.write_text(json.dumps(texts))
    if relaxed:
        return json.loads(
            run_core(cores() / "core-relaxed.wasm", page, request_file, flags_of_relaxed())
        )
    return json.loads(run_core(cores() / "core.wasm", page, request_file))


def run_core(core, page, request_file, flags=()):
    return run("node", *flags, SCRIPT, CORE_JS, core, page, request_file)


def check(path, folder, prompts):
    """Check that logit hashes, tokens, luck and removed tokens equal those of the native tiers."""
    traces = traces_of(path, folder / "traces", prompts)
    page, request_file = write_page(path, folder / "page"), folder / "asked.json"
    drawn_by_core = draw_in_core(page, traces, request_file, relaxed=False)
    assert draw_in_core(page, traces, request_file, relaxed=True) == drawn_by_core
    for records, answers in zip(traces, drawn_by_core, strict=True):
        steps = [record for record in records if record["kind"] == "step"]
        assert [a["logits_hash"] for a in answers] == [s["logits_hash"] for s in steps]
        for step, answer in zip(steps, answers, strict=True):
            assert {k: answer[k] for k in FIGURES} == {k: step[k] for k in FIGURES}
            columns = {k: [candidate[k] for candidate in answer["candidates"]] for k in COLUMNS}
            assert columns == {k: step["candidates"][k] for k in COLUMNS}
            removed = [{k: stage[k] for k in STAGE} for stage in answer["stages"]]
            assert removed == [{k: stage[k] for k in STAGE} for stage in step["stages"]]
