"""What a backend owes to those above it: how it keeps keys and values, its sampling, its tier."""

import logging

import numpy as np
import pytest

from cutaway import LLM
from cutaway.base import _native
from cutaway.compute import backends
from cutaway.compute.backends import KV_BLOCK, cpu
from cutaway.errors import InputError
from support.native_plans import TIERS, new_plan
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 6, "kv_heads": 2, "head_dim": 20, "hidden": 64, "feed_forward": 96}


@pytest.fixture(scope="module")
def llm(ragged_path):
    return LLM(ragged_path, backend="cpu", threads=2)


def test_the_plan_tells_how_keys_and_values_are_kept(llm):
    """Heads of 20: the keys of each take 20 halves, the values 32, since lanes are 16."""
    kv = llm.backend.kv
    (group,) = kv.groups
    assert (group.layers, group.window, group.format) == ((0, 1, 2), 0, "F16")
    assert group.bytes_per_token == kv.bytes_per_token == 3 * 2 * (20 + 32) * 2
    assert kv.block_tokens == KV_BLOCK == _native.KV_BLOCK
    assert backends.kv_layout(llm.graph) == kv  # the same without loading the weights


def test_layers_with_a_window_are_a_group_of_their_own(tmp_path):
    windows = {"llama.attention.sliding_window": 40, "llama.attention.sliding_window_pattern": 3}
    path = write_tiny_llama(tmp_path / "tiny.gguf", **SHAPE, layers=5, metadata=windows)
    for name, nbytes in (("cpu", (20 + 32) * 2), ("reference", (20 + 20) * 4)):
        kv = LLM(path, backend=name).backend.kv
        whole, windowed = kv.groups
        assert (whole.layers, whole.window) == ((2,), 0)
        assert (windowed.layers, windowed.window) == ((0, 1, 3, 4), 40)
        assert [g.bytes_per_token for g in kv.groups] == [2 * nbytes, 8 * nbytes]
        assert (kv.window, kv.bytes_per_token) == (40, 10 * nbytes)
        assert [kv.bytes_read(n) for n in (1, 40, 41)] == [
            10 * nbytes, 400 * nbytes, (41 * 2 + 40 * 8) * nbytes
        ]  # fmt: skip


def test_the_reference_keeps_all_in_float32(ragged_path):
    backend = LLM(ragged_path, backend="reference").backend
    block = backend.kv.bytes_per_token * KV_BLOCK
    backend.write_block(0, [np.zeros(block, np.uint8)])
    assert sum(part.nbytes for part in backend.read_block(0)) == block
    assert backend.kv.groups[0].format == "F32"


def test_both_backends_sample_the_same(llm, ragged_path):
    reference = LLM(ragged_path, backend="reference")
    logits = np.random.default_rng(0).normal(size=(3, 264)).astype(np.float32)
    logits[1, 3] = np.nan
    found = [one.backend.read(logits, [5, None, 7], 3) for one in (llm, reference)]
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]
    assert isinstance(found[0][1], Exception)


def test_a_backend_samples_on_the_instruction_set_that_it_computes_on(llm, monkeypatch):
    monkeypatch.setattr(llm.backend, "tier", "sparc")
    with pytest.raises(ValueError, match="sparc"):
        llm.backend.read(np.zeros((1, 9), np.float32), [1], 1)


@pytest.mark.parametrize("tier", ["", *_native.tiers().split(",")])
def test_the_tier_is_chosen_when_a_model_is_loaded(ragged_path, monkeypatch, tier):
    monkeypatch.setenv("CUTAWAY_ISA", tier)
    backend = LLM(ragged_path, backend="cpu", threads=1).backend
    assert backend.tier == (tier or _native.tiers().split(",")[0])


def test_a_tier_that_this_machine_lacks_is_refused(ragged_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_ISA", "sparc")
    with pytest.raises(InputError, match="CUTAWAY_ISA"):
        LLM(ragged_path, backend="cpu")


def test_a_draft_model_shares_the_threads_of_its_target(ragged_path, llm):
    llm.load_draft(f"draft:{ragged_path}")
    assert llm.engine.speculator.draft.backend.pool is llm.backend.pool


@pytest.mark.parametrize("named", [True, False])
def test_falling_back_to_the_slow_backend_is_said(ragged_path, monkeypatch, caplog, named):
    monkeypatch.setattr(backends, "default", lambda: "reference")
    llm = LLM(ragged_path, backend="reference" if named else None)
    assert llm.backend.name == "reference"
    assert ["ten times slower" in line for line in caplog.messages] == [True] * (not named)
    assert llm.generate([1, 5], max_tokens=2).token_ids


# -- the tiers with matrix units: that they are there, and what is said where they are refused -----


def test_the_plain_path_is_on_every_machine_and_never_the_default():
    assert TIERS[-1] == "amx-plain"
    assert new_plan("").tier == TIERS[0] != "amx-plain"


@pytest.mark.parametrize("tier", TIERS)
def test_a_tier_says_its_own_name(tier):
    assert new_plan(tier).tier == tier


def test_a_refused_tier_is_logged_once(monkeypatch, caplog):
    class Refusing:
        tiers = staticmethod(lambda: "avx512,generic")
        amx_refusal = staticmethod(lambda: "the system does not let this process use them (amx)")

    monkeypatch.setattr(cpu, "_native", Refusing)
    cpu.report_refusal.cache_clear()
    with caplog.at_level(logging.WARNING, logger="cutaway"):
        cpu.report_refusal()
        cpu.report_refusal()
    cpu.report_refusal.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "the system does not let this process use them (amx): avx512 is used instead"
    ]


def test_where_the_tier_is_there_nothing_was_refused():
    if "amx" in TIERS:
        assert _native.amx_refusal() == ""
