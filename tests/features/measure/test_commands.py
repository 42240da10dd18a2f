"""``cutaway doctor`` as a person runs it."""

import json
import signal
import sys

import numpy as np
import pytest

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.compute.loading.open import open_model
from cutaway.features.measure.paired import Question, Way, _compute_saving, compare_ways
from support.random_llama import write_tiny_llama

SHAPE = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
SMALL = ["--window", "64", "--tokens", "100", "--draws", "4", "--draw-tokens", "6"]


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTAWAY_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("ab ba abba b a " * 12)
    base = write_tiny_llama(tmp_path / "base.gguf", **SHAPE)
    return ["doctor", str(base), "--text", str(text), *SMALL]


def test_a_report(asked, capsys, tmp_path):
    code = main([
        *asked, "--formats", "q4_0,q8_0", "--kv", "q8_0,q4_0", "--svg", str(tmp_path / "map.svg"),
        "--under", "75kB", "--output", str(tmp_path / "mix.gguf"),
    ])  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    for words in (
        "\nq4_0 ", "\nq8_0 ", "\nkv q8_0,q4_0 ", "  KL ", "  flips ", "  perplexity  ×", "  top 10",
        " of 4 texts of 6 tokens differ", "the worst 12 of 31", "blk.0.attn_q.weight",
        "Q4_0: KL of each alone", "Q8_0: KL", "Proposed: ", "\nmix.gguf ",
    ):  # fmt: skip
        assert words in out
    assert max(map(len, out.splitlines())) <= 100
    assert (tmp_path / "map.svg").read_text().startswith("<svg")
    with open_model(tmp_path / "mix.gguf") as file:
        assert sum(info.nbytes for info in file.tensors.values()) <= 75_000


def test_json(asked, capsys, tmp_path):
    output = ["--under", "75kB", "--output", str(tmp_path / "mix.gguf")]
    assert main([*asked, "--formats", "q4_0", "--json", *output]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["positions"] == 99
    assert [change["change"] for change in found["changes"]] == ["q4_0"]
    assert len(found["tensors"]) == 16
    assert found["mix"]["damage"]["kl"]["mean"] > 0
    assert found["mix"]["output"].endswith("mix.gguf")


def test_a_file_beside_another(asked, capsys, tmp_path):
    quant = tmp_path / "quant.gguf"
    assert main(["quantize", asked[1], str(quant), "--to", "q8_0", "-q"]) == 0
    assert main([*asked[:2], str(quant), *asked[2:], "--no-tensors", "--draws", "0"]) == 0
    out = capsys.readouterr().out
    assert "quant.gguf" in out
    assert "TENSOR" not in out
    assert "drawn" not in out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "nothing to examine"),
        (["--formats", "q9"], "--formats must be one of"),
        (["--kv", "q9"], "--kv must be one of"),
        (["--formats", "q4_0", "--under", "1MB"], "--output"),
        (["--formats", "q4_0", "--under", "big", "--output", "x.gguf"], "write a size"),
        (["--formats", "q4_0", "--under", "1MB", "--output", "x.bin"], "ends in .gguf"),
        (["--kv", "q8_0", "--under", "1MB", "--output", "x.gguf"], "--under needs"),
        (["--formats", "q4_0", "--tokens", "1"], "--tokens must be"),
        (["--formats", "q4_0", "--draw-tokens", "40"], "--draw-tokens must be between 1 and 32"),
    ],
)
def test_misuse(asked, capsys, more, words):
    assert main([*asked, *more]) == 2
    assert words in capsys.readouterr().err


def test_a_mix_that_cannot_be(asked, capsys, tmp_path):
    output = ["--under", "1kB", "--output", str(tmp_path / "mix.gguf")]
    assert main([*asked, "--formats", "q4_0", *output]) == 2
    assert "the smallest mix of these formats takes" in capsys.readouterr().err
    assert not (tmp_path / "mix.gguf").exists()


def test_ctrl_c_keeps_what_was_measured(asked, capsys, monkeypatch):
    from cutaway.features.measure.doctor import Doctor

    real, count = Doctor._cost, []

    def cost(*args):
        count.append(args)
        if len(count) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(Doctor, "_cost", cost)
    assert main([*asked, "--formats", "q8_0", "--draws", "0"]) == 130
    found = capsys.readouterr()
    assert "the same command goes on" in found.err
    assert "\nq8_0 " in found.out
    assert "TENSOR" not in found.out
    assert main([*asked, "--formats", "q8_0", "--draws", "0"]) == 0
    assert "the worst 12 of 16" in capsys.readouterr().out


# -- paired ----------------------------------------------------------------------------------------

# Two ways with common luck: what is the same, where texts part, and what it saves.


