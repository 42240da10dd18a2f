"""Steps of a page's GPU: JavaScript launches and writes what the gpu backend does."""

import json
import shutil

import numpy as np
import pytest

from cutaway.compute.backends.gpu import pages
from cutaway.compute.backends.gpu.launches import StepSize, launches
from cutaway.compute.backends.gpu.run import CHUNK
from cutaway.compute.loading.model import LoadedModel
from cutaway.compute.loading.setup import Setup
from cutaway.features.page.plan import write_plan
from support.page_modules import JS, run_node
from support.random_llama import write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
CONTEXT = 512
STEPS = [
    (0, 1), (0, 2), (0, 8), (0, 9), (0, 64), (5, 1), (31, 2), (64, 64), (250, 8), (255, 1),
    (256, 1), (300, 7), (300, 8), (300, 9), (448, 64), (511, 1),
]  # fmt: skip


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    window = {"llama.attention.sliding_window": 40, "llama.attention.sliding_window_pattern": 2}
    options = {"head_dim": 32, "context": CONTEXT}
    return {
        "plain": write_tiny_llama(folder / "plain.gguf", format="Q8_0", **options),
        "windowed": write_tiny_llama(
            folder / "windowed.gguf", format="Q4_1", metadata=window, **options
        ),
        "states": write_tiny_qwen35(folder / "states.gguf", context=CONTEXT),
    }


@pytest.mark.parametrize("name", ["plain", "windowed", "states"])
def test_a_step_in_javascript_is_the_step_in_python(paths, name, tmp_path):
    model = LoadedModel(paths[name], Setup(), weights=False)
    with model.open_file() as file:
        *_, packing = write_plan(model.graph, file, tmp_path / "weights", CONTEXT)
        recorded = pages.record_program(packing, CONTEXT)
        runner = pages.make_runner(packing, pages.WeightFile(packing), CONTEXT)
    recorded.write(tmp_path, "gpu")
    asked, right = [], []
    for first, rows in STEPS:
        positions, ids = np.arange(first, first + rows), (np.arange(rows) * 7 + first) % 99
        batch = pages.one_text(positions, ids, CONTEXT)
        runner.run(batch)
        writes = {buffer: words for buffer, _, words in runner._device.steps[-1].writes}
        lists, step = (writes[of].view(np.int32) for of in (runner.lists, runner.step))
        size = StepSize(
            rows, 1, (first + rows - 1) // CHUNK + 1, (rows,), int(runner.program.memory.has_states)
        )
        angles = [
            a.at(positions.astype(np.int32)).ravel().view(np.int32).tolist() for a in runner._angles
        ]
        asked.append({"tokens": ids.tolist(), "first": first, "angles": angles})
        right.append((
            [(launch.op, *launch.grid) for launch in launches(runner.program, size)],
            step.view(np.uint32).tolist(), lists.tolist(),
        ))  # fmt: skip
    (tmp_path / "steps.json").write_text(json.dumps(asked))
    told = json.loads(
        run_node(JS / "gpu-steps.mjs", tmp_path / "gpu.json", tmp_path / "steps.json")
    )
    for (expected, step, lists), got, (first, rows) in zip(right, told, STEPS, strict=True):
        assert [tuple(launch[2:]) for launch in got["launches"]] == expected, (first, rows)
        assert got["lists"] == lists, (first, rows)
        assert got["step"] == step, (first, rows)


@pytest.mark.parametrize(("after", "looks"), [(0, False), (1, False), (5, True), (99, False)])
def test_a_text_goes_on_in_the_core_where_the_gpu_fails(
    toy_folder, toy_alone, tmp_path, after, looks
):
    settings = {"max_tokens": 12, "temperature": 0.9}
    text = {
        "prompt": "The sky is",
        "messages": None,
        "settings": settings,
        "seed": "3",
        "forced": [],
    }
    look = {
        "prompt": toy_alone.tokenizer.encode("The sky was"), "generated": [5, 6, 7], "step": 2,
        "row": None, "drawn": None, "settings": settings, "interventions": None, "rival": None,
    }  # fmt: skip
    (tmp_path / "asked.json").write_text(
        json.dumps({"text": text, "look": look if looks else None})
    )
    told = run_node(JS / "gpu-lost.mjs", toy_folder, tmp_path / "asked.json", str(after))
    expected = toy_alone.generate("The sky is", seed=3, **settings).fingerprint
    assert json.loads(told) == [expected, int(after < 12)]


@pytest.mark.parametrize("kv_cache", [True, False])
def test_texts_beyond_what_a_gpu_was_checked_with_are_the_cores(
    toy_folder, toy_alone, tmp_path, kv_cache
):
    """A text that grows too long goes on in the core, and a short one after it is the GPU's."""
    settings = {"max_tokens": 6, "temperature": 0.9, "kv_cache": kv_cache, "cache_prompt": False}
    prompts = ["The sky is", "The sky is wide, " * 8, "The sea is"]
    counts = [len(toy_alone.tokenizer.encode(prompt)) for prompt in prompts]
    longest = counts[0] + 2
    assert counts[1] > longest > counts[2] > longest - 5
    asked = [
        {"prompt": prompt, "messages": None, "settings": settings, "seed": "3", "forced": []}
        for prompt in prompts
    ]
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    told = json.loads(
        run_node(JS / "gpu-limit.mjs", toy_folder, tmp_path / "asked.json", str(longest))
    )
    ran = [longest if kv_cache else sum(range(count, longest + 1)) for count in counts]
    expected = [toy_alone.generate(prompt, seed=3, **settings).fingerprint for prompt in prompts]
    assert [fingerprint for _, fingerprint, _ in told] == expected
    assert [backend for backend, *_ in told] == ["gpu", "core", "gpu"]
    assert [count for *_, count in told] == [ran[0], 0, ran[2]]
