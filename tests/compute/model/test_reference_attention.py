"""Rotary positions and attention of the reference backend against their formulas in float64."""

from math import ceil, cos, exp, floor, log, pi, sin, tanh

import numpy as np
import pytest

from cutaway.compute.backends.layout import KV_BLOCK
from cutaway.compute.model.ops.attention import Heads, Mask
from cutaway.compute.model.positions import GrowingRope, LooksBack, Rope, Yarn
from cutaway.errors import FormatError
from support.reference_rows import NEAR, RNG, ROWS, numbers, run


def test_a_latent_is_key_and_value_and_a_layer_reads_another_s():
    q, k, v = numbers(5, 2 * 6), numbers(5, 6), numbers(5, 6)
    held = {"k.weight": k, "v.weight": v}

    def latent(g, x):
        g.attend_latent(x, g.embed("k"), layer=0, heads=2, first=2, scale=0.5)

    def plain(g, x, again=False):
        k, v = g.embed("k"), g.embed("v")
        g.attend(x, k, v, layer=0, heads=Heads(2, 1, 6), scale=0.5)
        if again:
            g.attend_again(x, layer=1, reads=0, heads=2, scale=0.5)

    whole = run(q, plain, held | {"v.weight": k}).reshape(5, 2, 6)
    np.testing.assert_allclose(run(q, latent, held).reshape(5, 2, 4), whole[..., 2:], **NEAR)
    again = run(q, lambda g, x: plain(g, x, again=True), held)
    np.testing.assert_array_equal(again, run(q, plain, held))
    with pytest.raises(FormatError, match="layer 3 reads the keys and values of 2, which has none"):
        run(q, lambda g, x: g.attend_again(x, layer=3, reads=2, heads=2, scale=1.0))


YARN = Yarn(factor=8.0, original_context=64, fast=32.0, slow=1.0)
ROPES = {
    "neighbours": Rope(dim=8, base=100.0),
    "halves": Rope(dim=8, base=100.0, rotate_half=True),
    "some of a head": Rope(dim=4, base=100.0, rotate_half=True),
    "stretched": Rope(dim=8, base=100.0, linear_factor=4.0),
    "grown": Rope(dim=6, base=100.0, rotate_half=True, attention_factor=1.5),
    "yarn": Rope(dim=8, base=100.0, yarn=YARN, attention_factor=YARN.attention_factor),
}
FACTORS = np.array([1, 2, 4, 8], np.float32)


def yarn_share(pair, rope):
    """How much of a pair's frequency is stretched (Peng et al. 2023, eq. 23, rounded outwards)."""

    def pair_of(turns):
        return rope.dim * log(YARN.original_context / (turns * 2 * pi)) / (2 * log(rope.base))

    low, high = max(floor(pair_of(YARN.fast)), 0), min(ceil(pair_of(YARN.slow)), rope.dim - 1)
    return min(max((pair - low) / max(high - low, 0.001), 0), 1)


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("own", [False, True])
def test_rope(kind, own):
    rope, positions = ROPES[kind], [30, 31, 32]
    x = numbers(3, 20)  # two heads of 10
    pairs = rope.dim // 2
    held = {"f.weight": FACTORS[:pairs]} if own else {}
    factors = "f" if own else None
    ours = run(x, lambda g, x: g.rope(x, rope, head_dim=10, factors=factors), held, positions)
    expected = x.astype(float)
    for row, position in zip(expected, positions, strict=True):
        for head in row.reshape(2, 10):
            for i in range(pairs):
                frequency = rope.base ** (-2 * i / rope.dim) / (FACTORS[i] if own else 1)
                share = yarn_share(i, rope) if rope.yarn else 1
                by = YARN.factor if rope.yarn else rope.linear_factor
                angle = position * (frequency / by * share + frequency * (1 - share))
                a, b = (i, i + pairs) if rope.rotate_half else (2 * i, 2 * i + 1)
                u, v = head[a], head[b]
                head[a] = rope.attention_factor * (u * cos(angle) - v * sin(angle))
                head[b] = rope.attention_factor * (u * sin(angle) + v * cos(angle))
    np.testing.assert_allclose(ours, expected, **NEAR)


def test_yarn_makes_attention_sharper_by_the_paper():
    assert YARN.attention_factor == 0.1 * log(8) + 1
    assert Yarn(factor=1.0, original_context=64).attention_factor == 1


