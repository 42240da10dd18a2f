"""-h is a screen, --help all options or a group; errors name options as they are typed."""

import pytest

from cutaway.cli.main import command_words, main
from cutaway.cli.options.parser import LINES, as_typed

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
        (["generate", "x", "--chain", "top-k"], "--chain: no stage is called 'top-k'; logit_bias,"),
        (["snowball", "x", "--at=-3"], "--at must be"),
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
    ("message", "typed", "said"),
    [
        ("passed: no passes", "--pass", "--pass: no passes"),
        ("at must be 3", "--at=4", "--at must be 3"),
        ("stop[0] must be a text", "--stop", "--stop must be a text"),
        ("at must be 3", "--att", "at must be 3"),
        ("kv_cache must be on", "--no-kv-cache", "--no-kv-cache must be on"),
    ],
)
def test_a_keyword_is_the_option_that_was_typed(message, typed, said):
    assert as_typed(message, ["trace", "branch", typed, "4"]) == said


@pytest.mark.parametrize(
    "message", ["line 3: top_p must be above 0", "in.jsonl, line 3: top_p must be above 0"]
)
def test_what_is_said_of_a_line_of_a_file_keeps_its_names(message):
    assert as_typed(message, ["generate", "--top-p", "0.5"]) == message
