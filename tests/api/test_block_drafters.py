"""Block drafters (DFlash, DSpark): what they compute, that they change no text, what is refused."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute.model.anatomy import Anatomy
from cutaway.engine.speculation import DraftLength
from cutaway.engine.speculation.length import StepCosts
from support.adapters import adapter_of
from support.drafter_formulas import norm_rows, rotate_heads
from support.random_dflash import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MASK,
    SIZE,
    SPECULATORS,
    drafter_tensors,
    with_vocabulary,
    write_drafter,
    write_drafter_gguf,
)
from support.random_llama import VOCAB, write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35

TEXT = [1, 70, 80, 81, 90, 70, 80, 7, 9, 100, 33, 34]
OPTIONS = {"max_tokens": 24, "ignore_eos": True, "seed": 5}
KINDS = ("dflash", "dspark")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    at = tmp_path_factory.mktemp("target") / "target.gguf"
    return write_tiny_llama(at, hidden=HIDDEN, layers=4, heads=4, head_dim=16, context=256)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory):
    """A random drafter of each kind, as it is named in a request."""
    at = tmp_path_factory.mktemp("drafters")
    tensors = {kind: drafter_tensors(2, markov=kind == "dspark") for kind in KINDS}
    return {kind: f"{kind}:{write_drafter(at / kind, tensors[kind], kind)}" for kind in KINDS}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A model that mostly repeats its last token, and a drafter that sees the token in its block;
    a model that mostly writes the vocabulary's next token, and a Markov head that knows that."""
    rng, at = np.random.default_rng(3), tmp_path_factory.mktemp("good")
    words = rng.normal(size=(VOCAB, HIDDEN)) * 0.4
    words[MASK] = 0
    found = {}
    for kind in KINDS:
        made = {
            f"blk.{i}.{name}": rng.normal(size=(HIDDEN, width)) * 0.005
            for i in range(4) for name, width in
            {"ffn_down": 96, ("ssm_out" if i % 2 == 0 else "attn_output"): 128}.items()
        }  # fmt: skip
        after = np.roll(words, kind == "dspark", axis=0)
        made |= {"output_norm": np.ones(HIDDEN), "token_embd": words, "output": after}
        tensors = drafter_tensors(2, markov=kind == "dspark")
        tensors["fc.weight"] *= 0
        tensors["norm.weight"] = np.ones(HIDDEN)
        for p in (f"layers.{i}." for i in range(LAYERS)):
            tensors[f"{p}mlp.down_proj.weight"] *= 0
            tensors[f"{p}input_layernorm.weight"] = np.ones(HIDDEN)
            for role in "qk":
                tensors[f"{p}self_attn.{role}_proj.weight"] *= 0
            tensors[f"{p}self_attn.v_proj.weight"] = np.eye(HIDDEN)
            tensors[f"{p}self_attn.k_proj.weight"] = np.zeros((HIDDEN, HIDDEN))
            tensors[f"{p}self_attn.o_proj.weight"] = np.eye(HIDDEN) * (kind == "dflash")
        if kind == "dspark":
            tensors["markov_head.markov_w1.weight"] = words
            tensors["markov_head.markov_w2.weight"] = 6 * after
        target = write_tiny_qwen35(at / f"{kind}.gguf", layers=4, tensors=made)
        folder = write_drafter(at / kind, tensors, kind, num_key_value_heads=HEADS)
        found[kind] = target, f"{kind}:{folder}"
    return found


# -- what they compute -----------------------------------------------------------------------------


