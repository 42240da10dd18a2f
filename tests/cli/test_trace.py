"""``cutaway trace`` and ``--trace``: the verbs, and where traces are."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cutaway
from cutaway.cli.main import command_words
from cutaway.cli.terminal.drawing import Style, names_of, quote, visible
from cutaway.requests.recording import token_of
from cutaway.trace import Parent, Trace, to_csv
from support import held_steps
from support.random_llama import write_tiny_llama
from support.served import TEMPLATE
from support.trace_by_hand import made_bytes, made_step

FILE_ALONE = ("play", "why", "diff", "export")


@pytest.fixture
def run(tmp_path):
    """A trace of four tokens."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(made_bytes([made_step(i, token) for i, token in enumerate((1, 2, 3, 4))]))
    return path


@pytest.fixture
def fork(tmp_path, run):
    steps = [made_step(i, token) for i, token in enumerate((1, 5, 3))]
    path = tmp_path / "fork.jsonl"
    path.write_bytes(made_bytes(steps, seed=8, parent=Parent(Trace.read(run).sha256, 1, 5)))
    return path


# -- the verbs -----------------------------------------------------------------------------------


TRACE_VERBS = [words for words in command_words() if words[0] == "trace" and words[1:]]


def test_help_lists_the_verbs(printed):
    said = printed("trace", "--help")
    assert all(f"\n  {verb} " in said for _, verb in TRACE_VERBS)


@pytest.mark.parametrize("verb", FILE_ALONE)
def test_each_verb_has_help_with_examples(printed, verb):
    assert ("trace", verb) in TRACE_VERBS
    said = printed("trace", verb, "--help")
    assert f"\n  cutaway trace {verb} run.jsonl" in said


def test_no_verb_and_unknown_verbs(cutaway, refused):
    code, out, err = cutaway("trace")
    assert (code, out, "verbs:" in err) == (2, "", True)
    assert "unknown verb 'plya'; did you mean 'play'?" in refused("trace", "plya")
    assert "unknown option '--nope'" in refused("trace", "--nope")


@pytest.mark.parametrize("verb", FILE_ALONE)
def test_what_is_no_trace_is_refused(refused, verb, tmp_path):
    (tmp_path / "no.jsonl").write_text('{"a": 1}\n')
    files = [tmp_path / "no.jsonl"] * (2 if verb == "diff" else 1)
    options = ["--format", "csv"] if verb == "export" else []
    assert "no.jsonl, line 1" in refused("trace", verb, *files, *options)
    assert "cannot be read" in refused("trace", verb, *[tmp_path / "none"] * len(files), *options)


