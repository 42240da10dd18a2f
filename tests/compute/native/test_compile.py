"""What is fused, what is left out and whose buffer is taken over changes no number."""

from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway.base.offload import Offload
from cutaway.base.resources import Memory
from cutaway.compute.backends import KV_BLOCK, Batch
from cutaway.compute.backends.cpu import CpuBackend
from cutaway.compute.backends.layout import KV_FORMATS, as_stored, keys_and_values
from cutaway.compute.backends.reference import ReferenceBackend
from cutaway.compute.lowering.compile import Lowered, hoist_logit_rows
from cutaway.compute.lowering.emit import Placement
from cutaway.compute.model import build
from cutaway.compute.model.graph import Graph
from cutaway.compute.model.mixture import Mixture
from cutaway.compute.model.ops.attention import Heads, Mask
from cutaway.compute.model.positions import LooksBack, Rope
from cutaway.errors import FormatError
from cutaway.files.weights import GGUFFile
from cutaway.files.weights.file import ModelFile, TensorInfo
from support.native_plans import assert_same_bits
from support.random_llama import random_matrix, write_tiny_llama

N, VOCAB, TOKENS = 64, 40, 12
SHAPES = {
    **{f"{name}.weight": (N, N) for name in ("m0", "m1", "m2", "m3")}, "m3.bias": (N,),
    "x.weight": (VOCAB, N), "out.weight": (VOCAB, N), "p.weight": (TOKENS, N),
    "c.weight": (N, 4), "c.bias": (N,),
    "n.weight": (N,), "n.bias": (N,), "head.weight": (16,), "scores.weight": (3, N),
    **{f"ffn_{role}_exps.weight": (3, N, N) for role in ("gate", "up", "down")},
    "one.weight": (1, N), "narrow.weight": (32, N),
    "exp_probs_b.bias": (3,), "ffn_gate_exps.bias": (3, N),
    "ffn_up_exps.bias": (3, N), "ffn_down_exps.bias": (3, N),
    "heads.weight": (2, 32, 32), "all.weight": (32, 16), "back.weight": (20, N),
    "taps.weight": (8, N), "four.weight": (4, N),
    "m1.scale": (1,), "ffn_up_exps.scale": (3,), "ffn_down_exps.scale": (3,),  # factors
}  # fmt: skip


class HeldFile(ModelFile):
    """Tensors that were never on disk."""

    def __init__(self, name):
        rng = np.random.default_rng(3)
        self.path, self.tensors, self.bytes = Path("held"), {}, {}
        for tensor, shape in SHAPES.items():
            is_matrix = len(shape) > 1 and tensor.endswith("weight") and tensor != "c.weight"
            kind = name if is_matrix and shape[-1] % 64 == 0 else "F32"
            kind = "Q8_0" if name == "Q8_0" and tensor == "heads.weight" else kind
            rows = (int(np.prod(shape[:-1])), shape[-1])
            self.tensors[tensor] = TensorInfo(tensor, kind, shape)
            raw = random_matrix(rng, kind, rows, 1.0 if len(shape) == 1 else N**-0.5)
            self.bytes[tensor] = np.ascontiguousarray(raw).view(np.uint8).ravel()
        self.weights = {tensor: self.dequantize_scaled(tensor) for tensor in self.tensors}

    def raw(self, name):
        return self.bytes[name]

    def close(self):
        pass


MIXTURES = (
    Mixture(used=2), Mixture(used=1, gating="sigmoid", normed=False, scale=1.3),
    Mixture(used=2, activation="clamped_swiglu", limit=0.5),
    Mixture(used=2, activation="capped_swiglu", limit=0.5),
    Mixture(used=1, activation="relu2"), Mixture(used=2, gating="sigmoid", weighs_input=True),
)  # fmt: skip
FILES = {name: HeldFile(name) for name in ("F32", "Q8_0", "NVFP4")}
_AT = np.arange(TOKENS, dtype=np.int32)
BATCH = Batch(_AT * 7 % VOCAB, _AT, 0 * _AT, np.zeros((1, 1), np.int32), _AT[::5])


def wire_latent(g, draw, pick, layer):
    """Two heads on one key, whose last 16 numbers are the value."""
    rope = Rope(dim=16, base=50.0, rotate_half=draw(st.booleans()))
    q, k = g.linear(pick(), "m0"), g.linear(pick(), "narrow")
    q, k = (g.rope(t, rope, head_dim=32) for t in (q, k))
    a = g.attend_latent(q, k, layer=layer, heads=2, first=16, scale=0.25)
    return [g.join(a, a, 1)]


