"""The reference interpreter against a textbook written with loops, and against itself."""

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute import model
from cutaway.compute.backends import Batch
from cutaway.errors import FormatError
from cutaway.files.weights import GGUFFile
from support.random_llama import write_tiny_llama


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def llm(path):
    return LLM(path, backend="reference")


def textbook(path, ids):
    """A llama in float64 with nothing clever: one token, one head, one number pair at a time."""
    with GGUFFile(path) as file:
        c, _ = model.build(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        w = {n.removesuffix(".weight"): file.dequantize(n).astype(float) for n in file.tensors}

    def norm(x, weight):
        return x / np.sqrt((x @ x) / len(x) + c.norm_eps) * weight

    def rotate(heads, position):
        for head in heads:
            for i in range(0, c.rope.dim, 2):
                a = position * c.rope.base ** (-i / c.rope.dim) / c.rope.linear_factor
                a /= w["rope_freqs"][i // 2] if "rope_freqs" in w else 1
                x, y = head[i], head[i + 1]
                head[i], head[i + 1] = x * np.cos(a) - y * np.sin(a), x * np.sin(a) + y * np.cos(a)
        return heads

    stream = [w["token_embd"][i].copy() for i in ids]
    for layer in range(c.layers):
        p, keys, values = f"blk.{layer}.", [], []
        for t in range(len(ids)):
            x = stream[t]
            h = norm(x, w[f"{p}attn_norm"])
            q = rotate((w[f"{p}attn_q"] @ h).reshape(c.heads, -1), t)
            keys.append(rotate((w[f"{p}attn_k"] @ h).reshape(c.kv_heads, -1), t))
            values.append((w[f"{p}attn_v"] @ h).reshape(c.kv_heads, -1))
            mixed = []
            for head in range(c.heads):
                kv = head // (c.heads // c.kv_heads)
                score = np.array([q[head] @ k[kv] for k in keys]) / np.sqrt(c.head_dim)
                share = np.exp(score - score.max())
                share /= share.sum()
                mixed.append(sum(s * v[kv] for s, v in zip(share, values, strict=True)))
            stream[t] = x = x + w[f"{p}attn_output"] @ np.concatenate(mixed)
            h = norm(x, w[f"{p}ffn_norm"])
            gate = w[f"{p}ffn_gate"] @ h
            stream[t] = x + w[f"{p}ffn_down"] @ (gate / (1 + np.exp(-gate)) * (w[f"{p}ffn_up"] @ h))
    head = w.get("output", w["token_embd"])
    return np.stack([head @ norm(x, w["output_norm"]) for x in stream])


def test_logits_are_the_textbook_s(llm, path):
    ids = [1, 50, 200, 7, 263, 3, 3, 90]
    assert np.abs(llm.logits(ids) - textbook(path, ids)).max() < 1e-4


@pytest.mark.parametrize("shape", [
    {"tied": True}, {"heads": 3, "kv_heads": 3, "head_dim": 10}, {"heads": 5, "kv_heads": 1},
])  # fmt: skip
def test_other_shapes(tmp_path, shape):
    path = write_tiny_llama(tmp_path / "m.gguf", **shape)
    ids = [1, 9, 77]
    assert np.abs(LLM(path, backend="reference").logits(ids) - textbook(path, ids)).max() < 1e-4


STRETCHED = {
    "llama 3": {"rope_factors": [1, 1.5, 4, 32]},
    "linear": {"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
    "older": {"metadata": {"llama.rope.scale_linear": 2.5}, "rope_factors": [1, 1, 2, 8]},
}
IDS = [1, 50, 200, 7, 263, 3, 3, 90, *range(40, 80)]


@pytest.mark.parametrize("kind", STRETCHED)
def test_positions_are_stretched_as_the_model_says(tmp_path, kind):
    path = write_tiny_llama(tmp_path / "m.gguf", **STRETCHED[kind])
    logits = LLM(path, backend="reference").logits(IDS)
    assert np.abs(logits - textbook(path, IDS)).max() < 1e-3
    plain = LLM(write_tiny_llama(tmp_path / "plain.gguf"), backend="reference").logits(IDS)
    assert np.linalg.norm(logits - plain) / np.linalg.norm(plain) > 0.05


@pytest.mark.parametrize("kind", STRETCHED)
def test_the_native_backend_stretches_them_too(tmp_path, kind):
    path = write_tiny_llama(tmp_path / "m.gguf", **STRETCHED[kind])
    ours, ideal = LLM(path, backend="cpu").logits(IDS), LLM(path, backend="reference").logits(IDS)
    assert np.linalg.norm(ours - ideal) / np.linalg.norm(ideal) < 5e-3


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf")])
def test_factors_that_stretch_nothing_are_refused(tmp_path, factor):
    path = write_tiny_llama(tmp_path / "m.gguf", rope_factors=[1, 1, factor, 1])
    for backend in ("reference", "cpu"):
        with pytest.raises(FormatError, match="rope factors must be positive"):
            LLM(path, backend=backend).logits(IDS)


@pytest.mark.parametrize("head_dim", [7, 1026])
def test_heads_that_only_the_reference_can(tmp_path, head_dim):
    sizes = {"head_dim": head_dim, "metadata": {"llama.rope.dimension_count": 6}}
    path = write_tiny_llama(tmp_path / "m.gguf", **sizes)
    assert np.isfinite(LLM(path, backend="reference").logits([1, 2])).all()
    with pytest.raises(FormatError, match=f"heads of {head_dim} .* reference backend"):
        LLM(path, backend="cpu")


def test_a_later_token_moves_no_earlier_logit(llm):
    before, after = llm.logits([1, 40, 41, 42, 43]), llm.logits([1, 40, 41, 99, 43])
    assert np.array_equal(before[:3], after[:3])
    assert not np.array_equal(before[3], after[3])
    assert not np.array_equal(before[4], after[4])


def test_an_earlier_token_moves_every_later_logit(llm):
    before, after = llm.logits([1, 40, 41, 42]), llm.logits([1, 99, 41, 42])
    assert np.array_equal(before[0], after[0])
    assert all(not np.array_equal(before[i], after[i]) for i in (1, 2, 3))


def test_with_and_without_the_cache_write_the_same(llm):
    for temperature in (0, 1):
        options = {"max_tokens": 40, "temperature": temperature, "seed": 5, "ignore_eos": True}
        with_cache = llm.generate([1, 60, 61], **options)
        without = llm.generate([1, 60, 61], kv_cache=False, **options)
        assert with_cache.token_ids == without.token_ids
        assert len(with_cache.token_ids) == 40


def test_company_does_not_change_the_text(llm):
    prompts = [[1, 60, 61], [1, 5], list(range(1, 80))]
    options = {"max_tokens": 20, "seed": 3, "temperature": 1.0}
    alone = [llm.generate(p, **options).token_ids for p in prompts]
    assert [c.token_ids for c in llm.generate(prompts, **options)] == alone


def test_every_tensor_can_be_tapped_and_the_attention_weights(llm):
    names = [*(op.out.name for op in llm.graph.ops), "blk.1.attend.weights"]
    at, zeros = np.arange(3, dtype=np.int32), np.zeros(3, np.int32)
    batch = Batch(np.array([1, 40, 41], np.int32), at, zeros, np.zeros((1, 1), np.int32), at[2:])
    logits, seen = llm.backend.tap(batch, names)
    assert set(names) == set(seen)
    assert (seen[llm.graph.ops[-1].out.name] == logits).all()
    weights = seen["blk.1.attend.weights"]  # (kv_heads, group, rows, tokens)
    assert weights.shape == (2, 3, 3, 3)
    assert np.allclose(weights.sum(axis=-1), 1)
    assert (weights[..., 0, 1:] == 0).all()
    assert (llm.backend.run(batch) == logits).all()


def test_threads_are_refused_with_the_reason(path):
    with pytest.raises(ValueError, match="threads cannot be set for the reference backend"):
        LLM(path, backend="reference", threads=2)
