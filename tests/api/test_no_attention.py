"""Models without any attention: a text has states, and no keys and values."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from support.random_llama import VOCAB
from support.random_mamba2 import write_tiny_mamba2

TEXT = np.random.default_rng(0).integers(10, VOCAB, 70).tolist()
OPTIONS = {"max_tokens": 30, "ignore_eos": True, "seed": 3, "temperature": 1.0}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_mamba2(tmp_path_factory.mktemp("mamba") / "mamba.gguf")


def test_every_way_to_write_a_text_writes_the_same(path, tmp_path):
    llm = LLM(path)
    plain = llm.generate(TEXT, kv_cache=False, **OPTIONS)
    together = llm.generate([TEXT, TEXT[:40], TEXT], **OPTIONS)
    drafted = llm.generate(TEXT, speculate="ngram", **OPTIONS)
    saved = str(tmp_path / "prefix")
    llm.save_prefix(saved, TEXT[:64])
    other = LLM(path, kv_tokens=128, context=128)
    other.restore_prefix(saved)
    found = other.generate([TEXT] * 2, **OPTIONS)  # more than there is room for at once
    assert found[0].usage.cached_tokens == 64
    for one in (together[0], together[2], drafted, *found):
        assert (one.token_ids, one.fingerprint) == (plain.token_ids, plain.fingerprint)


def test_backends_agree(path):
    ours, other = (LLM(path, backend=name).logits(TEXT) for name in ("cpu", "reference"))
    assert np.abs(ours - other).max() < 0.05 * np.abs(other).max()


def test_it_is_shown_and_recorded(path, tmp_path, capsys):
    trace = tmp_path / "run.jsonl.gz"
    LLM(path).generate(TEXT, trace=str(trace), **OPTIONS)
    assert main(["trace", "replay", str(trace), "-m", str(path)]) == 0
    assert main(["models", "show", str(path)]) == 0
    assert "0 bytes a token" in capsys.readouterr().out
