"""Each op of the reference backend against its definition in float64, written with loops.

Attention is in test_reference_attention.py.
"""

from math import erf, exp, expm1, log1p, pi, sqrt, tanh

import numpy as np
import pytest

from cutaway.compute.model.graph import Graph
from cutaway.compute.model.mixture import Mixture
from cutaway.errors import FormatError
from support.reference_rows import NEAR, ROWS, numbers, run


def gelu(x):
    return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


ONE = {
    "gelu": (lambda g, x: g.gelu(x), gelu),
    "silu": (lambda g, x: g.silu(x), lambda v: v / (1 + exp(-v))),
    "relu": (lambda g, x: g.relu(x), lambda v: max(v, 0.0)),
    "relu2": (lambda g, x: g.relu2(x), lambda v: max(v, 0.0) ** 2),
    "sigmoid": (lambda g, x: g.sigmoid(x), lambda v: 1 / (1 + exp(-v))),
    "decay": (lambda g, x: g.decay(x, 0.7), lambda v: exp(-0.7 / (1 + exp(-v)))),
    "relu_above": (lambda g, x: g.relu_above(x, 1.5), lambda v: max(v - 1.5, 0.0)),
    "elu_less_x": (lambda g, x: g.elu_less_x(x), lambda v: expm1(min(v, 0.0)) - min(v, 0.0)),
    "gelu_exact": (lambda g, x: g.gelu_exact(x), lambda v: v * (1 + erf(v / sqrt(2))) / 2),
    "scale": (lambda g, x: g.scale(x, 0.3), lambda v: v * 0.3),
    "softcap": (lambda g, x: g.softcap(x, 2.5), lambda v: 2.5 * tanh(v / 2.5)),
}
TWO = {
    "add": (Graph.add, lambda a, b: a + b),
    "mul": (Graph.mul, lambda a, b: a * b),
    "silu_mul": (Graph.silu_mul, lambda a, b: a / (1 + exp(-a)) * b),
    "gelu_mul": (Graph.gelu_mul, lambda a, b: gelu(a) * b),
    "clamped_swiglu": (
        lambda g, a, b: g.clamped_swiglu(a, b, 0.75),
        lambda a, b: (
            min(a, 0.75) / (1 + exp(-1.702 * min(a, 0.75))) * (max(min(b, 0.75), -0.75) + 1)
        ),
    ),
    "capped_swiglu": (
        lambda g, a, b: g.capped_swiglu(a, b, 0.75),
        lambda a, b: 0.75 * tanh(a / 0.75) / (1 + exp(-a)) * 6.25 * 0.75 * tanh(b / (6.25 * 0.75)),
    ),
    "sigmoid_mul": (Graph.sigmoid_mul, lambda a, b: b / (1 + exp(-a))),
    "softplus_mul": (Graph.softplus_mul, lambda a, b: log1p(exp(a)) * b),
    "gelu_exact_mul": (Graph.gelu_exact_mul, lambda a, b: a * (1 + erf(a / sqrt(2))) / 2 * b),
}


@pytest.mark.parametrize("kind", ONE)
def test_number_by_number(kind):
    build, expected = ONE[kind]
    x = numbers(ROWS, 10) * 4
    np.testing.assert_allclose(run(x, build), np.vectorize(expected)(x.astype(float)), **NEAR)


@pytest.mark.parametrize("kind", TWO)
def test_two_numbers_at_a_time(kind):
    build, expected = TWO[kind]
    a, b = numbers(ROWS, 10) * 4, numbers(ROWS, 10)
    ours = run(a, lambda g, x: build(g, x, g.embed("b")), {"b.weight": b})
    np.testing.assert_allclose(ours, np.vectorize(expected)(a.astype(float), b), **NEAR)


def test_what_changes_nothing_is_no_op():
    x = numbers(2, 4)
    for build in (lambda g, x: g.scale(x, 1.0), lambda g, x: g.softcap(x, 0.0)):
        np.testing.assert_array_equal(run(x, build), x)


