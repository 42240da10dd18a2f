"""``cutaway practice`` as a person meets it, and as a pipe does."""

import os
import pty
import select
import signal
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.errors import InputError
from cutaway.features.practice.exercises import comparison, exercises
from cutaway.features.practice.start import SAMPLE, from_trace
from cutaway.trace import Token, Trace
from support.practice_brute import solutions
from support.random_llama import write_tiny_llama

ALL_RIGHT = [
    right if isinstance(right, str) else " ".join(f"{figure:.2f}" for figure in right)
    for right in solutions(SAMPLE)
] + ["446"]  # fmt: skip


@pytest.fixture
def piped(capsys, monkeypatch):
    """Runs the command with these lines on standard input."""

    def run(*args, lines=(), **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stdin", StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["practice", *args])
        return code, *capsys.readouterr()

    return run


class Person:
    """The command on a terminal of 80 columns."""

    def __init__(self, *args, **environment):
        self.screen = ""
        self._hand, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cutaway", "practice", *args],
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
            env=os.environ | {"COLUMNS": "80", "TERM": "xterm"} | environment,
        )  # fmt: skip
        os.close(terminal)

    def sees(self, text):
        """Waits until the text is on the screen; what came before it."""
        while text not in self.screen:
            ready, _, _ = select.select([self._hand], [], [], 60)
            assert ready, f"{text!r} never came after {self.screen!r}"
            self.screen += os.read(self._hand, 4096).decode()
        before, _, self.screen = self.screen.partition(text)
        return before

    def types(self, keys):
        os.write(self._hand, keys.encode())

    def interrupts(self):
        self._process.send_signal(signal.SIGINT)

    def leaves(self):
        return self._process.wait(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._hand)


def test_a_question_mark_shows_help_and_asks_again():
    with Person("greedy") as person:
        person.sees("> ")
        person.types("?\n")
        assert "Name a token by its text or its number" in " ".join(person.sees("> ").split())
        person.types("mat\n")
        person.sees("Right.")


def test_all_right(piped):
    code, out, error = piped(lines=ALL_RIGHT)
    assert (code, error) == (0, "")
    assert out.count("Right.") == 12
    assert "Of 12: 12 right." in out
    assert "top-p 0.9               roof" in out


def test_right_wrong_unreadable_and_empty(piped):
    lines = ["mat", "mat", "0.6", ""]
    code, out, _ = piped("greedy", "sampling", "top-k", lines=lines)
    assert code == 0
    assert "> mat\nRight.\n" in out
    assert "> mat\nNot quite.\nThe answer: ‹eos›\n" in out
    assert "> 0.6\nThat cannot be read: write 2 numbers with spaces between, each like" in out
    assert "> \nThe answer: sofa\n" in out
    assert "Of 4: 1 right, 3 missed." in out
    assert "Hint" not in out  # a pipe has one try
    assert "same logits, same luck" not in out  # that is for who did all topics


@pytest.mark.parametrize("lines", [[], ["q"], ["QUIT", "mat"]])
def test_no_answers(piped, lines):
    code, out, error = piped(lines=lines)
    assert (code, error) == (0, "")
    assert "Of 12: 12 not answered." in out
    assert "The answer" not in out


def test_answers_shows_the_solution_and_reads_nothing(piped):
    code, out, error = piped("--answers", lines=["never read"])
    assert (code, error) == (0, "")
    assert "> " not in out
    for right in ("The answer: 0.446 0.271 0.164 0.060 0.037 0.022", "The answer: roof"):
        assert right in out
    assert out.count("The answer: ") == 12
    assert "top-p 0.9               roof" in out


def test_another_seed_is_other_luck(piped):
    _, out, _ = piped("sampling", "--seed", "7", "--answers")
    assert "seed 7, position 5" in " ".join(out.split())
    assert out != piped("sampling", "--answers")[1]


def test_ascii(piped):
    """In a process of its own, whose standard output has no other characters."""
    done = subprocess.run(
        [sys.executable, "-m", "cutaway", "practice", "--answers"], capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, timeout=60, check=True,
    )  # fmt: skip
    out = done.stdout.decode("ascii")
    assert out.count("?") == piped("--answers")[1].count("?")  # the questions' own
    assert "<eos>  -0.50  +2.71" in out
    assert "  1  mat     2.00      0.00  1.000  0.446  ###########\n" in out


def test_lines_fit_the_terminal(piped):
    for columns in (60, 200):
        _, out, _ = piped("--answers", COLUMNS=str(columns))
        assert max(map(len, out.splitlines())) <= min(columns, 80)


