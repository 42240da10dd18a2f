"""EAGLE-3 heads: what they compute, that they change no text, and what is refused."""

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.compute.backends import Batch
from cutaway.compute.model.anatomy import Anatomy
from support.drafter_formulas import norm_rows, rotate_heads
from support.random_eagle import HEADS, KV_HEADS, SIZE, eagle_tensors, write_eagle
from support.random_llama import VOCAB, write_tiny_llama
from support.random_qwen35 import write_tiny_qwen35

LAYERS, HIDDEN = 4, 64
TEXT = [1, 70, 80, 81, 90, 70, 80, 7, 9, 100, 33, 34]
OPTIONS = {"max_tokens": 24, "ignore_eos": True, "seed": 5}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    at = tmp_path_factory.mktemp("target") / "target.gguf"
    return write_tiny_llama(at, hidden=HIDDEN, layers=LAYERS, heads=4, head_dim=16, context=256)


@pytest.fixture(scope="module")
def eagle(tmp_path_factory):
    return write_eagle(tmp_path_factory.mktemp("eagle") / "head", eagle_tensors(3 * HIDDEN))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A model after whose tokens mostly the vocabulary's next one comes, and a head that sees that:
    each of its rows attends to itself, for a bias turns with the positions."""
    rng, names = np.random.default_rng(3), {"ffn_down": 96, "attn_output": 128, "ssm_out": 128}
    made = {
        f"blk.{i}.{name}": rng.normal(size=(HIDDEN, width)) * 0.005
        for i in range(LAYERS) for name, width in names.items()
        if name == "ffn_down" or (name == "ssm_out") == ((i + 1) % 2 == 1)
    }  # fmt: skip
    words = rng.normal(size=(VOCAB, HIDDEN)) * 0.4
    made |= {"output_norm": np.ones(HIDDEN), "token_embd": words}
    made |= {"output": np.roll(words, 1, axis=0)}
    at = tmp_path_factory.mktemp("good")
    head = eagle_tensors(3 * HIDDEN, tokens=256) | {"fc.weight": np.zeros((HIDDEN, 3 * HIDDEN))}
    ids = head["d2t"] + np.arange(256)
    layer, eye = "midlayer.self_attn.", np.eye(HIDDEN)
    for role in "qk":
        head[f"{layer}{role}_proj.weight"] = np.zeros((HEADS * SIZE, 2 * HIDDEN))
        head[f"{layer}{role}_proj.bias"] = np.full(HEADS * SIZE, 8.0)
    head |= {
        f"{layer}v_proj.weight": np.concatenate([eye, 0 * eye], axis=1),
        f"{layer}o_proj.weight": eye,
        "midlayer.mlp.down_proj.weight": np.zeros((HIDDEN, 96)), "norm.weight": np.ones(HIDDEN),
        "midlayer.input_layernorm.weight": np.ones(HIDDEN),
        "lm_head.weight": np.roll(words, 1, axis=0)[ids],
    }  # fmt: skip
    target = write_tiny_qwen35(at / "good.gguf", layers=LAYERS, tensors=made)
    return target, write_eagle(at / "head", head, num_key_value_heads=HEADS)


# -- what it computes ------------------------------------------------------------------------------


def by_definition(w, embedded, hidden, normed_first):
    """Its own hidden states and logits of rows whose hidden states fc has made, or it itself."""
    layer = "midlayer."
    read = norm_rows(hidden, w[f"{layer}hidden_norm.weight"])
    both = [norm_rows(embedded, w[f"{layer}input_layernorm.weight"]), read]
    h, n = np.concatenate(both, axis=1), len(hidden)
    q, k, v = (
        (h @ w[f"{layer}self_attn.{one}_proj.weight"].T).reshape(n, heads, SIZE)
        for one, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    )
    q, k = (rotate_heads(each, np.arange(n)) for each in (q, k))
    k, v = (np.repeat(each, HEADS // KV_HEADS, axis=1) for each in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(SIZE)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    a = np.einsum("hij,jhd->ihd", shares, v).reshape(n, -1) @ w[f"{layer}self_attn.o_proj.weight"].T
    x = (read if normed_first else hidden) + a
    h = norm_rows(x, w[f"{layer}post_attention_layernorm.weight"])
    gate, up = (h @ w[f"{layer}mlp.{one}_proj.weight"].T for one in ("gate", "up"))
    x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"{layer}mlp.down_proj.weight"].T
    return x, norm_rows(x, w["norm.weight"]) @ w["lm_head.weight"].T


@pytest.mark.parametrize(("backend", "most"), [("reference", 1e-4), ("cpu", 0.02)])
@pytest.mark.parametrize(
    ("naming", "config"),
    [
        ("midlayer", {}),
        ("layers", {"norm_before_residual": True, "head_dim": None,
                    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 1]}}),
        ("layers", {"norm_before_residual": True, "head_dim": None,  # of layers whose input is read
                    "eagle_aux_hidden_state_layer_ids": [1, 4, 2]}),
    ],
)  # fmt: skip
def test_it_computes_what_its_definition_says(path, tmp_path, backend, most, naming, config):
    w = eagle_tensors(3 * HIDDEN)
    if naming == "layers":
        w["embed_tokens.weight"] = np.random.default_rng(8).normal(size=(VOCAB, HIDDEN))
    llm = LLM(path, backend=backend)
    llm.load_draft(f"eagle:{write_eagle(tmp_path / 'head', w, naming, **config)}")
    head, stream = llm.engine.speculator.draft, Anatomy(llm.graph).stream
    after = [1, 4, 2] if config else [2, 2, 1]
    assert head.reads == tuple(stream[i] for i in after)
    rows = np.arange(len(TEXT), dtype=np.int32)
    batch = Batch(np.array(TEXT, np.int32), rows, 0 * rows, np.zeros((1, 1), np.int32), rows)
    logits, streams = llm.backend.run_whole(batch, head.reads)
    assert np.array_equal(logits, llm.backend.run(batch))
    tensors = llm.tensors(TEXT, list(stream))
    assert np.allclose(streams, np.concatenate([tensors[stream[i]] for i in after], axis=1), 1e-6)

    embedding = w.get("embed_tokens.weight", llm.backend.weight("token_embd.weight"))
    hidden = streams.astype(float) @ w["fc.weight"].T
    own, told = by_definition(w, embedding[TEXT], hidden, bool(config))
    given = head._inputs_from_model(streams)
    found, gave = head._compute(batch._replace(given=given))
    ids = w["d2t"] + np.arange(len(w["d2t"]))
    assert np.abs(found[:, ids] - told).max() < most * np.abs(told).max()
    assert (np.delete(found, ids, axis=1) < told.min()).all()
    # The last row again, as if it were behind one of its own drafts.
    _, then = by_definition(
        w, embedding[TEXT], np.concatenate([hidden[:-1], own[:1]]), bool(config)
    )
    given[-1] = head._inputs_from_itself(gave[:1], given)
    found, _ = head._compute(batch._replace(given=given))
    assert np.abs(found[-1, ids] - then[-1]).max() < most * np.abs(told).max()


@pytest.mark.parametrize("format", ["F32", "Q8_0", "Q4_0"])
def test_streams_beside_the_logits_have_the_bits_of_a_tap(tmp_path, format):
    llm = LLM(write_tiny_llama(tmp_path / "m.gguf", hidden=64, heads=4, head_dim=16, format=format))
    stream, rows = Anatomy(llm.graph).stream, np.arange(len(TEXT), dtype=np.int32)
    batch = Batch(np.array(TEXT, np.int32), rows, 0 * rows, np.zeros((1, 1), np.int32), rows)
    for names in (stream[:1], stream[1:], (stream[2], stream[0]), stream):
        logits, streams = llm.backend.run_whole(batch, tuple(names))
        tensors = llm.tensors(TEXT, list(names))
        assert np.array_equal(streams, np.concatenate([tensors[name] for name in names], axis=1))
        assert np.array_equal(logits.copy(), llm.backend.run(batch))


# -- that it changes nothing -----------------------------------------------------------------------


@pytest.mark.parametrize(("temperature", "least"), [(0, 9), (1.0, 3)])
def test_the_text_is_the_same_and_drafts_come_true(good, temperature, least):
    target, head = good
    llm = LLM(target)
    plain = llm.generate(TEXT, temperature=temperature, **OPTIONS)
    drafted = llm.generate(TEXT, temperature=temperature, speculate=f"eagle:{head}", **OPTIONS)
    assert drafted.token_ids == plain.token_ids
    assert drafted.fingerprint == plain.fingerprint
    assert drafted.speculation.accepted >= least


@pytest.mark.parametrize("kv_tokens", [256, None])  # of the first, texts are preempted
def test_random_heads_change_no_text_in_any_company(path, eagle, kv_tokens):
    llm = LLM(path, kv_tokens=kv_tokens, context=192)
    prompts = [TEXT, TEXT * 6, [1, *TEXT[4:]], TEXT * 6, TEXT * 9]
    options = OPTIONS | {"temperature": 1.0, "max_tokens": 80}
    plain = [llm.generate(prompt, **options) for prompt in prompts]
    for _ in range(2):  # the second time from the prefix cache
        found = llm.generate(prompts, speculate=f"eagle:{eagle}", **options)
        assert [c.token_ids for c in found] == [c.token_ids for c in plain]
        assert [c.fingerprint for c in found] == [c.fingerprint for c in plain]
        assert sum(c.speculation.proposed for c in found) > 0
    assert (llm.engine.scheduler.preemptions > 0) == (kv_tokens is not None)


def test_samples_of_one_prompt(good):
    target, head = good
    options = OPTIONS | {"temperature": 0.7, "n": 3}
    llm = LLM(target)
    llm.load_draft(f"eagle:{head}")
    llm.engine.speculator.draft.cost = 0.1  # the head is nearly as large as the tiny model
    ways = ("off", f"eagle:{head}")
    plain, drafted = (llm.generate(TEXT * 5, speculate=s, **options) for s in ways)
    assert [c.fingerprint for c in drafted] == [c.fingerprint for c in plain]
    assert all(c.speculation.accepted > 2 for c in drafted)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "config", "said"),
    [
        ({"fc.weight": np.zeros((64, 2 * HIDDEN))}, {}, "reads 128 numbers .* the model gives 192"),
        ({"d2t": np.full(100, 900)}, {}, "tokens that the model, which has 264, lacks"),
        ({"d2t": None}, {}, "guesses 100 tokens, and its d2t names none of the model's 264"),
        ({"midlayer.mlp.up_proj.weight": None}, {}, "lacks the tensor eagle.ffn_up.weight"),
        ({"fc.bias": np.zeros(64)}, {}, "fc has a bias"),
        ({"midlayer.rest.weight": np.zeros(64)}, {}, "has no place in an EAGLE-3 head"),
        ({"midlayer.hidden_norm.weight": None}, {}, "lacks fc or hidden_norm, .*EAGLE 1 and 2"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "behind 9 layers, and the model"),
        ({}, {"eagle_aux_hidden_state_layer_ids": [1, "2"]}, "must be a list of layers, from 0"),
        ({}, {"num_hidden_layers": 2}, "num_hidden_layers is 2, which is not supported"),
        ({}, {"hidden_size": None}, "hidden_size is missing"),
    ],
)  # fmt: skip
def test_heads_that_do_not_fit(path, tmp_path, change, config, said):
    tensors = {**eagle_tensors(3 * HIDDEN), **change}
    folder = write_eagle(
        tmp_path / "head", {k: v for k, v in tensors.items() if v is not None}, **config
    )
    with pytest.raises(InputError, match=f"speculate: .*{said}"):
        LLM(path).generate("ab", speculate=f"eagle:{folder}", max_tokens=2)


def test_folders_that_are_none(path, tmp_path):
    llm = LLM(path)
    for name, said in (
        ("", "name the head's folder, eagle:PATH"),
        (tmp_path / "none", "is no folder; name that of an EAGLE-3 head"),
        (tmp_path, "there is no config.json"),
    ):
        with pytest.raises(InputError, match=f"speculate: .*{said}"):
            llm.generate("ab", speculate=f"eagle:{name}", max_tokens=2)
