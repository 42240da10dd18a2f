"""The table of stages: what is made from it, and the order of a chain that is given."""

import subprocess
from pathlib import Path

import pytest

from cutaway.errors import InputError
from cutaway.sampling import PARAMS, PRESETS, STAGES, SamplingParams, build_chain
from support.stage_table import stage_table, written

ROOT = Path(__file__).parents[2]
NEW = {
    "typical": ["typical"],
    "top_n_sigma": ["top_n_sigma"],
    "xtc": ["xtc"],
    "dry": ["dry_", '"dry"', " dry("],
}


def test_letters_and_settings_belong_to_one_stage():
    letters = [spec.letter for spec in STAGES.values()]
    assert len({*letters}) == len(letters)
    named = [param for spec in STAGES.values() for param in spec.params]
    assert len({*named}) == len(named)
    assert {*named} == {*SamplingParams.__dataclass_fields__} - {"seed", "preset", "chain"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_every_stage_once(preset):
    assert sorted(PRESETS[preset]) == sorted(STAGES)


def test_the_page_has_the_table():
    assert written() == stage_table(), "PYTHONPATH=tests python -m support.stage_table"


def test_llama_cpp_s_order():
    order = [n for n in PRESETS["llama.cpp"] if n not in ("logit_bias", "processors", "constraint")]
    assert order == [
        "penalties", "dry", "top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc",
        "temperature",
    ]  # fmt: skip


@pytest.mark.parametrize("stage", NEW)
def test_a_stage_is_named_in_few_files(stage):
    """Settings and their types, entry, definition, kernel; DRY's breakers are texts besides."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "src", "native", ":!native/tests"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    files = [ROOT / name for name in listed.stdout.split() if name.endswith((".py", ".cpp", ".h"))]
    naming = [file.name for file in files if any(word in file.read_text() for word in NEW[stage])]
    faces = {"namespace.py", "breakers.py", "base.py"} if stage == "dry" else set()
    faces |= {"in_process.py"} if stage == "typical" else set()  # as transformers calls it
    where = {"params.py", "keywords.py", "stages.py", "definitions.py", "sampler_stages.cpp"}
    assert {*naming} - faces == where


def names(**given):
    return [stage.name for stage in build_chain(SamplingParams(**given))]


def test_a_chain_is_the_order():
    assert names(chain=["top_p", "temperature"]) == ["top_p", "temperature"]
    assert names(chain=["temperature"]) == ["temperature"]  # top_p's default is not applied
    assert names(chain=[]) == []
    assert names(chain=("min_p", "top_k"), top_k=3) == ["top_k"]  # min_p is off
    assert names(chain=["top_k"], temperature=0, top_k=3) == []  # greedy


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"chain": ["heat"]}, "chain: no stage is called 'heat'"),
        ({"chain": ["top_k", "top_p", "top_k"]}, "chain has 'top_k' twice"),
        ({"chain": "top_k"}, "chain must be a list of stage names, not 'top_k'"),
        ({"chain": [3]}, "chain must be a list of stage names"),
        ({"chain": ["top_k"], "temperature": 0.5}, "chain has no 'temperature', and temperature"),
        ({"chain": ["top_k"], "min_p": 0.1}, "chain has no 'min_p', and min_p is given"),
        ({"chain": ["top_k"], "logit_bias": {1: 2}}, "chain has no 'logit_bias'"),
        ({"chain": ["top_k"], "preset": "vllm"}, "preset and chain both give the order"),
    ],
)
def test_a_chain_that_cannot_be_is_refused_by_name(given, sentence):
    with pytest.raises(InputError) as caught:
        SamplingParams(**given)
    assert str(caught.value).startswith(sentence)


def test_a_constrained_request_needs_its_stage():
    with pytest.raises(InputError, match="chain has no 'constraint'"):
        build_chain(SamplingParams(chain=["top_k"]), constrained=True)
    chain = build_chain(SamplingParams(chain=["constraint", "top_p"]), constrained=True)
    assert [stage.name for stage in chain] == ["constraint", "top_p"]


@pytest.mark.parametrize("name", PARAMS)
def test_every_range_is_refused_in_words(name):
    param = PARAMS[name]
    with pytest.raises(InputError, match=f"{name} must be "):
        SamplingParams(**{name: param.low - 1})
    if param.high is not None:
        with pytest.raises(InputError, match=f"{name} must be "):
            SamplingParams(**{name: param.high + 1})