@pytest.mark.parametrize(
    ("args", "said"),
    [(["door"], "topic must be one of softmax, "), (["--step", "1"], "--step needs a trace"),
     (["--seed", "-1"], "seed must be"), (["--from", "nowhere"], "nowhere: the trace cannot"),
     (["--from", "x", "--seed", "1"], "not allowed with argument")],
)  # fmt: skip
def test_bad_input_is_one_line(capsys, args, said):
    assert main(["practice", *args]) == 2
    assert said in capsys.readouterr().err


def test_a_step_of_ones_own_run(piped, tmp_path):
    llm = LLM(str(write_tiny_llama(tmp_path / "tiny.gguf")), threads=1)
    llm.generate("ab", trace=tmp_path / "run.trace", max_tokens=4, seed=3, temperature=1)
    args = ("--from", str(tmp_path / "run.trace"), "--step", "2")
    code, out, error = piped(*args, "--answers")
    assert (code, error) == (0, "")
    text = " ".join(out.split())
    assert "Which token comes next at step 2 of your run? Here are 6," in text
    assert "All other tokens, with a probability of 0." in text
    assert "your run, all tokens: top-p 0.9" in text
    assert piped("--from", str(tmp_path / "run.trace"), "--step", "5")[0] == 2


def test_a_person_gets_a_hint_and_a_second_try():
    with Person("greedy", "sampling", NO_COLOR="1") as person:
        person.sees("? helps; q\r\nquits.")
        person.sees("> ")
        person.types("door\n")
        person.sees("That cannot be read: write a token")
        person.sees("> ")
        person.types("idea\n")
        person.sees("Not quite.\r\nHint: there is no luck in it.")
        person.types("mat\n")
        person.sees("Right.")
        person.sees("Enter goes on. ")
        person.types("\n")
        person.sees("[2/2] sampling")
        person.sees("> ")
        person.types("\n")
        person.sees("Hint: add the two columns.")
        person.types("\n")
        person.sees("The answer: ‹eos›")
        assert "\x1b[1m" not in person.sees("Of 2: 1 right at the second try, 1 missed.")
        assert person.leaves() == 0


def test_a_person_leaves():
    with Person() as person:
        person.sees("> ")
        person.types("\x04")
        assert "\x1b[1m" in person.sees("Of 12: 12 not answered.")  # bold, without NO_COLOR
        assert person.leaves() == 0


def test_ctrl_c():
    with Person() as person:
        person.sees("> ")
        person.interrupts()
        person.types("\n")  # Python's readline may wait for a key before it heeds a signal
        person.sees("Of 12: 12 not answered.")
        assert person.leaves() == 130


# -- lessons on the inside of a step -----------------------------------------------------------


@pytest.fixture(scope="module")
def own_run(tmp_path_factory):
    """A tiny model, and a run of it."""
    folder = tmp_path_factory.mktemp("inside")
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "feed_forward": 96}
    path = write_tiny_llama(folder / "tiny.gguf", **shape, context=128)
    trace = folder / "run.jsonl"
    LLM(path).generate("ab ab ab a", seed=1, max_tokens=6, ignore_eos=True, trace=trace)
    return ["--from", str(trace), "-m", str(path)]


def test_a_lesson_on_ones_own_run(piped, own_run):
    code, out, error = piped("mask", "--step", "5", *own_run, lines=["5"])
    assert (code, error) == (0, "")
    assert "at step 5 of your run" in out
    assert "its row has the hash that it had then" in " ".join(out.split())
    assert out.count("the same bits") == 5
    assert "Right." in out
    assert out.endswith("Of 1: 1 right.\n\n")
    assert "luck" not in out  # that is another lesson's


def test_lessons_of_both_kinds(piped, own_run):
    code, out, _ = piped("mask", "greedy", "--answers", *own_run)
    assert code == 0
    assert "[1/2] greedy" in out
    assert "[2/2] mask" in out
    assert "at step" in out


def test_a_lesson_on_the_sample_with_its_own_seed(piped, own_run):
    code, out, _ = piped("mask", "--seed", "3", "--answers", *own_run[2:])
    assert code == 0
    assert "sea was …" in out
    assert "of your run" not in out


def test_an_unknown_topic(piped):
    code, _, error = piped("nonsense")
    assert code == 2
    assert "topic must be one of softmax, entropy" in error
    assert "mask" in error


# -- practice trace --------------------------------------------------------------------------------

# A step of a recorded run as a starting point.


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(str(write_tiny_llama(tmp_path_factory.mktemp("practice") / "tiny.gguf")), threads=1)


@pytest.fixture(scope="module")
def record(llm, tmp_path_factory):
    """Records a run, and reads it again."""

    def made(**options):
        path = tmp_path_factory.mktemp("traces") / "run.trace"
        llm.generate("ab", trace=path, **({"max_tokens": 12, "seed": 3} | options))
        return Trace.read(path)

    return made