@pytest.mark.parametrize("taps", [2, 5])
def test_a_convolution_sums_each_number_over_the_last_rows(taps):
    x, weight, bias = numbers(7, 4), numbers(4, taps), numbers(4)
    ours = run(x, lambda g, x: g.conv(x, "c", layer=0), {"c.weight": weight, "c.bias": bias})
    for row in range(7):
        for i in range(4):
            seen = [(weight[i, t], row - taps + 1 + t) for t in range(taps)]
            expected = bias[i] + sum(float(w) * float(x[at, i]) for w, at in seen if at >= 0)
            np.testing.assert_allclose(ours[row, i], expected, **NEAR)
    with pytest.raises(FormatError, match=r"c\.weight has weights of 1 tokens, not of 2 or more"):
        run(x, lambda g, x: g.conv(x, "c", layer=0), {"c.weight": numbers(4, 1)})


@pytest.mark.parametrize("taps", [3, 5])
def test_a_centred_convolution_sums_each_number_over_the_rows_around_it(taps):
    x, weight, bias = numbers(7, 4), numbers(4, taps), numbers(4)
    ours = run(
        x, lambda g, x: g.centred_conv(x, "c", layer=0), {"c.weight": weight, "c.bias": bias}
    )
    for row in range(7):
        for i in range(4):
            seen = [(weight[i, t], row - taps // 2 + t) for t in range(taps)]
            expected = bias[i] + sum(float(w) * float(x[at, i]) for w, at in seen if 0 <= at < 7)
            np.testing.assert_allclose(ours[row, i], expected, **NEAR)
    with pytest.raises(FormatError, match=r"c\.weight has weights of 4 tokens, an even number"):
        run(x, lambda g, x: g.centred_conv(x, "c", layer=0), {"c.weight": numbers(4, 4)})


@pytest.mark.parametrize("shape", [(2, 5), (2, 1, 1, 5)])
def test_a_token_is_mixed_with_the_one_before(shape):
    x, mix = numbers(ROWS, 5), numbers(*shape)
    before = np.concatenate([np.zeros((1, 5), np.float32), x[:-1]])
    for row in range(2):
        ours = run(
            x, lambda g, x, row=row: g.token_shift(x, "m", layer=0, row=row), {"m.weight": mix}
        )
        np.testing.assert_allclose(ours, x + (before - x) * mix.reshape(2, 5)[row], **NEAR)
    with pytest.raises(FormatError, match=r"tensor m\.weight has 2 rows of 5 numbers, not 3"):
        run(x, lambda g, x: g.token_shift(x, "m", layer=0, row=2), {"m.weight": mix})


def test_each_number_has_a_weight():
    x, weight = numbers(ROWS, 6), numbers(2, 3)
    ours = run(x, lambda g, x: g.weigh(x, "w"), {"w.weight": weight})
    np.testing.assert_allclose(ours, x * weight.ravel(), **NEAR)
    with pytest.raises(FormatError, match=r"tensor w\.weight has shape \(5,\), not \(6,\)"):
        run(x, lambda g, x: g.weigh(x, "w"), {"w.weight": numbers(5)})


def test_a_row_may_change_a_convolution_s_weights():
    """Those of each group of numbers alike."""
    x, weight, more = numbers(7, 4), numbers(4, 3), numbers(7, 2 * 3)
    ours = run(
        x, lambda g, x: g.conv(x, "c", g.embed("more"), layer=0),
        {"c.weight": weight, "more.weight": more},
    )  # fmt: skip
    for row in range(7):
        for i in range(4):
            taps = [float(weight[i, t]) + float(more[row, i // 2 * 3 + t]) for t in range(3)]
            seen = [(w, row - 2 + t) for t, w in enumerate(taps)]
            expected = sum(w * float(x[at, i]) for w, at in seen if at >= 0)
            np.testing.assert_allclose(ours[row, i], expected, **NEAR)
    with pytest.raises(FormatError, match=r"is 4 wide, which is no 9 / 3"):
        run(
            x, lambda g, x: g.conv(x, "c", g.embed("more"), layer=0),
            {"c.weight": weight, "more.weight": numbers(7, 9)},
        )  # fmt: skip


def test_softmax_of_each_group():
    x = numbers(ROWS, 6)
    ours = run(x, lambda g, x: g.softmax(x, group=3))
    for row, y in zip(x.reshape(-1, 3), ours.reshape(-1, 3), strict=True):
        whole = sum(exp(v) for v in row)
        np.testing.assert_allclose(y, [exp(v) / whole for v in row], **NEAR)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_a_norm_that_only_shortens(shape):
    """Groups of three numbers: without weights, with weights for all of them, or for each."""
    x, weight = numbers(ROWS, 6), numbers(*shape)
    name, held = ("n", {"n.weight": weight}) if shape else ("", {})
    ours = run(x, lambda g, x: g.clip_norm(x, name, 1.2, group=3), held)
    factors = np.broadcast_to(weight if shape else 1.0, (2, 3)).astype(float)
    for row, y in zip(x.reshape(ROWS, 2, 3), ours.reshape(ROWS, 2, 3), strict=True):
        for v, w, group in zip(row, factors, y, strict=True):
            length = sqrt(sum((v * w) ** 2))
            np.testing.assert_allclose(group, v * w * min(1, 1.2 / (length + 1e-6)), **NEAR)


@pytest.mark.parametrize("is_centred", [False, True])
def test_a_magnitude_is_one_number_for_a_row(is_centred):
    """And it multiplies all numbers of a row."""
    x, b = numbers(ROWS, 10) * 4 + 1, numbers(ROWS, 6)

    def build(g, x):
        g.mul(g.magnitude(x, is_centred=is_centred), g.embed("b"))

    size = x.std(axis=1) if is_centred else np.sqrt((x.astype(float) ** 2).mean(axis=1))
    np.testing.assert_allclose(run(x, build, {"b.weight": b}), size[:, None] * b, **NEAR)


def test_of_groups_that_lie_side_by_side_one_is_picked():
    x = numbers(3, 12)
    for first, last in ((0, 4), (4, 6)):
        ours = run(x, lambda g, x, first=first, last=last: g.pick(x, 6, first, last))
        expected = x.reshape(3, 2, 6)[:, :, first:last].reshape(3, -1)
        np.testing.assert_array_equal(ours, expected)
    with pytest.raises(FormatError, match="no whole number of heads of 10"):
        run(x, lambda g, x: g.pick(x, 10, 0, 5))
    with pytest.raises(FormatError, match="groups of 6, and not 2 to 7"):
        run(x, lambda g, x: g.pick(x, 6, 2, 7))


def test_groups_of_two_are_joined_and_each_head_has_a_matrix():
    a, b, weight = numbers(3, 6), numbers(3, 4), numbers(2, 3, 5)
    ours = run(a, lambda g, x: g.join(x, g.embed("b"), 2), {"b.weight": b})
    joined = np.concatenate([a.reshape(3, 2, 3), b.reshape(3, 2, 2)], axis=2).reshape(3, 10)
    np.testing.assert_array_equal(ours, joined)
    with pytest.raises(FormatError, match=r"b is 4 wide, which is no 3 groups"):
        run(a, lambda g, x: g.join(x, g.embed("b"), 3), {"b.weight": b})
    ours = run(joined, lambda g, x: g.heads_linear(x, "w"), {"w.weight": weight})
    expected = [[w @ x for w, x in zip(weight, row.reshape(2, 5), strict=True)] for row in joined]
    np.testing.assert_allclose(ours, np.reshape(expected, (3, 6)), **NEAR)
    with pytest.raises(FormatError, match="takes 2 heads of 5 inputs; 6 come in"):
        run(a, lambda g, x: g.heads_linear(x, "w"), {"w.weight": weight})


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize(("factors", "learn_factor"), [(1, 1.0), (1, 2.0), (3, 1.0)])
def test_a_delta_net_turns_its_state_with_each_token(grouped, factors, learn_factor):
    """By the definition, number by number, in float64."""
    k_heads, heads, keys, values = 2, 4, 3, 5
    width = 2 * k_heads * keys + heads * values
    dt = numbers(heads * factors)
    x, weights = numbers(6, width), {"ssm_a": -abs(numbers(1, heads, 1)), "ssm_dt.bias": dt}
    a, b = numbers(6, heads * factors), numbers(6, heads)
    shape = {"k_heads": k_heads, "heads": heads, "keys": keys, "values": values}
    ours = run(
        x, lambda g, x: g.delta_net(
            x, g.embed("a"), g.embed("b"), "", layer=0, **shape, grouped=grouped,
            learn_factor=learn_factor,
        ),
        weights | {"a.weight": a, "b.weight": b},
    )  # fmt: skip
    for head in range(heads):
        k_head = head // 2 if grouped else head % 2
        state = np.zeros((keys, values))
        for t, row in enumerate(x.astype(float)):
            q, k = row[: 2 * k_heads * keys].reshape(2, k_heads, keys)[:, k_head]
            q, k = (each / np.sqrt(each @ each + 1e-6) for each in (q, k))
            v = row[2 * k_heads * keys :].reshape(heads, values)[head]
            mine = slice(head * factors, (head + 1) * factors)
            step = np.log1p(np.exp(a[t, mine].astype(float) + dt[mine]))
            state *= np.exp(float(weights["ssm_a"][0, head, 0]) * step)[:, None]
            state += np.outer(k, (v - k @ state) * learn_factor / (1 + np.exp(-float(b[t, head]))))
            expected = q @ state / np.sqrt(keys)
            found = ours[t].reshape(heads, values)[head]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_state_of_rwkv_decays_loses_what_it_had_at_a_key_and_adds_a_value():
    """By the definition, head by head, in float64; then what a token gives itself."""
    heads, n = 2, 3
    v, r, keep, k, removed, loss = rows = numbers(6, 5, heads * n)
    held = {f"{name}.weight": x for name, x in zip("rekml", rows[1:], strict=True)}
    ours = run(v, lambda g, x: g.wkv7(x, *map(g.embed, "rekml"), layer=0, size=n), held)
    for head in range(heads):
        mine, state = slice(head * n, (head + 1) * n), np.zeros((n, n))
        for t in range(5):
            had = removed[t, mine].astype(float) @ state
            state = keep[t, mine].astype(float)[:, None] * state - np.outer(loss[t, mine], had)
            state += np.outer(k[t, mine].astype(float), v[t, mine])
            np.testing.assert_allclose(ours[t, mine], r[t, mine] @ state, rtol=1e-4, atol=1e-5)
    own = run(v, lambda g, x: g.own_value(x, *map(g.embed, "rek"), size=n), held)
    expected = [e * (a @ b) + c for a, b, e, c in zip(
        *(x.reshape(-1, n).astype(float) for x in (v, r, keep, k)), strict=True)]  # fmt: skip
    np.testing.assert_allclose(own.reshape(-1, n), expected, **NEAR)
    with pytest.raises(FormatError, match=r"read rows of one width, not .* \(6\), .* \(3\)"):
        run(v, lambda g, x: g.own_value(x, x, x, g.embed("s"), size=n), {"s.weight": numbers(5, 3)})


def test_positions_are_looked_up():
    x, table = numbers(3, 4), numbers(50, 4)
    ours = run(x, lambda g, _: g.embed_positions("p", 50), {"p.weight": table}, [7, 8, 9])
    np.testing.assert_array_equal(ours, table[7:10])
    with pytest.raises(FormatError, match="50 rows for 51 positions"):
        run(x, lambda g, _: g.embed_positions("p", 51), {"p.weight": table})


@pytest.mark.parametrize("group", [None, 3, 12])
def test_rms_norm(group):
    x, width = numbers(ROWS, 12) * 3, group or 12
    weight = numbers(width)
    ours = run(x, lambda g, x: g.rms_norm(x, "n", 0.01, group=group), {"n.weight": weight})
    for row, x_row in zip(ours, x.astype(float), strict=True):
        for i in range(0, 12, width):
            part = x_row[i : i + width]
            expected = part / sqrt(sum(v * v for v in part) / width + 0.01) * weight
            np.testing.assert_allclose(row[i : i + width], expected, **NEAR)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
def test_each_group_of_a_norm_may_have_weights_of_its_own(kind):
    x, held = numbers(ROWS, 12), {"n.weight": numbers(12), "n.bias": numbers(12)}
    parts = [
        run(x[:, at : at + 4], lambda g, x: getattr(g, kind)(x, "n", 0.01),
            {name: vector[at : at + 4] for name, vector in held.items()})
        for at in range(0, 12, 4)
    ]  # fmt: skip
    ours = run(x, lambda g, x: getattr(g, kind)(x, "n", 0.01, group=4), held)
    np.testing.assert_allclose(ours, np.concatenate(parts, axis=1), **NEAR)


@pytest.mark.parametrize("biased", [True, False])
def test_layer_norm(biased):
    x, weight, bias = numbers(ROWS, 12) * 3 + 5, numbers(12), numbers(12) * biased
    held = {"n.weight": weight} | ({"n.bias": bias} if biased else {})
    ours = run(x, lambda g, x: g.layer_norm(x, "n", 0.01, bias=biased), held)
    for row, v in zip(ours, x, strict=True):
        mean = sum(v.astype(float)) / 12
        variance = sum((v - mean) ** 2) / 12
        expected = (v - mean) / sqrt(variance + 0.01) * weight + bias
        np.testing.assert_allclose(row, expected, **NEAR)


@pytest.mark.parametrize("rows", [None, (0, 3), (2, 7), (6, 7)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_and_a_slice_of_it(rows, bias):
    x, weight, b = numbers(ROWS, 5), numbers(7, 5), numbers(7)
    held = {"w.weight": weight} | ({"w.bias": b} if bias else {})
    whole = x.astype(float) @ weight.T.astype(float) + (b if bias else 0)
    ours = run(x, lambda g, x: g.linear(x, "w", rows), held)
    np.testing.assert_allclose(ours, whole[:, slice(*rows or (0, 7))], **NEAR)


@pytest.mark.parametrize(
    "mixture",
    [
        Mixture(used=1), Mixture(used=2), Mixture(used=2, normed=False),
        Mixture(used=3, gating="sigmoid", scale=1.5),
        Mixture(used=2, activation="clamped_swiglu", limit=0.75),
        Mixture(used=2, weighs_input=True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("biased", [False, True])
def test_experts(mixture, biased):
    count, n, inner = 5, 6, 4
    x, scores = numbers(ROWS, n), numbers(ROWS, count)
    scores[0] = 1.0  # ties go to the lowest index
    sizes = {"gate": (inner, n), "up": (inner, n), "down": (n, inner)}
    w = {role: numbers(count, *shape) for role, shape in sizes.items()}
    add = {role: numbers(count, shape[0]) * biased for role, shape in sizes.items()}
    choosing = numbers(count)
    held = {f"ffn_{role}_exps.weight": each for role, each in w.items()}
    if biased:
        held |= {f"ffn_{role}_exps.bias": each for role, each in add.items()}
        held["exp_probs_b.bias"] = choosing
    ours = run(x, lambda g, x: g.experts(x, g.embed("s"), "", mixture), held | {"s.weight": scores})
    chosen = mixture.choose(scores, choosing if biased else None)
    for row, v, ids, weights in zip(ours, x.astype(float), *chosen, strict=True):
        expected = np.zeros(n)
        for e, weight in zip(ids, weights, strict=True):
            before, after = (weight, 1) if mixture.weighs_input else (1, weight)
            gate, up = (w[role][e] @ (before * v) + add[role][e] for role in ("gate", "up"))
            inside = [a / (1 + exp(-a)) * b for a, b in zip(gate, up, strict=True)]
            if mixture.limit:
                gate, up = np.minimum(gate, 0.75), np.clip(up, -0.75, 0.75) + 1
                inside = [a / (1 + exp(-1.702 * a)) * b for a, b in zip(gate, up, strict=True)]
            expected += after * (w["down"][e] @ np.array(inside) + add["down"][e])
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)


def test_plain_experts():
    """relu², without a gate."""
    x, scores, up, down = numbers(ROWS, 6), numbers(ROWS, 3), numbers(3, 4, 6), numbers(3, 6, 4)
    held = {"ffn_up_exps.weight": up, "ffn_down_exps.weight": down, "s.weight": scores}
    mixture = Mixture(used=1, activation="relu2")
    ours = run(x, lambda g, x: g.experts(x, g.embed("s"), "", mixture), held)
    for row, v, e in zip(ours, x, scores.argmax(axis=1), strict=True):
        expected = down[e] @ np.maximum(up[e] @ v, 0) ** 2
        np.testing.assert_allclose(row, expected, rtol=1e-4, atol=1e-5)
