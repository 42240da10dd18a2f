"""The training of toy-writer: it learns, no token sees a later one, and its file is the model."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")

import toy_training
import train_writer
from cutaway import LLM
from cutaway.files.weights.gguf_writer import write_gguf
from toy_model import Sizes, Toy
from train_writer import WriterTraining

SMALL = Sizes(vocabulary=300, causal=True, hidden=64, layers=2, heads=2, ffn=96, context=64)
TEXT = "It is a truth universally acknowledged, that a single man must want.\n" * 60


@pytest.fixture
def training(monkeypatch):
    monkeypatch.setattr(toy_training, "BATCH", 256)
    monkeypatch.setattr(toy_training, "WARMUP", 5)
    monkeypatch.setattr(train_writer, "WINDOWS", (32, 62))
    monkeypatch.setattr(train_writer, "MEASURED", 62)
    monkeypatch.setattr(train_writer, "HELD_OUT", 1000)
    torch.set_num_threads(1)  # these sizes are too small to be shared
    return WriterTraining(TEXT, SMALL)


def test_it_learns_and_its_file_is_the_model_and_the_tokenizer(training, tmp_path):
    training.measure(1)
    before = training.figures["bits_per_character"]
    for _ in range(20):
        training.step(20)
    training.measure(1)
    assert training.figures["tokens"] == 20 * 256
    assert training.figures["bits_per_character"] < before - 1
    write_gguf(tmp_path / "toy.gguf", training.file())
    with LLM(tmp_path / "toy.gguf", backend="reference", progress=False) as llm:
        text = "It is a café, said he,\n\nand a  man must."
        ids = llm.tokenizer.encode(text)
        assert ids == training.tokenizer.encode(text).ids
        assert llm.tokenizer.decode(ids) == text
        with torch.no_grad():
            expected = training.model(torch.tensor([ids]))[0].numpy()
        assert np.abs(expected).max() > 1
        assert np.abs(llm.logits(ids) - expected).max() < 1e-4


def test_bits_are_of_characters(training):
    """Where nothing is known, a token has log2 of the vocabulary's size."""
    torch.nn.init.zeros_(training.model.output.weight)
    with torch.no_grad():
        bits = training.bits(1)
    random = torch.Generator().manual_seed(1)
    for window, measured in zip(training.held_out.draw(64, 62, random), bits, strict=True):
        written = training.tokenizer.decode(window[1:].tolist())
        assert measured == pytest.approx(61 * np.log2(300) / len(written), rel=1e-5)


def test_no_token_sees_a_later_one():
    torch.manual_seed(1)
    model = Toy(SMALL)
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(300, (1, 32))
    other = ids.clone()
    other[0, 20] = (ids[0, 20] + 1) % 300
    with torch.no_grad():
        same = (model(ids) == model(other)).all(-1)[0]
    assert same[:20].all()
    assert not same[20:].any()
