"""Traces of canvases: replayed for all rules, beside other texts; forks; what needs no canvas."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.features.inside.look import inside
from cutaway.rerun import (
    branch,
    diff_models,
    logits,
    price,
    price_of_trace,
    replay,
    rescore,
)
from cutaway.trace import Trace
from support.random_llama import write_tiny_llama

MASK = 260
ATTENTION = {
    "bidirectional": {"llama.attention.causal": False},
    "shifted": {"llama.attention.causal": False, "diffusion.shift_logits": True},
    "blocks": {"cutaway.block_size": 8},
    "causal": {},
}
RULES = [
    {"steps": 5},
    {"rule": "llada", "block": 8},
    {"rule": "entropy-bound", "entropy_bound": 6.0, "noise": "fresh"},
    {"rule": "mask-predict", "steps": 4},
    {"rule": "remdm", "steps": 8, "remask_rate": 0.5},
    {"rule": "edit", "threshold": 0.05, "edit_threshold": 0.02},
    {"rule": "dream", "steps": 6, "order_temperature": 0.2},
    {"rule": "factor", "cache": "prefix", "block": 8},
    {"rule": "diffusion-gemma", "entropy_bound": 9.0, "max_passes": 6},
]
HOW = {"max_tokens": 20, "seed": 3, "temperature": 0.9, "top_k": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("canvas")
    mask = {"tokenizer.ggml.mask_token_id": MASK}
    return {
        name: LLM(write_tiny_llama(folder / f"{name}.gguf", metadata=attention | mask))
        for name, attention in ATTENTION.items()
    }


def asked(attention, rule):
    """The rule as a model of this attention takes it."""
    if attention == "causal":
        return {"order": "left", "block": 1}
    no_block = {k: v for k, v in rule.items() if k not in ("block", "cache")}
    return no_block if attention == "blocks" else rule


def traced(models, path, attention="bidirectional", rule=RULES[0], **more):
    done = models[attention].generate(
        "ab", **HOW | more, denoise=asked(attention, rule), trace=path
    )
    return done, Trace.read(path)


@pytest.mark.each_choice
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("rule", "steps"))
@pytest.mark.parametrize("attention", ATTENTION)
def test_a_canvas_is_recorded_and_replays_beside_other_texts(models, tmp_path, attention, rule):
    done, trace = traced(models, tmp_path / "t", attention, rule)
    assert trace.output_token_ids == done.token_ids
    assert [p.fingerprint for p in trace.passes] == [p.fingerprint for p in done.passes]
    assert [p.cells for p in trace.passes] == [
        tuple(cell._replace(observed=None) for cell in p.cells) for p in done.passes
    ]
    llm = models[attention]
    with llm.stream("ba", max_tokens=9, seed=1, denoise=asked(attention, RULES[0])) as other:
        found = replay(llm, trace)
        assert next(other).index == 0
    assert found.same
    assert (found.steps, found.passes) == (20, len(trace.passes))


def test_threads_change_nothing(models, tmp_path):
    _, trace = traced(models, tmp_path / "t")
    mask = ATTENTION["bidirectional"] | {"tokenizer.ggml.mask_token_id": MASK}
    file = write_tiny_llama(tmp_path / "all.gguf", metadata=mask)
    assert replay(LLM(file, threads=models["bidirectional"].backend.threads + 1), trace).same


@settings(max_examples=40)
@given(st.data())
def test_a_figure_of_any_pass_stops_the_replay_there(models, tmp_path_factory, data):
    _, trace = traced(models, tmp_path_factory.mktemp("t") / "t")
    at = data.draw(st.integers(0, len(trace.passes) - 1))
    made = trace.passes[at]
    n = data.draw(st.integers(0, len(made.cells) - 1))
    name = data.draw(st.sampled_from(["figure", "entropy", "logits_hash", "token_id"]))
    cell = made.cells[n]._replace(**{name: getattr(made.cells[n], name) + 1})
    cells = (*made.cells[:n], cell, *made.cells[n + 1 :])
    passes = [*trace.passes]
    passes[at] = made._replace(cells=cells)
    found = replay(models["bidirectional"], replace(trace, passes=tuple(passes)))
    assert found.mismatch.passed == at
    assert found.mismatch.what.keys() == {f"{name} at {cell.position}"}


def test_a_run_that_was_cut_short_is_replayed_as_far_as_it_goes(models, tmp_path):
    with models["bidirectional"].stream(
        "ab", **HOW, denoise=RULES[0], trace=tmp_path / "t"
    ) as stream:
        events = stream.events()
        next(events), next(events)
    trace = Trace.read(tmp_path / "t")
    assert (trace.end.reason, trace.steps) == ("aborted", ())
    found = replay(models["bidirectional"], trace)
    assert found.same
    assert found.passes == len(trace.passes) >= 2


def test_fewer_candidates_than_the_rule_looks_at(models, tmp_path):
    _, trace = traced(models, tmp_path / "t", candidates=1)
    assert trace.head.candidates == 1
    assert replay(models["bidirectional"], trace).same


@pytest.mark.parametrize("attention", ["bidirectional", "shifted"])
def test_what_is_behind_comes_back(models, tmp_path, attention):
    _, trace = traced(models, tmp_path / "t", attention, suffix="ba a")
    assert trace.head.decoder.suffix_ids
    assert replay(models[attention], trace).same
    fork = branch(models[attention], trace, 3, 7, trace=tmp_path / "fork")
    assert fork.token_ids[3] == 7
    assert Trace.read(tmp_path / "fork").head.decoder.suffix_ids == trace.head.decoder.suffix_ids


# -- forks -------------------------------------------------------------------------------------


def bare(made):
    return made._replace(phases=None)


@pytest.mark.parametrize("attention", ["bidirectional", "blocks", "causal"])
def test_a_fork_changes_nothing_before_its_pass(models, tmp_path, attention):
    _, trace = traced(models, tmp_path / "t", attention)
    at = 9
    token = (trace.steps[at].token_id + 1) % 256 + 3
    done = branch(models[attention], trace, at, token, trace=tmp_path / "fork")
    fork, passed = Trace.read(tmp_path / "fork"), trace.steps[at].pass_index
    assert fork.output_token_ids[at] == done.token_ids[at] == token
    assert fork.steps[at].source == "forced"
    assert [*map(bare, fork.passes[:passed])] == [*map(bare, trace.passes[:passed])]
    assert fork.passes[passed] != trace.passes[passed]
    assert (fork.head.parent.trace, fork.head.parent.step) == (trace.sha256, at)
    assert replay(models[attention], fork).same


def test_a_fork_at_another_pass(models, tmp_path):
    _, trace = traced(models, tmp_path / "t")
    last = len(trace.passes) - 1
    done = branch(models["bidirectional"], trace, 4, 7, passed=last)
    assert (done.token_ids[4], done.steps[4].pass_index) == (7, last)
    assert [p.fingerprint for p in done.passes[:last]] == [
        p.fingerprint for p in trace.passes[:last]
    ]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            {"passed": 99},
            "passed must be one of those that revealed the cell's block, 0 to 4, not 99",
        ),
        ({"luck": "fresh"}, "luck fresh: it would change passes before the fork"),
        ({"max_tokens": 30}, "max_tokens: it would change"),
        ({"interventions": ["L0.H1 x 0"]}, "interventions: it would change"),
    ],
)
def test_what_no_fork_can_be(models, tmp_path, how, words):
    _, trace = traced(models, tmp_path / "t")
    with pytest.raises(InputError, match=words):
        branch(models["bidirectional"], trace, 4, 7, **how)


def test_what_needs_a_text_from_left_to_right(models, tmp_path):
    _, trace = traced(models, tmp_path / "t")
    llm = models["bidirectional"]
    for ask in (
        lambda: rescore(llm, trace), lambda: logits(llm, trace), lambda: inside(llm, trace, 1),
        lambda: diff_models(llm, trace, trace),
    ):  # fmt: skip
        with pytest.raises(InputError, match="this trace is of a canvas"):
            ask()


def test_a_text_in_no_passes_has_no_fork_at_one(tiny, trace):
    with pytest.raises(InputError, match="in no passes"):
        branch(tiny, trace, 4, 7, passed=1)


# -- the price of passes -----------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["bidirectional", "shifted", "blocks"])
def test_the_passes_of_a_trace_cost_what_those_of_the_run_do(models, tmp_path, attention):
    done, trace = traced(models, tmp_path / "t", attention)
    found = price_of_trace(models[attention], trace)
    assert found == price(models[attention], done.prompt_token_ids, done.passes)
    assert any(of.price for of in found.passes)


def test_what_has_no_price(models, tiny, trace, tmp_path):
    with pytest.raises(InputError, match="written from left to right"):
        price_of_trace(tiny, trace)
    _, canvas = traced(models, tmp_path / "t")
    with pytest.raises(InputError, match=r"is 'bidirectional', and of .* 8: use the same model"):
        price_of_trace(models["blocks"], canvas)


def test_noise_has_no_price_though_the_model_names_a_mask(models, tmp_path):
    _, trace = traced(models, tmp_path / "t", rule={"rule": "diffusion-gemma", "max_passes": 3})
    with pytest.raises(InputError, match="a canvas of noise has no parallel loss"):
        price_of_trace(models["bidirectional"], trace)


def test_likeliest_tokens_in_place_of_drawn_ones_have_no_price(models, tmp_path):
    masked = {"rule": "diffusion-gemma", "max_passes": 3, "start": "mask"}
    _, trace = traced(models, tmp_path / "m", rule=masked)
    with pytest.raises(InputError, match="a canvas of remask 'unchosen' has no parallel loss"):
        price_of_trace(models["bidirectional"], trace)


def test_the_command_that_prices_a_trace(models, tmp_path, capsys):
    _, trace = traced(models, tmp_path / "t")
    found = price_of_trace(models["bidirectional"], trace)
    file = write_tiny_llama(
        tmp_path / "all.gguf",
        metadata=ATTENTION["bidirectional"] | {"tokenizer.ggml.mask_token_id": MASK},
    )
    command = ["trace", "parallel-loss", str(tmp_path / "t"), "-m", str(file)]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "1", "4", *(f"{x:.2f}" for x in (found.passes[0].together, found.passes[0].apart)),
        f"{found.passes[0].price:+.2f}", f"{found.passes[0].bound:.2f}",
    ]  # fmt: skip
    assert lines[-1].startswith(f"{found.price:+.2f} bits in all, ")


def test_an_encoder_has_its_separator_behind_the_canvas(tmp_path):
    pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")
    pytest.importorskip(
        "transformers", reason="needs transformers: pip install '.[test-transformers]'"
    )
    from support.random_models import edit, save
    from support.tiny_tokenizers import wordpiece

    save("bert", tmp_path / "bert", tokenizer=wordpiece)
    edit(tmp_path / "bert" / "tokenizer_config.json", mask_token="[MASK]")
    with LLM(tmp_path / "bert", progress=False) as llm:
        llm.generate("ab", max_tokens=6, seed=1, denoise={"steps": 3}, trace=tmp_path / "t")
        trace = Trace.read(tmp_path / "t")
        assert trace.head.decoder.suffix_ids == (llm.tokenizer.sep_id,)
        assert replay(llm, trace).same
