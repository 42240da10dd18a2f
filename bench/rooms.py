"""The rooms of the checkout: their sizes, the imports between them, and circles of imports.

    python bench/rooms.py [FOLDER]      FOLDER: of a checkout; default this one

A room is a folder of ``src/cutaway``; ``native``, ``tools`` and ``bench`` are rooms, too. ``base``
has the compiled form of ``native``. Imports inside functions count; imports that only type checkers
see do not, except in circles of files. A level has the entries of a folder without its
``__init__``. The core is all code outside of ``features``. The last line is JSON.
"""

import ast
import json
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SHORT = 60  # lines
_SHOWN = 12
Arrows = dict[str, set[str]]


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1])
    files, rooms = read(root)
    for room in sorted(rooms):
        print(f"{room:<9} → {', '.join(sorted(rooms[room])) or '-'}")
    room_circles, file_circles = circles(rooms), circles(files)
    for circle in room_circles + file_circles:
        print("circle:", " → ".join(circle))
    package = root / "src/cutaway"
    for name, size in levels(package)[:_SHOWN]:
        print(f"{size} entries: {name}")
    counts = {
        **sizes(package),
        "rooms": len(rooms),
        "arrows": sum(map(len, rooms.values())),
        "floors": floors(rooms) if not room_circles else None,
        "circles": len(room_circles),
        "circles_of_files": len(file_circles),
    }
    print(json.dumps(counts))


def sizes(package: Path) -> dict[str, int]:
    """Count files and lines of the package and of its core, and files with few lines."""
    lines = {path: path.read_bytes().count(b"\n") for path in package.rglob("*.py")}
    core = {
        path: count for path, count in lines.items() if package / "features" not in path.parents
    }
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        f"files_under_{SHORT}_lines": sum(count < SHORT for count in lines.values()),
        "files_of_the_core": len(core),
        "lines_of_the_core": sum(core.values()),
    }


def levels(package: Path) -> list[tuple[str, int]]:
    """The folders of the package with code, and how many entries each has; the fullest first."""
    found: dict[str, int] = {}
    for folder in {path.parent for path in package.rglob("*.py")}:
        entries = {
            entry.stem
            for entry in folder.iterdir()
            if entry.suffix == ".py" or next(entry.glob("**/*.py"), None)
        }
        found[folder.relative_to(package.parent).as_posix()] = len(entries - {"__init__"})
    return sorted(found.items(), key=lambda row: (-row[1], row[0]))


def read(root: Path) -> tuple[Arrows, Arrows]:
    """Read the imports between modules, and between rooms, as arrows."""
    package = root / "src/cutaway"
    sources = {name_of(path, package.parent): path for path in sorted(package.rglob("*.py"))}
    others = [path for room in ("tools", "bench") for path in (root / room).rglob("*.py")]
    known = set(sources)
    files: Arrows = {
        name: set(imports(path, known)) | set(imports(path, known, typing=True))
        for name, path in sources.items()
    }
    rooms: Arrows = {"native": set(), "base": {"native"}}
    for name, path in (*sources.items(), *((name_of(path, root), path) for path in others)):
        room = room_of(name)
        if room:
            found = {room_of(other) for other in imports(path, known)} - {"", room}
            rooms.setdefault(room, set()).update(found)
    return files, rooms


def name_of(path: Path, root: Path) -> str:
    """The module's dotted name below a folder."""
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """The room of a module; "" for a module in no folder."""
    first, *rest = module.split(".")
    if first != "cutaway":
        return first
    return "" if not rest or rest[0] in ("__main__", "_version", "errors", "registry") else rest[0]


def imports(path: Path, known: set[str], *, typing: bool = False) -> Iterator[str]:
    """Yield the modules of the package that a file imports, also inside functions.

    typing: yield only the imports that type checkers alone see, instead of the others
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_checkers = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if (id(node) in for_checkers) is not typing:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from {name if name in known else node.module} & known
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known


def circles(arrows: Arrows) -> list[list[str]]:
    """Find circles of imports; each circle found is cut open before the next search."""
    left, found = {name: set(others) for name, others in arrows.items()}, list[list[str]]()
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            circle = error.args[1]
            found.append(circle)
            left[circle[1]].discard(circle[0])
        else:
            return found


def floors(arrows: Arrows) -> int:
    """The number of rooms on the longest path of imports."""
    depth: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        depth[room] = 1 + max((depth[other] for other in arrows.get(room, ())), default=0)
    return max(depth.values())


if __name__ == "__main__":
    main()
