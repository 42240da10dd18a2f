"""Arithmetic in WGSL has the right bits, whatever a driver's compiler does to it."""

from fractions import Fraction

import numpy as np
import pytest

from cutaway.base import _native
from cutaway.compute import calls
from cutaway.compute.backends.gpu import probe
from support.gpu_plans import assert_same, rows_apart, run_both
from support.native_plans import table

NUMBERS = 1 << 13
MILLIONS = 1 << 18


@pytest.mark.parametrize("per_kind", [NUMBERS, pytest.param(MILLIONS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["f64", "int"])
def test_every_operation_is_right_on_hard_numbers(device, monkeypatch, way, per_kind):
    if way not in device.ways:
        pytest.skip(f"{device.name} has no numbers of 64 bits")
    monkeypatch.setattr(device, "fused", way)
    found = probe.examine(device, per_kind)
    assert [finding for finding in found if finding.wrong_normal] == []
    if not device.flushes:
        assert [finding for finding in found if finding.wrong] == []


def test_flushing_is_seen_and_nothing_else_is_wrong(device, monkeypatch):
    monkeypatch.setattr(device, "fused", "flush")
    found = {finding.operation: finding for finding in probe.examine(device)}
    assert found["fused"].wrong > 0
    assert all(finding.wrong_normal == 0 for finding in found.values())


def flush(x):
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(0, x), x).astype(np.float32)


def test_a_denormal_between_two_roundings_is_no_fault_of_its_own():
    """SwiftShader flushes the product of a sum whose three numbers and result are no denormals."""
    triple = probe.all_triples()
    x, y, z = (flush(part.view(np.float32)) for part in triple)
    [operation] = [one for one in probe.OPERATIONS if one.name == "hide(x * y) + z"]
    with np.errstate(all="ignore"):
        results = flush(flush(x * y) + z).view(np.uint32)
    found = probe.compare(operation, results, triple)
    assert found.wrong > 0
    assert found.wrong_normal == 0


def test_the_definition_of_a_fused_operation_is_exact():
    compared = 0
    for triple in probe.hard_triples(64):
        with np.errstate(all="ignore"):
            x, y, z = (part.view(np.float32).astype(np.float64) for part in triple)
            sums = probe.fuse(*(part.view(np.float32) for part in triple)).astype(np.float64)
        for a, b, c, found in zip(x, y, z, sums, strict=True):
            if not np.isfinite([a, b, c, found]).all() or abs(found) < 1e-30:
                continue
            exact = Fraction(a) * Fraction(b) + Fraction(c)
            off = abs(Fraction(found) - exact)
            for side in (-np.inf, np.inf):
                beside = float(np.nextafter(np.float32(found), np.float32(side)))
                assert not np.isfinite(beside) or off <= abs(Fraction(beside) - exact)
            compared += 1
    assert compared > 200


@pytest.mark.parametrize("kind", _native.ELEMENTWISE)
def test_what_works_number_by_number_has_the_cpu_s_bits(device, kind):
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((40, 64)) * 2.0 ** rng.integers(-20, 8, (40, 1))
    numbers[0, :8] = [0, -0.0, 1, -1, 88, -88, 1e-30, -1e-30]
    plan = [
        calls.AddBuffer(64, False), calls.AddBuffer(32, False), calls.EmbedRows(0, (0, 0), "token"),
        calls.Elementwise(False, kind, (0, 0), (0, 32), 7.0, 32, (1, 0)), calls.SetOutput((1, 0)),
    ]  # fmt: skip
    matrices = [("F32", table(numbers.astype(np.float32)))]
    assert_same(run_both(device, plan, matrices, [rows_apart(40)]))


@pytest.mark.parametrize("is_layer", [False, True])
@pytest.mark.parametrize("width", [64, 50])
def test_norms_have_the_cpu_s_bits(device, width, is_layer):
    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((9, width)).astype(np.float32)
    weight, bias = rng.standard_normal((2, width)).astype(np.float32)
    norm = calls.Norm(weight, bias if is_layer else calls.NOTHING, 1e-5, width)
    plan = [
        calls.AddBuffer(width, False), calls.AddBuffer(width, False),
        calls.EmbedRows(0, (0, 0), "token"),
        calls.Normalise(False, (0, 0), width, norm, calls.Places((1, 0))), calls.SetOutput((1, 0)),
    ]  # fmt: skip
    assert_same(run_both(device, plan, [("F32", table(numbers))], [rows_apart(9)]))
