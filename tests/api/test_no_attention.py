"""Models without any attention: a text has states, and no keys and values."""

import gguf
import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from support.random_llama import VOCAB, add_tensors, add_tokens, written

HIDDEN, HEADS, KEYS, VALUES, LAYERS = 64, 4, 16, 32, 2
TEXT = np.random.default_rng(0).integers(10, VOCAB, 70).tolist()
OPTIONS = {"max_tokens": 30, "ignore_eos": True, "seed": 3, "temperature": 1.0}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    at = tmp_path_factory.mktemp("mamba") / "mamba.gguf"
    writer, rng = gguf.GGUFWriter(at, "mamba2"), np.random.default_rng(1)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(KEYS)
    writer.add_ssm_group_count(1)
    writer.add_ssm_time_step_rank(HEADS)
    writer.add_ssm_inner_size(HEADS * VALUES)
    add_tokens(writer)
    shapes, inner = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}, HEADS * VALUES
    for i in range(LAYERS):
        own = {
            "attn_norm": (HIDDEN,), "ssm_in": (2 * inner + 2 * KEYS + HEADS, HIDDEN),
            "ssm_conv1d": (inner + 2 * KEYS, 4), "ssm_norm": (1, inner), "ssm_out": (HIDDEN, inner),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in own.items()}
        writer.add_tensor(f"blk.{i}.ssm_a", -np.exp(rng.normal(size=(HEADS, 1))).astype(np.float32))
        for name, shape in (
            ("ssm_d", (HEADS, 1)),
            ("ssm_dt.bias", (HEADS,)),
            ("ssm_conv1d.bias", (inner + 2 * KEYS,)),
        ):
            writer.add_tensor(f"blk.{i}.{name}", rng.normal(size=shape).astype(np.float32))
    add_tensors(writer, rng, shapes, "Q8_0", {"ssm_conv1d": "F32", "ssm_norm": "F32"})
    return written(writer, at)


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
