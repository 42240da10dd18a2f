"""A page that runs a model by itself, as a folder for any static host.

Knows the files that the page's own loop (trace/web/js/local) reads: the plan, packed weights, the
tokenizer, and the facts of the model in a trace's head and in the page's settings. Computes
nothing.
"""

import json
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cutaway._version import __version__
from cutaway.api.llm import LLM
from cutaway.base.progress import megabytes
from cutaway.compute.backends import record_page
from cutaway.compute.loading.model import LoadedModel
from cutaway.errors import CutawayError, InputError
from cutaway.features.lessons.class_page import write_class
from cutaway.features.page.inside import page_inside
from cutaway.features.page.plan import Readable, write_plan
from cutaway.features.page.settings import page_settings
from cutaway.features.page.tokenizer import page_tokenizer
from cutaway.features.practice.page_exercises import run_sheets, sample_sheets, ways_sheet
from cutaway.requests.options import parse_options
from cutaway.requests.recording import page_about, sizes_of
from cutaway.text.chat_probe import ChatPieces
from cutaway.trace import Head
from cutaway.trace.page import catalogue
from cutaway.trace.web import index
from cutaway.trace.web.bundle import ALONE, Files, page_files

T = TypeVar("T")
WEB = files("cutaway.trace.web")
PART = 8 << 20
"""The most bytes of one file of weights; browsers and hosts store files of this size."""
CORE_BYTES = 1 << 32
"""All that 32 bits of a WebAssembly core can name; weights must be fewer (local/core.js)."""
_WEIGHTS = "weights-"
_UNOPENED = """\
  <p id="unopened">This page opens through a web server. In its folder, run
    <code>python -m http.server 8000</code> and open
    <a href="http://127.0.0.1:8000/">http://127.0.0.1:8000/</a>. If you came from there, a file of
    the page is missing or damaged: export it again.</p>
"""
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; worker-src 'self'; base-uri 'none'; "
    "form-action 'none'"
)


def check_causal(model: LoadedModel) -> None:
    """Raise InputError unless the model writes from left to right, as a page does."""
    if not model.config.is_causal:
        raise InputError(
            f"{model.name} does not write from left to right, which is all that a page without a "
            "server does: use cutaway serve"
        )
    if model.config.attention == "prefix-lm":
        raise InputError(
            f"{model.name} reads its prompt to both sides, which a page without a server does not: "
            "use cutaway serve"
        )


def write_page_folder(
    model: LoadedModel,
    out: Path,
    *,
    context: int,
    cores: Path,
    run: Callable[[], LLM] | None = None,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> list[str]:
    """Write the page, its core, the model's plan, weights and tokenizer; say what is missing.

    out: a folder that does not exist. cores: a folder of compiled cores. run: loads the model, for
    exercises on its runs; None: the page has only exercises on samples. InputError if a page cannot
    run the model yet.
    """
    check_causal(model)
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"{out} cannot be made a folder: {error.strerror}") from error
    try:
        return _write_all(model, out, context, cores, run=run, on_progress=on_progress)
    except BaseException:  # also on Ctrl-C: half a page is useless
        shutil.rmtree(out)
        raise


def _write_all(
    model: LoadedModel,
    out: Path,
    context: int,
    cores: Path,
    *,
    run: Callable[[], LLM] | None,
    on_progress: Callable[[int], None],
) -> list[str]:
    (folder := out / "model").mkdir()
    missing = list[str]()
    weights = _write_weights(model, folder, context, missing, on_progress)
    defaults = parse_options({}).settings(0)
    chat = _if_any(lambda: _chat(model), "the page has no chat", missing)
    inside = None
    if weights.size < CORE_BYTES:
        inside = _if_any(
            lambda: page_inside(model.graph, weights.readable),
            "the page has no inside of a step",
            missing,
        )
    _write(folder / "inside.json", inside)
    _write(
        folder / "model.json",
        _model(model) | {"parts": weights.parts, "chat": chat, "gpu": weights.has_gpu},
    )
    about = page_about(
        model.name, model.identity.weights, context, model.config.attention, defaults
    )
    practice = _practice(run, missing)
    _write(folder / "practice.json", practice)
    lacks = [name for name, row in page_settings().items() if row is None]
    local = {"inside": inside is not None, "practice": [*practice], "lacks": lacks}
    has = {"canvas": None, "chat": chat is not None, "local": local}
    _write(folder / "about.json", about | has)
    for core in cores.iterdir():
        (folder / core.name).write_bytes(core.read_bytes())
    _write_page(out)
    return missing


class _Weights(NamedTuple):
    """The weights that a page fetches.

    parts     the files, in their order
    size      bytes of all of them
    readable  the names of what a core can read of them
    has_gpu   whether a GPU can compute with them
    """

    parts: list[dict[str, Any]]
    size: int
    readable: Readable
    has_gpu: bool


def _write_weights(
    model: LoadedModel,
    folder: Path,
    context: int,
    missing: list[str],
    on_progress: Callable[[int], None],
) -> _Weights:
    """Write the tokenizer, the plan, what a GPU runs, and the weights; say what is missing."""
    packed = folder / "weights"
    with model.open_file() as file:
        _write(folder / "tokenizer.json", page_tokenizer(file.metadata, model.tokenizer))
        plan, readable, packing = write_plan(model.graph, file, packed, context, on_progress)
        recordings = _if_any(
            lambda: record_page(packing, context), "the page computes on no GPU", missing
        )
    for name, recording in (recordings or {}).items():
        recording.write(folder, name)
    size, has_gpu = packed.stat().st_size, recordings is not None
    if size >= CORE_BYTES:
        missing.append(_gpu_alone(size, has_gpu=has_gpu))
    _write(folder / "plan.json", plan._asdict() | {"bytes": size})
    parts = [*_parts(packed)]
    packed.unlink()
    return _Weights(parts, size, readable, has_gpu)


