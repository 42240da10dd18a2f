"""The chain: what is made from the table of stages, what each kept, and a user's own processors."""

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from cutaway.errors import InputError
from cutaway.sampling import (
    PARAMS,
    PRESETS,
    STAGES,
    History,
    Observe,
    SamplingParams,
    StageReport,
    apply,
    build_chain,
)
from support.sampling_oracles import (
    HISTORIES,
    NOBODY,
    SETTINGS,
    best_first,
    chain_of,
    log_sum_exp,
    removed_mass,
    row,
    rows,
    scores_of,
    snapshots,
    top_k,
)
from support.stage_table import read_table, stage_table
from support.twin_draw import draw

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
    assert read_table() == stage_table(), "PYTHONPATH=tests python -m support.stage_table"


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
    faces = (
        {"namespace.py", "breakers.py", "base.py", "settings.py"}  # the last is of a page alone
        if stage == "dry" else set()
    )  # fmt: skip
    faces |= {"engines.py"} if stage == "typical" else set()  # as transformers calls it
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


# -- the ledger: how many survived each stage, how much mass it removed, and whom ------------------


def expected_reports(chain, logits, history):
    states = snapshots(chain, logits, history)
    return [
        StageReport(
            stage,
            len(after),
            removed_mass(before, after),
            tuple(t for t in best_first(before) if t not in after)[:8],
            log_sum_exp(after),
            min(after.values()) if len(after) < len(before) else None,
        )
        for stage, before, after in zip(chain, states, states[1:], strict=False)
    ]


@given(rows(max_size=20), HISTORIES, SETTINGS)
def test_ledger_counts_weighs_and_names_the_removed(logits, history, settings):
    chain = chain_of(**settings)
    _, reports = apply(chain, logits, history)
    expected = expected_reports(chain, logits, history)
    assert [(r.stage, r.survivors, r.top_removed, r.min_kept_logit) for r in reports] == [
        (e.stage, e.survivors, e.top_removed, e.min_kept_logit) for e in expected
    ]
    for report, truth in zip(reports, expected, strict=True):
        assert report.removed_mass == pytest.approx(truth.removed_mass, rel=1e-12, abs=1e-12)
        assert report.log_sum_exp == pytest.approx(truth.log_sum_exp, rel=1e-12, abs=1e-12)


def test_ledger_of_a_worked_example():
    logits = row([math.log(p) for p in (0.1, 0.4, 0.3, 0.2)])
    _, reports = apply(chain_of(top_k=3, top_p=0.5), logits, NOBODY)
    first, second = reports
    assert (first.survivors, first.top_removed) == (3, (0,))
    assert first.removed_mass == pytest.approx(0.1, rel=1e-6)
    assert first.log_sum_exp == pytest.approx(math.log(0.9), rel=1e-6)
    assert (first.min_kept_logit, second.min_kept_logit) == (logits[3], logits[2])
    assert (second.survivors, second.top_removed) == (2, (3,))
    assert second.removed_mass == pytest.approx(0.2 / 0.9, rel=1e-6)


def test_top_removed_are_the_eight_likeliest_ties_by_id():
    values = [0.0, 5, 1, 1, 3, 2, -1, 2, 9, 1, 4, 0.5]
    _, (report,) = apply(chain_of(top_k=1), row(values), NOBODY)
    assert report.top_removed == (1, 10, 4, 5, 7, 2, 3, 9)
    assert set(report.top_removed).isdisjoint(top_k(scores_of(row(values)), 1))


def test_a_stage_that_removes_nobody_says_so():
    _, reports = apply(chain_of(temperature=0.5, top_k=9), row([1, 2]), NOBODY)
    told = [(r.survivors, r.removed_mass, r.top_removed, r.min_kept_logit) for r in reports]
    assert told == [(2, 0.0, (), None)] * 2
    assert reports[0].log_sum_exp == reports[1].log_sum_exp


def test_the_lowest_kept_logit_has_one_zero():
    _, (report,) = apply(chain_of(top_k=2), row([-0.0, 3, -1]), NOBODY)
    assert str(report.min_kept_logit) == "0.0"


# -- processors: what they see, what they may change, what is refused ------------------------------


LOGITS = row([1, 4, 2, 3])
HISTORY = History((9, 8), [7])


def drawn(*processors, **settings):
    settings = {"temperature": 0, "top_p": 1} | settings
    params = SamplingParams(processors=processors, **settings)
    return draw(params, LOGITS, HISTORY, seed=3, position=2, observe=Observe(stages=True))


