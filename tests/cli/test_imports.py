"""What a start imports: nothing that it does not need, so that it is fast.

A module that is merged with another, or imported at the top of a file, costs all who import that.
"""

import subprocess
import sys

import pytest

from cutaway.cli.main import command_words

HEAVY = {
    "asyncio", "concurrent.futures", "csv", "difflib", "email", "fastapi", "hashlib", "html",
    "http", "huggingface_hub", "importlib.metadata", "jinja2", "llguidance", "logging",
    "multiprocessing", "numpy", "pydantic", "random", "ray", "secrets", "ssl", "starlette",
    "statistics", "subprocess", "tempfile", "tokenizers", "uvicorn", "zipfile",
}  # fmt: skip
_NUMPY = {"numpy"}
_TRACE = {"numpy", "csv", "difflib", "hashlib", "html", "random", "tempfile", "zipfile"}
ALLOWED = {
    "import cutaway": set(),
    "import cutaway.cli.main": set(),
    "import cutaway.features.cluster": set(),
    "import cutaway.api.llm": _NUMPY,
    "import cutaway.trace": _TRACE,
    "import cutaway.features.cluster.replica": _NUMPY
    | {"asyncio", "concurrent.futures", "hashlib", "logging", "random", "secrets", "ssl"}
    | {"subprocess"},
    **{name: set() for name in ("trace", "cache", "receipt", "receipt key", "models", "export")},
    "search": _NUMPY | {"hashlib", "zipfile"},
    "serve": _NUMPY | {"logging"},
    "cache show": _NUMPY | {"hashlib"},
    "cache check": _NUMPY | {"hashlib"},
    "receipt verify": _NUMPY | {"hashlib", "secrets"},
    "receipt sign": _TRACE,
    "snowball": _TRACE,
    "doctor": _TRACE | {"email", "http", "ssl", "statistics"},
}
"""A statement, or the words of a command whose help is asked -> which of these it may import."""
OTHERS = sorted({" ".join(words) for words in command_words()} - {*ALLOWED})
"""Each is a process that imports NumPy, so usual runs have every third."""
STARTS = [
    *sorted(ALLOWED),
    *(pytest.param(s, marks=pytest.mark.slow if i % 3 else ()) for i, s in enumerate(OTHERS)),
]


def modules_after(code):
    """The modules that a process has imported after it has run the code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(); print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {*done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("start", STARTS)
def test_a_start_imports_no_more_than_it_needs(start):
    allowed = ALLOWED.get(start, _TRACE if start.startswith("trace ") else _NUMPY)
    code = start
    if not start.startswith("import "):
        code = f"from cutaway.cli.main import main; main({[*start.split(), '-h']!r})"
    loaded = modules_after(code)
    assert loaded & HEAVY <= allowed, f"{start} imports {', '.join(loaded & HEAVY - allowed)}"
    if "tempfile" not in allowed:
        assert "cutaway.trace" not in loaded


SELDOM = {
    "cutaway.compute.loading.adapter", "cutaway.compute.model.anatomy",
    "cutaway.compute.model.block_drafters", "cutaway.compute.model.draft_heads",
    "cutaway.compute.model.lora", "cutaway.engine.canvas",
    "cutaway.engine.decoders.denoise", "cutaway.engine.decoders.prefill",
    "cutaway.engine.interventions",
    "cutaway.engine.speculation.draft_head", "cutaway.engine.speculation.draft_model",
    "cutaway.files.huggingface", "cutaway.files.weights.mixes", "cutaway.requests.drafting",
    "cutaway.text.grammar.compiler", "cutaway.trace",
}  # fmt: skip
"""What few texts need."""
COMPRESSION = {"bz2", "lzma", "shutil"}
MOST_MODULES = 140
"""Of cutaway: some more than today, since a module may be cut in two."""
MOST_DATACLASSES = 64
"""Of cutaway: Python compiles five methods for each, which takes eight times as long as a tuple."""
DATACLASSES = """
import sys
classes = {value for name, module in sys.modules.items() if name.partition(".")[0] == "cutaway"
           for value in vars(module).values() if isinstance(value, type)}
print(f"\\n{sum('__dataclass_params__' in vars(each) for each in classes)}")
"""


def test_a_text_imports_no_more_than_it_needs(tiny_path):
    arguments = ["generate", "-m", str(tiny_path), "--max-tokens", "1", "-q", "ab"]
    code = f"from cutaway.cli.main import main; assert main({arguments!r}) == 0"
    loaded = modules_after(code)
    assert loaded & HEAVY <= {"numpy", "tokenizers"}
    assert not loaded & (SELDOM | COMPRESSION)
    own = [name for name in loaded if name.partition(".")[0] == "cutaway"]
    assert len(own) <= MOST_MODULES, f"{len(own)} of {', '.join(sorted(own))}"


def test_a_text_compiles_few_dataclasses(tiny_path):
    arguments = ["generate", "-m", str(tiny_path), "--max-tokens", "1", "-q", "ab"]
    code = f"from cutaway.cli.main import main; assert main({arguments!r}) == 0\n{DATACLASSES}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) <= MOST_DATACLASSES