def wire_attention(g, draw, pick, layer):
    """Four heads, and sometimes others that attend to the same keys again."""
    x, rope = pick(), Rope(dim=16, base=50.0, rotate_half=draw(st.booleans()))
    q, k, v = (g.linear(x, f"m{i}") for i in range(3))
    q = g.rms_norm(q, "head", 1e-2, group=16) if draw(st.booleans()) else q
    q, k = (g.rope(t, rope, head_dim=16) for t in (q, k))
    seen = {draw(st.sampled_from(["window", "reach"])): draw(st.sampled_from([0, 3]))}
    seen["chunked"] = seen.get("window") == 3 and draw(st.booleans())
    shape = {"heads": Heads(4, 4, 16), "scale": 0.25, "mask": Mask(**seen)}
    back, more = [], {}
    if draw(st.booleans()):  # each query has biases and sinks of its own
        back = [g.linear(x, "back")]
        more = {"bias": LooksBack(5), "sinks": g.linear(x, "four")}
    tensors = [g.attend(q, k, v, *back, layer=layer, **shape, **more)]
    if draw(st.booleans()):
        q = g.rope(g.linear(pick(), "m0"), rope, head_dim=16)
        tensors += [g.attend_again(q, layer=100 + layer, reads=layer, heads=4, scale=0.3)]
    return tensors


def wire_numbers(g, draw, pick):
    """An op that works number by number, or on parts of a row."""
    maps = [
        lambda x: g.sigmoid_mul(g.linear(x, "one"), x),
        lambda x: g.clamped_swiglu(x, pick(), 0.5),
        lambda x: g.capped_swiglu(x, pick(), 0.5),
        lambda x: g.softmax(x, group=16),
        lambda x: g.heads_linear(g.pick(x, 64, 0, 32), "all", heads=2),
        lambda x: g.softplus_mul(x, pick()),
        lambda x: g.sigmoid_mul(g.spread(g.pick(x, 16, 3, 4), x.width), x),
        g.gelu,
        g.gelu_exact,
        g.relu2,
        lambda x: g.relu_above(x, 0.3),
        lambda x: g.decay(g.sigmoid(x), 0.3),
        lambda x: g.mul(g.magnitude(x, is_centred=draw(st.booleans())), pick()),
        g.elu_less_x,
        lambda x: g.scale(x, 0.7),
        lambda x: g.softcap(x, 2.0),
        lambda x: g.heads_linear(x, "heads"),
        lambda x: g.join(g.pick(x, 16, 0, 4), g.pick(pick(), 16, 4, 16), 4),
    ]
    return [draw(st.sampled_from(maps))(pick())]


def wire(draw):
    """A graph of a few ops, each on any tensors that were made before."""
    g = Graph(SHAPES)
    made = [g.embed("x")]
    pick = lambda: draw(st.sampled_from(made[-4:]))  # noqa: E731
    for layer in range(draw(st.integers(1, 7))):
        kind = draw(
            st.sampled_from(
                ["linear", "two", "gate", "norm", "attend", "latent", "conv", "map", "experts"]
            )
        )
        if kind == "linear":
            made += [g.linear(pick(), f"m{draw(st.integers(0, 3))}")]
        elif kind == "two":
            made += [draw(st.sampled_from([g.add, g.mul]))(pick(), pick())]
        elif kind == "conv":
            x = pick()
            more = [g.linear(x, "taps")] if draw(st.booleans()) else []
            made += [g.conv(x, "c", *more, layer=layer)]
        elif kind == "gate":
            gate = draw(st.sampled_from([g.silu_mul, g.gelu_mul, g.gelu_exact_mul]))
            made += [gate(g.linear(pick(), "m0"), g.linear(pick(), "m3"))]
        elif kind == "norm":
            norms = (g.rms_norm, g.layer_norm, partial(g.layer_norm, bias=False))
            bare = lambda x, _, eps: g.rms_norm(x, "", eps, group=16)  # noqa: E731
            clip = lambda x, n, _: g.clip_norm(x, n, 3.0)  # noqa: E731
            made += [draw(st.sampled_from((*norms, bare, clip)))(pick(), "n", 1e-2)]
        elif kind == "map":
            made += wire_numbers(g, draw, pick)
        elif kind == "experts":
            x = pick()
            made += [g.experts(x, g.linear(x, "scores"), "", draw(st.sampled_from(MIXTURES)))]
        elif kind == "latent":
            made += wire_latent(g, draw, pick, layer)
        else:
            made += wire_attention(g, draw, pick, layer)
    last = g.layer_norm(g.logit_rows(g.add(made[-1], pick())), "n", 1e-2)
    g.softcap(g.linear(last, "out"), draw(st.sampled_from([0.0, 30.0])))
    return g


