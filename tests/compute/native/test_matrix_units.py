"""The tiers with matrix units: that they are there, and what is said where they are refused."""

import logging

import pytest

from cutaway.base import _native
from cutaway.compute.backends import cpu
from support.native_plans import TIERS, new_plan


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