@pytest.mark.parametrize("verb", FILE_ALONE)
def test_no_engine_is_imported(run, verb):
    args = ["trace", verb, str(run), *[str(run)] * (verb == "diff")]
    args += ["--format", "csv"] if verb == "export" else []
    code = (
        "import sys; from cutaway.cli.main import main; code = main(sys.argv[1:]);"
        "parts = {m for m in sys.modules"
        " if m.startswith(('cutaway.engine.', 'cutaway.compute.backends'))};"
        "data = ('events', 'canvas', 'interventions');"
        "sys.exit(code or sorted(m for m in parts if m.split('.')[2] not in data) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_terminal_names_tokens_as_a_trace_does(llm):
    named = names_of(llm.tokenizer)
    for token_id in range(llm.tokenizer.vocab_size):
        token = token_of(llm.model, token_id)
        shown = token.name or token.bytes.decode("utf-8", "backslashreplace")
        assert named(token_id) == shown
    *_, newline = llm.tokenize("\n")
    style = Style(ansi=False, colour=False, unicode=True)
    assert quote(named(newline)) == f"'{visible(style, named(newline))}'" == r"'\n'"


# -- play ----------------------------------------------------------------------------------------


def test_play_prints_a_line_per_step(printed, run):
    first, *steps, last = printed("trace", "play", run).splitlines()
    assert first == "made · seed 7 · top-k 2 · 4 steps"
    assert last == "ended: max_tokens"
    assert [line.split()[1] for line in steps] == ["␣mat", "␣sofa", "␣roof", "␣moon"]
    assert "44.6% → 62.2%" in steps[0]  # the lesson's figures
    assert "16.4% → –" in steps[2]  # top-k 2 removed it: it was given


def test_play_prints_one_step(printed, run):
    said = printed("trace", "play", run, "--step", 2)
    assert said.startswith(" step 2/4 · position 3 · kv 3 · 3.0 kB · 5.5 ms · sampled")
    chosen, removed = (next(x for x in said.splitlines() if w in x) for w in ("sofa", "roof"))
    assert chosen.startswith(" ●  ␣sofa ")
    assert "27.1% → 37.8%" in chosen
    assert removed.startswith(" K  ␣roof ")
    assert removed.endswith("top-k 2")
    assert " K  top-k 2  2 left, −28.3%: ␣roof ␣moon <end> ␣idea" in said


def test_play_gives_json(printed, run):
    documents = [json.loads(line) for line in printed("trace", "play", run, "--json").splitlines()]
    assert [d["token"] for d in documents] == [" mat", " sofa", " roof", " moon"]
    alone = json.loads(printed("trace", "play", run, "--json", "--step", 3))
    assert alone == documents[2]
    assert alone["candidates"][2]["removed_by"] == "top-k 2"
    assert alone["end"]["outcome"] == "top-k 2"


def test_a_run_that_was_cut_short_plays(printed, tmp_path, run):
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(run.read_bytes()[:-500])
    lines = printed("trace", "play", cut).splitlines()
    assert lines[-1] == "no end on record: the run was cut short, or is still going on"
    assert 2 <= len(lines) < 6


def test_ascii_where_the_encoding_has_no_more(in_ascii, run):
    names = {1: " 猫\n", 2: b"\xff", 3: "\x1b[31m"}
    run.write_bytes(made_bytes([made_step(i, i + 1) for i in range(3)], names=names))
    for args in ([], ["--step", "1"]):
        said = in_ascii("trace", "play", run, *args).decode("ascii")
        assert "_\\u732b\\n" in said
        assert "\\xff" in said
        assert "\\x1b[31m" in said
        assert "?" not in said  # nothing had to be replaced


def test_bad_steps(refused, run, tmp_path):
    assert "--step must be 1 to 4, not 5" in refused("trace", "play", run, "--step", 5)
    assert "steps are whole numbers, from 1 on, not 'x'" in refused(
        "trace", "play", run, "--step=x"
    )
    run.write_bytes(made_bytes([]))
    assert "no step on record" in refused("trace", "play", run, "--step", 1)


def test_a_page(printed, refused, run, tmp_path):
    out = tmp_path / "run.html"
    assert printed("trace", "export", run, "--html", out) == ""
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "is the trace itself" in refused("trace", "export", run, "--html", run)
    assert "cannot be written" in refused("trace", "export", run, "--html", tmp_path / "no" / "x")
    for steps, why in (("5", "not within 1 to 4"), ("2-1", "not within"), ("a", "is no step")):
        assert why in refused("trace", "export", run, "--html", out, "--inside", steps)
    assert "is for --html" in refused("trace", "export", run, "--format", "csv", "--inside", "1")
    assert Trace.read(run).steps  # untouched


# -- why, diff, export ---------------------------------------------------------------------------


def test_why(printed, refused, run):
    said = printed("trace", "why", run, "--closest", 1)
    assert said == (
        "It ended because it had 4 tokens, which is max_tokens.\n\n"
        "At 4 steps, the end token was removed by top-k 2 (4).\n"
        "The text came closest to ending before at\n"
        "  step 1: the end token was the 5th likeliest with 3.7%; top-k 2 removed it\n"
    )
    answer = json.loads(printed("trace", "why", run, "--json"))
    assert answer["reason"] == "max_tokens"
    assert len(answer["moments"]) == 4
    assert "--closest must be" in refused("trace", "why", run, "--closest", -1)


def test_why_without_end_tokens(printed, run):
    run.write_bytes(made_bytes([made_step(0, 1)], end_ids=(), tracked_ids=()))
    assert "No end token is on record" in printed("trace", "why", run)


def test_diff(printed, run, fork):
    said = printed("trace", "diff", run, fork)
    for line in (
        f"A  {run}: 4 tokens, 2.43 bits each",
        f"B  {fork}: 3 tokens, 3.09 bits each, a fork of A",
        "The prompts are equal. The first token is equal; the logits up to there are equal, "
        "bit for bit.",
        "They part at step 2:",
        "  A continues with ' sofa': 27.1% in A, 27.1% in B",
        "  B continues with ' idea': 2.2% in A, 2.2% in B",
        "They never again share 8 tokens in a row.",
    ):
        assert line in said.splitlines(), said
    found = json.loads(printed("trace", "diff", run, fork, "--json"))
    assert found["divergence"]["index"] == 1
    assert {c["name"] for c in found["changes"]} == {"seed", "parent"}


def test_diff_tells_where_they_meet(printed, run, tmp_path):
    other = tmp_path / "other.jsonl"
    same = (1, 2, 3, 4, 1, 2, 3, 4)
    run.write_bytes(made_bytes([made_step(i, t) for i, t in enumerate(same)]))
    other.write_bytes(made_bytes([made_step(i, t) for i, t in enumerate((5, *same))]))
    said = printed("trace", "diff", run, other)
    assert "  A 1, B 2: 8 tokens, ' mat sofa roof moon mat sofa roof moon'" in said
    assert "No token is equal" in said
    assert "All 8 tokens are equal" in printed("trace", "diff", run, run)


def test_diff_tells_chains_apart(printed, run, tmp_path):
    chain = ({"stage": "top_p", "p": 0.9}, {"stage": "top_k", "k": 40})
    step = made_step(0, 1)
    steps = [step._replace(observed=step.observed._replace(stages=step.observed.stages * 2))]
    (other := tmp_path / "other.jsonl").write_bytes(made_bytes(steps, chain=chain))
    lines = printed("trace", "diff", run, other).split("\n")
    assert f"  {'chain':<20} {'top-k 2':<40}  top-p 0.9, top-k 40" in lines


def test_export(printed, refused, run):
    before = json.loads(printed("trace", "export", run, "--format", "openai"))
    after = json.loads(printed("trace", "export", run, "--format", "openai", "--when", "after"))
    assert [e["token"] for e in before["content"]] == [" mat", " sofa", " roof", " moon"]
    assert before["content"][0]["logprob"] < after["content"][0]["logprob"]
    assert len(printed("trace", "export", run, "--format", "csv").splitlines()) == 5
    assert "csv has both" in refused("trace", "export", run, "--format", "csv", "--when", "after")


def test_csv_is_utf_8_whatever_the_terminal_shows(in_ascii, run):
    run.write_bytes(made_bytes([made_step(0, 1)], names={1: " 猫"}))
    assert in_ascii("trace", "export", run, "--format", "csv").decode() == to_csv(Trace.read(run))


# -- ``--trace`` as a person uses it: where the traces are, what they hold, what is refused --------


HOME = {"PYTHONPATH": str(Path(cutaway.__file__).parents[1])}  # as seen from another folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return str(write_tiny_llama(path, metadata={"tokenizer.chat_template": TEMPLATE}, context=4096))


@pytest.fixture
def here(tmp_path, monkeypatch, cutaway):
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return cutaway


def names():
    return sorted(path.name for path in Path().iterdir())


def test_generate_records_what_it_prints(tiny, here):
    args = ["generate", "-m", tiny, "ab", "--max-tokens", "6", "--seed", "3"]
    plain, done = here(*args), here(*args, "--trace", "run.jsonl")
    assert done[:2] == (0, plain.out)
    assert done.err.endswith("\n[trace: run.jsonl]\n")
    trace = Trace.read("run.jsonl")
    assert trace.text == done.out
    assert (trace.head.prompt, trace.head.seed, len(trace.steps)) == ("ab", 3, 6)
    assert trace.end.reason == "max_tokens"


def test_quiet_says_nothing_and_records(tiny, here):
    done = here("generate", "-m", tiny, "ab", "-q", "--max-tokens", "2", "--trace", "run.jsonl.gz")
    assert done.err == ""
    assert len(Trace.read("run.jsonl.gz").steps) == 2


def test_each_sample_has_its_own(tiny, here):
    args = ["--n", "3", "--max-tokens", "2", "--trace", "run.jsonl.gz"]
    done = here("generate", "-m", tiny, "ab", *args)
    assert done.err.endswith("[trace: run.jsonl.gz, run.2.jsonl.gz, run.3.jsonl.gz]\n")
    seeds = [Trace.read(name).head.seed for name in names()]
    assert len({*seeds}) == 3


def test_candidates_and_watched_tokens(tiny, here):
    given = ["--candidates", "2", "--track", "7", "--track", "ab", "--track", "</s>"]
    given += ["--max-tokens", "3", "--ignore-eos", "--trace", "t"]
    assert here("generate", "-m", tiny, "ab", *given).code == 0
    trace = Trace.read("t")
    assert trace.head.candidates == 2
    first, *ab, end = trace.head.tracked_ids
    assert (first, end) == (7, 2)
    assert {trace.bytes_of(i) for i in ab} == {b"ab"}
    for step in trace.steps:
        ids = [c.id for c in step.observed.candidates]
        assert {*trace.head.tracked_ids} <= {*ids} and 4 <= len(ids) <= 6


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--trace", "old"], "old exists already; name another file, or remove it"),
        (["--trace", "no/such/folder/t"], "no file can be made in no/such/folder"),
        (["--trace", "."], "is a folder"),
        (["--trace", ""], "trace must be the name of a file"),
        (["--trace", "t", "--candidates", "0"], "candidates: with a trace it must be"),
        (["--trace", "t", "--track", "99999"], "--track 99999: the model's token ids are 0 to 263"),
        (["--trace", "t", "--track", "bb"], "--track 'bb': the model has no such token"),
        (["--trace", "t", "--track", ""], "--track '': the model has no such token"),
        (["--track", "7"], "add --trace FILE"),
        (["--candidates", "7"], "add --trace FILE"),
    ],
)
def test_what_is_refused(tiny, here, args, sentence):
    Path("old").write_text("mine")
    for command in (["generate", "ab"], ["chat"]):
        done = here(*command, "-m", tiny, "--max-tokens", "2", *args, stdin=b"ab\n")
        assert (done.code, sentence in done.err) == (2, True), done.err
    assert names() == ["old"]
    assert Path("old").read_text() == "mine"