def logits(backend, cuts):
    """Of every second token of a text, read in parts of these lengths."""
    found, start = [], 0
    for rows in cuts:
        at = np.arange(start, start + rows, dtype=np.int32)
        wanted = np.flatnonzero(at % 2 == 0).astype(np.int32)
        zeros = np.zeros(rows, np.int32)
        result = backend.run(Batch(at * 7 % VOCAB, at, zeros, np.zeros((1, 1), np.int32), wanted))
        found.append(result.copy())
        start += rows
    return np.concatenate(found)


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_the_compiled_graph_computes_what_the_graph_says(name, data):
    graph, file = wire(data.draw), FILES[name]
    ideal = logits(ReferenceBackend(graph, file.weights, 1), [TOKENS])
    ours = [
        logits(CpuBackend(graph, file, kv_blocks=1, context=KV_BLOCK, threads=threads), cuts)
        for threads, cuts in ((1, [TOKENS]), (3, [5, 0, 2, 1, 4]), (2, [1] * TOKENS))
    ]
    if name == "F32" or not any(op.kind == "experts" for op in graph.ops):  # int8 may choose others
        near = 0.01 if name == "F32" else 0.2
        assert np.linalg.norm(ours[0] - ideal) <= near * np.linalg.norm(ideal)
    for other in ours[1:]:
        assert_same_bits(other, ours[0])


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_a_tapped_run_has_the_bits_of_one_that_is_not(name, data):
    graph, file = wire(data.draw), FILES[name]
    ours = CpuBackend(graph, file, kv_blocks=1, context=KV_BLOCK, threads=2)
    names = [op.out.name for op in graph.ops]
    expected = ours.run(BATCH).copy()
    logits, seen = ours.tap(BATCH, names)
    assert_same_bits(logits, expected)
    half = TOKENS // 2  # the other half of the text was stored by the plan that is looked into
    early, late = (
        Batch(*(part[rows] for part in BATCH[:3]), BATCH.block_tables, BATCH.positions[:half])
        for rows in (slice(half), slice(half, None))
    )
    ours.tap(early, ())
    looked_into = ours.tap(late, ())[0].copy()
    ours.run(early)  # a state is what the rows before left
    assert_same_bits(looked_into, ours.run(late))
    assert_same_bits(seen[names[-1]], logits)
    mixes = any(op.kind == "experts" for op in graph.ops)  # rounding may choose another expert
    if name == "F32" and not mixes:  # each tensor is what the graph says
        ideal = ReferenceBackend(graph, file.weights, 1).tap(BATCH, names)[1]
        for tensor in names:
            theirs, mine = ideal[tensor], seen[tensor]
            assert np.linalg.norm(mine - theirs) <= 0.01 * np.linalg.norm(theirs), tensor


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_weights_in_a_file_change_no_bit(tmp_path_factory, name, data):
    graph, file = wire(data.draw), FILES[name]
    free = Memory(data.draw(st.integers(0, 150_000)), "this test")
    offload = Offload(tmp_path_factory.getbasetemp(), 0, lambda _: None, free)
    inside, from_disk = (
        CpuBackend(graph, file, kv_blocks=1, context=KV_BLOCK, threads=2, offload=place)
        for place in (None, offload)
    )
    names, again = [op.out.name for op in graph.ops], from_disk.run(BATCH).copy()
    assert_same_bits(again, inside.run(BATCH))
    theirs, mine = inside.tap(BATCH, names)[1], from_disk.tap(BATCH, names)[1]
    for tensor in names:
        assert_same_bits(mine[tensor], theirs[tensor])
    assert_same_bits(from_disk.run(BATCH), again)


