"""Every model as a folder of transformers: the same logits, close ones from the native backend,
and there the same bits in every way. `test_folder_config` looks at configs alone.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import transformers

from cutaway import LLM, CutawayError
from cutaway.compute.loading.open import open_model
from cutaway.files.huggingface.config import Config
from cutaway.files.weights.gguf_writer import write_gguf
from support import tiny_rwkv, tiny_tokenizers
from support.diffusion_models import DIFFUSION
from support.families.encoders import ENCODERS
from support.families.recurrent import RECURRENT
from support.families.row import VOCAB
from support.random_models import FAMILIES, FORMULAS, IDS, ROWS, context, logits, save, save_row

FORMATS = (None, "q8_0")
WRITERS = [*FAMILIES, *FORMULAS]
MODELS = [*WRITERS, *ENCODERS, *DIFFUSION]


def dealt(names, first=0):
    """Every second model with one of the formats in turn; slow, each with both.

    The reference has each in every run, and of the native backend each is close to it, or has the
    same bits in every way.
    """
    return [
        pytest.param(name, format, marks=() if 2 * j == (i - first) % 4 else pytest.mark.slow)
        for i, name in enumerate(names)
        for j, format in enumerate(FORMATS)
    ]


def every(step, names):
    """The first of so many models; slow, the others, too."""
    return [
        pytest.param(name, marks=pytest.mark.slow if i % step else ())
        for i, name in enumerate(names)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_s_logits_are_those_of_transformers(random_model, name):
    (path, theirs), ids = random_model(name), IDS[: context(name)]
    llm = LLM(path, backend="reference", context=context(name))
    assert np.abs(llm.logits(ids) - theirs(ids)).max() < 1e-3
    # NumPy's BLAS may round a matrix of fewer rows otherwise; the contract is the cpu backend's.
    few = np.abs(llm.logits(ids, 50) - llm.logits(ids)[50:]).max()
    assert few < (1e-4 if name in WRITERS else 1e-5)


@pytest.mark.parametrize("prompt_tokens", [1, 40, 79])
def test_a_prompt_is_read_to_both_sides_as_in_transformers(random_model, prompt_tokens):
    """A token type of 1 says there what the prompt is; a model without prefix_lm takes none."""
    path, theirs = random_model("hrm_text")
    exact, start = theirs(IDS, prompt_tokens), prompt_tokens - 1
    for backend, near in (("reference", 1e-3), ("cpu", 5e-2)):
        ours = LLM(path, backend=backend).logits(IDS, start, prompt_tokens=prompt_tokens)
        assert np.abs(ours - exact[start:]).max() < near
    assert (np.abs(exact - theirs(IDS)).max() > 0.1) == (prompt_tokens > 1)
    path, theirs = random_model("hrm_text-other")
    ours = LLM(path, backend="reference").logits(IDS, start, prompt_tokens=prompt_tokens)
    assert np.abs(ours - theirs(IDS)[start:]).max() < 1e-3


def test_a_text_longer_than_the_first_training_s(random_model):
    """Longer than 64 tokens, where other factors stretch the positions."""
    path, theirs = random_model("phi3-longrope")
    assert np.abs(LLM(path, backend="reference").logits(IDS) - theirs(IDS)).max() < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RECURRENT, *tiny_rwkv.CONFIGS])
def test_a_state_is_that_of_transformers_after_200_tokens(random_model, name):
    """The native backend has halves of 11 bits for keys and values, so its mean error counts."""
    path, theirs = random_model(name)
    ids = np.random.default_rng(1).integers(6, VOCAB, 200).tolist()
    exact = theirs(ids)
    assert np.abs(LLM(path, backend="reference").logits(ids) - exact).max() < 1e-3
    errors = LLM(path).logits(ids)[100:] - exact[100:]
    assert np.sqrt(np.mean(errors**2)) < 1e-3


@pytest.mark.parametrize(("name", "format"), dealt(MODELS))
def test_the_native_backend_is_close(random_model, name, format):
    """Keys and values have 11 bits there; activations 8 where weights are quantised.

    Of most rows: one whose scores of experts are nearly equal may go to others.
    """
    (path, _), ids = random_model(name), IDS[:40] if name in WRITERS else IDS
    models = [
        LLM(path, backend=backend, context=context(name), quantize=format)
        for backend in ("reference", "cpu")
    ]
    exact, ours = (llm.logits(ids) for llm in models)
    is_mixture = any(op.kind == "experts" for op in models[0].graph.ops)
    errors = np.mean((ours - exact) ** 2, axis=1) / np.mean(exact**2)
    error = np.sqrt((np.median if is_mixture else np.mean)(errors))
    assert error < (0.004 if format is None else 0.12)


@pytest.mark.parametrize(
    ("name", "format"),
    [*dealt(ENCODERS), *((name, None) for name in DIFFUSION)],
)
def test_bits_are_the_same_over_threads_tiers_and_files(
    random_model, name, format, each_tier, tmp_path
):
    path, _ = random_model(name)
    expected = LLM(path, threads=2, quantize=format).logits(IDS)
    assert np.array_equal(LLM(path, threads=3, quantize=format).logits(IDS), expected)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    assert np.array_equal(LLM(tmp_path / "one.gguf", quantize=format).logits(IDS), expected)
    for tier in each_tier:
        assert np.array_equal(LLM(path, threads=1, quantize=format).logits(IDS), expected), tier


def fingerprints(path, format, **more):
    """Of three texts that are written together."""
    llm = LLM(path, context=128, quantize=format, **more)
    prompts = [IDS[:33], IDS[5:12], IDS[20:60]]
    texts = llm.generate(prompts, temperature=0.8, seed=3, max_tokens=16, ignore_eos=True)
    return llm, prompts, [text.fingerprint for text in texts]


@pytest.mark.parametrize(("name", "format"), dealt(WRITERS, 1))  # the others than above
def test_fingerprints_are_the_same_in_every_way(random_model, name, format, each_tier):
    path, _ = random_model(name)
    llm, prompts, expected = fingerprints(path, format, threads=2)
    assert len({*expected}) == 3
    options = {"temperature": 0.8, "seed": 3, "max_tokens": 16, "ignore_eos": True}
    for way in ({}, {"kv_cache": False}, {"speculate": "ngram"}):
        alone = [llm.generate(p, **options, **way).fingerprint for p in prompts]
        assert alone == expected, way
    assert fingerprints(path, format, threads=3, prefix_cache=False)[2] == expected
    for tier in each_tier:
        assert fingerprints(path, format, threads=1)[2] == expected, tier


@pytest.mark.parametrize("name", every(3, WRITERS))
def test_a_folder_written_as_one_file_is_the_same_model(random_model, name, tmp_path):
    path, _ = random_model(name)
    with open_model(path) as folder:
        write_gguf(tmp_path / "one.gguf", folder)
    assert fingerprints(tmp_path / "one.gguf", None)[2] == fingerprints(path, None)[2]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_numbers_stay_what_they_are(dtype, tmp_path):
    model = save("llama", tmp_path, dtype=dtype)
    ours = LLM(tmp_path, backend="reference")
    assert np.abs(ours.logits(IDS) - logits(model, IDS)).max() < 1e-3


def test_shards_are_one_model(tmp_path):
    model = save("llama", tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ours = LLM(tmp_path, backend="reference").logits(IDS)
    assert np.abs(ours - logits(model, IDS)).max() < 1e-3


# -- one key changed at a time (slow: some 60 models of each family) -------------------------------


UNREAD = (
    "dropout", "_token_id", "initializer", "cache", "aux_loss", "output_", "pdrop", "dtype",
    "rescale_prenorm",  # by which transformers divides what it has read
)  # fmt: skip
FULL, SLIDING, CHUNKED = (f"{kind}_attention" for kind in ("full", "sliding", "chunked"))
YARN = {
    "rope_type": "yarn", "rope_theta": 900.0, "factor": 4.0, "original_max_position_embeddings": 32
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
ROPES = [
    YARN, LLAMA3, YARN | {"mscale_all_dim": 0.7}, YARN | {"mscale": 0.7, "mscale_all_dim": 0.7},
    YARN | {"truncate": False}, YARN | {"attention_factor": 1.3}, {"rope_type": "default"},
    {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 0.25},
    {"rope_type": "default", "rope_theta": 700.0, "partial_rotary_factor": 1.0},
    {"rope_type": "linear", "rope_theta": 700.0, "factor": 3.0},
]  # fmt: skip
WORDS = {
    "hidden_act": ["gelu", "silu", "relu"], "hidden_activation": ["gelu", "silu"],
    "position_embedding_type": ["rope", None], "topk_method": ["greedy", "noaux_tc"],
}  # fmt: skip


def values(key, value, layers):
    """Others of its kind."""
    if key in WORDS:
        found = WORDS[key]
    elif key in ("layer_types", "layers_block_type"):
        kinds = sorted({*(value or []), FULL, SLIDING})
        found = [[kind] * layers for kind in kinds]
        found += [[kinds[i % 2] for i in range(layers)], [kinds[1 - i % 2] for i in range(layers)]]
    elif key == "rope_parameters":
        nested = isinstance(value, dict) and any(isinstance(v, dict) for v in value.values())
        found = [{**value, FULL: rope} for rope in ROPES] if nested else ROPES
    elif isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found = [value + 1, value // 2]
    elif isinstance(value, float):
        found = [value * 0.5]
    elif value is None:
        found = [8, True] if key in ("sliding_window", "head_dim") else []
    else:
        found = []
    return [one for one in [*found, None] if one != value]


def changed(name):
    """(key, value, config) of each change that transformers takes."""
    row = ROWS[name]
    full = json.loads(
        getattr(transformers, row.config)(**row.values).to_json_string(use_diff=False)
    )
    if "text_config" in full:  # those that read pictures have the texts' families
        return
    for key, value in full.items():
        if any(part in key for part in UNREAD) or key in ("vocab_size", "model_type"):
            continue
        for other in values(key, value, full.get("num_hidden_layers", 3)):
            yield key, other, row._replace(values={**row.values, key: other})


def difference(row, name):
    """Of our logits from those of transformers, by these' deviation; None where one has none."""
    kind = "AutoModelForMaskedLM" if name in ENCODERS else row.kind
    with TemporaryDirectory() as folder:
        path = Path(folder)
        try:
            config = getattr(transformers, row.config)(**row.values)
            (path / "config.json").write_text(config.to_json_string(use_diff=False))
            Config(path)
            model = save_row(row._replace(kind=kind), path, "float32", tiny_tokenizers.byte_level())
            theirs = logits(model, IDS)
        except CutawayError:
            return None  # refused
        except Exception:  # transformers has no single error for what it cannot run
            return None
        try:
            with LLM(path, backend="reference", context=context(name), progress=False) as llm:
                ours = llm.logits(IDS)
        except CutawayError:
            return None
    if not np.isfinite(theirs).all():
        return None
    return float(np.abs(ours - theirs).max() / theirs.std())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers has words for most of these configs
@pytest.mark.parametrize("name", [*FAMILIES, *ENCODERS])
def test_a_changed_key_is_refused_or_gives_the_logits_of_transformers(name):
    found = {}
    for key, other, row in changed(name):
        off = difference(row, name)
        if off is not None and not off < 1e-3:
            found[f"{key} = {other!r}"] = off
    assert found == {}