def by_definition(w, embedded, streams, head, *, windows=(0, 0), causal=(False, False)):
    """The logits of a block's rows, (block, VOCAB); streams: those of the text before the block.

    windows, causal: of each layer
    """
    context = norm_rows(streams @ w["fc.weight"].T, w["hidden_norm.weight"])
    x, n, positions = embedded, len(streams), np.arange(len(streams) + len(embedded))
    distance = positions[n:, None] - positions
    for i, (window, is_causal) in enumerate(zip(windows, causal, strict=True)):
        p = f"layers.{i}."
        unseen = ((distance < 0) & is_causal) | ((distance >= window) & bool(window))
        h = norm_rows(x, w[f"{p}input_layernorm.weight"])
        both = np.concatenate([context, h])
        q, k, v = (
            (rows @ w[f"{p}self_attn.{role}_proj.weight"].T).reshape(len(rows), -1, SIZE)
            for role, rows in (("q", h), ("k", both), ("v", both))
        )
        q = rotate_heads(norm_rows(q, w[f"{p}self_attn.q_norm.weight"]), positions[n:])
        k = rotate_heads(norm_rows(k, w[f"{p}self_attn.k_norm.weight"]), positions)
        k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(SIZE)
        scores[:, unseen] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        a = np.einsum("hij,jhd->ihd", shares, v).reshape(len(x), -1)
        x = x + a @ w[f"{p}self_attn.o_proj.weight"].T
        h = norm_rows(x, w[f"{p}post_attention_layernorm.weight"])
        gate, up = (h @ w[f"{p}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{p}mlp.down_proj.weight"].T
    return norm_rows(x, w["norm.weight"]) @ head.T


LOCAL = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}


@pytest.mark.parametrize(("backend", "most"), [("reference", 1e-4), ("cpu", 0.02)])
@pytest.mark.parametrize(
    ("kind", "config", "mask"),
    [
        ("dflash", {}, {}),
        ("dflash", LOCAL, {"windows": (5, 5), "causal": (True, True)}),
        ("dflash", LOCAL | {"is_causal": False}, {"windows": (5, 5)}),
        ("dflash", MIXED, {"windows": (5, 0), "causal": (True, False)}),
        ("dflash", MIXED | {"is_causal": True}, {"windows": (5, 0), "causal": (True, True)}),
        ("dspark", {"block_size": 7}, {}),
        ("dspark", {"block_size": 7, "architectures": ["DFlashDraftModel"]}, {}),  # SpecForge's
        ("dspark", SPECULATORS, {}),
        ("dflash", SPECULATORS | {"sample_from_anchor": False}, {}),
    ],
)
def test_they_compute_what_their_definition_says(
    path, tmp_path, monkeypatch, backend, most, kind, config, mask
):
    w, ids = drafter_tensors(2, markov=kind == "dspark"), np.arange(VOCAB)
    if "speculators_model_type" in config:
        w = with_vocabulary(w, ids := ids[5::2])
    llm = LLM(path, backend=backend)
    stream = Anatomy(llm.graph).stream
    at = write_drafter(tmp_path / "drafter", w, kind, **config)
    llm.load_draft(f"{kind}:{at}")
    drafter = llm.engine.speculator.draft
    assert drafter.reads == (stream[1], stream[3])  # behind the layers 0 and 2
    assert drafter.form.first == (
        kind == "dflash" or config.get("architectures") == ["DFlashDraftModel"]
    )
    blocks = noted_blocks(drafter, monkeypatch)
    monkeypatch.setattr(DraftLength, "propose", lambda _, match_length, room, *_costs: min(room, 5))
    done = llm.generate(TEXT, speculate=f"{kind}:{at}", **OPTIONS, temperature=1.0)
    text, embedding = [*TEXT, *done.token_ids], llm.backend.weight("token_embd.weight")
    tensors = llm.tensors(text, list(drafter.reads))
    streams = np.concatenate([tensors[name] for name in drafter.reads], axis=1).astype(float)
    for length, rows, tokens in blocks:
        masks = [MASK] * (len(rows) - 1 + drafter.form.first)
        told = by_definition(
            w, embedding[[text[length - 1], *masks]], streams[: length - 1],
            w.get("lm_head.weight", llm.backend.weight("output.weight")), **mask,
        )[drafter.form.first :]  # fmt: skip
        if kind == "dspark":
            before = [text[length - 1], *tokens[:-1]]
            w1, w2 = (w[f"markov_head.markov_w{i}.weight"] for i in (1, 2))
            told = told + w1[before] @ w2.T
        assert np.abs(rows[:, ids] - told).max() < most * np.abs(told).max()
        assert (np.delete(rows, ids, axis=1) < rows.max() - 1000).all()
    assert max(len(tokens) for _, _, tokens in blocks) > 1
    assert len(blocks) > 2


