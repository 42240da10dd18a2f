"""``cutaway --completion SHELL``: what shells offer after the words of a command."""

import shutil
import subprocess

import pytest

from cutaway.cli.main import command_words, main

SCRIPTS = ("bash", "zsh", "fish")
OFFERED = [  # what is typed, some of what is offered, what is not
    ("", {words[0] for words in command_words()}, {"play", "--help"}),
    ("ge", {"generate"}, {"chat"}),
    (
        "trace ",
        {words[-1] for words in command_words() if words[0] == "trace"} - {"trace"},
        {"generate"},
    ),
    ("trace pl", {"play"}, {"price"}),
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
