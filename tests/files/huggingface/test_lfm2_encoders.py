"""LFM2.5's encoders with a head for masked tokens, by the names of both kinds of folders."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute.loading.open import open_model
from cutaway.files.weights.gguf_writer import write_gguf

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from support.random_models import IDS, edit, logits, save
from support.tiny_tokenizers import modern_bert


@pytest.fixture(params=["published", "transformers"])
def folder(request, tmp_path):
    """A folder, and transformers' model: with the publisher's names, and as transformers writes."""
    model = save("lfm2-masked", tmp_path / "folder", tokenizer=lambda: modern_bert(360))
    if request.param == "transformers":
        edit(tmp_path / "folder/config.json", model_type="lfm2_bidirectional")
    else:
        weights = tmp_path / "folder/model.safetensors"
        named = {f"lfm2.{name.removeprefix('model.')}": x for name, x in load_file(weights).items()}
        save_file(named, weights, {"format": "pt"})
    return tmp_path / "folder", model


def test_logits_are_those_of_transformers(folder, tmp_path):
    path, model = folder
    expected = logits(model, IDS)
    assert np.abs(LLM(path, backend="reference").logits(IDS) - expected).max() < 1e-4
    ours = LLM(path).logits(IDS)
    assert np.sqrt(np.mean((ours - expected) ** 2) / np.mean(expected**2)) < 0.004
    with open_model(path) as opened:
        write_gguf(tmp_path / "one.gguf", opened)
    assert LLM(tmp_path / "one.gguf").logits(IDS).tobytes() == ours.tobytes()


def test_a_mask_is_filled_as_transformers_predicts_it(folder):
    path, model = folder
    llm = LLM(path, backend="reference")
    ids = Tokenizer.from_file(str(path / "tokenizer.json")).encode("the quick [MASK] fox").ids
    row = logits(model, ids)[ids.index(llm.tokenizer.mask_id)].astype(float)
    shares = np.exp(row - np.logaddexp.reduce(row))
    filled = llm.fill("the quick [MASK] fox", top=5)
    assert filled.method == "masked"
    assert [c.token_id for c in filled.masks[0]] == np.argsort(-row)[:5].tolist()
    for candidate in filled.masks[0]:
        assert candidate.score == pytest.approx(shares[candidate.token_id], rel=1e-3)
    with pytest.raises(InputError, match="is a masked model and cannot continue a text"):
        llm.generate("the")


def test_a_body_of_transformers_has_no_head(folder):
    path, _ = folder
    edit(path / "config.json", architectures=["Lfm2BidirectionalModel"])
    with pytest.raises(InputError, match="no head that predicts tokens: it makes vectors"):
        LLM(path).logits(IDS)
    assert LLM(path).embed(IDS, "mean").vectors.shape == (1, 64)