def test_a_batch_file_is_not_traced(tiny, here):
    done = here("generate", "--input", "in", "--output", "out", "--trace", "t")
    assert (done.code, names()) == (2, [])
    assert "--trace records one prompt: leave out --input" in done.err


def test_chat_records_each_answer(tiny, here):
    args = ["--max-tokens", "3", "--trace", "talk.jsonl"]
    done = here("chat", "-m", tiny, *args, stdin=b"ab\n/reset\nba\n")
    assert done.code == 0, done.err
    assert names() == ["talk.2.jsonl", "talk.jsonl"]
    assert "[trace: talk.jsonl]" in done.err and "[trace: talk.2.jsonl]" in done.err
    first, second = Trace.read("talk.jsonl"), Trace.read("talk.2.jsonl")
    assert first.head.prompt is None
    assert first.head.prompt_token_ids != second.head.prompt_token_ids
    assert len(first.steps) <= 3 and second.end.reason


def killed(tiny, sent, after=5):
    """The exit code of a long run that got a signal once it had written so many bytes."""
    args = ["generate", "-m", tiny, "ab", "--max-tokens", "4000", "--ignore-eos", "--trace", "t"]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "env": os.environ | HOME}
    with held_steps.run(20, *args, **how) as process:
        for _ in range(after):
            assert process.stdout.read(1)
        process.send_signal(sent)
        rest = process.stdout.read()
    return process.returncode, rest


def test_ctrl_c_ends_the_trace_as_aborted(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, rest = killed(tiny, signal.SIGINT)
    trace = Trace.read("t")
    assert code == 130
    assert trace.end.reason == "aborted"
    assert trace.end.usage["completion_tokens"] == len(trace.steps) < 4000
    assert trace.text.encode().endswith(rest)


def test_a_trace_whose_run_was_killed_can_be_read(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _ = killed(tiny, signal.SIGKILL)
    trace = Trace.read("t")
    assert code == -signal.SIGKILL
    assert trace.end is None
    assert trace.steps
