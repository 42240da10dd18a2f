"""The reference interpreter against a textbook written with loops, and against itself."""

from math import exp

import numpy as np
import pytest

from cutaway import LLM
from cutaway.compute import model
from cutaway.compute.backends import Batch
from cutaway.compute.model.metadata import MetadataReader
from cutaway.compute.model.mixture import Mixture, mixture_of
from cutaway.errors import FormatError
from cutaway.files.weights import GGUFFile
from support.golden import GOLDEN
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


# -- mixture ---------------------------------------------------------------------------------------

# Which experts a mixture chooses and how it weighs them, against a definition with loops.


COUNT = 12
SCORES = np.random.default_rng(2).normal(size=(20, COUNT)) * 2
BIAS = np.random.default_rng(3).normal(size=COUNT) * 0.3


def by_definition(mixture, scores, bias):
    """Of one row: {expert: weight}, the best first."""
    if mixture.gating == "softmax":
        weights = [exp(s) / sum(exp(other) for other in scores) for s in scores]
    else:
        weights = [1 / (1 + exp(-s)) for s in scores]
    wanted = [w + b for w, b in zip(weights, bias, strict=True)]
    each = COUNT // mixture.groups
    groups = [range(g * each, (g + 1) * each) for g in range(mixture.groups)]
    groups.sort(key=lambda group: -sum(sorted((wanted[e] for e in group), reverse=True)[:2]))
    allowed = [e for group in groups[: mixture.used_groups] for e in group]
    chosen = sorted(allowed, key=lambda e: (-wanted[e], e))[: mixture.used]
    whole = sum(weights[e] for e in chosen) if mixture.normed else 1
    return {e: weights[e] / whole * mixture.scale for e in chosen}


@pytest.mark.parametrize("gating", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("groups", "used_groups"), [(1, 1), (4, 2), (6, 3), (3, 1)])
def test_every_way_to_choose(gating, normed, biased, groups, used_groups):
    mixture = Mixture(
        used=3, gating=gating, normed=normed, scale=1.5, groups=groups, used_groups=used_groups
    )
    ids, weights = mixture.choose(SCORES, BIAS if biased else None)
    for row, scores in enumerate(SCORES):
        expected = by_definition(mixture, scores, BIAS if biased else 0 * BIAS)
        assert ids[row].tolist() == [*expected]
        np.testing.assert_allclose(weights[row], [*expected.values()], rtol=1e-12)


@pytest.mark.parametrize("tolerance", [0.02, 0.4])
def test_sparsemixer_shares_each_choice_among_those_that_score_nearly_as_much(tolerance):
    mixture = Mixture(used=3, gating="sparsemixer", normed=False, tolerance=tolerance)
    ids, weights = mixture.choose(SCORES)
    for row, scores in enumerate(SCORES.tolist()):
        left = dict(enumerate(scores))
        for rank in range(3):
            best = max(left, key=lambda e: (left[e], -e))
            near = [
                s for s in left.values() if left[best] - s <= tolerance * max(abs(s), left[best])
            ]
            assert ids[row, rank] == best
            expected = exp(left.pop(best)) / sum(map(exp, near))
            np.testing.assert_allclose(weights[row, rank], expected, rtol=1e-12)


def test_a_softmax_after_the_choice_is_one_of_all_normed():
    ids, weights = Mixture(used=4).choose(SCORES)
    chosen = np.exp(np.take_along_axis(SCORES, ids, axis=1))
    np.testing.assert_allclose(weights, chosen / chosen.sum(axis=1, keepdims=True))


def test_ties_go_to_the_lowest():
    for mixture in (Mixture(used=2), Mixture(used=2, gating="sigmoid", groups=4, used_groups=1)):
        ids, _ = mixture.choose(np.zeros((1, COUNT)), np.zeros(COUNT))
        assert ids.tolist() == [[0, 1]]


def read(**keys):
    metadata = {f"m.expert_{key}": value for key, value in ({"used_count": 2} | keys).items()}
    return mixture_of(MetadataReader(metadata, "m"), Mixture(used=1, normed=False), 8)


def test_what_a_file_says():
    assert read() == Mixture(used=2, normed=False)
    assert read(gating_func=1, weights_norm=True) == Mixture(used=2)
    assert read(gating_func=2, weights_scale=2.5).scale == 2.5
    assert read(gating_func=2).gating == "sigmoid"
    assert read(gating_func=3) == Mixture(used=2)
    assert read(weights_scale=0.0, group_count=0).scale == 1
    assert read(group_count=4, group_used_count=4) == read()  # all of them
    grouped = read(group_count=4, group_used_count=2)
    assert (grouped.groups, grouped.used_groups) == (4, 2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gating_func": 4}, "expert_gating_func is 4"),
        ({"group_count": 3, "group_used_count": 1}, "3 groups"),
        ({"group_count": 8, "group_used_count": 2}, "8 groups"),
        ({"group_count": 4, "group_used_count": 1, "used_count": 3}, "from 1 of 4 groups"),
        ({"group_count": 2, "group_used_count": 3}, "from 3 of 2 groups"),
        ({"used_count": 9}, "up to 8"),
    ],
)
def test_what_is_refused(keys, message):
    with pytest.raises(FormatError, match=message):
        read(**keys).check(8, "blk.0.")


# -- smollm2 reference -----------------------------------------------------------------------------

# SmolLM2 on the reference backend against logits from two independent engines.


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return LLM(smollm2_path, backend="reference")


@pytest.mark.model
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["prompt"][:20])
def test_logits_and_greedy_tokens(smollm2, case):
    """One pass over the prompt and its greedy text: each token is the argmax after those before."""
    ids = case["ids"]
    whole = smollm2.logits([*ids, *case["greedy32"][:-1]])
    assert whole[len(ids) - 1 :].argmax(1).tolist() == case["greedy32"]
    logits = whole[: len(ids)].astype(np.float64)
    lse = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    surprise = lse[:-1] - logits[np.arange(len(logits) - 1), ids[1:]]
    assert np.abs(logits[-1][case["top_ids"]] - case["top_logits"]).max() < 1e-4
    assert abs(lse[-1] - case["logsumexp"]) < 1e-4
    assert np.abs(surprise - case["prompt_nll"]).max(initial=0) < 1e-4


@pytest.mark.model
@pytest.mark.parametrize(("kv_cache", "tokens"), [(True, 32), (False, 6)])
def test_the_loop_writes_the_greedy_text(smollm2, kv_cache, tokens):
    case = GOLDEN[4]
    done = smollm2.generate(case["ids"], temperature=0, max_tokens=tokens, kv_cache=kv_cache)
    assert list(done.token_ids) == case["greedy32"][:tokens]
