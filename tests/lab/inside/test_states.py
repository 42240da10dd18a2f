"""What heads with a recurrent state give each token: weights by definition; a zeroed head."""

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute.model.anatomy import Anatomy
from cutaway.engine.interventions import bind, scale
from cutaway.errors import InputError
from cutaway.lab.inside import inside
from cutaway.lab.inside.states import _delta_net, _mamba2, state_weights
from cutaway.trace import Trace
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_qwen35 import write_tiny_qwen35

IDS = np.random.default_rng(3).integers(6, 60, 40).tolist()
STEP = 4


@pytest.fixture(scope="module", params=[write_tiny_qwen35, write_tiny_granite_hybrid])
def path(tmp_path_factory, request):
    return request.param(tmp_path_factory.mktemp("states") / "tiny.gguf")


@pytest.fixture(scope="module")
def traced(path):
    file = path.parent / "run.jsonl"
    options = {"max_tokens": STEP + 2, "temperature": 0.9, "seed": 4, "ignore_eos": True}
    LLM(path, progress=False).generate(IDS, trace=file, **options)
    return file


def weights_by_definition(op, of, *read):
    """The recurrence on values that are each a direction of its own: (heads, T)."""
    heads, keys, _ = op.attrs["state"]
    x, k_heads = read[0], op.attrs["k_heads"]
    tokens, split, each = len(x), k_heads * keys, np.arange(heads)
    state, values = np.zeros((heads, keys, tokens)), np.eye(tokens)
    for t in range(tokens):
        if op.kind == "mamba2":
            k, q = x[t, -2 * split :].reshape(2, k_heads, keys)[:, each // (heads // k_heads)]
            step = np.logaddexp(0, read[1][t] + of["dt"])
            state = state * np.exp(of["a"] * step)[:, None, None]
            state += step[:, None, None] * k[:, :, None] * values[t]
            continue
        q, k = x[t, : 2 * split].reshape(2, k_heads, keys)[:, each % k_heads]
        q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
        state = state * np.exp(of["a"] * np.logaddexp(0, read[1][t] + of["dt"]))[:, None, None]
        learn = 1 / (1 + np.exp(-read[2][t]))[:, None]
        change = learn * (values[t] - np.einsum("hk,hkv->hv", k, state))
        state += k[:, :, None] * change[:, None]
    if op.kind == "mamba2":
        return np.einsum("hk,hkv->hv", q, state) + np.outer(of["d"], values[-1])
    return np.einsum("hk,hkv->hv", q, state) / np.sqrt(keys)


def test_the_weights_are_those_of_the_recurrence_on_directions(path):
    llm = LLM(path, backend="reference", progress=False)
    for op in (op for op in llm.graph.ops if op.kind in ("delta_net", "mamba2")):
        tensors = llm.tensors(IDS, list(op.inputs))
        read = [tensors[name].astype(float) for name in op.inputs]
        of = {role: llm.backend.weight(name).ravel() for role, name in op.weights.items()}
        found, values = (_delta_net if op.kind == "delta_net" else _mamba2)(op, of, *read)
        np.testing.assert_allclose(found, weights_by_definition(op, of, *read), atol=1e-9)
        heads, _, width = op.attrs["state"]
        assert values.shape == (len(IDS), heads, width)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_weights_of_a_step_add_up_and_the_row_is_the_recorded_one(path, traced, backend):
    llm, trace = LLM(path, backend=backend, progress=False), Trace.read(traced)
    found = state_weights(llm, trace, STEP)  # CutawayError where they do not add up
    assert found.is_as_run == (backend == "cpu")
    assert [*found.weights] == [0, 2]
    assert all(w.shape == (4, len(IDS) + STEP) for w in found.weights.values())
    rows = llm.tensors(found.token_ids, ["blk.0.ssm_out"])["blk.0.ssm_out"]
    alone = llm.row(found.token_ids, ["blk.0.ssm_out"], {}).tensors["blk.0.ssm_out"]
    if backend == "cpu":
        assert np.array_equal(rows[-1], alone)


def test_the_command_shows_layers_heads_and_tokens(path, traced, capsys):
    look = ["trace", "inside", str(traced), "--step", str(STEP), "-m", str(path), "-q"]
    assert main(look) == 0
    said = capsys.readouterr().out
    assert "L0     4" in said and "L2     4" in said and "same row" not in said
    assert main([*look, "--layer", "2"]) == 0
    assert "H3" in capsys.readouterr().out
    assert main([*look, "--layer", "2", "--head", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("L2.H1: the tokens it takes most of")
    assert "and 28 tokens more" in said
    assert main([*look, "--layer", "1"]) == 2
    assert "layers with such heads are 0, 2, not 1" in capsys.readouterr().err
    assert main([*look, "--nearest"]) == 2
    assert "only --layer, --head and --json go with them" in capsys.readouterr().err


def test_what_is_of_attention_alone_and_convolutions_are_refused(path, traced, tmp_path):
    with pytest.raises(InputError, match="layers of this one have a recurrent state"):
        inside(LLM(path, progress=False), Trace.read(traced), STEP)
    lfm2 = LLM(write_tiny_lfm2(tmp_path / "tiny.gguf"), progress=False)
    lfm2.generate(IDS, max_tokens=2, trace=tmp_path / "run.jsonl")
    with pytest.raises(InputError, match="no layer of this model is a delta net or Mamba 2"):
        state_weights(lfm2, Trace.read(tmp_path / "run.jsonl"), 0)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_head_with_a_state_that_is_zeroed(path, backend):
    """Its output is 0, that of others is not; the text has the same bits in every way."""
    llm = LLM(path, backend=backend, progress=False)
    op, width = Anatomy(llm.graph).heads[2]
    made = bind([scale("L2.H1", 0)], llm.graph, len(IDS))
    out = llm.tensors(IDS, [op.out.name], made)[op.out.name].reshape(len(IDS), -1, width)
    assert not out[:, 1].any()
    assert out[:, [0, 2, 3]].any(axis=(0, 2)).all()
    options = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
    zeroed = options | {"interventions": ["L2.H1 x 0"]}
    texts = [llm.generate(IDS, **zeroed, kv_cache=cached) for cached in (True, True, False)]
    assert len({text.fingerprint for text in texts}) == 1 or backend == "reference"
    plain = llm.generate(IDS, **options)
    assert plain.fingerprint != texts[0].fingerprint


def test_places_of_layers_with_states(path):
    graph = LLM(path, progress=False).graph
    kind = "delta_net" if any(op.kind == "delta_net" for op in graph.ops) else "mamba2"
    [placed] = bind([scale(f"L2.{kind}", 0.5)], graph, 3).placed
    assert placed.tensor.startswith("blk.2.")
    [placed] = bind([scale("L3.H2", 0)], graph, 3).placed
    assert placed.tensor == "blk.3.attend"
    with pytest.raises(InputError, match=rf"no L2.attn: layer 2 has L2.{kind}, L2.mlp"):
        bind([scale("L2.attn", 0)], graph, 3)
    with pytest.raises(InputError, match="the heads are 0 to 3"):
        bind([scale("L2.H4", 0)], graph, 3)
