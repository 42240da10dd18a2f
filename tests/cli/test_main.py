"""The command line's face: exit codes, one-line errors, and what it does not import."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from importlib.util import find_spec
from types import ModuleType

import pytest

import cutaway
from cutaway.cli import main as cli
from cutaway.cli.main import main
from cutaway.cli.options.parser import unknown
from cutaway.errors import FetchError, FormatError, InputError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command ``play`` whose ``run`` a test sets."""
    module = ModuleType("cutaway.cli.play")
    module.EPILOG = "\nexamples:\n  cutaway play"
    module.add_arguments = lambda parser: parser.add_argument("--times", type=int)
    module.run = lambda args: 0
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "play", "play a game")
    return module


def _raising(error: BaseException):
    def run(args: Namespace) -> int:
        raise error

    return run


def test_a_command_gets_its_arguments_and_gives_its_code(command):
    seen = []
    command.run = lambda args: seen.append(args.times) or 7
    assert main(["play", "--times", "3"]) == 7
    assert seen == [3]


@pytest.mark.parametrize(
    ("error", "code"),
    [(InputError("why: fix"), 2), (FormatError("why: fix"), 2), (FetchError("why: fix"), 1)],
)
def test_explained_failures_are_one_line(command, capsys, error, code):
    command.run = _raising(error)
    assert main(["play"]) == code
    assert capsys.readouterr() == ("", "cutaway: error: why: fix\n")


def test_interrupted(command, capsys):
    command.run = _raising(KeyboardInterrupt())
    assert main(["play"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_keeps_its_traceback(command):
    command.run = _raising(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["play"])


@pytest.mark.parametrize("error", [OSError(38, "Function not implemented"), BrokenPipeError(32)])
def test_an_oserror_that_is_not_of_the_output_is_a_bug(command, error):
    command.run = _raising(error)
    with pytest.raises(type(error)):
        main(["play"])


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError(24, "Too many open files", "a.txt"), "a.txt: Too many open files"),
        (OSError(5, "Input/output error", b"a.txt"), "a.txt: Input/output error"),
    ],
)
def test_what_the_machine_has_no_more_of_is_one_line(command, capsys, error, sentence):
    command.run = _raising(error)
    assert main(["play"]) == 1
    assert capsys.readouterr() == ("", f"cutaway: error: {sentence}\n")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "there is not enough memory for this: lower --kv-tokens or --context"),
        (RuntimeError("can't start new thread"), "the system has no more threads: raise its limit"),
    ],
)
def test_memory_and_threads_that_python_cannot_have(command, capsys, error, sentence):
    command.run = _raising(error)
    assert main(["play"]) == 1
    assert capsys.readouterr().err.startswith(f"cutaway: error: {sentence}")


def _state():
    return (
        dict(os.environ),
        {number: signal.getsignal(number) for number in signal.valid_signals()},
        [(each, each and each.errors) for each in (sys.stdin, sys.stdout, sys.stderr)],
        (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
    )


def _in_a_host(command, streams):
    """The state of this process before a command, after it, and while it ran."""
    during = []
    command.run = lambda _: during.append(_state()) or print("é") or 0
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        patch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        before = _state()
        assert main(["play"]) == 0
        return before, _state(), during[0]


def test_a_host_gets_its_process_back(command):
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    before, after, during = _in_a_host(command, {"stdout": out})
    assert after == before
    assert all(during[i] != before[i] for i in (0, 2))
    assert (out.buffer.getvalue(), out.errors) == (b"?\n", "strict")


def test_a_host_gets_its_closed_streams_back(command):
    before, after, _ = _in_a_host(command, dict.fromkeys(("stdin", "stderr")))
    assert after == before


def test_a_host_that_has_read_standard_input_goes_on_reading_it(command):
    given = io.TextIOWrapper(io.BytesIO(b"one\ntwo\n"), "utf-8")
    assert given.readline() == "one\n"
    before, after, _ = _in_a_host(command, {"stdin": given})
    assert after == before
    assert given.readline() == "two\n"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--help"], 0),
        (["-h"], 0),
        (["--version"], 0),
        (["play", "--help"], 0),
        ([], 2),
        (["--bogus"], 2),
        (["play", "--time", "3"], 2),
        (["nope"], 2),
        ([""], 2),
    ],
)
def test_exit_codes(command, argv, code):
    assert main(argv) == code


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"cutaway {cutaway.__version__}\n"


def test_help_names_every_command(capsys):
    main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in ("generate", "chat", "tokenize", "models", "pull"))


def test_other_names_of_commands_are_none_of_ours_and_lead_to_one():
    ours = {" ".join(words) for words in cli.command_words()}
    assert not cli._OTHER_NAMES.keys() & ours
    assert {*cli._OTHER_NAMES.values()} <= ours | {"models show"}


