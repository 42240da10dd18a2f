"""The toy that comes with the package: found by its alias, its bytes and bits the pinned ones."""

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM, InputError
from cutaway.files import hub

FINGERPRINT = "0da6c5408ff29ddc"
TEXT = "had some then bosh Sir Jenth the more to  parths to so ner coull"


@pytest.fixture(scope="module")
def toy():
    with LLM("toy-canvas", backend="cpu", progress=False) as llm:
        yield llm


def test_it_is_part_of_the_package_and_whole():
    [listed] = [model for model in hub.available() if model.name == "toy-canvas"]
    assert listed.state == "in package"
    assert "toy" in listed.title
    assert hub.verify("toy-canvas") == listed.path


def test_a_canvas_and_its_bits_are_the_pinned_ones(toy):
    found = toy.denoise("Mr. Darcy ", max_tokens=64, steps=32, temperature=0.7, seed=1)
    assert (found.fingerprint, found.text) == (FINGERPRINT, TEXT)


def test_it_can_spell(toy):
    line = "It was uni[MASK]ersally ackno[MASK]ledged by every bod[MASK]; they are ver[MASK] happy."
    filled = toy.fill(line, top=1)
    assert [best.text for [best] in filled.masks] == [*"vwyy"]


def test_a_space_before_a_mask_that_does_not_take_it_is_no_part_of_a_target(toy):
    [[best]] = toy.fill("Mr. [MASK]arcy", top=1).masks
    assert best.text == "D"
    [[same, _]] = toy.fill("Mr. [MASK]arcy", targets=["D", "M"]).masks
    assert same == best


def test_what_it_cannot_do_is_said(toy):
    with pytest.raises(InputError, match="the text holds 'é', for which"):
        toy.fill("caf[MASK] or café")