@pytest.mark.parametrize("kinds", [["sliding_attention"] * 2, ["full_attention"] * 2])
def test_they_compute_what_transformers_does(path, tmp_path, monkeypatch, kinds):
    """Muse Glimmer's assistant, the drafter that transformers itself has."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    from support.random_models import shake

    config = transformers.MuseGlimmerAssistantConfig(
        hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=LAYERS, layer_types=kinds,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=SIZE, sliding_window=5,
        block_size=8, mask_token_id=MASK, target_layer_ids=[0, 2],
    )  # fmt: skip
    model = transformers.MuseGlimmerAssistantModel(config).eval()
    shake(model, np.random.default_rng(4))
    model.save_pretrained(tmp_path / "muse")
    llm, drafts = LLM(path, backend="reference"), f"dflash:{tmp_path / 'muse'}"
    llm.load_draft(drafts)
    drafter = llm.engine.speculator.draft
    blocks = noted_blocks(drafter, monkeypatch)
    monkeypatch.setattr(DraftLength, "propose", lambda _, match_length, room, *_costs: min(room, 5))
    done = llm.generate(TEXT, speculate=drafts, **OPTIONS, temperature=1.0)
    text, embedding = [*TEXT, *done.token_ids], llm.backend.weight("token_embd.weight")
    tensors = llm.tensors(text, list(drafter.reads))
    streams = np.concatenate([tensors[name] for name in drafter.reads], axis=1)
    head, told = llm.backend.weight("output.weight"), []
    for length, rows, _ in blocks:
        block = embedding[[text[length - 1], *[MASK] * len(rows)]]
        cache = transformers.cache_utils.DFlashCache(config=config)
        cache.set_previous_accepted_tokens(length - 1)
        with torch.no_grad():
            inputs = (torch.from_numpy(x)[None] for x in (block, streams[: length - 1]))
            out = model(*inputs, cache=cache)
        told.append(out.last_hidden_state[0, 1:].numpy() @ head.T)
        assert np.abs(rows - told[-1]).max() < 1e-4 * np.abs(told[-1]).max()
    assert len(told) > 2


def noted_blocks(drafter, monkeypatch):
    """Return a list that grows with each block of a single text: its length, logits, tokens."""
    blocks, rows = [], []
    sample, propose = drafter.backend.sample, drafter.propose

    def noted_sample(logits, draws):
        rows.append(logits[0].copy())
        return sample(logits, draws)

    def noted_propose(requests):
        rows.clear()
        [tokens] = propose(requests)
        if tokens:
            blocks.append((len(requests[0][0]), np.stack(rows), tokens))
        return [tokens]

    monkeypatch.setattr(drafter.backend, "sample", noted_sample)
    monkeypatch.setattr(drafter, "propose", noted_propose)
    return blocks


@pytest.mark.parametrize(
    ("kind", "architecture"), [("dflash", "dflash"), ("dspark", "dflash"), ("dspark", "dspark")]
)
def test_a_gguf_file_drafts_as_its_folder_does(path, tmp_path, kind, architecture):
    tensors = drafter_tensors(2, markov=kind == "dspark")
    llm, found = LLM(path), []
    for at in (
        write_drafter(tmp_path / "folder", tensors, kind),
        write_drafter_gguf(tmp_path / "d.gguf", tensors, architecture),
    ):
        llm.load_draft(f"{kind}:{at}")
        llm.engine.speculator.draft.cost = 0.1
        llm.engine.speculator.costs = StepCosts()  # as if no text had been written yet
        done = llm.generate(TEXT, speculate=f"{kind}:{at}", **OPTIONS, temperature=1.0)
        found.append((done.token_ids, done.speculation.proposed, llm.engine.speculator.draft.form))
    assert found[0] == found[1]
    assert found[0][1] > 0


# -- that they change nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("temperature", "least"), [(0, 12), (1.0, 6)])
def test_the_text_is_the_same_and_drafts_come_true(good, kind, temperature, least):
    target, drafter = good[kind]
    llm = LLM(target)
    plain = llm.generate(TEXT, temperature=temperature, **OPTIONS)
    drafted = llm.generate(TEXT, temperature=temperature, speculate=drafter, **OPTIONS)
    assert drafted.token_ids == plain.token_ids
    assert drafted.fingerprint == plain.fingerprint
    assert drafted.speculation.accepted >= least


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kv_tokens", [256, None])  # of the first, texts are preempted
def test_random_drafters_change_no_text_in_any_company(path, drafters, kind, kv_tokens):
    llm = LLM(path, kv_tokens=kv_tokens, context=192)
    prompts = [TEXT, TEXT * 6, [1, *TEXT[4:]], TEXT * 6, TEXT * 9]
    options = OPTIONS | {"temperature": 1.0, "max_tokens": 80}
    plain = [llm.generate(prompt, **options) for prompt in prompts]
    for _ in range(2):  # the second time from the prefix cache
        found = llm.generate(prompts, speculate=drafters[kind], **options)
        assert [c.token_ids for c in found] == [c.token_ids for c in plain]
        assert [c.fingerprint for c in found] == [c.fingerprint for c in plain]
        assert sum(c.speculation.proposed for c in found) > 0
    assert (llm.engine.scheduler.preemptions > 0) == (kv_tokens is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_one_prompt(good, kind):
    target, drafter = good[kind]
    options = OPTIONS | {"temperature": 0.7, "n": 3}
    llm = LLM(target)
    llm.load_draft(drafter)
    llm.engine.speculator.draft.cost = 0.1  # tiny models have drafters as large as themselves
    plain, drafted = (llm.generate(TEXT * 5, speculate=s, **options) for s in ("off", drafter))
    assert [c.fingerprint for c in drafted] == [c.fingerprint for c in plain]
    assert all(c.speculation.accepted > 2 for c in drafted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"regex": "(ab|ba){3,9}"},
        {"bad_words": ["a"], "repetition_penalty": 1.2, "min_tokens": 5},
        {"kv_cache": False},
        {"top_k": 4, "min_p": 0.02, "stop": ["b"]},
    ],
)
def test_under_grammars_penalties_and_without_a_cache(path, drafters, kind, options):
    llm, options = LLM(path), {"max_tokens": 30, "seed": 2, "temperature": 1.0} | options
    plain, drafted = (llm.generate("ab", speculate=s, **options) for s in ("off", drafters[kind]))
    assert (drafted.token_ids, drafted.fingerprint) == (plain.token_ids, plain.fingerprint)


def test_beside_an_adapter(path, drafters, tmp_path):
    llm = LLM(path, adapters={"poet": str(adapter_of(path, tmp_path / "adapter.gguf"))})
    llm.load_draft(drafters["dflash"])
    llm.engine.speculator.draft.cost = 0.1
    for adapter in ({"adapter": "poet"}, {}):
        options = OPTIONS | adapter | {"temperature": 1.0}
        plain, drafted = (
            llm.generate(TEXT, speculate=s, **options) for s in ("off", drafters["dflash"])
        )
        assert drafted.fingerprint == plain.fingerprint
        assert drafted.speculation.proposed > 0


# -- what is refused -------------------------------------------------------------------------------


def config(**changes):
    return {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2]} | changes}


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        ({"fc.weight": np.zeros((64, HIDDEN))}, {}, "reads 64 numbers .* the model gives 128"),
        ({"fc.weight": None}, {}, "lacks fc or hidden_norm, so this is no DFlash"),
        ({"layers.0.mlp.up_proj.weight": None}, {}, "lacks the tensor dflash.blk.0.ffn_up.weight"),
        ({"candidate_selector.codebook.weight": np.zeros((2, 2))}, {}, "DFlash 2, is not supp"),
        ({}, config(target_layer_ids=[0, 9]), "behind 10 layers, and the model has 4"),
        ({}, config(target_layer_ids=["0"]), "must be a list of layers, from 0"),
        ({}, config(mask_token_id=None), "mask_token_id is missing"),
        ({}, config(mask_token_id=9000), "mask token is 9000, which the model does not have"),
        (
            {"d2t": np.zeros(VOCAB - 1, int)},
            {},
            f"guesses {VOCAB} tokens, and its d2t names {VOCAB - 1}",
        ),
        ({"d2t": np.ones(VOCAB)}, {}, "'d2t' is stored as F32; it must be I64 or I32"),
        ({"d2t": -np.arange(VOCAB)}, {}, r"head's tokens are the same token of the model .d2t."),
        ({}, {"num_hidden_layers": 5000}, "5000; it must be a whole number from 1 to 1000"),
        ({}, {"layer_types": 5}, "layer_types is 5; it must be a list of 2 texts, one for each"),
        ({}, {"layer_types": ["full_attention"]}, "layer_types is .*; it must be a list of 2 t"),
        ({}, {"layer_types": [[], {}]}, "layer_types is .*; it must be a list of 2 texts"),
        ({"d2t": np.ones(VOCAB, int)}, {}, "guesses tokens that the model, which has .*, lacks"),
        ({}, {"aux_hidden_state_layer_ids": [5]}, "behind 5 layers, and the model has 4"),
        ({}, {"num_hidden_layers": 1}, "tensor 'dflash.blk.1.* has no place"),
        ({}, {"markov_head_type": "gated"}, "markov_head_type is 'gated', which is not supported"),
    ],
)
def test_drafters_that_do_not_fit(path, tmp_path, change, config, said):
    tensors = {**drafter_tensors(2), **change}
    at = write_drafter(
        tmp_path / "d", {k: v for k, v in tensors.items() if v is not None}, **config
    )
    with pytest.raises(InputError, match=f"speculate: .*{said}"):
        LLM(path).generate("ab", speculate=f"dflash:{at}", max_tokens=2)


IDS = np.arange(0, VOCAB, 4)


@pytest.mark.parametrize(
    ("ids", "number", "rows", "sentence"),
    [
        (None, 1, 5, f"5 rows, and the model's vocabulary has {VOCAB} tokens: take a drafter th"),
        (None, 2, 1, f"1 rows, and the drafter's head has {VOCAB} tokens"),
        (IDS, 2, 1, f"1 rows, and the drafter's head has {len(IDS)} tokens"),
        (IDS, 2, VOCAB, f"{VOCAB} rows, and the drafter's head has {len(IDS)} tokens"),
        (IDS, 1, len(IDS), f"{len(IDS)} rows, and the model's vocabulary has {VOCAB} tokens"),
    ],
)
def test_markov_heads_that_do_not_fit(path, tmp_path, ids, number, rows, sentence):
    whole = drafter_tensors(2, markov=True)
    name = f"markov_head.markov_w{number}.weight"
    tensors = whole if ids is None else with_vocabulary(whole, ids)
    at = write_drafter(tmp_path / "d", tensors | {name: whole[name][:rows]}, "dspark")
    with pytest.raises(InputError, match=f"dflash.markov_w{number}.weight has {sentence}"):
        LLM(path).load_draft(f"dspark:{at}")


def test_a_drafter_of_another_width(tmp_path):
    target = write_tiny_llama(tmp_path / "narrow.gguf", layers=4)
    at = write_drafter(tmp_path / "d", drafter_tensors(2))
    with pytest.raises(InputError, match="streams of 64 numbers, and the model's have 32"):
        LLM(target).generate("ab", speculate=f"dflash:{at}", max_tokens=2)


def test_folders_that_are_none(path, tmp_path):
    llm = LLM(path)
    for name, said in (
        ("", "name the block drafter's folder or GGUF file, dflash:PATH"),
        (tmp_path / "none", "is no folder; name that of a block drafter, or its GGUF file"),
        (path, "its architecture is llama, which is no block drafter's"),
        (tmp_path, "there is no config.json"),
    ):
        with pytest.raises(InputError, match=f"speculate: .*{said}"):
            llm.generate("ab", speculate=f"dflash:{name}", max_tokens=2)
