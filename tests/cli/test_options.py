"""-h is a screen, --help all options or a group; what shells complete; flags of ``generate``."""

import json
import os
import re
import shutil
import signal
import subprocess
from argparse import Namespace
from inspect import signature

import pytest

from cutaway import LLM
from cutaway.cli.main import command_words, main
from cutaway.cli.options import arguments, namespace
from cutaway.cli.options.parser import LINES, Parser, as_typed
from cutaway.errors import InputError, Name
from cutaway.requests.options import OPTIONS
from support import held_steps
from support.random_llama import write_tiny_llama

EVERY = [(), *command_words()]


@pytest.fixture
def said(capsys, monkeypatch):
    """What a command prints on standard output, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*argv: str) -> str:
        assert main([*argv]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_short_help_fits_a_screen(said, command):
    lines = said(*command, "-h").splitlines()
    assert len(lines) <= LINES
    assert all(len(line) <= 100 for line in lines)
    assert lines[0].startswith(" ".join(["usage: cutaway", *command]))
    assert any(line.startswith("  cutaway ") or "Begin with: cutaway" in line for line in lines)


@pytest.mark.parametrize("command", [c for c in EVERY if c], ids=" ".join)
def test_what_short_help_leaves_out_is_in_the_whole(said, command):
    short, whole = said(*command, "-h"), said(*command, "--help")
    options = {word.rstrip(",") for word in short.split() if word.startswith("--")}
    assert options
    assert all(option.strip("'.") in whole for option in options)
    assert ("--help GROUP" in short) == (short != whole and "explains all" in short)


def test_the_options_that_people_use_are_eight(said):
    shown = [line for line in said("generate", "-h").splitlines() if line.startswith("  -")]
    assert len(shown) == 8
    assert "--dry-base" not in said("generate", "-h")
    assert "--dry-base" in said("generate", "--help")


def test_help_itself_is_not_counted_among_the_options(said):
    text = " ".join(said("generate", "-h").split())
    options = [line for line in said("generate", "--help").splitlines() if line.startswith("  -")]
    assert f"explains all {len(options) - 2} options" in text


def test_a_group_has_its_options_alone(said):
    sampling = said("generate", "--help", "sampling")
    assert sampling.startswith("sampling:\n  --temperature T ")
    assert "--max-tokens" not in sampling
    assert said("serve", "--help", "network").startswith("network:\n  --host ")


def test_groups_are_named_where_one_is_unknown(capsys):
    assert main(["generate", "--help", "samplers"]) == 2
    err = capsys.readouterr().err
    assert "--help: there is no group 'samplers'; choose one of arguments, options, batch" in err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["generate", "x", "--top-p", "3"], "--top-p must be above 0 and at most 1, not 3.0"),
        (
            ["generate", "x", "--json-compact"],
            "--json-compact says how JSON is written: give --json-schema, too",
        ),
        (
            ["generate", "x", "--chain", "top-k"],
            "--chain: no stage is called 'top-k'; did you mean 'top_k'?",
        ),
        (["generate", "x", "--chain", "heat"], "--chain: no stage is called 'heat'; logit_bias,"),
        (["snowball", "x", "--at=-3"], "--at: steps count from 1, and there is no -3"),
        (["generate", "x", "--stop", ""], "--stop must not hold an empty string"),
        (["generate", "x", "--logit-bias", "5=200"], "--logit-bias must be between -100"),
        (["generate", "x", "--kv", "f8"], "--kv must be one of"),
        (["generate", "x", "--grammar", "no such"], "--grammar: no such"),
        (["The sky is"], "unknown command 'The sky is'; to continue a text: cutaway generate 'The"),
    ],
)
def test_errors_name_options_as_they_are_typed(capsys, tiny_path, argv, sentence):
    model = ["-m", str(tiny_path)] if len(argv) > 1 else []
    assert main([*argv, *model]) == 2
    assert capsys.readouterr().err.startswith(f"cutaway: error: {sentence}")


@pytest.mark.parametrize(
    ("error", "typed", "said"),
    [
        (InputError("passed", ": no passes"), "--pass", "--pass: no passes"),
        (InputError("at", " must be 3"), "--at=4", "--at must be 3"),
        (InputError(Name("stop", 0), " must be a text"), "--stop", "--stop must be a text"),
        (InputError(Name("tools", 0, "name"), " is odd"), "--tools", "--tools.name is odd"),
        (InputError("at", " must be 3"), "--att", "at must be 3"),
        (InputError("kv_cache", " must be on"), "--no-kv-cache", "--no-kv-cache must be on"),
        (InputError("top_p", " must be 3"), "--preset", "--top-p must be 3"),
        (InputError("n", " or ", Name("max_tokens"), " is odd"), "", "n or --max-tokens is odd"),
        (InputError("n", ": 'max_tokens'"), "--n", "--n: 'max_tokens'"),
        (InputError("at must be 3"), "--at", "at must be 3"),
        (InputError("line 3: top_p must be above 0"), "--top-p", "line 3: top_p must be above 0"),
    ],
)
def test_a_keyword_is_the_option_that_was_typed(error, typed, said):
    assert as_typed(error, ["trace", "branch", typed, "4"]) == said


# -- completion: what shells offer after the words of a command ------------------------------------


SCRIPTS = ("bash", "zsh", "fish")
OFFERED = [  # what is typed, some of what is offered, what is not
    ("", {words[0] for words in command_words()}, {"play", "--help"}),
    ("ge", {"generate"}, {"chat"}),
    (
        "trace ",
        {words[-1] for words in command_words() if words[0] == "trace"} - {"trace"},
        {"generate"},
    ),
    ("trace pl", {"play"}, {"parallel-loss"}),
    ("trace play --", {"--help"}, {"--temperature"}),
    ("generate --top-", {"--top-k", "--top-p", "--top-n-sigma"}, {"--temperature"}),
    ("serve --log ", {"off", "human", "json"}, {"generate"}),
    ("serve -m x --log j", {"json"}, {"off"}),
]


@pytest.fixture
def script(capsys):
    """A shell's script."""

    def write(shell):
        if shutil.which(shell) is None:
            pytest.skip(f"needs {shell}: apt install {shell}")
        assert main(["--completion", shell]) == 0
        return capsys.readouterr().out

    return write