def chosen(*processors, **settings):
    """The token, and how many survived."""
    made = drawn(*processors, **settings)
    return made.token_id, made.survivors


def masking(*banned):
    def mask(_, logits):
        logits[list(banned)] = -np.inf
        return logits

    return mask


def returning(value):
    return lambda ids, logits: value


def test_masked_tokens_are_removed():
    assert chosen(masking(1)) == (3, 3)
    assert chosen(masking(1), masking(3)) == (2, 2)
    assert chosen(masking(0, 1, 3), temperature=1) == (2, 1)


def test_masked_tokens_are_named_in_the_ledger():
    observed = drawn(masking(0, 1)).observed
    (report,) = observed.stages
    assert (report.stage.name, report.survivors, report.top_removed) == ("processors", 2, (1, 0))
    weights = np.exp([1.0, 4.0, 2.0, 3.0])
    assert report.removed_mass == pytest.approx((weights[0] + weights[1]) / weights.sum(), 1e-12)


def test_filters_come_after_processors():
    assert chosen(masking(1), temperature=1, top_k=1) == (3, 1)


def test_a_processor_sees_prompt_then_output_and_a_float32_row():
    seen = []

    def look(ids, logits):
        seen.append((ids, logits.dtype, logits.tolist()))
        return logits

    chosen(look)
    assert seen == [([9, 8, 7], np.float32, [1, 4, 2, 3])]


def test_a_processor_sees_bias_and_penalties_but_not_temperature():
    seen = []

    def look(_, logits):
        seen.append(logits.tolist())
        return logits

    chosen(look, logit_bias={0: 2}, temperature=0.5)
    assert seen == [[3, 4, 2, 3]]


def test_processors_run_in_order_each_on_the_result_of_the_last():
    def double(_, logits):
        return logits * 2

    def only_eight(_, logits):
        return np.where(logits == 8, logits, -np.inf)

    assert chosen(double, only_eight) == (1, 1)
    with pytest.raises(InputError, match="at least one token"):
        chosen(only_eight, double)


def test_a_processor_cannot_change_the_logits_or_the_history():
    def vandal(ids, logits):
        ids.clear()
        logits[:] = 0
        return logits

    writable = np.array([1, 4, 2, 3], np.float32)
    history = History([1, 2], [3])
    params = SamplingParams(temperature=0, processors=(vandal,))
    draw(params, writable, history, seed=0, position=0)
    assert writable.tolist() == [1, 4, 2, 3]
    assert history == History([1, 2], [3])


def test_a_processor_cannot_change_what_another_is_given_or_keeps():
    constant = np.array([0, 0, 0, 5], np.float32)
    seen = []

    def vandal(ids, logits):
        ids.clear()
        logits[:] = 1
        return logits

    def look(ids, logits):
        seen.append(ids)
        return logits

    chosen(returning(constant), vandal, look)
    assert constant.tolist() == [0, 0, 0, 5]
    assert seen == [[9, 8, 7]]


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, np.nan, 2, 3], np.float32),
        np.array([1, np.inf, 2, 3], np.float32),
        np.array([1, 1e300, 2, 3]),  # infinite once it is float32
        np.zeros(3, np.float32),
        np.zeros(5, np.float32),
        np.zeros((1, 4), np.float32),
        np.zeros((4, 1), np.float32),
        np.float32(1),
        None,
        "logits",
        [[1, 2], [3]],
        ["a", "b", "c", "d"],
        {0: 1.0},
    ],
    ids=repr,
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_result_that_is_not_a_row_of_logits_is_refused(value, temperature):
    with pytest.raises(InputError, match=r"^processors must return one logit per token"):
        chosen(returning(value), temperature=temperature, min_p=0.1)


def test_a_wrong_result_is_refused_before_the_next_processor_sees_it():
    calls = []

    def second(ids, logits):
        calls.append("second")
        return logits

    with pytest.raises(InputError, match="one logit per token"):
        chosen(returning(None), second)
    assert calls == []


@pytest.mark.parametrize("temperature", [0, 1])
def test_removing_everybody_is_refused(temperature):
    with pytest.raises(InputError, match=r"^processors must leave at least one token"):
        chosen(masking(0, 1), masking(2, 3), temperature=temperature)


def test_an_error_of_the_users_own_passes_unchanged():
    def broken(ids, logits):
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$") as caught:
        chosen(broken)
    assert not isinstance(caught.value, InputError)


def test_lists_and_wider_floats_are_taken():
    assert chosen(returning([0, 0, 9, 0])) == (2, 4)
    assert chosen(returning(np.array([0, 0, 9, -1e300]))) == (2, 3)
