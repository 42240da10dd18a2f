"""Keys inside config.json's objects and lists, one left out or odd at a time.

A value that is read at all must be refused where it makes no sense: never an error of another kind,
never silence.
"""

import json

import pytest

from cutaway.errors import FormatError
from cutaway.files.huggingface.config import CONFIG, Config
from support.family_configs import CONFIGS
from support.quantised_folders import METHODS

ABSENT = object()
ODD = ("x", [[1]], {"a": 1}, 2**70, 0, {}, ABSENT)
FREE = ("architectures", "layer_rope_theta")
"""Lists of names, of which a few have a meaning; of numbers, of which it matters which are 0."""


KINDS = {name: configs[0] for name, configs in CONFIGS.items()}
KINDS["inkling's loops"] = KINDS["inkling2_loop_text"] | {
    "loop_config": {"core_start": 1, "core_end": 3, "num_passes": 2}
}


def places(value, place=()):
    """Yield the place of each key of an object, and of a list's first element, at any depth."""
    keys = value if isinstance(value, dict) else range(len(value[:1]))
    for key in keys:
        yield (*place, key)
        if isinstance(value[key], (dict, list)):
            yield from places(value[key], (*place, key))


def nested(config):
    """Yield the places of keys that are not in the config itself, or in that of its text model."""
    for place in places(config):
        if len(place) > 1 + (place[0] == "text_config") and place[0] != "vision_config":
            yield place


def change(config, place, value):
    """Return a copy with another value, or without any."""
    copy = json.loads(json.dumps(config))
    *way, key = place
    inner = copy
    for step in way:
        inner = inner[step]
    if value is ABSENT:
        del inner[key]
    else:
        inner[key] = value
    return copy


def read(folder, config):
    """Return what is read of a config, as a text; None if it is refused."""
    (folder / CONFIG).write_text(json.dumps(config))
    try:
        read = Config(folder)
        rewrites = read.family.rewrites_of(read.settings)
    except FormatError:
        return None
    return repr((read.metadata, read.tensors, read.tied, {k: vars(v) for k, v in rewrites.items()}))


def value_at(config, place):
    for step in place:
        config = config[step]
    return config


def silent(folder, config):
    """Return the (place, value) of odd values that change nothing where other values do."""
    usual, silent, heard = read(folder, config), [], set()
    for place in nested(config):
        for odd in ODD:
            before = value_at(config, place)
            if odd == before or (isinstance(odd, dict) and isinstance(before, dict)):
                continue  # an object without the keys is read as one that is absent
            if read(folder, change(config, place, odd)) != usual:
                heard |= {place[:n] for n in range(1, len(place) + 1)}
            elif odd is not ABSENT:
                silent.append((place, odd))
    return [(place, odd) for place, odd in silent if place in heard and not {*place} & {*FREE}]


@pytest.mark.parametrize("name", KINDS)
def test_an_odd_value_inside_is_refused_unless_nothing_reads_it(tmp_path, name):
    assert silent(tmp_path, KINDS[name]) == []


@pytest.mark.parametrize("name", METHODS)
def test_odd_values_inside_a_method_of_quantisation_end_in_a_sentence(tmp_path, name):
    """Or in silence, where each matrix says by itself how it is quantised."""
    method = METHODS[name]
    config = KINDS["llama"] | {method.key: method.config}
    assert read(tmp_path, config)
    refused = [
        place
        for place in nested(config) if place[0] == method.key
        for odd in ODD
        if read(tmp_path, change(config, place, odd)) is None
    ]  # fmt: skip
    assert refused or name == "torchao"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ernie4_5_moe", {"moe_num_shared_experts": {"a": 1}}),
        ("exaone_moe", {"first_k_dense_replace": 2**70}),
        ("llama4_text", {"no_rope_layers": None, "no_rope_layer_interval": "x"}),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}),
    ],
)
def test_an_odd_value_is_refused(tmp_path, name, change):
    assert read(tmp_path, KINDS[name] | change) is None
