"""Draft heads: what they compute, and that they change no text."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute import model
from cutaway.compute.backends import Batch
from cutaway.compute.loading.open import open_model
from cutaway.requests.drafting import load_draft
from support.random_llama import VOCAB
from support.random_qwen35 import write_tiny_qwen35

LAYERS, HEADS, KV_HEADS, SIZE, HIDDEN = 2, 4, 2, 32, 64
TEXT = [1, 70, 80, 81, 90, 70, 80, 7, 9, 100, 33, 34]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    at = tmp_path_factory.mktemp("head") / "head.gguf"
    return write_tiny_qwen35(at, layers=LAYERS, draft_head=True)


@pytest.fixture(scope="module")
def good_path(tmp_path_factory):
    """Layers add little, so that mostly the next token of the vocabulary follows: the head, whose
    layer adds nothing, sees that from the last token's embedding."""
    rng, names = np.random.default_rng(3), {"ffn_down": 96, "attn_output": 128, "ssm_out": 128}
    made = {
        f"blk.{i}.{name}": rng.normal(size=(HIDDEN, width)) * (0.005 if i < LAYERS else 0)
        for i in range(LAYERS + 1) for name, width in names.items()
        if (name == "ffn_down") or (name == "ssm_out") == (i == 0)
    }  # fmt: skip
    eye = np.concatenate([np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))], axis=1)
    norms = {f"blk.{LAYERS}.nextn.{name}": np.ones(HIDDEN) for name in ("enorm", "hnorm")}
    same = {f"blk.{LAYERS}.nextn.shared_head_norm": np.ones(HIDDEN), "output_norm": np.ones(HIDDEN)}
    words = rng.normal(size=(VOCAB, HIDDEN)) * 0.4
    made |= {f"blk.{LAYERS}.nextn.eh_proj": eye} | norms | same
    made |= {"token_embd": words, "output": np.roll(words, 1, axis=0)}
    at = tmp_path_factory.mktemp("good") / "good.gguf"
    return write_tiny_qwen35(at, layers=LAYERS, draft_head=True, tensors=made)


# -- what it computes ------------------------------------------------------------------------------


def batch(tokens, first=0, tables=1, **more):
    rows = np.arange(first, len(tokens), dtype=np.int32)
    picked = np.array(tokens, np.int32)[first:]
    each = np.arange(len(rows), dtype=np.int32)
    return Batch(
        picked, rows, np.zeros_like(rows), np.arange(tables, dtype=np.int32)[None], each, **more
    )


def normed(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rotated(x, positions):
    """(n, heads, SIZE): a quarter of each head, the two of a pair an eighth of it apart."""
    half = SIZE // 8
    angle = positions[:, None, None] / 10000.0 ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half : 2 * half]
    turned = (a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle))
    return np.concatenate([*turned, x[..., 2 * half :]], axis=-1)


def by_definition(file, hidden, tokens):
    """Logits of rows 1 … n - 1; hidden (n, HIDDEN): what the model's head read of each token.

    One layer of Qwen 3.5 on eh_proj · [enorm(embedding of token p), hnorm(hidden of p - 1)].
    """

    def w(name):
        return file.dequantize(f"{name}.weight").astype(np.float64)

    p = f"blk.{LAYERS}."
    embedded = normed(w("token_embd")[tokens[1:]], w(f"{p}nextn.enorm"))
    both = np.concatenate([embedded, normed(hidden[:-1], w(f"{p}nextn.hnorm"))], axis=1)
    x, positions = both @ w(f"{p}nextn.eh_proj").T, np.arange(1, len(tokens))
    h = normed(x, w(f"{p}attn_norm"))
    q, gate = np.split((h @ w(f"{p}attn_q").T).reshape(-1, HEADS, 2 * SIZE), 2, axis=-1)
    k, v = ((h @ w(f"{p}attn_{one}").T).reshape(-1, KV_HEADS, SIZE) for one in "kv")
    q = rotated(normed(q, w(f"{p}attn_q_norm")), positions)
    k = rotated(normed(k, w(f"{p}attn_k_norm")), positions)
    k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(SIZE)
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    a = np.einsum("hij,jhd->ihd", shares, v) * sigmoid(gate)
    x = x + a.reshape(len(x), -1) @ w(f"{p}attn_output").T
    h = normed(x, w(f"{p}post_attention_norm"))
    gate, up = (h @ w(f"{p}ffn_{one}").T for one in ("gate", "up"))
    x = x + (gate * sigmoid(gate) * up) @ w(f"{p}ffn_down").T
    return normed(x, w(f"{p}nextn.shared_head_norm")) @ w("token_embd").T


@pytest.mark.parametrize(("backend", "most"), [("reference", 1e-4), ("cpu", 0.1)])
def test_it_computes_what_its_definition_says(path, backend, most):
    llm = LLM(path, backend=backend)
    states = np.array([[len(TEXT) - 1, 0]], np.int32)
    logits, hidden = llm.backend.run_whole(batch(TEXT, states=states))
    assert np.array_equal(logits, llm.backend.run(batch(TEXT, states=states)))
    with open_model(path) as file:
        shapes = {name: info.shape for name, info in file.tensors.items()}
        graph = model.build_draft_head(file.metadata, shapes)
        head = llm.backend.with_graph(graph, file)
        told = by_definition(file, hidden, TEXT)
    unread = np.where(np.arange(32) > 0, np.inf, 0).astype(np.float32)[None]
    found, _ = head.run_whole(batch(TEXT, 1, hidden_from=unread, given=hidden[:-1].copy()))
    assert np.abs(found - told).max() < most * np.abs(told).max()


