"""The tier of WebAssembly: its fused multiply-add, and the core that a page runs, in Node."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from cutaway import LLM
from cutaway.compute.backends.cpu.recorded import write_plan
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.errors import InputError
from cutaway.trace.web import __file__ as web
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.wasm import NATIVE, NEEDS, cores, flags_of_relaxed, run

pytest.importorskip("ziglang", reason=NEEDS)
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")

HERE = Path(__file__).parent
CORE_JS = Path(web).parent / "js/local/core.js"
CXX = f"{sys.executable} -m ziglang c++ -target wasm32-wasi"
CONTEXT = 256
PROMPTS = ("The sky is", "Größe der Welt: 1, 2, 3, 5, 7,", "def f(x):\n    return x" * 6)
SETTINGS = (
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


def fma(compiler, program, *flags):
    """The program that tries a tier's fused multiply-add."""
    common = ["-std=c++20", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-deprecated"]
    run(*compiler.split(), *common, *flags, NATIVE / "tests/fma.cpp", "-o", program)
    return program


@pytest.mark.parametrize(
    ("millions", "hashed"),
    [("1", "d8a074a246373c8d"), pytest.param("4", "cf700c338748b426", marks=pytest.mark.slow)],
)
def test_the_fused_multiply_add_is_that_of_whole_numbers(tmp_path, millions, hashed):
    lean = "-nostdlib++"  # it needs none, and that would be compiled first
    program = fma(
        CXX, tmp_path / "fma.wasm", lean, "-msimd128", "-DCUTAWAY_WASM", "-DCUTAWAY_TIER=wasm"
    )
    said = run(
        "node",
        "--no-warnings",
        "--single-threaded",
        NATIVE / "tests/in_node.mjs",
        program,
        millions,
    )
    assert said == f"fma of {millions}000000: 0 differ, {hashed}\n"
    if compiler := shutil.which("g++"):  # the hash is that of a processor, or of glibc
        native = fma(compiler, tmp_path / "fma", "-DCUTAWAY_TIER=generic")
        assert run(native, millions) == said


def write_page(path, folder):
    """A model's plan and packed weights, in a folder."""
    folder.mkdir()
    model = LoadedModel(path, Setup(), weights=False, progress=False)
    with model.opened() as file:
        plan, _ = write_plan(model.graph, file, folder / "weights.bin", CONTEXT)
    size = (folder / "weights.bin").stat().st_size
    (folder / "plan.json").write_text(json.dumps(plan._asdict() | {"bytes": size}))
    return folder


def traces_of(path, folder, prompts):
    """What the native tier makes of the prompts, with all settings."""
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
    """The chain as the core takes it: names, and the numbers of the rules."""
    rules = [
        (one["stage"], {k: v for k, v in one.items() if k != "stage"}) for one in head["chain"]
    ]
    return [[name, [*rule.values()], [], []] for name, rule in rules]


def drawn(page, traces, asked, relaxed):
    """What the core draws where the traces were drawn."""
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
    asked.write_text(json.dumps(texts))
    if relaxed:
        return json.loads(in_core(cores() / "core-relaxed.wasm", page, asked, flags_of_relaxed()))
    return json.loads(in_core(cores() / "core.wasm", page, asked))


def in_core(core, page, asked, flags=()):
    return run("node", *flags, HERE / "core.mjs", CORE_JS, core, page, asked)


def check(path, folder, prompts):
    """Hashes of the logits, tokens, luck, and what each stage removed are those of native tiers."""
    traces = traces_of(path, folder / "traces", prompts)
    page, asked = write_page(path, folder / "page"), folder / "asked.json"
    said = drawn(page, traces, asked, relaxed=False)
    assert drawn(page, traces, asked, relaxed=True) == said
    for records, answers in zip(traces, said, strict=True):
        steps = [record for record in records if record["kind"] == "step"]
        assert [a["logits_hash"] for a in answers] == [s["logits_hash"] for s in steps]
        for step, answer in zip(steps, answers, strict=True):
            assert {k: answer[k] for k in FIGURES} == {k: step[k] for k in FIGURES}
            columns = {k: [each[k] for each in answer["candidates"]] for k in COLUMNS}
            assert columns == {k: step["candidates"][k] for k in COLUMNS}
            removed = [{k: stage[k] for k in STAGE} for stage in answer["stages"]]
            assert removed == [{k: stage[k] for k in STAGE} for stage in step["stages"]]


def test_smollm2_in_the_core_is_smollm2(smollm2_path, tmp_path):
    check(smollm2_path, tmp_path, PROMPTS)


def test_short_convolutions_in_the_core_go_on_from_their_states(tmp_path):
    """Past the end of a KV block, too."""
    path = write_tiny_lfm2(tmp_path / "tiny.gguf")
    check(path, tmp_path, [list(range(10, 10 + length)) for length in (3, 30)])


def test_what_the_core_refuses_is_an_error_and_its_stack_is_as_before(smollm2_path, tmp_path):
    page = write_page(smollm2_path, tmp_path / "page")
    said = in_core(cores() / "core.wasm", page, "wrong")
    assert said == "Error: batch: a token is outside the vocabulary 0\n"


def test_a_model_that_the_core_cannot_run_is_refused(tmp_path):
    path = write_tiny_granite_hybrid(tmp_path / "tiny.gguf")
    with pytest.raises(InputError, match="needs mamba2, which a page cannot run yet"):
        write_page(path, tmp_path / "page")