@pytest.mark.parametrize(
    ("window", "reach"), [(0, 0), (1, 0), (5, 0), (100, 0), (0, 1), (0, 6), (0, 100)]
)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("scale", [0.5, 2.0])
@pytest.mark.parametrize("limited", [False, True])
def test_attend(window, reach, softcap, scale, limited):
    """4 heads on 2 key-value heads, over more than one KV block."""
    heads, kv_heads, d, length = 4, 2, 3, KV_BLOCK + 8
    limits = np.arange(length, dtype=np.int32)
    if limited:  # each to any place behind its window's first
        back = reach + 1 if reach else window
        first = np.maximum(0, limits - back + 1) if back else 0 * limits
        limits = RNG.integers(first, length).astype(np.int32)
    q, k, v = (numbers(length, n * d) for n in (heads, kv_heads, kv_heads))
    ours = run(
        q,
        lambda g, x: g.attend(
            x, g.embed("k"), g.embed("v"), layer=0, heads=Heads(heads, kv_heads, d),
            scale=scale, softcap=softcap, mask=Mask(window, reach),
        ),
        {"k.weight": k, "v.weight": v},
        limits=limits if limited else None,
    )  # fmt: skip
    expected = np.zeros((length, heads, d))
    for t in range(length):
        seen = range(max(0, t - window + 1) if window else 0, limits[t] + 1)
        seen = [s for s in seen if not reach or abs(s - t) <= reach]
        for h in range(heads):
            at = slice(h // 2 * d, h // 2 * d + d)
            own = q[t, h * d : h * d + d].astype(float)
            scores = [scale * float(own @ k[s, at]) for s in seen]
            scores = [softcap * tanh(s / softcap) if softcap else s for s in scores]
            share = [exp(s - max(scores)) for s in scores]
            expected[t, h] = sum(w * v[s, at] for w, s in zip(share, seen, strict=True)) / sum(
                share
            )
    np.testing.assert_allclose(ours, expected.reshape(length, -1), **NEAR)


def test_a_limit_before_the_window_is_refused():
    def attend(g, x):
        g.attend(x, x, x, layer=0, heads=Heads(1, 1, 2), scale=1.0, mask=Mask(window=2))

    with pytest.raises(ValueError, match="before its row's window"):
        run(numbers(4, 2), attend, limits=np.array([0, 1, 2, 1], np.int32))


def test_rows_have_sinks_and_biases_of_their_own():
    """A query's bias number d is for the key d tokens back; beyond the last there is none."""
    q, k, v = numbers(ROWS, 4), numbers(ROWS, 2), numbers(ROWS, 2)
    sinks, back = numbers(ROWS, 2), numbers(ROWS, 2 * 3)
    ours = run(
        q,
        lambda g, x: g.attend(
            x, g.embed("k"), g.embed("v"), g.embed("back"), layer=0, heads=Heads(2, 1, 2),
            scale=1.0, sinks=g.embed("s"), bias=LooksBack(3),
        ),
        {"k.weight": k, "v.weight": v, "s.weight": sinks, "back.weight": back},
    )  # fmt: skip
    for t in range(ROWS):
        for h in range(2):
            biases = [back[t, 3 * h + t - s] if t - s < 3 else 0.0 for s in range(t + 1)]
            share = [exp(float(q[t, 2 * h : 2 * h + 2] @ k[s]) + b) for s, b in enumerate(biases)]
            whole = sum(share) + exp(sinks[t, h])
            expected = sum(w / whole * v[s] for s, w in enumerate(share))
            np.testing.assert_allclose(ours[t, 2 * h : 2 * h + 2], expected, **NEAR)


def test_numbers_grow_smoothly_with_the_position():
    x = numbers(ROWS, 4)
    rope = GrowingRope(dim=2, base=1.0, growth=0.5, period=3, offset=1, turns=False, is_smooth=True)
    ours = run(x, lambda g, x: g.rope(x, rope, head_dim=2))
    for t in range(ROWS):
        np.testing.assert_allclose(ours[t], x[t] * (1 + 0.5 * log(max((t + 1) / 3, 1))), **NEAR)


def test_sinks():
    """A score beside those of the tokens, with a share and no value."""
    q, k, v, sinks = numbers(ROWS, 4), numbers(ROWS, 2), numbers(ROWS, 2), numbers(2)
    ours = run(
        q,
        lambda g, x: g.attend(
            x, g.embed("k"), g.embed("v"), layer=0, heads=Heads(2, 1, 2), scale=1.0, sinks="s",
        ),
        {"k.weight": k, "v.weight": v, "s.weight": sinks},
    )  # fmt: skip
    for t in range(ROWS):
        for h in range(2):
            share = [exp(float(q[t, 2 * h : 2 * h + 2] @ k[s])) for s in range(t + 1)]
            whole = sum(share) + exp(sinks[h])
            expected = sum(w / whole * v[s] for s, w in enumerate(share))
            np.testing.assert_allclose(ours[t, 2 * h : 2 * h + 2], expected, **NEAR)
