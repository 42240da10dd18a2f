"""Keys and values as codes (kv="q8_0"): the definition, every tier, and the bits contract."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.compute import backends
from cutaway.compute.backends.kv_formats import as_q8_0, q8_0
from cutaway.errors import InputError
from cutaway.trace import Trace
from support import attention_by_definition
from support.attention_by_definition import in_order, random_qkv
from support.native_plans import TIERS, assert_same_bits, attention

BEST = TIERS[0]


def q8(tier, qkv, shape, **how):
    return attention(tier, qkv, shape, kv="q8_0", **how)


check = partial(attention_by_definition.check, kv="q8_0")


# -- the definition --------------------------------------------------------------------------------


def by_hand(block):
    """Codes and scale of up to 32 numbers, one at a time."""
    held = [min(max(float(x), -65504.0), 65504.0) if x == x else 65504.0 for x in block]
    scale = np.float16(np.float32(max(map(abs, held))) / np.float32(127))
    if scale == 0:
        return [0] * len(held), scale
    exact = (np.float32(x) / np.float32(scale) for x in held)
    return [round(min(max(float(x), -127.0), 127.0)) for x in exact], scale  # ties to even


@given(arrays(np.float32, st.integers(1, 70), elements=st.floats(width=32)))
def test_the_definition_number_by_number(x):
    codes, scales = q8_0(x)
    for i, scale in enumerate(scales):
        expected, expected_scale = by_hand(x[32 * i : 32 * i + 32])
        assert codes[32 * i : 32 * i + 32].tolist() == expected
        assert scale == expected_scale
    assert np.isfinite(as_q8_0(x)).all()


def odd_numbers(shape, length):
    """Of all sizes; with ties, zeros, halves that are subnormal, infinities and no number."""
    qkv = random_qkv(shape, length) * np.exp2(
        np.random.default_rng(3).integers(-30, 18, (1, length, 1))
    ).astype(np.float32)
    qkv[0, 1] = np.arange(qkv.shape[2]) % 128 - 0.5
    qkv[0, 2], qkv[0, 3], qkv[0, 4] = 0, 1e-8, 3e38
    qkv[0, 5, ::7], qkv[0, 6, ::5], qkv[0, 7, ::9] = np.inf, -np.inf, np.nan
    return qkv


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("head_dim", [2, 10, 40, 64, 80, 128, 256])
def test_the_bytes_of_a_block_are_the_definition_s(tier, head_dim):
    shape = {"heads": 2, "kv_heads": 2, "head_dim": head_dim}
    qkv, stored = odd_numbers(shape, 64), []
    q8(tier, qkv, shape, tables=in_order(64), cuts=(20, 1, 43), stored=stored)
    heads = qkv[0, :, 2 * head_dim :].reshape(2, 32, 2, 2, head_dim)  # block, token, k or v, head
    width = -(-head_dim // 16) * 16
    padded = np.zeros((*heads.shape[:-1], width), np.float32)
    padded[..., :head_dim] = heads
    for block, raw in enumerate(stored):
        parts = []
        for head in range(2):
            codes, scales = q8_0(heads[block, :, 0, head])
            parts += [codes.T, scales.T]  # keys: a dimension's tokens side by side
        for head in range(2):
            parts += [*q8_0(padded[block, :, 1, head])]
        expected = [np.ascontiguousarray(part).view(np.uint8).ravel() for part in parts]
        keys, values = np.concatenate(expected[:4]), np.concatenate(expected[4:])
        np.testing.assert_array_equal(raw[: len(keys)], keys)
        start = -(-len(keys) // 64) * 64
        np.testing.assert_array_equal(raw[start : start + len(values)], values)


# -- attention -------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [2, 10, 24, 32, 40, 64, 80, 96, 128, 256])
def test_head_sizes(head_dim):
    check({"heads": 2, "kv_heads": 1, "head_dim": head_dim, "rope_dim": head_dim}, 70)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2), (9, 3), (5, 1), (7, 1), (16, 2)])
def test_grouped_heads_over_several_chunks(heads, kv_heads):
    check({"heads": heads, "kv_heads": kv_heads, "head_dim": 16, "rope_dim": 8}, 300)


@pytest.mark.parametrize("window", [1, 33, 257])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_windows_and_soft_caps(window, softcap):
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 40, "window": window, "softcap": softcap}
    check(shape, 300, cuts=(290, 1, 5), threads=2)


def test_limits():
    limits = np.minimum(np.arange(90) // 30 * 30 + 29, 89)  # spans that see all of themselves
    check({"heads": 4, "kv_heads": 2, "head_dim": 64}, 90, cuts=(30,), limits=limits)


@pytest.mark.parametrize("window", [0, 40])
def test_cuts_threads_blocks_and_neighbours_change_no_bit(window):
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 40, "rope_dim": 8, "window": window}
    qkv = random_qkv(shape, 300, sequences=2)
    scrambled = np.random.default_rng(1).permutation(20).reshape(2, 10)
    together = q8(BEST, qkv, shape, tables=scrambled, cuts=(19,), threads=3)
    for s in range(2):
        for cuts in ((300,), (1,), (255, 2, 33)):
            alone = q8(BEST, qkv[s : s + 1], shape, tables=in_order(300), cuts=cuts)
            assert_same_bits(together[s : s + 1], alone)
    halves = attention(BEST, qkv, shape, tables=scrambled, cuts=(19,))
    assert not np.array_equal(halves, together)


# -- whole models ----------------------------------------------------------------------------------


TEXT = np.random.default_rng(0).integers(3, 260, 200).tolist()


def test_both_backends_mean_the_same(wide_path):
    of = {
        name: [LLM(wide_path, backend=name, kv=kv).logits(TEXT) for kv in ("q8_0", "f16")]
        for name in ("cpu", "reference")
    }
    apart = np.linalg.norm(of["cpu"][0] - of["reference"][0])
    assert apart < 0.01 * np.linalg.norm(of["reference"][0])
    for rounded, plain in of.values():
        assert not np.array_equal(rounded, plain)


def test_company_prefixes_threads_and_speculation_change_no_bit(wide_path):
    options = {"max_tokens": 40, "seed": 1, "ignore_eos": True, "temperature": 1.0}
    alone = LLM(wide_path, kv="q8_0", threads=1, prefix_cache=False).generate(TEXT[:150], **options)
    llm = LLM(wide_path, kv="q8_0", threads=3)
    found = llm.generate([TEXT[:150], TEXT[20:60], TEXT[:150]], **options)
    again = llm.generate(TEXT[:150], **options)
    guessed = llm.generate(TEXT[:150], speculate="ngram", **options)
    for other in (found[0], found[2], again, guessed):
        assert other.token_ids == alone.token_ids
        assert other.fingerprint == alone.fingerprint
    assert again.usage.cached_tokens
    assert LLM(wide_path).generate(TEXT[:150], **options).fingerprint != alone.fingerprint


def test_verify_passes(wide_path, capsys):
    assert main(["verify", "-m", str(wide_path), "--kv", "q8_0", "--threads", "1,2", "-q"]) == 0
    assert "tiny+kv-q8_0" in capsys.readouterr().out


def test_the_layout_and_the_sizes_say_so(wide_path, capsys):
    llm = LLM(wide_path, kv="q8_0", backend="cpu")
    (group,) = llm.backend.kv.groups
    assert group.format == "Q8_0"
    assert group.bytes_per_token == 2 * 4 * 2 * (16 + 2)  # layers, heads, k and v, codes and scale
    assert backends.kv_layout(llm.graph, "q8_0") == llm.backend.kv
    assert main(["models", "show", str(wide_path), "--kv", "q8_0"]) == 0
    assert "288 bytes a token" in capsys.readouterr().out
    assert main(["models", "--kv", "q8_0"]) == 2


def test_a_trace_is_replayed_with_what_it_was_made_with(wide_path, tmp_path, capsys):
    llm, trace = LLM(wide_path, kv="q8_0"), tmp_path / "run.jsonl"
    made = llm.generate("ab", max_tokens=5, seed=1, trace=str(trace))
    head, plain = Trace.read(trace).head, LLM(wide_path)
    assert made.model == head.model == "tiny+kv-q8_0"
    assert head.weights == llm.model.identity.weights != plain.model.identity.weights
    assert main(["trace", "replay", str(trace), "-m", str(wide_path), "--kv", "q8_0"]) == 0
    assert main(["trace", "replay", str(trace), "-m", str(wide_path)]) == 2
    assert "weights" in capsys.readouterr().err


@pytest.mark.parametrize("kv", ["Q8_0", "q4_0", "", None, 8])
def test_other_formats_are_refused_before_anything_is_loaded(kv):
    with pytest.raises(InputError, match="kv must be one of f16, q8_0, not"):
        LLM("no such model", kv=kv)