SETTINGS = {"max_tokens": 6, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


QUESTIONS = [Question(prompt, (("regex", "[a-m]"),)) for prompt in ("ab", "cde", "f", "gh")]


def compared(llm, **other):
    a = Way(llm, "{prompt}", SETTINGS)
    b = Way(llm, other.pop("template", "{prompt}"), SETTINGS | other)
    return compare_ways(QUESTIONS, a, b, samples=5, seed=3)


def test_a_way_is_the_same_as_itself(llm):
    done = compared(llm)
    assert done.same == 1
    assert done.difference.mean == 0
    assert done.saved is None
    assert len({one.seed for one in done.answers}) == 20


def test_near_ways_share_texts_and_far_ones_do_not(llm):
    near, far = compared(llm, temperature=0.97), compared(llm, template="zz{prompt}")
    assert near.same > far.same
    parted = [one for one in near.answers if one.parts_at is not None]
    for one in parted:
        assert one.texts[0] != one.texts[1]
    assert all(one.texts[0] == one.texts[1] for one in near.answers if one.parts_at is None)


def test_what_is_saved_is_the_ratio_of_variances_by_definition():
    """Against every pair of unlike seeds of a question."""
    rng = np.random.default_rng(0)
    common = rng.random((1, 7, 6))
    scores = np.concatenate([common, common + 0.1 * rng.random((1, 7, 6))])
    unlike = [
        np.var([scores[1, q, (k + shift) % 6] - scores[0, q, k] for k in range(6)])
        for q in range(7)
        for shift in range(1, 6)
    ]
    like = [np.var(scores[1, q] - scores[0, q]) for q in range(7)]
    assert _compute_saving(scores) == pytest.approx(np.mean(unlike) / np.mean(like))
    assert _compute_saving(scores) > 10


@pytest.mark.parametrize(
    ("rule", "value", "text", "right"),
    [
        ("contains", "Paris", "in Paris.", 1), ("contains", "paris", "in Paris.", 0),
        ("icontains", "PARIS", "in Paris.", 1), ("equals", "a b", " a b\n", 1),
        ("equals", "a", "a b", 0), ("regex", r"\d+", "x 42", 1), ("regex", "^x$", "xy", 0),
    ],
)  # fmt: skip
def test_answers_are_scored(rule, value, text, right):
    assert Question("", ((rule, value),)).score(text) == right


def test_one_sentence_for_too_little(llm):
    way = Way(llm, "{prompt}", SETTINGS)
    with pytest.raises(InputError, match="there are none"):
        compare_ways([], way, way, samples=2, seed=0)
    with pytest.raises(InputError, match="2 or more"):
        compare_ways(QUESTIONS, way, way, samples=1, seed=0)


def run_ab(tiny_path, tmp_path, name, text, *more):
    (tmp_path / name).write_text(text)
    own = ["-m", str(tiny_path), "--max-tokens", "4", "-q"]
    return main(["ab", str(tmp_path / name), *own, *(more or ["--b", "temperature=0.5"])])


def test_the_command_reads_lines_and_files_of_promptfoo(tiny_path, tmp_path, capsys):
    line = '{"prompt": "ab", "contains": "a"}\n'
    assert (
        run_ab(tiny_path, tmp_path, "q.jsonl", line * 2, "--b", "prompt=x{prompt}", "--json") == 0
    )
    assert len(json.loads(capsys.readouterr().out)["answers"]) == 8
    config = {
        "prompts": ["say {{word}}", "other"],
        "tests": [{"vars": {"word": "ab"}, "assert": [{"type": "icontains", "value": "A"}]}],
    }
    assert run_ab(tiny_path, tmp_path, "c.json", json.dumps(config)) == 0
    assert "1 questions, 4 seeds each" in capsys.readouterr().out
    assert run_ab(tiny_path, tmp_path, "c.yaml", json.dumps(config)) == 0  # JSON is YAML


@pytest.mark.parametrize(
    ("name", "text", "more", "what"),
    [
        ("q.jsonl", "", (), "there are none"),
        ("q.jsonl", "{", (), "line 1: this is no JSON"),
        ("q.jsonl", "[]", (), "an object with a prompt"),
        ("q.jsonl", '{"prompt": "a"}', (), "say what the answer must hold"),
        ("q.jsonl", '{"prompt": "a", "regex": "("}', (), "regex: "),
        ("q.jsonl", '{"prompt": "a", "equals": "b"}', ("--seed", "1"), "say what is other in B"),
        ("q.jsonl", '{"prompt": "a", "equals": "b"}', ("--b", "wrong=1"), "wrong"),
        ("c.json", '{\n"tests": 1}', (), "lists of prompts and of tests"),
        ("c.yaml", "a: [", (), "this is no YAML"),
        ("c.yaml", 'prompts: [a]\ntests: [{assert: [{type: "llm-rubric", value: x}]}]', (),
         "an assertion is one of"),
    ],
)  # fmt: skip
def test_one_sentence_for_bad_questions(tiny_path, tmp_path, capsys, name, text, more, what):
    assert run_ab(tiny_path, tmp_path, name, text, *more) == 2
    assert what in capsys.readouterr().err


def test_a_question_s_own_stops_hold_where_the_ways_have_none(llm):
    judged = Question("ab", (), judge=len, options={"max_tokens": 2})
    free = {name: value for name, value in SETTINGS.items() if name != "max_tokens"}
    a, b = Way(llm, "{prompt}", free), Way(llm, "{prompt}", SETTINGS)
    done = compare_ways([judged], a, b, samples=2, seed=3)
    assert all(one.scores == (len(one.texts[0]), len(one.texts[1])) for one in done.answers)
    assert all(len(one.texts[0].encode()) < len(one.texts[1].encode()) for one in done.answers)


def test_lm_eval_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    assert main(["ab", "lm-eval:gsm8k", "--b", "top_p=0.5"]) == 2
    assert "pip install 'cutaway[lm-eval]'" in capsys.readouterr().err
    assert main(["ab", "lm-eval:gsm8k", "--b", "top_p=0.5", "--limit", "0"]) == 2
    assert "--limit must be 1 or more, not 0" in capsys.readouterr().err
