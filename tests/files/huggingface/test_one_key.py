"""One key of config.json changed at a time: refused in a sentence, or the logits of transformers.

Slow: some 60 models of each family. `test_absent_keys` looks at configs alone.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from cutaway import LLM, CutawayError
from cutaway.files.huggingface.config import Config

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
pytest.importorskip("transformers", reason="needs transformers: pip install '.[test-transformers]'")

import transformers

from support import tiny_tokenizers
from support.families.encoders import ENCODERS
from support.random_models import FAMILIES, IDS, ROWS, context, logits, save_row

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
