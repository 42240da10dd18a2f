"""What help, Tab and type checkers read: every keyword of a request, by name, and a short message
where one is wrong."""

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway import LLM, AsyncLLM
from cutaway.engine.canvas import SETTINGS
from cutaway.requests.keywords import KEYWORDS, DenoiseOptions

WRITING = ["generate", "stream", "chat"]
METHODS = [
    *((LLM, name) for name in [*WRITING, "generate_each", "streams"]),
    *((AsyncLLM, name) for name in WRITING),
]


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_a_signature_names_every_keyword_with_its_default(kind, name):
    parameters = inspect.signature(getattr(kind, name)).parameters
    assert parameters.keys() >= KEYWORDS.keys()
    assert parameters["temperature"].default == KEYWORDS["temperature"].default
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_denoise_names_the_settings_of_a_rule_too(kind):
    expected = {*KEYWORDS, *SETTINGS}
    assert DenoiseOptions.__annotations__.keys() == expected
    assert inspect.signature(kind.denoise).parameters.keys() == {"self", "prompt", *expected}


TYPED = [
    ('generate("x", temp', "temperature="),
    ('stream("x", top_', "top_k="),
    ("chat([], thi", "think="),
    ("chat([], max_t", "max_tokens="),
    ("generate_each([], se", "seed="),
    ('denoise("x", thre', "threshold="),
    ('fill("x", can', "candidates="),
    ('score("x", [], spe', "special="),
    ('accepts("x", reg', "regex="),
    ('revise("x", sw', "sweeps="),
]


@pytest.mark.parametrize(("typed", "offered"), TYPED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tab_in_a_notebook_offers_keywords(tiny_path, typed, offered):
    jedi = pytest.importorskip("jedi", reason="needs jedi, which IPython brings")
    if not jedi.Interpreter("import cutaway", [{}]).infer(1, 8):
        pytest.skip("jedi cannot read an editable install")
    with LLM(tiny_path, progress=False) as llm:
        completions = jedi.Interpreter(f"llm.{typed}", [{"llm": llm}]).complete()
    assert offered in [completion.name_with_symbols for completion in completions]


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_dir_lists_what_the_reference_lists(kind):
    """Names that other rooms of the package use are on neither list."""
    api = (Path(__file__).parents[2] / "docs/reference/api.md").read_text("utf-8")
    _, _, entry = api.partition(f"autoclass:: cutaway.{kind.__name__}\n")
    left_out = re.search(r":exclude-members: (.*?)\n\n", entry, re.DOTALL)[1]
    instance = object.__new__(kind)
    listed = {name for name in dir(instance) if not name.startswith("_")}
    every = {name for name in dir(kind) if not name.startswith("_")}
    assert every - listed == set(re.split(r",\s+", left_out))


SNIPPETS = [  # and the type that a checker finds, or what it must say
    ('llm.generate("x")', "Completion"),
    ('llm.generate(["x", [1, 2]])', "list[Completion]"),
    ('llm.stream("x", top_k=3)', "Stream"),
    ('llm.chat([{"role": "user", "content": "x"}], max_tokens=3)', "Completion"),
    ('llm.denoise("x", steps=3)', "Completion"),
    ('llm.score("x", ["y"])', "list[Likelihood]"),
    ('await async_llm.generate("x", seed=1)', "Completion"),
    ('await async_llm.chat([{"role": "user", "content": "x"}])', "Completion"),
    ('llm.chat([], temprature=1)', "error"),
    ('llm.stream("x", top_k="three")', "error"),
]  # fmt: skip


@pytest.fixture(scope="module")
def snippets(tmp_path_factory):
    file = tmp_path_factory.mktemp("typed") / "snippets.py"
    lines = [
        f"    {text}" if kind == "error" else f"    reveal_type({text})" for text, kind in SNIPPETS
    ]
    head = ["from cutaway import LLM, AsyncLLM", ""]
    function = "async def check(llm: LLM, async_llm: AsyncLLM) -> None:"
    file.write_text("\n".join([*head, function, *lines, ""]))
    return file


def messages(output):
    """The messages of a checker by number of the snippet."""
    found = {}
    for line, text in output:
        found.setdefault(line - 4, []).append(text)
    return found


def check(said):
    for number, (text, kind) in enumerate(SNIPPETS):
        whole = "\n".join(said[number])
        if kind == "error":
            assert whole.strip().startswith("error:"), text
        else:  # mypy says 'Revealed type is "…"', pyright 'Type of "…" is "…"'
            last = whole.rpartition(" is ")[2]
            assert re.sub(r"\w+\.", "", last).strip('"') == kind, text


@pytest.mark.slow
def test_mypy_knows_each_keyword_and_result(snippets):
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", snippets]
    out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lines = [line.split(":", 3) for line in out.splitlines() if line.startswith(f"{snippets}:")]
    said = messages((int(line), f"{severity}:{text}") for _, line, severity, text in lines)
    check(said)
    wrong = "\n".join(said[8])
    assert 'Unexpected keyword argument "temprature"' in wrong
    assert 'did you mean "temperature"?' in wrong
    assert len(wrong) < 400


@pytest.mark.slow
def test_pyright_knows_each_keyword_and_result(snippets):
    if not (pyright := shutil.which("pyright")):
        pytest.skip("needs pyright")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, snippets]
    out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = json.loads(out)["generalDiagnostics"]
    said = messages(
        (one["range"]["start"]["line"] + 1, f"{one['severity']}: {one['message']}") for one in found
    )
    check(said)
    assert 'No parameter named "temprature"' in said[8][0]
