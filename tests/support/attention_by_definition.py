"""Attention by its textbook definition, in float64, and random numbers to compare."""

from functools import partial

import numpy as np

from cutaway.compute.backends.layout import as_stored, keys_and_values
from support.native_plans import TIERS, assert_same_bits, attention


def storing(format):
    """Return the function float32 -> numbers as the cpu backend stores them."""
    return (lambda x: x.astype(np.float16)) if format == "f16" else partial(as_stored, format)


def rotate(vectors, rope_dim, base, factor, rotate_half):
    """Rotate the first rope_dim numbers of vectors (T, heads, d) by their positions, in place."""
    half = np.arange(0, rope_dim, 2)
    angle = np.arange(len(vectors))[:, None, None] * base ** (-half / max(rope_dim, 1))
    cos, sin = ((factor * f(angle)).astype(np.float32) for f in (np.cos, np.sin))
    middle = rope_dim // 2
    halves = slice(middle), slice(middle, rope_dim)
    first, second = halves if rotate_half else (slice(0, rope_dim, 2), slice(1, rope_dim, 2))
    x, y = vectors[..., first].copy(), vectors[..., second].copy()
    vectors[..., first], vectors[..., second] = x * cos - y * sin, x * sin + y * cos


def hidden_keys(length, limits, hidden_from, window, chunked, reach):
    """Return the mask (rows, keys) of the keys that each row must not attend to."""
    keys = np.arange(length)
    rows = keys[:, None]
    hidden = keys > (rows if limits is None else np.asarray(limits)[:, None])
    if chunked:
        hidden |= keys < rows // window * window
    elif window:
        hidden |= keys <= rows - window
    if reach:
        hidden |= abs(keys - rows) > reach
    if hidden_from is not None:
        hidden |= np.asarray(hidden_from) <= rows
    return hidden


def textbook(
    qkv, heads, kv_heads, head_dim, rope_dim=0, base=10000.0, softcap=0.0, window=0,
    rotate_half=False, attention_factor=1.0, scale=None, limits=None, kv="f16",
    hidden_from=None, reach=0, sinks=None, chunked=False, value_first=0, value_dim=0,
):  # fmt: skip
    """One sequence, qkv (T, width), in float64; keys and values as they are stored.

    sinks (heads,): an additional score for each head, without a value
    value_dim: how many numbers a value has; 0: as many as a key, and values are separate
    value_first: from where on these are numbers of the keys; -1: values are separate
    hidden_from (T,): for each position the first later one whose row does not attend to it
    """
    length, d = len(qkv), head_dim
    q, k, v = np.split(qkv, [heads * d, (heads + kv_heads) * d], axis=1)
    q, k, v = (
        a.reshape(length, -1, n).copy() for a, n in ((q, d), (k, d), (v, v.shape[1] // kv_heads))
    )
    for vectors in (q, k):
        rotate(vectors, rope_dim, base, attention_factor, rotate_half)
    k, v = (
        np.repeat(storing(format)(a).astype(float), heads // kv_heads, 1)
        for format, a in zip(keys_and_values(kv), (k, v), strict=True)
    )
    if value_dim and value_first >= 0:
        v = k[..., value_first : value_first + value_dim]
    scores = np.einsum("rhd,thd->hrt", q.astype(float), k) * (scale or d**-0.5)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores[:, hidden_keys(length, limits, hidden_from, window, chunked, reach)] = -np.inf
    if sinks is not None:
        beside = np.broadcast_to(np.asarray(sinks)[:, None, None], (*scores.shape[:2], 1))
        scores = np.concatenate([scores, beside], axis=-1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    weights = weights[..., :length]
    return np.einsum("hrt,thd->rhd", weights, v).reshape(length, -1)


def random_qkv(shape, length, sequences=1, seed=0):
    d, of_value = shape["head_dim"], shape.get("value_dim")
    of_value = of_value if shape.get("value_first") == -1 else d
    width = (shape["heads"] + shape["kv_heads"]) * d + shape["kv_heads"] * of_value
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(sequences, length, width)) * 1.5).astype(np.float32)


def make_tables(length, sequences=1):
    blocks = -(-length // 32)
    return np.arange(sequences * blocks).reshape(sequences, blocks)


def check(
    shape, length, *, tiers=TIERS, cuts=(512,), threads=1, kv="f16", limits=None, hidden_from=None
):
    """Check one sequence: the first tier has the textbook's numbers, all tiers have equal bits."""
    qkv = random_qkv(shape, length)
    more = {"limits": limits, "hidden_from": hidden_from}
    expected = textbook(qkv[0], **shape, **more, kv=kv)
    more = {key: None if rows is None else rows[None] for key, rows in more.items()}
    options = {"tables": make_tables(length), "cuts": cuts, "threads": threads, "kv": kv}
    outputs = [attention(tier, qkv, shape, **options, **more) for tier in tiers]
    assert np.abs(outputs[0][0] - expected).max() < 2e-5 * np.abs(expected).max()
    for other in outputs[1:]:
        assert_same_bits(other, outputs[0])