def run(shell, script):
    done = subprocess.run([shell], input=script, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return {line.split("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize(("typed", "offered", "others"), OFFERED)
def test_bash(script, typed, offered, others):
    words = " ".join(f'"{word}"' for word in ["cutaway", *typed.split(" ")])
    ask = f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _cutaway\n"
    ask += "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    found = run("bash", script("bash") + ask)
    assert offered <= found
    assert not others & found


@pytest.mark.parametrize(("typed", "offered", "others"), OFFERED)
def test_fish(script, typed, offered, others):
    found = run("fish", script("fish") + f'complete -C "cutaway {typed}"\n')
    assert offered <= found
    assert not others & found


@pytest.mark.parametrize(("typed", "offered"), [row[:2] for row in OFFERED])
def test_zsh(script, typed, offered):
    """As ``bashcompinit`` calls the function, which leaves out what does not begin as the word."""
    words = " ".join(f'"{word}"' for word in ["cutaway", *typed.split(" ")])
    ask = f"ask() {{\n local -a words=({words})\n local -a COMP_WORDS=({words}) COMPREPLY\n"
    ask += " local COMP_CWORD=$(($#COMP_WORDS - 1))\n emulate -L zsh; setopt ksh_arrays\n"
    ask += ' _cutaway\n print -l -- "${COMPREPLY[@]}"\n}\nask\n'
    assert offered <= run("zsh", script("zsh") + ask)


def test_a_shell_that_has_no_script_is_named(capsys):
    assert main(["--completion", "tcsh"]) == 2
    assert "--completion: invalid choice: 'tcsh'" in capsys.readouterr().err


# -- samples, probabilities, speculation and the cache, as flags of ``cutaway generate`` -----------


RULE = re.compile(r"^--- (\d) of (\d) · seed (\d+) ---\n", re.MULTILINE)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", context=512))


@pytest.fixture(scope="module")
def llm(tiny):
    return LLM(tiny)


@pytest.fixture
def generate(tiny, cutaway):
    def run(*args, prompt="ab"):
        return cutaway("generate", "-m", tiny, prompt, "--seed", "1", "--max-tokens", "8", *args)

    return run


def test_samples_come_one_after_another_under_a_rule(generate, llm):
    code, out, error = generate("--n", "3", "--temperature", "1")
    assert code == 0
    samples = llm.generate("ab", n=3, seed=1, max_tokens=8, temperature=1)
    rules, texts = RULE.findall(out), RULE.split(out)[4::4]
    assert rules == [(str(i), "3", str(c.seed)) for i, c in enumerate(samples, 1)]
    assert texts == [c.text + "\n" for c in samples]
    assert error.count("\n") == 3 and error.count("(2 cached)") == 2


def test_json_has_the_answer_first_and_the_settings_behind_it(generate):
    names = [*json.loads(generate("--json")[1])]
    assert names[:3] == ["text", "finish_reason", "matched"]
    assert names[-3:] == ["params", "params_source", "chain"]


def test_samples_in_json_are_a_list_of_documents(generate, llm):
    _, out, _ = generate("--n", "2", "--json", "--price", "1,1")
    samples = llm.generate("ab", n=2, seed=1, max_tokens=8)
    documents = json.loads(out)
    assert [d["fingerprint"] for d in documents] == [c.fingerprint for c in samples]
    assert all(d["cost"]["total"] > 0 and d["params"]["n"] == 2 for d in documents)
    assert json.loads(generate("--n", "1", "--json")[1])["fingerprint"] == samples[0].fingerprint
    assert "---" not in generate("--n", "1")[1]


def test_logprobs_are_in_the_document(generate):
    document = json.loads(generate("--json", "--logprobs", "2", "--prompt-logprobs", "3")[1])
    assert [len(p["model"]) for p in document["logprobs"]] == [2] * len(document["token_ids"])
    assert [len(p["top"]) for p in document["prompt_logprobs"]] == [3, 3]


def test_a_note_says_that_json_was_cut(generate):
    schema = '{"type": "array", "items": {"type": "integer"}, "minItems": 20}'
    code, out, error = generate("--json-schema", schema)
    assert code == 4 and not out.rstrip().endswith("]")
    assert "note: the JSON is not whole: it was cut (max_tokens); raise --max-tokens\n" in error
    assert generate("--json-schema", schema, "-q")[0] == 4
    code, _, error = generate("--choice", "a")
    assert code == 0 and "not whole" not in error
    assert generate("--max-tokens", "1")[0] == 0
    assert generate("--json-schema", schema, "--fail-if-cut")[0] == 3
    assert generate("--choice", "a", "--fail-if-cut")[0] == 0


def test_an_output_may_begin_with_given_tokens(generate):
    assert json.loads(generate("--json", "--forced", "3,4")[1])["token_ids"][:2] == [3, 4]


@pytest.mark.parametrize("flag", ["--logprobs", "--prompt-logprobs"])
def test_logprobs_without_json_are_refused(refused, flag):
    assert "add --json" in refused("generate", "-m", "no such model", "ab", flag, "2")


def test_what_the_engine_does_changes_no_text(generate, tiny, free_drafts):
    prompt = "ab" * 50
    args = ["--temperature", "0", "--max-tokens", "60", "--ignore-eos", "--json"]
    plain = json.loads(generate(*args, prompt=prompt)[1])
    assert plain["speculation"] == {"proposed": 0, "accepted": 0}
    for more in (
        ["--speculate", "ngram"], ["--speculate", f"draft:{tiny}"], ["--kv-tokens", "192"],
        ["--no-prefix-cache"], ["--speculate", "off"],
    ):  # fmt: skip
        code, out, error = generate(*args, *more, prompt=prompt)
        document = json.loads(out)
        assert code == 0, error
        for name in ("text", "token_ids", "fingerprint"):
            assert document[name] == plain[name]
        if more[1:] == [f"draft:{tiny}"]:
            found = document["speculation"]
            assert found["accepted"] > 0
            counts = f"{found['accepted']} of {found['proposed']}"
            assert (
                f" in {60 - found['accepted']} steps · {counts} draft tokens accepted · "
                f"{found['accepted'] - found['cost']:.1f} steps saved · " in error
            )
            assert sum(k * n for k, n in enumerate(found["lengths"])) == found["proposed"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--n", "0"], "n must be between 1 and 1024"),
        (["--speculate", "psychic"], "speculate must be one of off, ngram, jacobi, draft"),
        (["--speculate", "draft"], "name the draft model, draft:MODEL"),
        (["--speculate", "draft:no/such.gguf"], "no/such.gguf"),
        (["--offload-folder", "no/such"], "--offload-folder 'no/such': there is no such folder"),
        (["--kv-tokens", "1"], "--kv-tokens must be between"),
        (["--kv-tokens", "32", "--context", "64"], "KV blocks"),
        (["--logprobs", "-1", "--json"], "logprobs must be between 0"),
    ],
)
def test_bad_values_are_one_sentence(refused, tiny, args, sentence):
    words = ["generate", "-m", tiny, "ab" * 40, "--seed", "1", "--max-tokens", "8"]
    assert sentence in refused(*words, *args)


def test_without_a_prefix_cache_nothing_is_cached(tiny, tmp_path, cutaway):
    (tmp_path / "in").write_text(json.dumps("ab" * 100) + "\n" + json.dumps("ab" * 100 + "b"))
    for flags, cached in (([], True), (["--no-prefix-cache"], False)):
        files = ["--input", tmp_path / "in", "--output", tmp_path / f"out{cached}"]
        # One at a time, so that the second finds what the first left.
        args = [*files, *flags, "--kv-tokens", "256", "--max-tokens", "1"]
        done = cutaway("generate", "-m", tiny, *args)
        assert (done.code, "cached)" in done.err) == (0, cached)


def test_ctrl_c_keeps_what_was_written_of_every_sample(tiny):
    args = ["ab", "--n", "3", "--seed", "1", "--max-tokens", "400", "--ignore-eos", "--no-kv-cache"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    first = b""
    with held_steps.run(40, "generate", "-m", tiny, *args, **pipes) as child:
        while len(first.partition(b" ---\n")[2]) < 30:  # ten tokens or more: the others have some
            first += os.read(child.stdout.fileno(), 1)
        child.send_signal(signal.SIGINT)
        rest, error = child.communicate()
    assert child.returncode == 130, error
    assert error.count(b"aborted") == 3 and b"Traceback" not in error
    texts = RULE.split((first + rest).decode())[4::4]
    assert len(texts) == 3 and all(len(text) > 1 for text in texts)


def test_no_progress_on_pipes(generate):
    _, out, error = generate()
    assert "\r" not in out + error and error.count("\n") == 1


def test_every_option_reaches_the_model_or_the_request():
    """An option whose name fits neither would be ignored silently."""
    parser = Parser("cutaway test", "Test.")
    arguments.add_model_arguments(parser)
    arguments.add_groups(parser, *arguments.REQUEST, "trace")
    arguments.add_output_arguments(parser, samples=True)
    shown = {"help", "price", "quiet", "json", "fail_if_cut"}
    names = {action.dest for action in parser._actions} - shown
    values = {name: object() for name in names}
    models = namespace.model_options(Namespace(**values))
    assert models.keys() <= signature(LLM).parameters.keys()
    assert names <= {*models, *OPTIONS}


def test_what_was_given_becomes_the_request(tiny):
    given = {"temperature": 0.5, "max_tokens": 3, "seed": 1, "model": tiny, "json": True}
    options = namespace.request_options(Namespace(**given, logit_bias=[(5, 1.0)]))
    assert options == {"temperature": 0.5, "max_tokens": 3, "seed": 1, "logit_bias": {5: 1.0}}