@pytest.fixture(scope="module")
def trace(record):
    return record(temperature=1.5, top_p=1.0)


def test_the_six_likeliest_as_the_model_sees_them(llm, trace):
    ids = [*trace.head.prompt_token_ids, *trace.output_token_ids]
    rows = llm.logits(ids)[len(trace.head.prompt_token_ids) - 1 :]
    for step in trace.steps:
        start, row = from_trace(trace, step.index), rows[step.index].astype(np.float64)
        best = [int(i) for i in np.argsort(-row, kind="stable")[:6]]
        if step.sampled_id not in best:
            best[-1] = step.sampled_id
        assert list(start.token_ids) == best
        assert list(start.logits) == [row[i] for i in best]
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert start.left_out == pytest.approx(1 - p[best].sum(), abs=1e-6)


def test_the_luck_is_that_of_the_run(trace):
    for step in trace.steps:
        start = from_trace(trace, step.index)
        recorded = {candidate.id: candidate.luck for candidate in step.observed.candidates}
        assert [start.luck[row] for row in range(6)] == [recorded[i] for i in start.token_ids]
        assert step.sampled_id in start.token_ids


def test_the_last_row_of_the_comparison_is_the_run(trace):
    step = trace.steps[4]
    way, drawn = comparison(from_trace(trace, 4)).rows[-1]
    assert way == "your run, all tokens: temperature 1.5"
    assert drawn == trace.name_of(step.sampled_id).replace(" ", "␣")


@pytest.mark.parametrize(
    ("options", "chain"),
    [({"temperature": 0}, "greedy"), ({"temperature": 1, "top_p": 1}, "pure sampling"),
     ({"temperature": 0.7, "top_k": 40, "top_p": 1, "repetition_penalty": 1.2},
      "penalties → temperature 0.7 → top-k 40"),
     ({"temperature": 0, "logit_bias": {5: 1}}, "logit-bias → greedy")],
)  # fmt: skip
def test_the_chain_in_words(record, options, chain):
    assert from_trace(record(max_tokens=2, **options), 1).run.chain == chain


def test_the_text_ends_before_the_step(trace):
    before = "ab" + "".join(step.text for step in trace.steps[:5])
    assert from_trace(trace, 0).text == "ab"
    assert from_trace(trace, 5).text.startswith("ab")
    assert len(from_trace(trace, 5).text) <= 4 * len(before)  # no more than escapes


def test_where_no_step_is_named_it_is_the_most_uncertain(trace):
    most = max(range(len(trace.steps)), key=lambda n: trace.steps[n].observed.entropy)
    assert from_trace(trace) == from_trace(trace, most)


@pytest.mark.parametrize("index", [12, -1, 10**9])
def test_a_step_that_is_not_there(trace, index):
    with pytest.raises(InputError, match=f"step must be one of this trace's, 0 to 11, not {index}"):
        from_trace(trace, index)


def test_a_trace_without_steps(trace):
    with pytest.raises(InputError, match="this trace has no steps"):
        from_trace(replace(trace, steps=()))


def test_a_step_that_kept_too_little(trace):
    seen = trace.steps[0].observed
    step = trace.steps[0]._replace(observed=seen._replace(candidates=seen.candidates[:1]))
    with pytest.raises(InputError, match="step 1 keeps 1 token: record the trace with more"):
        from_trace(replace(trace, steps=(step,)))


def test_tokens_are_shown_so_that_one_sees_them(trace):
    step = trace.steps[0]
    odd = [b" a b", b"\n", b"", b"\x1b[31m", "é日".encode(), b"abcdefghijklmnop"]
    ids = [candidate.id for candidate in sorted(step.observed.candidates, key=lambda c: c.rank)]
    six = step._replace(sampled_id=ids[0])
    tokens = {**trace.tokens} | {i: Token(i, text) for i, text in zip(ids, odd, strict=False)}
    start = from_trace(replace(trace, steps=(six,), tokens=tokens), 0)
    assert start.names == ("␣a␣b", "\\n", "(empty)", "\\x1b[31m", "é日", "abcdefghijk…")


def test_a_forced_token_is_not_what_the_run_drew(record):
    trace = record(temperature=1.0, top_p=1.0, forced=(5, 5, 5))
    assert any(step.sampled_id != step.token_id for step in trace.steps)
    for step in trace.steps[:3]:
        run = from_trace(trace, step.index).run
        assert run.drawn == trace.name_of(step.sampled_id).replace(" ", "␣") != ""


def test_every_step_can_be_practised(trace):
    for step in trace.steps:
        start = from_trace(trace, step.index)
        assert exercises(start, ["sampling"])[0].answer.solution in start.names