@pytest.mark.parametrize("name", FILES)
@given(data=st.data())
def test_what_is_stored_is_what_the_ops_gave_and_read(name, data):
    graph, file = wire(data.draw), FILES[name]
    weights = file.weights
    kv = data.draw(st.sampled_from([*KV_FORMATS, "q8_0,q4_0", "q5_1,f16"]))
    native = CpuBackend(graph, file, kv_blocks=1, context=KV_BLOCK, threads=2, kv=kv)
    for ours in (native, ReferenceBackend(graph, weights, 1, kv)):
        logits, seen = ours.tap(BATCH, [op.out.name for op in graph.ops])
        logits = logits.copy()
        for op in graph.ops:
            if op.kind == "logit_rows":
                alone = [ours.head(seen[op.out.name][i : i + 1]).copy() for i in range(3)]
                assert_same_bits(ours.head(seen[op.out.name]), np.concatenate(alone))
                if ours is native:
                    assert_same_bits(np.concatenate(alone), logits)
            elif op.kind == "attend":
                found = ours.keys_values(op.layer, [0], 2, 11)
                if len(op.inputs) < 3:
                    continue
                for stored, made, format in zip(
                    found, op.inputs[1:3], keys_and_values(kv), strict=True
                ):
                    heads = seen[made].reshape(TOKENS, 4, 16).transpose(1, 0, 2)[:, 2:11]
                    exact = as_stored(format, heads)
                    ours_now = np.ascontiguousarray(stored)
                    if ours is native and format == "f16":  # the reference keeps all bits
                        exact = exact.astype(np.float16)
                    assert_same_bits(ours_now, exact.astype(stored.dtype))
            elif op.kind == "linear":
                matrix = op.weights["weight"]
                assert_same_bits(ours.weight(matrix), weights[matrix])
                first, last = (0, 1) if len(weights[matrix]) == 1 else (2, 9)
                assert_same_bits(ours.weight(matrix, first, last), weights[matrix][first:last])
                x, y = (seen[n].astype(float) for n in (op.inputs[0], op.out.name))
                read = ours.as_read(matrix, seen[op.inputs[0]]).astype(float)
                made = read @ weights[matrix].T.astype(float)
                if bias := op.weights.get("bias"):
                    made += ours.weight(bias)
                size = np.abs(x).max() * N**0.5 + np.abs(y).max()
                assert np.abs(made - y).max() <= 1e-5 * size
            elif op.kind == "experts":
                down = op.weights["down"]
                assert_same_bits(ours.weight(down, 60, 70), weights[down].reshape(-1, N)[60:70])


def compiled(wire):
    g = Graph(SHAPES)
    wire(g, g.embed("x"))
    return g, CpuBackend(g, FILES["F32"], kv_blocks=1, context=KV_BLOCK, threads=1)


def test_a_residual_waits_for_who_reads_its_base():
    """The add becomes part of its linear layer, which comes before another reader of the base."""

    def wire(g, x):
        y = g.linear(g.gelu(x), "m0")
        before = g.softcap(x, 1.0)
        g.linear(g.logit_rows(g.add(before, g.add(x, y))), "out")

    graph, backend = compiled(wire)
    ideal = logits(ReferenceBackend(graph, FILES["F32"].weights, 1), [TOKENS])
    np.testing.assert_allclose(logits(backend, [TOKENS]), ideal, rtol=1e-4, atol=1e-4)


def test_what_is_rotated_in_its_place_cannot_be_read_again():
    def wire(g, x):
        q, v = g.linear(x, "m0"), g.linear(x, "m1")
        turned = g.rope(q, Rope(dim=16, base=50.0), head_dim=16)
        shape = {"heads": Heads(4, 4, 16), "scale": 0.25}
        g.linear(g.add(q, g.attend(turned, turned, v, layer=0, **shape)), "out")

    with pytest.raises(FormatError, match="m0 is rotated in its place"):
        compiled(wire)


# -- rows that nobody wants leave the graph behind the last attention ------------------------------


def tiny(tmp_path):
    with GGUFFile(write_tiny_llama(tmp_path / "tiny.gguf")) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        weights = {name: file.dequantize(name) for name in file.tensors}
        return build(file.metadata, shapes)[1], weights


