"""``cutaway bench`` on a tiny model: every figure is there and is positive. No time is judged."""

import json

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.errors import InputError
from cutaway.features.measure import bench as runs
from cutaway.features.measure.bench import BenchmarkSettings, benchmark
from support.random_llama import write_tiny_llama

SMALL = ["--context", "8,16", "--batch", "1,2", "--prompt", "16", "--repeats", "1"]


def bench(capsys, path, *args):
    code = main(["bench", "-m", str(path), "--threads", "1", *SMALL, *args])
    return code, capsys.readouterr()


@pytest.fixture(scope="module")
def document(tiny_path):
    return benchmark(str(tiny_path), BenchmarkSettings((8, 16), (1, 2), 16, 1, 1))


def test_json_is_one_document_on_the_last_line(capsys, tiny_path, document):
    code, printed = bench(capsys, tiny_path, "--json")
    assert code == 0
    last = json.loads(printed.out.splitlines()[-1])
    assert last.keys() == document.keys()
    assert last["costs"] == document["costs"]
    assert [row.keys() for row in last["decode"]] == [row.keys() for row in document["decode"]]


def test_every_figure_is_positive(document):
    machine, memory, prefill = (document[key] for key in ("machine", "memory", "prefill"))
    figures = [
        machine["read_bytes_per_s"], machine["kernel_ops_per_s"], memory["peak_bytes"],
        memory["file_bytes"], memory["kv_bytes"], document["load_s"], *prefill.values(),
    ]  # fmt: skip
    for row in document["decode"]:
        shares = row["python_share"], row["sampling_share"]
        assert all(0 <= share < 1 for share in shares)
        figures += [value for key, value in row.items() if not key.endswith("share")]
    assert all(figure > 0 for figure in figures)
    assert document["others_share"] is None or 0 <= document["others_share"] <= 1


def test_one_stream_at_every_context_and_batches_at_the_first(document):
    cases = [(row["context"], row["batch"]) for row in document["decode"]]
    assert cases == [(8, 1), (16, 1), (8, 2)]


def test_fractions_are_of_the_limit(document):
    costs, machine = document["costs"], document["machine"]
    for row in document["decode"]:
        weights = costs["layer_bytes"] + costs["head_bytes"]
        kept = row["batch"] * (row["context"] + 16) * costs["kv"][0]["bytes_per_token"]
        assert row["bytes_per_step"] == weights + kept
        assert row["fraction"] == pytest.approx(row["tokens_per_s"] / row["limit_tokens_per_s"])
        most = row["batch"] * machine["read_bytes_per_s"] / row["bytes_per_step"]
        assert row["limit_tokens_per_s"] <= most * 1.0001


def test_the_table_names_what_it_shows(capsys, tiny_path):
    code, printed = bench(capsys, tiny_path)
    assert code == 0
    for words in ("read bandwidth", "kernel reaches", "of limit", "first token", "peak"):
        assert words in printed.out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--context", "0"], "context must be 1"),
        (["--batch", "0"], "batch must be 1"),
        (["--prompt", "0"], "prompt must be 1"),
        (["--repeats", "0"], "repeats must be 1"),
        (["--prompt", "128"], "lower --context or --prompt"),
        (["--context", "120"], "lower --context or --prompt"),
        (["--batch", "200"], "batch 200 at context 8 needs 600 KV blocks and there are 256"),
        (["--batch", "65"], "batch 65 is more than the 64 streams of one step"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(capsys, tiny_path, args, sentence):
    code, printed = bench(capsys, tiny_path, *args)
    assert code == 2
    assert sentence in printed.err.replace("between 1", "1")
    assert len(printed.err.splitlines()) == 1


def test_a_model_is_as_free_after_a_run_as_before(tiny_path):
    llm = LLM(tiny_path, threads=1)
    free, backend = llm.engine.blocks.free, llm.engine.backend
    runs.decode(llm, np.random.default_rng(0), 8, 2)
    runs.prefill(llm, np.random.default_rng(0), 16)
    assert (llm.engine.blocks.free, llm.engine.backend) == (free, backend)
    assert not llm.engine.running


@pytest.mark.parametrize("batch", [16, 64])
def test_streams_that_take_many_steps_to_begin_are_measured_together(tmp_path, batch):
    """None of them ends before the last has read its prompt."""
    path = write_tiny_llama(tmp_path / "long.gguf", context=512)
    need = runs.blocks_needed(64, batch, 32) * 32
    llm = LLM(path, threads=1, kv_tokens=need)
    steps = runs.decode(llm, np.random.default_rng(0), 64, batch, resample=False)
    assert len(steps.step) == len(steps.plan) == runs.STEPS - runs.WARM
    assert llm.engine.scheduler.preemptions == 0


def test_it_needs_the_native_backend(capsys, monkeypatch, tiny_path):
    monkeypatch.setattr("cutaway.features.measure.bench_command.find_spec", lambda name: None)
    code, printed = bench(capsys, tiny_path)
    assert code == 2
    assert "native backend" in printed.err


def test_settings_refuse_what_is_no_list():
    with pytest.raises(InputError, match="batch must hold"):
        BenchmarkSettings(batches=())
