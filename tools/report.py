"""Print the facts for a bug report: the version, the machine, and a model's metadata.

    python tools/report.py [PATH]      PATH: a .gguf file, or a folder that transformers saved

Runs wherever cutaway is installed. Prints no weights. The script also describes a model that
cutaway refuses, since it reads the model's files without loading the model.
"""

import json
import platform
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_MOST = 200  # characters of a value
_FEW = 16  # values of a list


def main(argv: list[str]) -> int:
    """Print the report."""
    import cutaway
    from cutaway.base import _native

    print(
        f"cutaway {cutaway.__version__}, Python {platform.python_version()}, {platform.platform()}"
    )
    print(f"instruction sets: {_native.tiers()}")
    if argv:
        path = Path(argv[0])
        try:
            for line in describe_folder(path) if path.is_dir() else describe_gguf(path):
                print(line)
        except cutaway.CutawayError as error:
            print(error)
            return 1
    return 0


def describe_folder(folder: Path) -> Iterator[str]:
    """Yield config.json, the names of the files, and the tensors of the safetensors files."""
    yield "files: " + ", ".join(sorted(path.name for path in folder.iterdir()))
    if (folder / "config.json").is_file():
        yield from values(json.loads((folder / "config.json").read_text("utf-8")))
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        header.pop("__metadata__", None)
        yield f"{path.name}:"
        yield from tensors((name, e["dtype"], e["shape"]) for name, e in header.items())


def describe_gguf(path: Path) -> Iterator[str]:
    """Yield the metadata and the tensors of a file."""
    from cutaway.files.weights import GGUFFile

    with GGUFFile(path) as file:
        yield from values(file.metadata)
        yield from tensors((info.name, info.format, info.shape) for info in file.tensors.values())


def values(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key, with the beginning of a long value."""
    for key, value in metadata.items():
        if not isinstance(value, str | dict) and getattr(value, "__len__", lambda: 0)() > _FEW:
            yield f"  {key}: {len(value)} values, {list(value[:4])} …"
        else:
            text = json.dumps(value, default=str, ensure_ascii=False)
            yield f"  {key}: {text[:_MOST]}{' …' if len(text) > _MOST else ''}"


def tensors(rows: Iterable[tuple[str, object, object]]) -> Iterator[str]:
    """Yield a line for each kind of tensor: its name without numbers, and the count."""
    kinds = Counter(
        (re.sub(r"\d+", "N", name), str(dtype), str(shape)) for name, dtype, shape in rows
    )
    for (name, dtype, shape), count in kinds.items():
        yield f"  {count:>5} × {name} {dtype} {shape}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
