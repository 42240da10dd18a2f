"""The parts of deep graphs are found in work that grows with the depth, not with its square."""

import sys

import pytest

from cutaway.compute.model.anatomy import Anatomy
from cutaway.compute.model.graph import Graph
from cutaway.compute.model.ops.attention import Heads
from cutaway.errors import InputError

N = 8
SHAPES = {
    "token_embd.weight": (16, N),
    **{f"blk.0.{matrix}.weight": (N, N) for matrix in ("attn_output", "ffn_down")},
}


def layer(g, x, p, depth):
    h = g.rms_norm(x, "", 1e-6)
    a = g.attend(h, h, h, layer=depth, heads=Heads(2, 2, 4), scale=1.0)
    x = g.add(x, g.linear(a, f"{p}attn_output"))
    return g.add(x, g.linear(g.silu(g.rms_norm(x, "", 1e-6)), f"{p}ffn_down"))


def one_stream(g, x, depth):
    for i in range(depth):
        for p in g.layers(1, depth=i):
            x = layer(g, x, p, 0)
    return x


def states(g, x, depth):
    """Begin each run of the layer with the normed result of the run before."""
    for i in range(depth):
        state = g.rms_norm(x, "", 1e-6, name=f"state.{i}") if i else x
        for p in g.layers(1, depth=i):
            x = layer(g, g.add(state, state), p, 0)
    return x


def test_a_second_matrix_behind_attention_is_refused():
    g = Graph({**SHAPES, "blk.0.attn_more.weight": (N, N)})
    x = g.embed("token_embd")
    for p in g.layers(1):
        a = g.attend(x, x, x, layer=0, heads=Heads(2, 2, 4), scale=1.0)
        x = g.add(x, g.linear(g.linear(a, f"{p}attn_more"), f"{p}attn_output"))
    g.linear(g.rms_norm(g.logit_rows(x), "", 1e-6), "token_embd")
    anatomy = Anatomy(g)
    assert [part.name for part in anatomy.parts] == ["embedding", "L0.attn"]
    with pytest.raises(InputError, match="this one's has more"):
        anatomy.check_paths()


def count_calls(wiring, depth):
    g = Graph(SHAPES)
    x = wiring(g, g.embed("token_embd"), depth)
    g.linear(g.rms_norm(g.logit_rows(x), "", 1e-6), "token_embd")
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    anatomy, outer = Anatomy(g), sys.getprofile()
    sys.setprofile(count)
    try:
        assert len(anatomy.stream) == depth + 1
        assert len(anatomy.added_tensors) >= 2 * depth
        assert anatomy.parts and len(anatomy.runs) == len(anatomy.heads) == depth
        assert len(anatomy.values) == len(anatomy.attends) == depth
        anatomy.check_paths()
    finally:
        sys.setprofile(outer)
    return calls


@pytest.mark.parametrize("wiring", [one_stream, states])
def test_the_work_grows_with_the_depth(wiring):
    shallow, deep = count_calls(wiring, 100), count_calls(wiring, 200)
    assert deep < 2.1 * shallow