# -- that it changes nothing -----------------------------------------------------------------------

OPTIONS = {"max_tokens": 40, "ignore_eos": True, "seed": 5}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_text_is_the_same_and_drafts_come_true(good_path, backend, temperature):
    llm = LLM(good_path, backend=backend)
    plain = llm.generate(TEXT, temperature=temperature, **OPTIONS)
    drafted = llm.generate(TEXT, temperature=temperature, speculate="mtp", **OPTIONS)
    assert drafted.token_ids == plain.token_ids
    if backend == "cpu":  # whose bits do not depend on how many rows there are
        assert drafted.fingerprint == plain.fingerprint
    assert drafted.speculation.accepted > 20


@pytest.mark.parametrize("kv_tokens", [256, None])  # of the first, texts are preempted
def test_random_heads_change_no_text_in_any_company(path, kv_tokens):
    llm = LLM(path, kv_tokens=kv_tokens, context=192)
    prompts = [TEXT, TEXT * 6, [1, *TEXT[4:]], TEXT * 6, TEXT * 9]
    options = OPTIONS | {"temperature": 1.0, "max_tokens": 80}
    plain = [llm.generate(prompt, **options) for prompt in prompts]
    for _ in range(2):  # the second time from the prefix cache
        found = llm.generate(prompts, speculate="mtp", **options)
        assert [c.token_ids for c in found] == [c.token_ids for c in plain]
        assert [c.fingerprint for c in found] == [c.fingerprint for c in plain]
        assert sum(c.speculation.proposed for c in found) > 0
    assert (llm.engine.scheduler.preemptions > 0) == (kv_tokens is not None)


def test_it_reads_what_the_model_computed(good_path):
    """Of each position it reads last, once its token is certain, the state of the one before."""
    llm, read = LLM(good_path), {}
    llm.load_draft("mtp")
    run = llm.engine.speculator.draft.backend.run_whole

    def noted(batch):
        for token, position, given in zip(*batch[:2], batch.given, strict=True):
            read[int(position)] = (int(token), given.tobytes())
        return run(batch)

    llm.engine.speculator.draft.backend.run_whole = noted
    done = llm.generate(TEXT, temperature=2.5, speculate="mtp", **OPTIONS)
    assert 0 < done.speculation.accepted < done.speculation.proposed
    text = [*TEXT, *done.token_ids]
    rows = batch(text, states=np.array([[len(text) - 1, 0]], np.int32), tables=2)
    _, hidden = LLM(good_path).backend.run_whole(rows)
    for position in range(1, len(text) - 17):  # the last may be drafts
        assert read[position] == (text[position], hidden[position - 1].tobytes())


def test_it_has_read_nothing_of_a_restored_prefix(path, tmp_path):
    """Although it has read another text in the same KV blocks before."""
    place, setup = tmp_path / "some.prefix", {"kv_tokens": 192, "context": 192}
    LLM(path, **setup).save_prefix(place, TEXT * 6)
    llm, hidden_from = LLM(path, **setup), []
    llm.generate([*TEXT[1:], 5] * 12, speculate="mtp", **OPTIONS)
    assert llm.restore_prefix(place).cached_tokens == 64
    backend = llm.engine.speculator.draft.backend
    run = backend.run_whole

    def note(batch):
        hidden_from.extend(row[:64].tolist() for row in batch.hidden_from)
        return run(batch)

    backend.run_whole = note
    llm.generate(TEXT * 6, speculate="mtp", **OPTIONS)
    assert hidden_from
    assert all(row == [0] * 64 for row in hidden_from)


def test_samples_of_one_prompt(good_path):
    llm = LLM(good_path)
    options = OPTIONS | {"temperature": 0.7, "n": 3}
    plain, drafted = (llm.generate(TEXT * 5, speculate=s, **options) for s in ("off", "mtp"))
    assert [c.token_ids for c in drafted] == [c.token_ids for c in plain]
    assert all(c.speculation.accepted > 5 for c in drafted)


# -- what is refused -------------------------------------------------------------------------------


def test_a_model_without_a_head_says_so(tmp_path):
    llm = LLM(write_tiny_qwen35(tmp_path / "plain.gguf", layers=2))
    with pytest.raises(InputError, match="speculate: plain: the model has no draft head"):
        llm.generate("ab", speculate="mtp", max_tokens=2)


def test_a_head_is_loaded_between_texts(path):
    llm = LLM(path)
    stream = llm.stream("ab", max_tokens=5, ignore_eos=True)
    next(stream)
    with pytest.raises(InputError, match="while texts run"):
        load_draft("mtp", llm.model, llm.engine, progress=False)
    stream.finish()
    assert llm.generate("ab", speculate="mtp", max_tokens=5, ignore_eos=True).token_ids
    assert llm.draft == "mtp"
