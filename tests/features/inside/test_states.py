"""Steps of models with recurrent states: weights of values by definition, attributions that add up,
words left out, heads zeroed and values taken out of a state."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute.model.anatomy import Anatomy
from cutaway.engine.interventions import bind, patch, scale
from cutaway.errors import CutawayError, InputError
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.layers import conv, delta_net, mamba2
from cutaway.features.inside.logit_attribution import logit_attribution
from cutaway.features.inside.look import inside
from cutaway.features.inside.summary import page_arrays
from cutaway.trace import Trace
from support.random_granite_hybrid import write_tiny_granite_hybrid
from support.random_lfm2 import write_tiny_lfm2
from support.random_qwen35 import write_tiny_qwen35

IDS = np.random.default_rng(3).integers(6, 60, 40).tolist()
STEP = 4


@pytest.fixture(scope="module", params=[write_tiny_qwen35, write_tiny_granite_hybrid])
def path(tmp_path_factory, request):
    return request.param(tmp_path_factory.mktemp("states") / "tiny.gguf")


@pytest.fixture(
    scope="module", params=[write_tiny_lfm2, write_tiny_qwen35, write_tiny_granite_hybrid]
)
def any_path(tmp_path_factory, request):
    return request.param(tmp_path_factory.mktemp("any") / "tiny.gguf")


def traced(path, **options):
    file = path.parent / f"run{len(options)}.jsonl"
    if not file.exists():
        plain = {"max_tokens": STEP + 2, "temperature": 0.9, "seed": 4, "ignore_eos": True}
        LLM(path, progress=False).generate(IDS, trace=file, **plain, **options)
    return file


def weights_by_definition(op, of, *read):
    """The recurrence on values that are each a direction of its own: (heads, T)."""
    heads, keys, _ = op.state
    x, k_heads = read[0], op.k_heads
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
        found = (delta_net if op.kind == "delta_net" else mamba2)(op, of, read)
        np.testing.assert_allclose(found.weights, weights_by_definition(op, of, *read), atol=1e-9)
        heads, _, width = op.state
        assert found.values.shape == (len(IDS), heads, width)


def looked_into(path, backend="cpu", **options):
    llm = LLM(path, backend=backend, progress=False)
    return llm, inside(llm, Trace.read(traced(path, **options)), STEP)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_weights_of_a_step_add_up_and_the_row_is_the_recorded_one(path, backend):
    llm, look = looked_into(path, backend)
    assert look.is_as_run == (backend == "cpu")
    assert [*look.states] == [0, 2]  # CutawayError where they do not add up
    assert all(w.weights.shape == (4, len(IDS) + STEP) for w in look.states.values())
    rows = llm.tensors(look.token_ids, ["blk.0.ssm_out"])["blk.0.ssm_out"]
    if backend == "cpu":
        assert np.array_equal(rows[-1], look.tensor("blk.0.ssm_out"))


def test_a_page_has_what_the_states_hold_of_each_token(path):
    _, look = looked_into(path)
    kept = page_arrays(look, look.logit_attribution(), None)["kept"]
    for shares, state in zip(kept, look.states.values(), strict=True):
        read = state.weights[:, :, None] * state.values.transpose(1, 0, 2)  # (heads, tokens, value)
        lengths = np.linalg.norm(read, axis=-1).sum(axis=0)
        np.testing.assert_allclose(shares, lengths / lengths.sum(), rtol=1e-5)


def pushes_by_definition(llm, look, part, pair):
    """Each token's value, weighted, through gate, norm and matrices: (heads, tokens)."""

    def tensor(name):
        return look.tensor(name).astype(float)

    def weight(name, *rows):
        return llm.backend.weight(name, *rows).astype(float)

    anatomy = Anatomy(llm.graph)
    norm, head = anatomy.norm, anatomy.head
    x = tensor(norm.inputs[0])
    first, second = (weight(head.weights["weight"], token, token + 1)[0] for token in pair)
    stream = (first - second) * weight(norm.weights["weight"])
    stream /= np.sqrt(np.mean(x * x) + norm.eps)
    mix = part.path[-1]
    state = look._decomposition.states[mix.out.name]
    each = state.weights[:, :, None] * state.values.swapaxes(0, 1)  # (heads, T, numbers)
    heads, tokens, width = each.shape
    given = np.zeros((heads, tokens, heads, width))  # of each token of each head, all heads' output
    given[np.arange(heads), :, np.arange(heads)] = each
    given = given.reshape(heads, tokens, -1)
    for op in part.path[-2::-1]:
        if op.kind == "rms_norm":
            n = op.group
            size = np.mean(tensor(op.inputs[0]).reshape(-1, n) ** 2, axis=1) + op.eps
            named = np.broadcast_to(weight(op.weights["weight"]), (len(size), n))
            given = given * (named / np.sqrt(size)[:, None]).ravel()
        elif op.kind in ("silu_mul", "mul"):
            gate = tensor(op.inputs[0])
            given = given * (gate / (1 + np.exp(-gate)) if op.kind == "silu_mul" else gate)
        elif op.kind == "linear":
            given = given @ weight(op.weights["weight"]).T
        else:
            given = given * op.number
    return given @ (stream * part.factor)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_attributions_add_up_and_those_of_tokens_are_by_definition(any_path, backend):
    llm, look = looked_into(any_path, backend)
    found = look.logit_attribution(9)
    whole = sum(found.parts.values()) + found.bias + found.rounding
    assert whole == pytest.approx(found.total, abs=1e-4)
    parts = {p.name: p for p in Anatomy(llm.graph).parts if p.path and p.path[-1].kind != "attend"}
    assert [*found.states] == [*parts]
    for name, own in found.states.items():
        assert own.heads.sum() + own.rounded == pytest.approx(found.parts[name], abs=1e-4)
        expected = pushes_by_definition(llm, look, parts[name], (found.token, 9))
        np.testing.assert_allclose(own.positions, expected, atol=1e-5)
        assert np.abs(expected).max() > 1e-3
    seen, pair = look._decomposition, (found.token, 9)
    for name, own in seen.states.items():
        wrong = {**seen.states, name: replace(own, weights=own.weights * 1.01)}
        with pytest.raises(CutawayError, match="the positions of"):
            logit_attribution(replace(seen, states=wrong), pair)
    assert found.heads.shape[0] == look.layers == llm.config.layers
    attending = [i for i in range(look.layers) if not llm.config.recurrent[i]]
    assert look.attending == attending
    assert look.weights[attending].sum(axis=-1) == pytest.approx(1)
    assert look.mean_weights.sum() == pytest.approx(1)


