"""The training of toy-canvas and toy-noise: what they see, what is measured, and their files."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")

from torch.nn import functional as F

import toy_model
import toy_training
import train_canvas
from cutaway import LLM, InputError
from cutaway.files.weights.gguf_writer import write_gguf
from toy_model import CHARACTERS, MASK, Sizes, Toy, ToyFile, characters

SMALL = Sizes(hidden=64, layers=2, heads=2, ffn=96, context=64)
TEXT = "It is a truth universally acknowledged, that a single man must want.\n" * 40


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(toy_training, "BATCH", 256)
    monkeypatch.setattr(toy_training, "EVERY", 3)
    monkeypatch.setattr(toy_training, "DRAWS", 1)
    monkeypatch.setattr(toy_training, "LAST_DRAWS", 1)
    monkeypatch.setattr(train_canvas, "WINDOWS", (32, 64))
    monkeypatch.setattr(train_canvas, "HELD_OUT", 1000)
    torch.set_num_threads(1)  # these sizes are too small to be shared


def test_its_file_is_the_model(tmp_path):
    torch.manual_seed(1)
    model = Toy(SMALL)
    torch.nn.init.normal_(model.output.weight)
    for layer in model.blk:
        torch.nn.init.normal_(layer.attn_output.weight, std=0.1)
        torch.nn.init.normal_(layer.ffn_down.weight, std=0.1)
    write_gguf(tmp_path / "toy.gguf", ToyFile(model, "toy", "A toy.", characters(mask=True)))
    with LLM(tmp_path / "toy.gguf", backend="reference", progress=False) as llm:
        ids = llm.tokenizer.encode("Mr. Darcy said:\n")
        assert [CHARACTERS[i] for i in ids] == [*"Mr. Darcy said:\n"]
        assert llm.tokenizer.decode(ids) == "Mr. Darcy said:\n"
        ids = [*ids, MASK, MASK, *ids]
        with torch.no_grad():
            expected = model(torch.tensor([ids]))[0].numpy()
        assert np.abs(expected).max() > 1
        assert np.abs(llm.logits(ids) - expected).max() < 1e-4
        with pytest.raises(InputError, match="the text holds 'é', for which"):
            llm.tokenizer.encode("café")


def test_heads_begin_with_their_eyes_on_neighbours():
    torch.manual_seed(2)
    model = Toy(Sizes())
    x = model.token_embd(torch.randint(MASK + 1, (1, 32)))
    for distance, layer in enumerate(model.blk, 1):
        n = layer.attn_norm(x)
        q, k = (
            toy_model.turned(
                matrix(n).unflatten(-1, (layer.heads, -1)).transpose(1, 2), model.turn[:, :32]
            )
            for matrix in (layer.attn_q, layer.attn_k)
        )
        looks = (q @ k.transpose(-1, -2))[0, :, 8:24].argmax(-1) - torch.arange(8, 24)
        assert looks[0].median() == -distance
        assert looks[1].median() == distance


def test_what_is_masked():
    random = torch.Generator().manual_seed(3)
    torch.set_num_threads(1)
    counts, kept = np.zeros(65, int), []
    for _ in range(200):
        holes = train_canvas.corrupted(torch.zeros(32, 64), random, prompts=False)
        counts += np.bincount(holes.sum(1), minlength=65)
        some = train_canvas.corrupted(torch.zeros(32, 64), random, prompts=True)
        kept += some[::2].int().argmax(1).tolist()
        few = train_canvas.corrupted(torch.zeros(32, 64), random, most=0.25, prompts=False)
        assert few.sum(1).min() >= 1 and few.sum(1).max() <= 16
    assert counts[0] == 0
    assert counts[1:].min() > 70  # of 100: evenly from 1 to 64
    assert counts[1:].max() < 130
    assert np.mean(kept) > 28  # a prompt is half of a window, and the mask begins behind it


def test_noise_is_every_character_and_all_else_stays():
    random = torch.Generator().manual_seed(4)
    ids = torch.full((64, 256), 5)
    chosen = train_canvas.corrupted(ids, random, prompts=False)
    seen = train_canvas.noisy(ids, chosen, random)
    assert (seen[~chosen] == 5).all()
    counts = torch.bincount(seen[chosen], minlength=MASK)
    assert len(counts) == MASK  # no mask is among them
    assert counts.min() > 0.6 * counts.float().mean()


def test_the_bound_of_one_character_is_its_entropy():
    """Of one cell, uniform diffusion loses nothing if the model knows all chances."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0], dtype=torch.float64)
    n, steps = len(p), 4000
    kept = ((torch.arange(steps).double() + 0.5) / steps)[:, None, None].expand(steps, n, n)
    ids, seen = (
        x.expand(steps, n, n) for x in torch.meshgrid(*[torch.arange(n)] * 2, indexing="ij")
    )
    chance = kept * (ids == seen) + (1 - kept) / n  # of seeing this character if that is right
    likelihood = kept[..., None] * F.one_hot(seen, n) + (1 - kept[..., None]) / n
    log_p = (p * likelihood / (p * likelihood).sum(-1, keepdim=True)).log()
    each = train_canvas.bound_integrand(log_p, ids, seen, kept)
    bound = (p[:, None] * chance * each).sum((1, 2)).mean()
    entropy = -torch.special.xlogy(p, p).sum()
    assert bound == pytest.approx(entropy.item(), rel=1e-3)
    worse = train_canvas.bound_integrand(torch.full_like(log_p, 1 / n).log(), ids, seen, kept)
    assert (p[:, None] * chance * worse).sum((1, 2)).mean() > bound + 0.1


