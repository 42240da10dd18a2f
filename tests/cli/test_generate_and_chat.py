"""The commands as a person runs them: exit codes, what is on which stream, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial

import pytest

from cutaway.methods.importance import estimate
from cutaway.trace import Trace
from support import held_steps
from support.golden import GOLDEN
from support.random_llama import write_tiny_llama

PYTHON = [sys.executable, "-m", "cutaway"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny model") / "tiny.gguf"))


@pytest.fixture
def generate(cutaway, tiny):
    return partial(cutaway, "generate", "-m", tiny, "--max-tokens", "8", "--seed", "1")


def test_only_the_text_is_on_stdout(generate):
    plain = generate("ab")
    assert (plain.code, plain.out) == (0, json.loads(generate("ab", "--json").out)["text"])
    assert re.fullmatch(r"\[\d+ tokens in, 8 out · .*max_tokens · seed 1\]\n", plain.err)


def test_quiet_is_quiet(generate):
    assert generate("ab", "--quiet").err == ""


def test_json_is_one_document_with_the_cost(generate):
    done = generate("ab", "--json", "--price", "2,10")
    document = json.loads(done.out)
    usage, cost = document["usage"], document["cost"]
    assert cost["input"] == pytest.approx(usage["prompt_tokens"] * 2e-6)
    assert cost["output"] == pytest.approx(8 * 10e-6)
    assert cost["total"] == pytest.approx(cost["input"] + cost["output"])
    assert "cost 0.0000" in done.err


def test_dash_reads_standard_input_less_one_newline(generate):
    piped, given = generate("-", "--json", stdin="añb\n".encode()), generate("añb", "--json")
    ids = [json.loads(done.out)["prompt_token_ids"] for done in (piped, given)]
    assert ids[0] == ids[1]


def test_the_same_seed_gives_the_same_text_in_another_process(tiny):
    args = ["generate", "-m", tiny, "--max-tokens", "8", "ab", "--temperature", "1", "--seed"]
    texts = [subprocess.check_output([*PYTHON, *args, seed]) for seed in "112"]
    assert texts[0] == texts[1] != texts[2]


HELD = ("--choice", "ab", "--choice", "b", "--n", "4", "--seed", "1", "--temperature", "1")


def test_samples_under_a_grammar_come_with_estimates_and_one_can_be_chosen(tiny, cutaway):
    command = ("generate", "-m", tiny, "ab", *HELD)
    shown, said = (cutaway(*command, *flags) for flags in ([], ["--json"]))
    every = json.loads(said.out)
    found = every[0]["constraint_estimate"]
    logs = [each["neg_log_z"] for each in every]
    assert found == estimate(logs).to_dict() and every[3]["constraint_estimate"] == found
    assert f"[estimates of 4 samples: P(grammar) {found['probability']:.2g}, KL" in shown.err
    assert f"−ln Z {logs[0]:.2f}" in shown.err
    one, document = (cutaway(*command, "--align", *flags) for flags in ([], ["--json"]))
    aligned = json.loads(document.out)
    chosen = aligned["aligned"]["chosen"]
    assert aligned["aligned"]["neg_log_z"] == logs and aligned["constraint_estimate"] == found
    assert one.out.strip() == aligned["text"] == every[chosen]["text"]
    assert f"sample {chosen + 1} of 4, weight" in one.err


def test_naive_loop_gives_the_same_text(generate):
    assert generate("ab").out == generate("ab", "--no-kv-cache").out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["-m", "smolm2", "x"], "unknown model 'smolm2'.*smollm2"),
        (["-m", "no/such.gguf", "x"], "no/such.gguf"),
        (["x", "--temperature", "-1"], "temperature must be 0"),
        (["x", "--temperature", "nan"], "temperature must be a finite number"),
        (["x", "--temperature", "warm"], "--temperature"),
        (["x", "--top-p", "0"], "--top-p must be above 0"),
        (["x", "--top-p", "1.5"], "--top-p must be above 0 and at most 1"),
        (["x", "--top-k", "-1"], "--top-k must be 0 or more"),
        (["x", "--min-p", "1"], "--min-p must be at least 0 and below 1"),
        (["x", "--max-tokens", "0"], "--max-tokens: 0 writes nothing"),
        (["x", "--seed", "-1"], "seed must be between 0 and"),
        (["x", "--stop", ""], "stop must not hold an empty string"),
        (["x", "--preset", "openai"], "preset must be one of cutaway, hf"),
        (["x", "--price", "1"], "IN,OUT"),
        (["x", "--price=-1,1"], "not negative"),
        (["x", "--logit-bias", "x"], "ID=X"),
        (["x", "--backend", "npu"], "backend must be one of"),
        (["x", "--context", "1"], "context must be between 2 and"),
        (["a" * 500], "prompt has .* tokens, and .* context length is 128"),
        (["-"], "standard input is not UTF-8"),
        ([b"\xff"], r"the text holds a lone surrogate, U\+DCFF, at character 0"),
        (
            ["x", "--logit-bias", "5=1", "--logit-bias", "5=2"],
            "--logit-bias: token 5 is given 2 times",
        ),
        ([], "prompt"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tiny, refused, args, sentence):
    model = [] if "-m" in args else ["-m", tiny]
    assert re.search(sentence, refused("generate", *model, *args, stdin=b"\xff\xfe"))


def test_an_empty_prompt_begins_with_the_model_s_begin_token(generate):
    assert json.loads(generate("", "--json").out)["prompt_token_ids"] == [1]


def test_a_stop_string_of_any_length_is_defined(generate):
    assert generate("ab", "--stop", "x" * 10_000)[:2] == (0, generate("ab").out)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_keeps_what_was_written(tiny):
    args = ["generate", "-m", tiny, "ab", "--max-tokens", "120", "--ignore-eos", "--no-kv-cache"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with held_steps.run(20, *args, **pipes) as process:
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate()
    assert process.returncode == 130, error
    assert first
    assert b"aborted" in error
    assert b"Traceback" not in error
    assert len(first + rest) < 1000


def test_a_reader_that_goes_away_is_not_a_crash(tiny):
    args = ["generate", "-m", tiny, "ab", "--max-tokens", "100", "--ignore-eos"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with held_steps.run(20, *args, **pipes) as process:
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        error = process.stderr.read()
    assert process.returncode == 141
    assert error == b""


def test_an_output_that_cannot_show_a_character_shows_something(tiny, cutaway, in_ascii):
    args = ["generate", "-m", tiny, "ab", "--seed", "1", "--max-tokens", "8", "--ignore-eos"]
    assert "?" in in_ascii(*args).decode("ascii")
    text = json.loads(in_ascii(*args, "--json"))["text"]
    assert text == json.loads(cutaway(*args, "--json").out)["text"]
    assert not text.isascii()
    args = ["tokenize", "-m", tiny, "aé", "--json"]
    assert json.loads(in_ascii(*args)) == json.loads(cutaway(*args).out)


def test_tokenize(tiny, printed):
    lines = printed("tokenize", "-m", tiny, "a\nb").splitlines()
    document = json.loads(printed("tokenize", "-m", tiny, "a\nb", "--json"))
    assert [int(line.split()[0]) for line in lines] == document["ids"]
    assert len(document["tokens"]) == len(document["ids"])
    assert any(line.endswith(r"  '\n'") for line in lines)


@pytest.mark.model
class TestSmolLM2:
    def test_the_golden_greedy_ids(self, smollm2_path, cutaway):
        case = next(c for c in GOLDEN if c["prompt"] == "The capital of France is")
        args = ["--temperature", "0", "--json", "--max-tokens", "6", "--backend", "reference"]
        done = cutaway("generate", case["prompt"], *args)
        assert json.loads(done.out)["token_ids"] == case["greedy32"][:6]

    def test_an_empty_prompt_without_a_begin_token_is_refused(self, smollm2_path, refused):
        assert "prompt is empty" in refused("generate", "")

    def test_chat_remembers_resets_and_refuses_gently(self, smollm2_path, cutaway):
        lines = [
            "/help", "My name is Ada.", "/nonsense", "/system Answer with one word.", "/reset",
            "Hello! " * 5000, "Name a colour.", "/exit", "never read",
        ]  # fmt: skip
        args = ["--temperature", "0", "--max-tokens", "12"]
        code, out, error = cutaway("chat", *args, stdin="\n".join(lines).encode())
        assert code == 2, error  # a message was refused, and nobody was looking
        assert error.count("tokens in, ") == 2
        assert error.count("(a new conversation)") == 2
        assert "unknown command /nonsense" in error
        assert "prompt has" in error and "/reset starts over" in error
        assert len(out.strip()) > 10


@pytest.mark.model
def test_chat_goes_on_with_an_answer_that_was_cut(smollm2_path, tmp_path, cutaway):
    def content(*lines, tokens):
        file = tmp_path / f"{tokens}.json"
        args = ["--temperature", "0", "--max-tokens", str(tokens), "--resume", str(file)]
        code, _, error = cutaway("chat", *args, stdin="\n".join(lines).encode())
        assert code == 0, error
        asked, answer = json.loads(file.read_text())["messages"]
        assert asked["role"] == "user"
        return answer["content"]

    whole = content("Name three colours.", tokens=12)
    assert content("/continue", "Name three colours.", "/continue", tokens=6) == whole


def test_thinking_in_a_chat(tmp_path, cutaway):
    thought = "{% if m.thinking %}<think>{{ m.thinking }}</think>{% endif %}"
    template = f"{{% for m in messages %}}{thought}{{{{ m.content }}}}\n{{% endfor %}}"
    path = write_tiny_llama(
        tmp_path / "t.gguf", metadata={"tokenizer.chat_template": template}, context=256
    )
    tiny = ["-m", str(path), "--max-tokens", "30", "--seed", "1"]
    lines = ["/think", "ab", "/think low", "/think off", "/think", "/think on", "ab"]
    code, _, error = cutaway("chat", *tiny, "--no-think", stdin="\n".join(lines).encode())
    assert code == 0, error
    assert "note: --no-think: the template has no switch, so the empty thought is for" in error
    assert error.count("(think: off)") == 3 and "(think: on)" in error
    assert "(/think: this model's template has no levels of thinking; leave it out" in error
    for wrong, sentence in [
        (["--think", "much"], "--think must be one of none, minimal, low"),
        (["--think", "low"], "--think: this model's template has no levels of thinking"),
        (["--chat-template-kwargs", "[]"], "--chat-template-kwargs must be a JSON object"),
        (["--no-think", "--think-budget", "3"], "--think-budget: without thoughts there is"),
    ]:
        code, _, error = cutaway("chat", *tiny, *wrong)
        assert code == 2 and sentence in error, error


@pytest.mark.model
def test_chat_ctrl_c_stops_the_answer_and_not_the_program(smollm2_path):
    args = ["chat", "--max-tokens", "2000", "--ignore-eos", "--context", "2048"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with held_steps.run(20, *args, **pipes) as process:
        process.stdin.write(b"Tell me a long story.\n")
        process.stdin.flush()
        os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(b"/reset\n")
    assert process.returncode == 0, error
    assert b"aborted" in error
    assert b"(a new conversation)" in error


# -- --intervention, in generate and trace branch: what comes out, and what is refused -------------


FEW = ["--seed", "1", "--max-tokens", "6", "-q"]


@pytest.fixture
def said(cutaway, tiny_path):
    return lambda *words: cutaway(*words, "-m", tiny_path)


def test_generate(said):
    plain, changed, none = (
        json.loads(said("generate", "ab", *FEW, "--json", *more)[1])
        for more in (
            [], ["--intervention", "L0.H1 x 0", "--intervention", "knock_out 1"],
            ["--intervention", "L0 x 1"],
        )
    )  # fmt: skip
    assert plain["fingerprint"] == none["fingerprint"] != changed["fingerprint"]
    assert changed["params"]["interventions"] == ["L0.H1 x 0", "knock_out 1"]
    assert changed["params_source"]["interventions"] == "given"


def test_lines_of_a_file(said, tmp_path):
    asked, answers = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{}, {"interventions": ["L0 x 2"]}, {"interventions": []}]
    asked.write_text("".join(f"{json.dumps({'prompt': 'ab'} | line)}\n" for line in lines))
    files = ["--input", asked, "--output", answers]
    code, _, _ = said("generate", *files, *FEW, "--intervention", "L0 x 3")
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    found.sort(key=lambda one: one["line"])
    assert code == 0
    assert [one["params"]["interventions"] for one in found] == [["L0 x 3"], ["L0 x 2"], []]
    assert len({one["fingerprint"] for one in found}) == 3


def test_a_branch(said, printed, refused, tmp_path):
    run, fork = tmp_path / "run.jsonl", tmp_path / "fork.jsonl"
    assert said("generate", "ab", *FEW, "--ignore-eos", "--trace", run).code == 0
    assert "--intervention" in refused("trace", "branch", run, "--at", "3")
    branch = ["trace", "branch", run, "--at", "3", "--intervention", "L1 x 3", "--trace", fork]
    assert said(*branch, "-q").code == 0
    assert [str(one) for one in Trace.read(fork).head.interventions] == ["L1 x 3 from 2"]
    assert said("trace", "replay", fork).code == 0
    shown = printed("trace", "diff", run, fork)
    assert "differ from step 3 on, where B is changed inside: L1 x 3 from 2" in shown
    assert "changed: L1 x 3 from 2" in printed("trace", "play", fork)
    code, told, _ = said("trace", "inside", fork, "--step", "3")
    assert code == 0 and "recomputed bit for bit" in told


@pytest.mark.parametrize("change", ["L0", "L0 x", "knock_out", "L0.H9 x 0", "L7 x 0"])
def test_what_is_refused(said, change):
    code, out, err = said("generate", "ab", "--intervention", change)
    assert code != 0 and not out
    reason = "write" if change in ("L0", "L0 x", "knock_out") else "there is no"
    assert err.startswith(f"cutaway: error: --intervention: {reason}") and err.count("\n") == 1


def test_by_the_earlier_flag(said):
    done = json.loads(said("generate", "ab", *FEW, "--json", "--change", "blind 1")[1])
    assert done["params"]["interventions"] == ["knock_out 1"]