def test_the_lens_ends_in_the_row_and_its_draw(any_path):
    llm, look = looked_into(any_path)
    lens = look.lens(top=3)
    assert len(lens.rank) == llm.config.layers + 1
    assert (lens.rank[-1], lens.drawn[-1]) == (look.step.observed.rank, look.step.sampled_id)


@pytest.mark.parametrize("how", ["delete", "other"])
def test_a_token_left_out_is_the_text_without_it(any_path, how):
    llm = LLM(any_path, progress=False)
    done = ablate(
        llm, Trace.read(traced(any_path)), STEP, how=how, other=7 if how == "other" else None
    )
    assert len(done.parts) >= len(IDS)
    for part in done.parts[:3]:
        ids = list(done.token_ids)
        ids[part.start : part.stop] = part.instead
        row = llm.logits(ids, len(ids) - 1)[0].astype(float)
        peak = row.max() + np.log(np.exp(row - row.max()).sum())
        assert part.logprob == pytest.approx(row[done.token] - peak, abs=1e-5)
    with pytest.raises(InputError, match="how: layers of this model have a recurrent state"):
        ablate(llm, Trace.read(traced(any_path)), STEP, how="knock_out")


def test_the_command_shows_layers_heads_and_tokens(path, capsys):
    look = ["trace", "inside", str(traced(path)), "--step", str(STEP + 1), "-m", str(path), "-q"]
    assert main(look) == 0
    said = capsys.readouterr().out
    for part in ("looked at", "heads with a state", "what the head would say after each layer"):
        assert part in said
    assert main([*look, "--layer", "2"]) == 0
    assert "L2.H3" in capsys.readouterr().out
    assert main([*look, "--layer", "2", "--head", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("L2.H1: attribution ")
    assert "the other 28: " in said
    assert main([*look, "--layer", "1"]) == 0
    assert main([*look, "--json"]) == 0
    assert '"state_heads"' in capsys.readouterr().out


def test_a_long_text_has_its_parts_and_no_heads_with_a_state(path, monkeypatch):
    monkeypatch.setattr("cutaway.features.inside.look.STEP_ROWS", 8)
    _, look = looked_into(path)
    found = look.logit_attribution(9)
    assert not found.states and any("L0." in name for name in found.parts)
    with pytest.raises(InputError, match="has 44 tokens; what heads with a recurrent state"):
        _ = look.states


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
    [placed] = bind([scale(f"L2.{kind}", 0.5)], graph, 3).activations
    assert placed.tensor.startswith("blk.2.")
    [placed] = bind([scale("L3.H2", 0)], graph, 3).activations
    assert placed.tensor == "blk.3.attend"
    with pytest.raises(InputError, match=rf"no L2.attn: layer 2 has L2.{kind}, L2.mlp"):
        bind([scale("L2.attn", 0)], graph, 3)
    with pytest.raises(InputError, match="the heads are 0 to 3"):
        bind([scale("L2.H4", 0)], graph, 3)
    [placed] = bind([scale("L2.V1", 0)], graph, 3).activations
    assert placed.last - placed.first == Anatomy(graph).heads[2][1]
    with pytest.raises(InputError, match="the values are 0 to 3"):
        bind([scale("L2.V4", 0)], graph, 3)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_value_taken_out_of_a_state_takes_what_its_weight_says(path, backend):
    """The head is linear in its values: without one its output lacks just weight · value."""
    llm, look = looked_into(path, backend)
    op, width = Anatomy(llm.graph).heads[0]
    state, ids = look.states[0], look.token_ids
    for at in (0, 20, len(ids) - 1):
        made = bind([scale("L0.V1", 0, positions=str(at))], llm.graph, len(IDS))
        out = llm.tensors(ids, [op.out.name], made)[op.out.name][-1].reshape(-1, width)
        whole = look.tensor(op.out.name).reshape(-1, width)
        lost = state.weights[1, at] * state.values[at, 1]
        np.testing.assert_allclose(whole[1] - out[1], lost, atol=1e-5 * np.abs(whole).max())
        assert np.array_equal(out[[0, 2, 3]], whole[[0, 2, 3]]) or backend == "reference"


def test_values_that_are_patched_with_their_own_change_no_bit(path):
    llm, look = looked_into(path)
    options = {"max_tokens": STEP + 2, "temperature": 0.9, "seed": 4, "ignore_eos": True}
    own = [patch(f"L{layer}.V1", look) for layer in range(4)]
    plain = llm.generate(IDS, **options)
    assert llm.generate(IDS, **options, interventions=own).fingerprint == plain.fingerprint
    ways = [{}, {"kv_cache": False}, {"speculate": "ngram"}]
    cut = ["L0.V1 x 0 at 3-7", "L3.V0 x 0 at 5"]
    found = {llm.generate(IDS, **options, interventions=cut, **way).fingerprint for way in ways}
    assert len(found) == 1
    assert plain.fingerprint not in found


def test_a_look_at_a_run_with_a_zeroed_head(path):
    _, look = looked_into(path, interventions=["L0.H1 x 0", "L2.V1 x 0.5 at 3-7"])
    found = look.logit_attribution(9)
    own = found.states[next(name for name in found.states if name.startswith("L0."))]
    assert own.heads[1] == 0
    assert not own.positions[1].any()
    assert own.heads[0] != 0


def test_a_convolution_is_a_sum_over_its_last_tokens(tmp_path):
    llm = LLM(write_tiny_lfm2(tmp_path / "tiny.gguf"), backend="reference", progress=False)
    op = next(op for op in llm.graph.ops if op.kind == "conv")
    tensors = llm.tensors(IDS, [op.inputs[0], op.out.name])
    weight = llm.backend.weight(op.weights["weight"])
    for count in (1, 2, len(IDS)):
        x = tensors[op.inputs[0]][:count].astype(float)
        found = conv(op, {"weight": weight}, [x])
        np.testing.assert_allclose(found.output(), tensors[op.out.name][count - 1], atol=1e-5)
        assert found.weights.sum() == min(count, weight.shape[1])