def _practice(run: Callable[[], LLM] | None, missing: list[str]) -> dict[str, Any]:
    """Return the exercises by name; those of a run only if the model can write one."""
    sheets: dict[str, Any] = sample_sheets()
    if run:
        llm = run()
        for exercises in (partial(run_sheets, llm), partial(ways_sheet, llm)):
            sheets |= _if_any(exercises, "the page has fewer exercises", missing) or {}
    return sheets


def _gpu_alone(size: int, *, has_gpu: bool) -> str:
    """Say what a page cannot do whose weights have more bytes than a core can name."""
    reason = f"its weights have {megabytes(size)}, and WebAssembly has {megabytes(CORE_BYTES)}"
    if not has_gpu:
        raise InputError(f"a browser can run this model neither on a GPU nor without one: {reason}")
    return f"the page writes where there is a GPU alone, and has no inside of a step: {reason}"


def _write_page(out: Path) -> None:
    """Write the page's own files, and the script that keeps them in the browser."""
    page = page_files(ALONE)
    folder = out / page.folder
    folder.mkdir(parents=True)
    for name, contents in page.contents.items():
        (folder / name).write_bytes(contents)
    (out / "index.html").write_text(document(out, page), encoding="utf-8")
    write_class(out, page.folder)
    (out / "offline.js").write_text(_offline(out), encoding="utf-8")


def document(out: Path, page: Files) -> str:
    """Make the document of a page's folder, with the hashes of all that it fetches."""
    text = index(catalogue(), page)
    for name, contents in page.contents.items():
        digest = b64encode(sha256(contents).digest()).decode()
        address = f'"{page.folder}/{name}"'
        text = text.replace(address, f'{address} integrity="sha256-{digest}"')
    paths = sorted((out / "model").iterdir())
    weights = [path for path in paths if path.name.startswith(_WEIGHTS)]
    files = [
        {"name": path.name, "bytes": len(data), "sha256": sha256(data).hexdigest()}
        for path in paths
        if path not in weights
        for data in [path.read_bytes()]
    ]
    facts = {"weights": sum(path.stat().st_size for path in weights), "files": files}
    data = f'<script type="application/json" id="files">{json.dumps(facts)}</script>'
    policy = f'<meta http-equiv="content-security-policy" content="{_POLICY}">'
    text = text.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n  {policy}\n  {data}')
    return text.replace("  <main>\n", f"{_UNOPENED}  <main>\n")


def _offline(out: Path) -> str:
    """Make the script that keeps this export's files in the browser (trace/web/offline.js)."""
    names = sorted(
        str(path.relative_to(out).as_posix()) for path in out.rglob("*") if path.is_file()
    )
    page_files = [
        name
        for name in names
        if not Path(name).name.startswith(_WEIGHTS) and not name.startswith("lessons/")
    ]
    name = sha256(b"".join((out / file).read_bytes() for file in page_files)).hexdigest()[:16]
    script = (WEB / "offline.js").read_text("utf-8")
    return script.replace('"FILES"', json.dumps(["./", *page_files])).replace("NAME", name)


def _parts(weights: Path) -> Iterator[dict[str, Any]]:
    """Cut the file into pieces, each with its hash."""
    with weights.open("rb") as file:
        for number, piece in enumerate(iter(lambda: file.read(PART), b"")):
            name = f"{_WEIGHTS}{number:03d}.bin"
            weights.with_name(name).write_bytes(piece)
            yield {"name": name, "bytes": len(piece), "sha256": sha256(piece).hexdigest()}


def _if_any(make: Callable[[], T], problem: str, missing: list[str]) -> T | None:
    """Make a part of the page; if that fails, return None and add the reason to ``missing``."""
    try:
        return make()
    except CutawayError as error:
        missing.append(f"{problem}: {error}")
        return None


def _chat(model: LoadedModel) -> dict[str, Any]:
    """Describe the model's chat template in the form that local/chat.js reads."""
    if model.template is None:
        raise InputError("the model has no chat template")
    return asdict(ChatPieces.from_template(model.template))


def _model(model: LoadedModel) -> dict[str, Any]:
    """Describe the model for local/loop.js: the head of its traces, and every setting."""
    head = Head(
        cutaway=__version__, model=model.name, weights=model.identity.weights,
        tokenizer=model.identity.tokenizer, backend="cpu", tier="wasm", threads=1,
        vocab_size=model.tokenizer.vocab_size, prompt=None, prompt_token_ids=(), chain=(),
        params={}, seed=0, candidates=0, tracked_ids=(),
        end_ids=tuple(model.tokenizer.end_ids),
        kv_bytes_per_token=model.kv.bytes_per_token, sizes=sizes_of(model),
    )  # fmt: skip
    catalogue_data = catalogue()
    return {
        "head": head.to_json(),
        "defaults": parse_options({}, traced=True).settings(0),
        "settings": page_settings(),
        "end_ids": [*model.tokenizer.end_ids],
        "stages": catalogue_data["stages"],
        "presets": catalogue_data["presets"],
    }


def _write(path: Path, data: dict[str, Any] | None) -> None:
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