def test_no_command_prints_help_where_errors_go(capsys):
    main([])
    out, err = capsys.readouterr()
    assert out == ""
    assert "commands:" in err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("genrate", "did you mean 'generate'?"),
        ("PULL", "did you mean 'pull'?"),
        ("score", "did you mean 'perplexity'?"),
        ("run", "did you mean 'generate'?"),
        ("branch", "did you mean 'trace branch'?"),
        ("q", "to continue a text: cutaway generate q; 'cutaway -h' lists commands"),
    ],
)
def test_an_unknown_command_gets_one_sentence(capsys, name, hint):
    main([name])
    err = capsys.readouterr().err
    assert err.startswith(f"cutaway: error: unknown command {name!r}; {hint}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["play", "--tims", "3"], "unknown option '--tims'; did you mean '--times'?"),
        (["play", "--tims=3"], "unknown option '--tims'; did you mean '--times'?"),
        (["play", "--zzz"], "unknown option '--zzz'; 'cutaway play --help' lists them"),
        (["play", "-z"], "unknown option '-z'; 'cutaway play --help' lists them"),
        (["play", "chess"], "unexpected argument 'chess'; put a text in quotes"),
        (["play", "--times", "x"], "--times must be a whole number, not 'x'; see 'cutaway play"),
        (["play", "--times"], "--times: expected one argument; see 'cutaway play --help'"),
        (["--vers"], "unknown option '--vers'; did you mean '--version'?"),
        (["trace", "--hlep"], "unknown option '--hlep'; did you mean '--help'?"),
        (["trace", "branch", "run", "--att", "3"], "unknown option '--att'; did you mean '--at'?"),
        (["generate", "x", "--temprature", "0"], "did you mean '--temperature'?"),
    ],
)
def test_wrong_arguments_get_one_sentence(command, capsys, argv, sentence):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("cutaway: error: ") and sentence in err


@pytest.mark.parametrize("left", [["--times", "3"], ["3"], ["-z"]])
def test_behind_two_dashes_all_is_text(command, capsys, left):
    command.add_arguments = lambda parser: [
        parser.add_argument("text"), parser.add_argument("--times", type=int)
    ]  # fmt: skip
    assert main(["play", "--times", "2", "--", "--times is", *left]) == 2
    assert capsys.readouterr().err == (
        f"cutaway: error: unexpected argument {left[0]!r}: after -- all is text; put options "
        "before it, and a text in quotes\n"
    )


def test_a_value_may_begin_with_a_dash(command, capsys):
    seen = []
    command.add_arguments = lambda parser: [
        parser.add_argument("-m", "--model"),
        parser.add_argument("-q", action="store_true"),
        parser.add_argument("text"),
    ]
    command.run = lambda args: seen.append((args.model, args.text, args.q)) or 0
    assert main(["play", "-m", "-dash.gguf", "a"]) == 0
    assert main(["play", "--model", "-dash.gguf", "-q", "a"]) == 0
    assert main(["play", "-m", "-1", "a"]) == 0
    assert main(["play", "-m", "a.gguf", "--", "-b"]) == 0
    assert seen == [
        ("-dash.gguf", "a", False), ("-dash.gguf", "a", True), ("-1", "a", False),
        ("a.gguf", "-b", False),
    ]  # fmt: skip
    assert main(["play", "-m", "-q", "a"]) == 2
    assert "-m/--model: expected one argument" in capsys.readouterr().err


def test_no_hint_is_what_was_typed():
    assert unknown("option", "--times", ["--times"], "see --help").endswith("see --help")


def test_what_looks_like_an_option_may_be_a_text_or_a_value(command):
    seen = []
    command.add_arguments = lambda parser: [
        parser.add_argument(name) for name in ("text", "--stop", "--times")
    ]
    command.run = lambda args: seen.append((args.text, args.stop, args.times)) or 0
    assert main(["play", "--a text", "--stop=--x", "--times", "-3"]) == 0
    assert main(["play", "--", "--x"]) == 0
    assert seen == [("--a text", "--x", "-3"), ("--x", None, None)]


_ELSEWHERE = ("safetensors", "quantised", "gguf_writer")


