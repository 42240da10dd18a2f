"""Keys and values as codes (kv="q5_1,q4_0"): the definitions, every tier, the bits contract."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cutaway import LLM
from cutaway.base import _native
from cutaway.cli.main import main
from cutaway.compute import backends
from cutaway.compute.backends.layout import CODERS, as_stored, check_kv
from cutaway.errors import CutawayError, InputError
from cutaway.trace import Trace
from support import attention_by_definition
from support.attention_by_definition import make_tables, random_qkv
from support.native_plans import TIERS, assert_same_bits, attention, batch_of
from support.random_llama import write_tiny_llama

BEST = TIERS[0]
CODED = tuple(CODERS)
KINDS = (*CODED, "q8_0,q4_0", "f16,q5_1", "q4_0,f16")
"""Every format as keys and as values, and formats that differ."""

check = attention_by_definition.check


# -- the definitions -------------------------------------------------------------------------------


def held(block):
    return [min(max(float(x), -65504.0), 65504.0) if x == x else 65504.0 for x in block]


def nearest(numbers, scale, low, high):
    if scale == 0:
        return [0] * len(numbers)
    exact = (np.float32(x) / np.float32(scale) for x in numbers)
    return [round(min(max(float(x), low), high)) for x in exact]  # ties to even


def q8_0_by_hand(x):
    scale = np.float16(np.float32(max(map(abs, x))) / np.float32(127))
    return nearest(x, scale, -127, 127), scale, 0.0


def q5_1_by_hand(x):
    least = np.float32(min(x))
    scale = np.float16((np.float32(max(x)) - least) / np.float32(31))
    minimum = np.float32(np.float16(least))
    return nearest([np.float32(each) - minimum for each in x], scale, 0, 31), scale, minimum


def q4_0_by_hand(x):
    scale = np.float16(np.float32(max(sorted(x, reverse=True), key=abs)) / np.float32(-8))
    return [8 + code for code in nearest(x, scale, -8, 7)], scale, -8 * float(scale)


BY_HAND = {"q8_0": q8_0_by_hand, "q5_1": q5_1_by_hand, "q4_0": q4_0_by_hand}


@pytest.mark.parametrize("format", CODED)
@given(x=arrays(np.float32, st.integers(1, 70), elements=st.floats(width=32)))
def test_the_definition_number_by_number(format, x):
    codes, scales, minima = CODERS[format](x)
    numbers = as_stored(format, x)
    for i, (scale, minimum) in enumerate(zip(scales, minima, strict=True)):
        part = slice(32 * i, 32 * i + 32)
        expected, *halves = BY_HAND[format](held(x[part]))
        assert codes[part].tolist() == expected
        if np.isnan(x[part]).any():
            assert np.isnan(scale) and np.isnan(numbers[part]).all()
            continue
        assert np.isfinite(numbers[part]).all()
        assert [scale, minimum] == halves
        exact = [code * float(scale) + float(minimum) for code in expected]
        assert numbers[part].tolist() == np.float32(exact).tolist()


@pytest.mark.parametrize("format", CODED)
def test_more_bits_are_nearer(format):
    x = np.random.default_rng(0).normal(size=(100, 64)).astype(np.float32)
    apart = float(np.abs(as_stored(format, x) - x).max())
    assert apart < {"q8_0": 0.02, "q5_1": 0.13, "q4_0": 0.4}[format]


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
def test_the_bytes_of_a_q8_0_block_are_the_definition_s(tier, head_dim):
    shape = {"heads": 2, "kv_heads": 2, "head_dim": head_dim}
    qkv, stored = odd_numbers(shape, 64), []
    attention(tier, qkv, shape, kv="q8_0", tables=make_tables(64), cuts=(20, 1, 43), stored=stored)
    heads = qkv[0, :, 2 * head_dim :].reshape(2, 32, 2, 2, head_dim)  # block, token, k or v, head
    padding = -head_dim % 16
    padded = np.pad(heads, [(0, 0)] * 4 + [(0, padding)], mode="edge")
    for block, raw in enumerate(stored):
        parts = []
        for head in range(2):
            codes, scales, _ = CODERS["q8_0"](heads[block, :, 0, head])
            parts += [codes.T, scales.T]  # keys: a dimension's tokens side by side
        for head in range(2):
            parts += [*CODERS["q8_0"](padded[block, :, 1, head])[:2]]
        expected = [np.ascontiguousarray(part).view(np.uint8).ravel() for part in parts]
        keys, values = np.concatenate(expected[:4]), np.concatenate(expected[4:])
        np.testing.assert_array_equal(raw[: len(keys)], keys)
        start = -(-len(keys) // 64) * 64
        np.testing.assert_array_equal(raw[start : start + len(values)], values)


@pytest.mark.parametrize("kv", KINDS)
@pytest.mark.parametrize("head_dim", [2, 10, 40, 64, 80])
def test_every_tier_stores_the_same_bytes(kv, head_dim):
    """What they stand for is read back in test_keys_and_values_are_read_as_they_are_stored."""
    shape = {"heads": 2, "kv_heads": 2, "head_dim": head_dim}
    qkv, found = odd_numbers(shape, 64), []
    for tier in TIERS:
        stored = []
        attention(tier, qkv, shape, kv=kv, tables=make_tables(64), cuts=(20, 1, 43), stored=stored)
        found.append(np.concatenate(stored))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


# -- attention -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv", KINDS)
@pytest.mark.parametrize("head_dim", [2, 10, 24, 32, 40, 64, 80, 96, 128, 256])
def test_head_sizes(kv, head_dim):
    check({"heads": 2, "kv_heads": 1, "head_dim": head_dim, "rope_dim": head_dim}, 70, kv=kv)


@pytest.mark.each_choice
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2), (9, 3), (5, 1), (7, 1), (16, 2)])
@pytest.mark.parametrize("kv", CODED)
def test_grouped_heads_over_several_chunks(heads, kv_heads, kv):
    check({"heads": heads, "kv_heads": kv_heads, "head_dim": 16, "rope_dim": 8}, 300, kv=kv)


@pytest.mark.each_choice
@pytest.mark.parametrize("window", [1, 33, 257])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("kv", CODED)
def test_windows_and_soft_caps(window, softcap, kv):
    shape = {"heads": 2, "kv_heads": 1, "head_dim": 40, "window": window, "softcap": softcap}
    check(shape, 300, cuts=(290, 1, 5), threads=2, kv=kv)


@pytest.mark.parametrize("kv", CODED)
def test_limits(kv):
    limits = np.minimum(np.arange(90) // 30 * 30 + 29, 89)  # spans that see all of themselves
    check({"heads": 4, "kv_heads": 2, "head_dim": 64}, 90, cuts=(30,), limits=limits, kv=kv)


@pytest.mark.parametrize("window", [0, 40])
@pytest.mark.parametrize("kv", KINDS)
def test_cuts_threads_blocks_and_neighbours_change_no_bit(window, kv):
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 40, "rope_dim": 8, "window": window}
    qkv = random_qkv(shape, 300, sequences=2)
    scrambled = np.random.default_rng(1).permutation(20).reshape(2, 10)
    coded = partial(attention, BEST, shape=shape, kv=kv)
    together = coded(qkv, tables=scrambled, cuts=(19,), threads=3)
    for s in range(2):
        for cuts in ((300,), (1,), (255, 2, 33)):
            alone = coded(qkv[s : s + 1], tables=make_tables(300), cuts=cuts)
            assert_same_bits(together[s : s + 1], alone)
    halves = attention(BEST, qkv, shape, tables=scrambled, cuts=(19,))
    assert not np.array_equal(halves, together)


# -- whole models ----------------------------------------------------------------------------------


TEXT = np.random.default_rng(0).integers(3, 260, 200).tolist()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kv", ["f16", *CODED])
def test_logits_that_are_not_finite_end_a_text_whatever_stores_it(tmp_path, kv, backend):
    """Norms of NaN make keys and values of NaN, which codes cannot say."""
    name, nan = "blk.0.attn_norm", np.full(32, np.nan, np.float32)
    path = write_tiny_llama(
        tmp_path / "nan.gguf", vectors={f"{name}.weight": nan}, skip_tensor=name
    )
    with pytest.raises(CutawayError, match="are not finite"):
        LLM(path, kv=kv, backend=backend).generate("abc", temperature=0, max_tokens=4)


@pytest.mark.parametrize("kv", KINDS)
def test_both_backends_mean_the_same(wide_path, kv):
    of = {
        name: [LLM(wide_path, backend=name, kv=each).logits(TEXT) for each in (kv, "f16")]
        for name in ("cpu", "reference")
    }
    apart = np.linalg.norm(of["cpu"][0] - of["reference"][0])
    assert apart < 0.01 * np.linalg.norm(of["reference"][0])
    for rounded, plain in of.values():
        assert not np.array_equal(rounded, plain)


@pytest.mark.parametrize("kv", KINDS)
def test_keys_and_values_are_read_as_they_are_stored(wide_path, kv):
    found, plain = (
        [LLM(wide_path, backend=name, kv=kv).backend for name in ("cpu", "reference")],
        LLM(wide_path, backend="reference").backend,
    )
    batch = batch_of([(0, TEXT[:40], [0, 1])])
    for backend in (*found, plain):
        backend.run(batch)
    for ours, theirs, exact in zip(
        *(b.keys_values(0, [0, 1], 3, 40) for b in (*found, plain)), strict=True
    ):
        assert ours.shape == theirs.shape
        apart = np.abs(ours.astype(np.float64) - theirs).max()
        assert apart < 0.3 * np.abs(theirs - exact).max() + 1e-2 * np.abs(exact).max()


def test_keys_are_not_read_from_less_than_a_block():
    nbytes = _native.kv_block_bytes(2, 16, 0, "q5_1")
    with pytest.raises(ValueError, match="more bytes"):
        _native.read_kv(np.zeros(nbytes - 1, np.uint8), "q5_1", False, 2, 16)


@pytest.mark.parametrize("kv", KINDS)
def test_company_prefixes_threads_and_speculation_change_no_bit(wide_path, kv):
    options = {"max_tokens": 40, "seed": 1, "ignore_eos": True, "temperature": 1.0}
    alone = LLM(wide_path, kv=kv, threads=1, prefix_cache=False).generate(TEXT[:150], **options)
    llm = LLM(wide_path, kv=kv, threads=3)
    found = llm.generate([TEXT[:150], TEXT[20:60], TEXT[:150]], **options)
    again = llm.generate(TEXT[:150], **options)
    guessed = llm.generate(TEXT[:150], speculate="ngram", **options)
    for other in (found[0], found[2], again, guessed):
        assert other.token_ids == alone.token_ids
        assert other.fingerprint == alone.fingerprint
    assert again.usage.cached_tokens
    assert LLM(wide_path).generate(TEXT[:150], **options).fingerprint != alone.fingerprint


@pytest.mark.parametrize("kv", ["q8_0", "q5_1,q4_0"])
def test_verify_passes(wide_path, capsys, kv):
    assert main(["verify", "-m", str(wide_path), "--kv", kv, "--threads", "1,2", "-q"]) == 0
    assert f"tiny+kv-{kv}" in capsys.readouterr().out


def test_a_prefix_is_saved_and_restored(wide_path, tmp_path):
    saved, options = tmp_path / "text.prefix", {"max_tokens": 8, "seed": 1, "ignore_eos": True}
    writer = LLM(wide_path, kv="q5_1,q4_0")
    writer.save_prefix(saved, TEXT[:96])
    reader = LLM(wide_path, kv="q5_1,q4_0")
    reader.restore_prefix(saved)
    found = reader.generate(TEXT[:100], **options)
    assert found.usage.cached_tokens == 96
    assert found.fingerprint == writer.generate(TEXT[:100], **options).fingerprint
    with pytest.raises(InputError, match="other weights"):
        LLM(wide_path, kv="q5_1").restore_prefix(saved)


def test_the_layout_and_the_sizes_say_so(wide_path, capsys):
    llm = LLM(wide_path, kv="q8_0", backend="cpu")
    (group,) = llm.backend.kv.groups
    assert group.format == "Q8_0"
    assert group.bytes_per_token == 2 * 4 * 2 * (16 + 2)  # layers, heads, k and v, codes and scale
    assert backends.kv_layout(llm.graph, "q8_0") == llm.backend.kv
    assert main(["models", "show", str(wide_path), "--kv", "q8_0"]) == 0
    assert "288 bytes a token" in capsys.readouterr().out
    assert main(["models", "--kv", "q8_0"]) == 2


SIZES = {"f16": 32, "q8_0": 18, "q5_1": 14, "q4_0": 10}  # bytes of 16 numbers, which share a scale


@pytest.mark.parametrize("kv", KINDS)
def test_what_is_said_is_what_is_kept(wide_path, kv):
    keys, _, values = kv.partition(",")
    llm = LLM(wide_path, kv=kv, backend="cpu", kv_tokens=64)
    (group,) = llm.backend.kv.groups
    assert group.format == kv.upper()
    assert group.bytes_per_token == 2 * 4 * (SIZES[keys] + SIZES[values or keys])
    assert len(llm.backend.read_block(0)[0]) == 32 * group.bytes_per_token


def test_two_formats_that_are_one_have_its_name():
    assert check_kv("q8_0,q8_0") == "q8_0"
    assert check_kv("f16,f16") == "f16"


def test_words_for_two_formats(wide_path, capsys):
    assert main(["models", "show", str(wide_path), "--kv", "q8_0,q4_0"]) == 0
    assert "224 bytes a token" in capsys.readouterr().out
    layout = backends.kv_layout(LLM(wide_path).graph, "q8_0,q4_0")
    assert "in Q8_0 (keys) and Q4_0 (values)" in str(layout)


def test_a_trace_is_replayed_with_what_it_was_made_with(wide_path, tmp_path, capsys):
    llm, trace = LLM(wide_path, kv="q8_0"), tmp_path / "run.jsonl"
    made = llm.generate("ab", max_tokens=5, seed=1, trace=str(trace))
    head, plain = Trace.read(trace).head, LLM(wide_path)
    assert made.model == head.model == "tiny+kv-q8_0"
    assert head.weights == llm.model.identity.weights != plain.model.identity.weights
    assert main(["trace", "replay", str(trace), "-m", str(wide_path), "--kv", "q8_0"]) == 0
    assert main(["trace", "replay", str(trace), "-m", str(wide_path)]) == 2
    assert "weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    "kv", ["Q8_0", "q4_1", "", None, 8, ",", "q8_0,", "q8_0,q4_0,f16", "q8_0, q4_0", ["q8_0"]]
)
def test_other_formats_are_refused_before_anything_is_loaded(kv):
    with pytest.raises(
        InputError, match="kv must be one of f16, q8_0, q5_1, q4_0, or two as KEYS,"
    ):
        LLM("no such model", kv=kv)
