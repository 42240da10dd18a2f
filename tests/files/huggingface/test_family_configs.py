"""Every family's random configs: accepted, refused and read as they were.

A change on purpose is written down by ``PYTHONPATH=tests python -m support.family_configs``.
"""

import json
from contextlib import suppress

import pytest

from cutaway.compute.model import architectures
from cutaway.errors import FormatError
from cutaway.files.huggingface.adapters import BY_CONFIG
from cutaway.files.huggingface.families import FAMILIES, MODULES
from cutaway.files.huggingface.json_object import JsonObject
from support.family_configs import CONFIGS, PATH, SLOW, USUAL, digest, texts

DIGESTS = json.loads(PATH.read_text())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_few_are_read_as_before(name):
    assert digest(name, USUAL) == DIGESTS[name][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_many_are_read_as_before(name):
    assert digest(name, SLOW) == DIGESTS[name][1]


def test_a_config_that_is_not_changed_is_accepted():
    assert [name for name in CONFIGS if next(texts(name, 1)) == "refused"] == []


def test_no_family_is_left_out():
    read = "".join(text for name in CONFIGS for text in texts(name, USUAL))
    left = {name for name, _ in graphs() if f'"general.architecture": "{name}"' not in read}
    assert left == {"internlm2", "minicpm"}  # GGUF files alone; their metadata is drawn
    types = {full["model_type"] for each in CONFIGS.values() for full in each}
    assert {*FAMILIES} - types == {  # told by other keys, or by names of tensors
        "gemma_embedding", "jina_bert", "nomic_bert_moe", "lladamoe",
        "diffugpt", "diffullama", "granitehybrid", "granitehybrid_moe", "nemotron_h_moe",
        "bloom_n_embed",
    }  # fmt: skip


def test_a_family_s_row_stands_in_the_module_that_has_the_name_of_its_graph_s():
    rows = {(row.architecture, name_of(module)) for module in MODULES for row in rows_of(module)}
    with_folders = {architecture for architecture, _ in rows}
    assert {graph for graph in graphs() if graph[0] in with_folders} <= rows


def graphs():
    """Return the name of each architecture, and of the module that has its graph."""
    tables = zip(architectures.MODULES, architectures.tables(), strict=True)
    return {(name, module) for module, rows in tables for name in rows}


def name_of(module):
    return module.__name__.rpartition(".")[2]


def rows_of(module):
    return module.ROWS.values()


def test_matrices_that_the_config_moves_are_refused_in_adapters_of_peft():
    """Their B would have to be moved as they are, and a folder of PEFT has no config of a model."""
    moved = {}
    for config in (config for each in CONFIGS.values() for config in each):
        if (family := FAMILIES.get(config["model_type"])) is None:
            continue
        first = next(row for row in FAMILIES.values() if row.architecture == family.architecture)
        with suppress(FormatError):  # where what is read is a part of the config
            bases = family.rewrites_of(JsonObject(config, "config.json")).keys()
            bases &= {*family.layer.values(), *family.outside.values()}
            bases -= first.rewrites(4, 2).keys()
            bases = {base for base in bases if "conv1d" not in base}  # no matrices, nor are norms
            matrices = {base for base in bases if not base.endswith("norm")}
            if matrices:
                moved.setdefault(family.architecture, set()).update(matrices)
    assert moved == {name: {*bases} for name, bases in BY_CONFIG.items()}