def test_only_wanted_rows_reach_the_last_mlp(tmp_path):
    graph, _ = tiny(tmp_path)
    ops = hoist_logit_rows(graph.ops)
    kinds = [op.kind for op in ops]
    last = len(kinds) - 1 - kinds[::-1].index("attend")
    assert kinds[last + 1 : last + 3] == ["logit_rows", "logit_rows"]  # heads' output and residual
    assert kinds.count("logit_rows") == 2
    assert [k for k in kinds if k != "logit_rows"] == [
        op.kind for op in graph.ops if op.kind != "logit_rows"
    ]


def test_the_definition_runs_the_changed_graph_to_the_same_logits(tmp_path):
    graph, weights = tiny(tmp_path)
    early = copy(graph)
    early.ops = hoist_logit_rows(graph.ops)
    ints = [np.array(x, np.int32) for x in ([5, 6, 7], [0, 1, 2], [0, 0, 0], [[0]], [0, 2])]
    plain, changed = (ReferenceBackend(g, weights, 1).run(Batch(*ints)) for g in (graph, early))
    assert plain.shape == changed.shape == (2, plain.shape[1])
    np.testing.assert_allclose(changed, plain, rtol=1e-4, atol=1e-5)  # BLAS sums by shape


# -- no buffer is written while a thread may still read what it held -------------------------------


def check(lowered, output):
    placed = Placement(lowered, output)
    holds: dict[int, str] = {}
    unmet: set[int] = set()  # buffers that some thread may still be reading
    for op in lowered:
        for name in op.reads:
            assert holds[placed.slot_of[name]] == name
        targets = {placed.slot_of[name] for name, _, _ in op.writes}
        assert not targets & unmet
        kept = {placed.slot_of[name] for name in op.reads if name != op.in_place}
        assert not targets & kept
        for name, width, is_quantised in op.writes:
            slot = placed.slot_of[name]
            holds[slot] = name
            assert placed.slots[slot][0] >= width
            assert placed.slots[slot][1] == is_quantised
        alone = all(is_quantised for _, _, is_quantised in op.writes)
        unmet = unmet | {placed.slot_of[name] for name in op.reads} if alone else set()
    return placed


def op(reads, writes, in_place=None):
    return Lowered("any", reads, writes, in_place=in_place)


def test_a_buffer_that_was_quantised_is_not_free_for_the_next_op():
    """Found by Gemma's fingerprint: a thread quantised what another already wrote over."""
    lowered = [
        op([], [("x", 64, False)]),
        op(["x"], [("x as int8", 64, True)]),
        op(["x as int8"], [("y", 64, False)]),
        op(["y"], [("z", 64, False)]),
    ]
    placed = check(lowered, "z")
    assert placed.slot_of["x"] != placed.slot_of["y"]


def test_what_becomes_the_output_has_a_buffer_of_its_own():
    lowered = [
        op([], [("x", 96, False)]),
        op(["x"], [("logits", 64, False)]),
        op(["logits"], [("capped", 64, False)], in_place="logits"),
    ]
    placed = check(lowered, "capped")
    assert placed.slot_of["capped"] == placed.slot_of["logits"]
    assert placed.slots[placed.slot_of["capped"]] == (64, False)


@given(st.data())
def test_any_plan(data):
    draw = data.draw
    lowered, floats, acts = [op([], [("t0", 32, False)])], ["t0"], []
    for i in range(1, draw(st.integers(2, 25))):
        kind = draw(st.sampled_from(["float", "both", "quantise", "in place"]))
        if kind == "quantise" and floats:
            x = draw(st.sampled_from(floats))
            acts.append(f"a{i}")
            lowered.append(op([x], [(f"a{i}", 32, True)]))
        elif kind == "in place" and len(floats) > 1:
            x = floats.pop(draw(st.integers(0, len(floats) - 1)))
            a = draw(st.sampled_from(floats))
            lowered.append(op([a], [(f"a{i}x", 32, True)]))  # so that threads have met since x
            lowered.append(op([f"a{i}x"], [(f"m{i}", 32, False)]))
            lowered.append(op([a, x], [(f"t{i}", 32, False)], in_place=x))
            floats.append(f"t{i}")
        else:
            reads = draw(st.lists(st.sampled_from(floats + acts), min_size=1, max_size=3))
            writes = [(f"t{i}", 32 * draw(st.integers(1, 3)), False)]
            if kind == "both":
                writes.append((f"b{i}", 32, True))
                acts.append(f"b{i}")
            lowered.append(op(reads, writes))
            floats.append(f"t{i}")
    lowered.append(op([floats[-1]], [("out", 16, False)]))
    check(lowered, "out")
