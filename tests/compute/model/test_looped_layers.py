"""A model that runs layers again computes what one with a copy of these layers does, bit by bit."""

from dataclasses import replace
from time import process_time

import pytest

from cutaway import LLM
from cutaway.cli import model_card
from cutaway.cli.main import main
from cutaway.compute.loading.info import ModelInfo
from cutaway.compute.lowering.packing import reads_of
from cutaway.compute.model.anatomy import Anatomy, LayerRun
from cutaway.compute.model.architectures import llama
from cutaway.compute.model.architectures.parts import embedding, head
from cutaway.compute.model.config import Architecture
from cutaway.compute.model.graph import Graph
from cutaway.compute.model.mixture import Mixture
from cutaway.files.weights import GGUFFile
from support.random_llama import write_tiny_llama

RUNS = (0, 1, 1, 1)
"""The layer at each depth."""


def build_looped(g, c):
    """Wire layer 0, then layer 1 three times."""
    x = embedding(g, c)
    for count, first, depth in ((2, 0, 0), (1, 1, 2), (1, 1, 3)):
        for layer, _ in enumerate(g.layers(count, first, depth=depth), first):
            x = llama.llama_layer(g, c, x, layer, c.rope)
    return head(g, c, g.rms_norm(g.logit_rows(x), "output_norm", c.norm_eps))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Files of the looped model, and of the same model with copies of layer 1."""
    folder = tmp_path_factory.mktemp("looped")
    looped = write_tiny_llama(folder / "looped.gguf", architecture="looped", experts=4)
    copies = write_tiny_llama(folder / "copies.gguf", layers=len(RUNS), experts=4)
    with GGUFFile(copies) as file:
        tensors = dict(file.tensors)
    data = bytearray(copies.read_bytes())
    for depth, layer in enumerate(RUNS):
        for name, tensor in tensors.items():
            if name.startswith(f"blk.{layer}."):
                copy = tensors[name.replace(f"blk.{layer}.", f"blk.{depth}.")].offset
                source = slice(tensor.offset, tensor.offset + tensor.nbytes)
                data[copy : copy + tensor.nbytes] = data[source]
    copies.write_bytes(data)
    return looped, copies


@pytest.fixture(autouse=True)
def looped_row(monkeypatch):
    row = Architecture(build_looped, interleaved_rope=True)
    monkeypatch.setitem(llama.ROWS, "looped", row)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_it_writes_what_the_copies_write(paths, backend):
    prompts, written = ["a b ab a b ab " * 5, "b b a"], []
    for path in paths:
        llm = LLM(path, backend=backend)
        texts = llm.generate(prompts, max_tokens=12, seed=4, temperature=0.8, speculate="ngram")
        again = llm.generate(prompts[0], max_tokens=12, seed=4, temperature=0.8, kv_cache=False)
        written.append([text.fingerprint for text in (*texts, again)])
    assert written[0] == written[1]
    assert backend == "reference" or written[0][0] == written[0][2] != written[0][1]


def test_each_weight_is_packed_once_and_each_depth_has_keys_and_values(paths):
    looped, copies = (LLM(path).backend for path in paths)
    assert looped.kv == copies.kv
    assert looped.kv.groups[0].layers == (0, 1, 2, 3)
    names = {name for name, *_ in looped._weights.matrices}
    assert {name.split(".")[1] for name in names if name.startswith("blk.")} == {"0", "1"}


def test_a_token_reads_a_layer_s_weights_at_each_of_its_depths(paths):
    looped, copies = map(ModelInfo.read, paths)
    assert looped.active_bytes == copies.active_bytes
    assert looped.weight_bytes < copies.weight_bytes
    graphs = []
    for path in paths:
        with GGUFFile(path) as file:
            graphs.append(reads_of(LLM(path, backend="reference").graph, file.tensors))
    assert (graphs[0].always, graphs[0].active) == (graphs[1].always, graphs[1].active)
    assert graphs[0].experts * len(RUNS) == graphs[1].experts * 2


def test_the_card_tells_how_deep_runs_make_a_model(paths, capsys):
    shown = []
    for path in paths:
        assert main(["models", "show", str(path)]) == 0
        shown.append(capsys.readouterr().out)
    assert "2 of width 32\n" in shown[0]
    assert "run several times, 4 layers deep\n" in shown[0]
    assert "4 of width 32\n" in shown[1]
    assert "several times" not in shown[1]


def test_the_card_tells_once_what_a_token_reads_of_a_looped_mixture(paths):
    card = ModelInfo.read(paths[0])
    mixture = replace(card, config=replace(card.config, experts=4, mixture=Mixture(used=2)))
    for each in (card, mixture):
        rows = [text for _, text in model_card._rows(each, 64)]
        assert sum("of weights read for a token" in text for text in rows) == 1


def test_places_are_named_by_depth_and_tell_the_layer_and_its_run(paths):
    anatomy = Anatomy(LLM(paths[0], backend="reference").graph)
    assert [anatomy.runs[depth] for depth in range(len(RUNS))] == [
        LayerRun(0, 1), LayerRun(1, 1), LayerRun(1, 2), LayerRun(1, 3)
    ]  # fmt: skip
    copied = Anatomy(LLM(paths[1], backend="reference").graph)
    assert [part.name for part in anatomy.parts] == [part.name for part in copied.parts]
    assert [op.out.name for op in anatomy.graph.ops] == [op.out.name for op in copied.graph.ops]
    assert anatomy.stream == copied.stream


def test_results_of_one_name_are_numbered_in_linear_time():
    """Trying each number for each result would take minutes."""
    g, count = Graph({"token_embd.weight": (4, 8)}), 20_000
    x, started = g.embed("token_embd"), process_time()
    for _ in range(count):
        x = g.add(x, x)
    assert process_time() - started < 5
    assert [op.out.name for op in g.ops[1:4]] == ["add", "add.2", "add.3"]
    assert x.name == f"add.{count}"
