"""The toy that writes and comes with the package: its bytes and bits are the pinned ones."""

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

from cutaway import LLM
from cutaway.files import hub

FINGERPRINT = "dc99b9a2387e600d"
TEXT = ", who had been used to disgrace her to anybody, and whose want of provis"


@pytest.fixture(scope="module")
def toy():
    with LLM("toy-writer", backend="cpu", progress=False) as llm:
        yield llm


def test_it_is_part_of_the_package_and_whole():
    [listed] = [model for model in hub.available() if model.name == "toy-writer"]
    assert listed.state == "in package"
    assert hub.verify("toy-writer") == listed.path


@pytest.mark.parametrize("speculate", ["off", "ngram"])
def test_a_text_and_its_bits_are_the_pinned_ones(toy, speculate):
    found = toy.generate("Mr. Darcy", max_tokens=24, seed=1, speculate=speculate)
    assert (found.fingerprint, found.text) == (FINGERPRINT, TEXT)


def test_every_text_can_be_read_and_written(toy):
    text = "Größe: “x”, 猫\t🦜\r\n"
    assert toy.tokenizer.decode(toy.tokenizer.encode(text)) == text
