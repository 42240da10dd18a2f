"""``cutaway bench`` on a tiny model: every figure is there and is positive. No time is judged."""

import json
from itertools import combinations, product
from math import prod

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute import model
from cutaway.compute.backends import KVGroup, KVLayout
from cutaway.compute.loading.info import ModelInfo
from cutaway.errors import InputError
from cutaway.features.measure import bench as runs
from cutaway.features.measure.bench import BenchmarkSettings, benchmark
from cutaway.features.measure.machine import Costs, costs_of
from cutaway.files.weights import GGUFFile
from support.random_llama import write_tiny_llama

SMALL = ["--context", "8,16", "--batch", "1,2", "--prompt", "16", "--repeats", "1"]


def bench(capsys, path, *args):
    code = main(["bench", "-m", str(path), "--threads", "1", *SMALL, *args])
    return code, capsys.readouterr()


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory):
    """A model that is measured in a moment."""
    return write_tiny_llama(tmp_path_factory.mktemp("bench") / "tiny.gguf")


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


# -- bench limits ----------------------------------------------------------------------------------

# The arithmetic of the limit, against a count by hand.


def costs_and_tensors(path):
    with GGUFFile(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        _, graph = model.build(file.metadata, shapes)
        return costs_of(graph, file.tensors), file.tensors


def test_bytes_and_operations_equal_a_count_by_hand(tiny_path):
    costs, tensors = costs_and_tensors(tiny_path)
    # hidden 32, 6 heads of 8, 2 of them for keys and values, feed forward 96, 2 layers; float32
    matrices = [(48, 32), (16, 32), (16, 32), (32, 48), (96, 32), (96, 32), (32, 96)] * 2
    assert costs.layer_bytes == sum(4 * rows * cols for rows, cols in matrices)
    assert costs.layer_ops == sum(2 * rows * cols for rows, cols in matrices)
    rows, cols = tensors["output.weight"].shape
    assert rows % 16  # the last panel is padded
    assert costs.head_bytes == 4 * (rows + 16 - rows % 16) * cols
    assert costs.head_ops == 2 * rows * cols
    # 2 layers of 2 heads: a key of 8 halves, and a value whose row is padded to 16
    assert costs.kv.bytes_per_token == 2 * 2 * (8 + 16) * 2


@pytest.mark.model
def test_packed_weights_of_smollm2_take_what_the_file_s_do(smollm2_path):
    costs, tensors = costs_and_tensors(smollm2_path)
    matrices = [t for t in tensors.values() if len(t.shape) == 2]
    layers = [t for t in matrices if t.name.startswith("blk.")]
    (embedding,) = [t for t in matrices if t not in layers]  # the output matrix too
    assert costs.layer_bytes == sum(t.nbytes for t in layers)
    assert costs.head_bytes == embedding.nbytes
    assert costs.kv.bytes_per_token == 30 * 3 * 64 * 2 * 2


def test_a_step_reads_the_weights_once_and_every_sequence_s_keys_and_values():
    costs = Costs(1000, 200, 4000, 800, layout((0, 10)))
    assert costs.step_bytes(64) == 1200 + 640
    assert costs.step_bytes(64, 8) == 1200 + 8 * 640
    assert costs.step_ops(8) == 8 * 4800
    assert costs.kv.bytes_stored(1) == costs.kv.bytes_stored(32) == 320
    assert costs.kv.bytes_stored(33) == 640


def test_of_layers_with_a_window_a_step_reads_no_more_than_that():
    costs = Costs(1000, 200, 4000, 800, layout((0, 10), (512, 100)))
    assert costs.step_bytes(64) == 1200 + 64 * 110
    assert costs.step_bytes(2000, 3) == 1200 + 3 * (2000 * 10 + 512 * 100)
    assert costs.kv.bytes_stored(1000) == 1024 * 110
    assert costs.kv.bytes_stored(32768) == 32768 * 10 + 2 * (512 + 32) * 100


def layout(*groups):
    return KVLayout(32, tuple(KVGroup((0,), window, "F16", each) for window, each in groups))


def test_the_slower_of_reading_and_computing_is_the_limit():
    costs = Costs(1000, 200, 4000, 800, layout((0, 10)))
    assert costs.decode_limit(64, 1, bandwidth=1840, ops=1e12) == pytest.approx(1)
    assert costs.decode_limit(64, 8, bandwidth=1e12, ops=4800) == pytest.approx(1)
    assert costs.prefill_limit(100, bandwidth=1e12, ops=400_800) == pytest.approx(100)
    assert costs.prefill_limit(100, bandwidth=2200, ops=1e12) == pytest.approx(100)


def test_of_experts_a_step_reads_those_that_its_rows_choose():
    """With rows that choose independently: brute force over all choices of 2 of 4 experts."""
    costs = Costs(1000, 200, 4000, 800, layout((0, 10)), expert_bytes=400, expert_share=0.5)
    pairs = list(combinations(range(4), 2))
    for rows in (1, 2, 3):
        read = [len({e for pair in chosen for e in pair}) for chosen in product(pairs, repeat=rows)]
        assert costs.weight_bytes(rows) == round(1200 + 100 * sum(read) / len(read))
    assert costs.weight_bytes(1000) == 1600


def test_a_mixture_s_figures_equal_a_count_by_hand(tmp_path):
    path = write_tiny_llama(tmp_path / "mixture.gguf", experts=5)
    costs, tensors = costs_and_tensors(path)
    experts = [t for name, t in tensors.items() if "_exps" in name]
    every = sum(4 * t.shape[0] * (-(-t.shape[1] // 16) * 16) * t.shape[2] for t in experts)
    assert costs.expert_bytes == every
    card = ModelInfo.read(path)
    share = card.config.experts_used / card.config.experts
    assert costs.expert_share == pytest.approx(share)
    numbers = sum(prod(t.shape) for t in experts)
    assert card.active_parameters == card.parameters - round((1 - share) * numbers)
    read = [t for n, t in tensors.items() if len(t.shape) == 2 and n != "token_embd.weight"]
    bytes_read = sum(t.nbytes for t in read) + share * sum(t.nbytes for t in experts)
    assert card.active_bytes == round(bytes_read)