def test_toy_noise_learns_and_its_file_has_no_mask(small, tmp_path):
    training = train_canvas.NoiseTraining(TEXT, replace(SMALL, vocabulary=MASK))
    training.measure(1)
    before = training.figures["bits_per_character"]
    for _ in range(30):
        training.step(30)
    training.measure(1)
    assert training.figures["bits_per_character"] < before - 0.5
    write_gguf(tmp_path / "toy.gguf", training.file())
    with LLM(tmp_path / "toy.gguf", backend="reference", progress=False) as llm:
        ids = llm.tokenizer.encode("Mr. Darcy said:\n")
        with torch.no_grad():
            expected = training.model(torch.tensor([ids]))[0].numpy()
        assert np.abs(llm.logits(ids) - expected).max() < 1e-4
        assert llm.tokenizer.mask_id is None
        assert [llm.tokenizer.decode([i]) for i in range(MASK)] == [*CHARACTERS]


def test_a_stopped_training_goes_on_as_if_it_had_not(small, tmp_path, capsys):
    toy_training.train(train_canvas.CanvasTraining(TEXT, SMALL), tmp_path / "whole.pt", 6)
    first = train_canvas.CanvasTraining(TEXT, SMALL)
    for _ in range(3):
        first.step(30)  # it was to be longer
    first.save(tmp_path / "parts.pt")
    toy_training.train(train_canvas.CanvasTraining(TEXT, SMALL), tmp_path / "parts.pt", 6)
    whole, parts = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("whole", "parts")
    )
    assert whole["figures"]["bits_per_character"] == parts["figures"]["bits_per_character"]
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name
    assert capsys.readouterr().out.count('"characters": 1536') == 2


def test_another_text_is_refused(tmp_path):
    (tmp_path / "text").write_text(TEXT)
    with pytest.raises(SystemExit, match="is not the text of TEXT_SHA256"):
        toy_training.read(tmp_path / "text")


def test_clean_leaves_nothing_but_its_characters():
    assert (
        toy_training.clean("A  £5 note,\nsaid _he_.\n\n * * *\n\nNo.") == "A 5 note, said he.\nNo."
    )
