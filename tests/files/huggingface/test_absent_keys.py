"""config.json without one of its keys, or with an odd list: as transformers reads it, or refused.

What is read where a key is absent is in tests/data/absent_keys.json.
"""

import json
import sys
from pathlib import Path

import pytest

from cutaway import FormatError
from cutaway.files.huggingface.config import TABLE, Config
from support.absent_keys import PATH, add_removed_keys, remove_key

READ = json.loads(PATH.read_text("utf-8"))
ROOT = Path(__file__).parents[3]


def reading(folder, values):
    """All that a folder's tensors are read by."""
    (folder / "config.json").write_text(json.dumps(values))
    found = Config(folder)
    told = {**found.metadata, **found.tensors, "tied": found.tied, "behind": found.behind}
    return {k: v.tolist() if hasattr(v, "tolist") else v for k, v in told.items()}


@pytest.mark.parametrize("name", READ)
def test_an_absent_key_is_what_transformers_takes_for_it(tmp_path, name):
    full, wrong, read = READ[name]["full"], {}, 0
    reading(tmp_path, full)
    for key, more in READ[name]["absent"].items():
        try:
            ours = reading(tmp_path, remove_key(full, key))
        except FormatError:
            continue
        read += 1
        theirs = reading(tmp_path, add_removed_keys(remove_key(full, key), more))
        if ours != theirs:
            wrong[key] = {k: (ours.get(k), theirs.get(k)) for k in {*ours, *theirs}
                          if ours.get(k) != theirs.get(k)}  # fmt: skip
    assert wrong == {}
    assert read > 4


@pytest.mark.parametrize(("family", "name"), [
    ("lfm2", "Lfm2BidirForSequenceRouting"), ("lfm2_moe", "Lfm2MoeBidirectionalModel"),
    ("lfm2_bidirectional", "Lfm2BidirectionalForSequenceClassification"),
    ("lfm2_moe", "Lfm2BidirectionalModel"), ("lfm3", "Lfm3BidirectionalModel"),
])  # fmt: skip
def test_encoders_are_not_read_as_if_they_were_causal(tmp_path, family, name):
    like = family.removesuffix("_bidirectional")
    values = READ[like]["full"] | {"model_type": family, "architectures": [name]}
    with pytest.raises(
        FormatError, match=rf"architectures is \['{name[:30]}.* not supported; of enc"
    ):
        reading(tmp_path, values)
    reading(tmp_path, values | {"model_type": like, "architectures": ["Lfm2ForCausalLM"]})


@pytest.mark.parametrize("kinds", [[[1]], [{}], [1], ["x"], 5, True])
@pytest.mark.parametrize("name", [
    "afmoe", "gemma4", "inkling2", "kimi_linear", "lfm2", "lfm2_moe", "lfm3",
    "modernbert", "olmo_hybrid", "qwen3_5", "qwen3_next",
])  # fmt: skip
def test_each_layer_has_a_known_kind(tmp_path, name, kinds):
    full, layers = READ[name]["full"], READ[name]["full"]["num_hidden_layers"]
    wrong = kinds * layers if isinstance(kinds, list) else kinds
    with pytest.raises(FormatError, match=rf"layer_types is .*, one for each of {layers} layers"):
        reading(tmp_path, full | {"layer_types": wrong})


@pytest.mark.parametrize("pattern", [[[1]], [{}], [2], ["0"], [True], 5])
def test_the_publisher_s_pattern_of_mimo_has_numbers(tmp_path, pattern):
    values = remove_key(READ["mimo_v2_flash"]["full"], "layer_types")
    with pytest.raises(FormatError, match=r"hybrid_layer_pattern is .*; it must be 0 or 1"):
        reading(tmp_path, values | {"hybrid_layer_pattern": pattern})


@pytest.mark.parametrize(("command", "path"), [
    (["-m", "support.absent_keys"], PATH), ([ROOT / "tools" / "transformers_defaults.py"], TABLE),
])  # fmt: skip
def test_the_tables_are_those_of_the_transformers_that_is_here(command, path):
    """Written anew where transformers has changed."""
    pytest.importorskip("transformers", reason="needs transformers: '.[test-transformers]'")
    import subprocess

    environment = {"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, check=True
    )
    assert run.stdout.decode() == path.read_text("utf-8")