def _loaded(*argv: str) -> set[str]:
    code = (
        "import sys; from cutaway.cli.main import main\n"
        f"main({list(argv)!r}); print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_a_gguf_file_brings_no_reader_of_folders_and_no_quantiser(tiny_path):
    loaded = _loaded("generate", "-m", str(tiny_path), "--max-tokens", "1", "-q", "a")
    assert "cutaway.files.weights.gguf" in loaded and "cutaway.api.llm" in loaded
    absent = {
        "cutaway.files.huggingface",
        *(f"cutaway.files.weights.{name}" for name in _ELSEWHERE),
    }
    assert not absent & loaded


def test_nothing_but_replicas_brings_ray(tiny_path):
    for argv in (["serve", "--help"], ["generate", "-m", str(tiny_path), "--max-tokens", "1", "a"]):
        assert "ray" not in _loaded(*argv)
    code = (
        "from cutaway.features.cluster import front, plan, replica; import sys; "
        "print('ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["models", "--help"], ["models"]])
def test_light_commands_import_nothing_heavy(argv):
    loaded = _loaded(*argv)
    assert "cutaway.cli.main" in loaded
    assert loaded.isdisjoint({"numpy", "tokenizers", "jinja2", "filelock", "huggingface_hub"})


def test_writing_a_text_imports_no_more_than_it_needs():
    modules = "cutaway.cli.generate, cutaway.api.llm, cutaway.compute.backends"
    code = (
        f"import {modules}, sys; from importlib.util import find_spec\n"
        "if find_spec('cutaway.base._native'): import cutaway.compute.backends.cpu\n"
        "print(*sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(told.stdout.split())
    assert "cutaway.api.llm" in loaded
    heavy = {"asyncio", "difflib", "html", "http", "secrets", "subprocess", "tempfile"}
    ours = {"text.tools", "text.grammar.compiler", "text.grammar.checks"}
    ours |= {"text.grammar.compile_sandbox"}
    ours |= {"trace", "rerun", "features"}
    ours |= {"engine.constraint.checks", "engine.constraint.token_healing"}
    ours |= {"base.offload", "files.prefix", "methods.prefix"}
    ours |= {"compute.backends.tap", "compute.backends.stored"}
    assert all(find_spec(f"cutaway.{name}") for name in ours)  # none that was renamed since
    assert loaded.isdisjoint({*heavy, *(f"cutaway.{name}" for name in ours)})


def test_help_imports_no_command():
    assert {name for name in _loaded("--help") if name.startswith("cutaway.")} == {
        "cutaway._version",
        "cutaway.base",
        "cutaway.cli",
        "cutaway.cli.options",
        "cutaway.cli.options.completion",
        "cutaway.cli.options.parser",
        "cutaway.cli.main",
        "cutaway.cli.terminal",
        "cutaway.cli.terminal.streams",
        "cutaway.errors",
        "cutaway.base.progress",
        "cutaway.base.system",
        "cutaway.registry",
    }


def test_a_reader_that_goes_away_is_no_failure():
    code = (
        "import sys, types; from cutaway.cli import main as cli\n"
        "module = types.ModuleType('cutaway.cli.flood')\n"
        "module.add_arguments, module.EPILOG = lambda parser: None, ''\n"
        "module.run = lambda args: [print('x' * 1000) for _ in range(10**5)] and 0\n"
        "sys.modules[module.__name__] = module\n"
        "cli.COMMANDS['flood'] = 'flood'\n"
        "sys.exit(cli.main(['flood']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"x" * 1000 + b"\n"
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 141


def test_python_m_cutaway():
    done = subprocess.run(
        [sys.executable, "-m", "cutaway", "models", "--json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)[0]["name"] == "smollm2"


@pytest.mark.parametrize("name", [words[0] for words in cli.command_words() if len(words) == 1])
def test_every_command_explains_itself_with_examples(name, capsys):
    assert main([name, "--help"]) == 0
    assert "\nexamples:\n" in capsys.readouterr().out


WHERE_GARBAGE_IS_LOOKED_FOR = """
import gc, sys

def tell(phase, info):
    if phase == "start":
        print(len(gc.get_objects()), file=sys.stderr)

gc.callbacks.append(tell)
from cutaway.__main__ import program
program()
"""


def test_the_program_looks_for_garbage_in_few_objects(tiny_path):
    """It looked through 66,000 once the text was written, and again as the process ended."""
    command = ["generate", "-m", str(tiny_path), "--max-tokens", "1", "-q", "a"]
    done = subprocess.run(
        [sys.executable, "-c", WHERE_GARBAGE_IS_LOOKED_FOR, *command],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert max(map(int, done.stderr.split())) < 20_000


WHEN_NUMPY_IS_IMPORTED = """
import os, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "numpy":
            print("threads of its BLAS:", os.environ.get("OPENBLAS_NUM_THREADS"))

sys.meta_path.insert(0, Finder)
from cutaway.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(("backend", "threads"), [("cpu", "1"), ("reference", "None")])
def test_the_blas_that_has_nothing_to_do_gets_no_threads(backend, threads):
    """Its threads spin beside ours, and cost a cold start a sixth of its time."""
    command = ["generate", "--backend", backend, "--no-such-option"]
    done = subprocess.run(
        [sys.executable, "-c", WHEN_NUMPY_IS_IMPORTED, *command],
        env={k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == f"threads of its BLAS: {threads}\n"
