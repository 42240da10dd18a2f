"""An index of texts: embeddings in one file, made in parts that can be resumed, searched exactly.

A search compares the query with every vector: a million vectors of 384 numbers take about 0.2 s.
The best cosines are computed again in a fixed order, so that the order of results is the same on
every machine.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from cutaway.base import strict_json
from cutaway.base.arithmetic import plainly
from cutaway.base.checks import shown
from cutaway.errors import FormatError, InputError
from cutaway.text.characters import printable

if TYPE_CHECKING:
    from cutaway.requests.sync_llm import SyncLLM

_AT_ONCE = 256  # texts whose vectors are written together
_MORE = 64  # how many more candidates than wanted are computed again
_ARRAYS = {
    "vectors": ("<f4", 2), "texts": ("|u1", 1), "ends": ("<i8", 1), "files": ("|u1", 1),
    "lines": ("<i8", 1), "about": ("|u1", 1),
}  # fmt: skip
"""The type and the number of dimensions of each array of the file."""
_UNREADABLE = BadZipFile, RuntimeError  # an archive of another version, or with a password
_ABOUT = {
    "model": str, "weights": str, "arithmetic": str, "dimensions": int | None,
    "query_prompt": str | None, "document_prompt": str | None,
}  # fmt: skip


@dataclass(frozen=True)
class Passage:
    """A text of an index. file, line: its origin; "" and 0 if it has none."""

    text: str
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class Hit:
    """A passage that was found. cosine: of its vector and the query's."""

    passage: Passage
    cosine: float

    def to_dict(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return {**asdict(self.passage), "cosine": self.cosine}


def passages(path: Path, *, max_length: int = 1200) -> Iterator[Passage]:
    """Yield the paragraphs of a file; those above ``max_length`` characters are split.

    InputError for a file that cannot be read as text.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text: {error.reason}") from error
    part: list[str] = []
    first = 1
    for number, line in enumerate([*lines, ""], 1):
        if part and (not line.strip() or sum(map(len, part)) + len(line) > max_length):
            yield from _pieces("\n".join(part), str(path), first, max_length)
            part = []
        if line.strip():
            first = first if part else number
            part.append(line)


def _pieces(text: str, file: str, line: int, max_length: int) -> Iterator[Passage]:
    while len(text) > max_length:
        cut = text.rfind(" ", max_length // 2, max_length)
        cut = max_length if cut < 0 else cut
        yield Passage(text[:cut], file, line)
        text = text[cut:].lstrip()
    if text.strip():
        yield Passage(text, file, line)


@dataclass(frozen=True)
class Index:
    """Embeddings of passages, and how they were made.

    vectors  float32 (passages, dimensions), of length 1
    about    the model's name and fingerprint, and the pooling
    """

    passages: tuple[Passage, ...]
    vectors: NDArray[np.float32]
    about: dict[str, Any]

    @classmethod
    def build(
        cls,
        llm: "SyncLLM",
        texts: Sequence[Passage],
        *,
        model: str = "",
        part: Path | None = None,
        dimensions: int | None = None,
        progress: Callable[[int], object] = lambda _done: None,
    ) -> "Index":
        """Embed passages, in the order given.

        model: the name by which a search loads the model again; part: a file to which vectors are
        written as they come, so that the same work can resume; progress: called with how many are
        done
        """
        if not texts:
            raise InputError("there is no text to be indexed")
        about = _describe(llm, model, dimensions)
        done = _Part.open(part, texts, about) if part else None
        rows = [done.vectors] if done is not None and len(done.vectors) else []
        count = sum(map(len, rows))
        progress(count)
        for first in range(count, len(texts), _AT_ONCE):
            part_texts = [passage.text for passage in texts[first : first + _AT_ONCE]]
            rows.append(_embed(llm, part_texts, about, "document_prompt"))
            if done is not None:
                done.add(rows[-1])
            progress(first + len(part_texts))
        return cls(tuple(texts), np.concatenate(rows), about)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one .npz file. InputError if it cannot be written."""
        texts = [passage.text.encode() for passage in self.passages]
        arrays = {
            "vectors": self.vectors,
            "texts": np.frombuffer(b"".join(texts), np.uint8),
            "ends": np.cumsum([len(text) for text in texts], dtype=np.int64),
            "files": np.frombuffer(
                json.dumps([passage.file for passage in self.passages]).encode(), np.uint8
            ),
            "lines": np.array([passage.line for passage in self.passages], np.int64),
            "about": np.frombuffer(json.dumps(self.about).encode(), np.uint8),
        }
        new_path = Path(f"{path}.new")
        try:
            with new_path.open("wb") as out:
                np.savez(out, **arrays)  # type: ignore[arg-type]
            new_path.replace(path)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}") from error

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Index":
        """Read a file. FormatError if it is no index."""
        try:
            _check_sizes(path)
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in _ARRAYS}
            ends = arrays["ends"].tolist()
            data = arrays["texts"].tobytes()
            files = strict_json.parse(arrays["files"].tobytes(), "files", max_values=None)
            about = strict_json.parse(arrays["about"].tobytes(), "about")
            _check_values(arrays["vectors"], files, about)
            texts = [data[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
            rows = zip(texts, files, arrays["lines"].tolist(), strict=True)
            index = cls(tuple(Passage(*row) for row in rows), arrays["vectors"], about)
        except FileNotFoundError as error:
            raise InputError(f"{path}: there is no such file") from error
        except (*_UNREADABLE, OSError, ValueError, KeyError, TypeError, EOFError) as error:
            reason = printable(str(error)[:300])  # NumPy quotes all of a header
            raise FormatError(f"{path} is no index of cutaway: {reason}") from error
        shape = index.vectors.shape
        if len(index.passages) != shape[0] or not len(index.passages):
            raise FormatError(f"{path} is damaged: {shape} vectors of {len(index.passages)} texts")
        return index

    def check(self, llm: "SyncLLM") -> None:
        """Raise InputError unless the model has the weights that made the vectors."""
        if llm.model.identity.weights != self.about["weights"]:
            raise InputError(
                f"the index was made by {printable(self.about['model'])}, and {llm.name} has other "
                "weights: name that model with -m, or make the index again"
            )

    def search(self, llm: "SyncLLM", query: str, top: int = 10) -> list[Hit]:
        """Return the passages nearest to a query, nearest first; ties keep the index's order."""
        return self.nearest(_embed(llm, query, self.about, "query_prompt")[0], top)

    @plainly
    def nearest(self, vector: NDArray[np.float32], top: int) -> list[Hit]:
        """Return the passages nearest to a vector of length 1."""
        from cutaway.sampling.fixed_math import cosine  # a tenth of a second of ``search -h``

        rough = self.vectors @ vector
        count = min(len(rough), top + _MORE)
        candidates = np.sort(np.argpartition(-rough, count - 1)[:count])
        cosines = cosine(self.vectors[candidates], vector).tolist()
        order = sorted(range(count), key=lambda j: -cosines[j])[:top]
        return [Hit(self.passages[candidates[j]], cosines[j]) for j in order]


def _describe(llm: "SyncLLM", model: str, dimensions: int | None) -> dict[str, Any]:
    from cutaway.methods.embedding import prompts_of

    query, document = prompts_of(llm)
    return {
        "model": model or llm.name, "weights": llm.model.identity.weights,
        "arithmetic": llm.model.arithmetic, "dimensions": dimensions,
        "query_prompt": query, "document_prompt": document,
    }  # fmt: skip


def _embed(
    llm: "SyncLLM", texts: str | list[str], about: Mapping[str, Any], prompt: str
) -> NDArray[np.float32]:
    """Return vectors of length 1. prompt: which of the two in ``about`` goes before each text."""
    from cutaway.methods.embedding import embed
    from cutaway.requests.prefill import prefill

    task = embed(
        llm, texts, normalize=True, dimensions=about["dimensions"], prompt=about[prompt],
        truncate=True,
    )  # fmt: skip
    return prefill(llm.owner, task).vectors


class _Part:
    """A file of vectors, written as they come: a line about the work, then float32 rows."""

    def __init__(self, path: Path, vectors: NDArray[np.float32], head: bytes) -> None:
        self.path, self.vectors, self._head = path, vectors, head

    @classmethod
    def open(cls, path: Path, texts: Sequence[Passage], about: dict[str, Any]) -> "_Part":
        """Read the vectors that an earlier run of the same work has written."""
        digest = sha256(
            json.dumps([about, [passage.text for passage in texts]]).encode()
        ).hexdigest()
        head, vectors = f"{digest}\n".encode(), np.empty((0, 0), np.float32)
        data = path.read_bytes() if path.is_file() else b""
        first_line, _, rest = data.partition(b"\n")
        width, _, body = rest.partition(b"\n")
        if first_line + b"\n" == head and width.isdigit() and int(width):
            size = int(width)
            rows = len(body) // (4 * size)
            vectors = np.frombuffer(body[: rows * 4 * size], "<f4").reshape(rows, size)
            with path.open("r+b") as out:  # what was cut in the middle of a row
                out.truncate(len(head) + len(width) + 1 + rows * 4 * size)
        else:
            path.unlink(missing_ok=True)
        return cls(path, vectors.astype(np.float32), head)

    def add(self, rows: NDArray[np.float32]) -> None:
        """Write the next rows."""
        try:
            with self.path.open("ab") as out:
                if out.tell() == 0:
                    out.write(self._head + f"{rows.shape[1]}\n".encode())
                out.write(rows.astype("<f4").tobytes())
        except OSError as error:
            raise InputError(f"{self.path} cannot be written: {error.strerror}") from error


def _check_values(vectors: NDArray[np.float32], files: Any, about: Any) -> None:
    """Raise ValueError if a value has another type than ``Index.save`` writes."""
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise ValueError("files must be a list of texts")
    if not isinstance(about, dict) or about.keys() != _ABOUT.keys():
        raise ValueError(f"about must have the fields {', '.join(_ABOUT)}")
    for name, kind in _ABOUT.items():
        if not isinstance(about[name], kind) or isinstance(about[name], bool):
            raise ValueError(f"about: {name} is {shown(about[name])}")
    with np.errstate(invalid="ignore"):
        if not np.isfinite(vectors.sum(dtype=np.float64)):
            raise ValueError("vectors hold what is not finite")


def _check_sizes(path: str | os.PathLike[str]) -> None:
    """Raise ValueError if an array has a wrong type, or claims more bytes than the file has.

    The sizes are checked before anything is allocated.
    """
    with ZipFile(path) as file:
        for name, (kind, dimensions) in _ARRAYS.items():
            if file.getinfo(f"{name}.npy").compress_type != ZIP_STORED:
                raise ValueError(f"{name} is compressed")
            with file.open(f"{name}.npy") as data:
                version = np.lib.format.read_magic(data)
                if version != (1, 0):
                    raise ValueError(f"{name} is of version {version}")
                shape, _, dtype = np.lib.format.read_array_header_1_0(data)
            if dtype.str != kind or len(shape) != dimensions:
                raise ValueError(f"{name} is an array of {dtype} with {len(shape)} dimensions")
            size, file_size = prod(shape) * dtype.itemsize, Path(path).stat().st_size
            if size > file_size:
                raise ValueError(
                    f"{name} says that it has {size} bytes, and the file has {file_size}"
                )
