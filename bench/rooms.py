"""How many rooms the package has, how many imports between them, and whether any go in circles.

    python bench/rooms.py [FOLDER]      FOLDER: of a checkout; default this one

A room is a package or a module directly below ``cutaway``. Imports that only type checkers see do
not count. The last line is JSON.
"""

import ast
import json
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]) / "src/cutaway"
    arrows: dict[str, set[str]] = {}
    lines = 0
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        room = inside.parts[0].removesuffix(".py")
        text = path.read_text(encoding="utf-8")
        lines += text.count("\n")
        if room in ("__init__", "__main__"):
            continue
        found = {other for other in imports(ast.parse(text), root) if other != room}
        arrows.setdefault(room, set()).update(found)
    try:
        TopologicalSorter(arrows).prepare()
        circles = 0
    except CycleError as error:
        circles = 1
        print("circle:", " → ".join(error.args[1]))
    for room in sorted(arrows):
        print(f"{room:<12} → {', '.join(sorted(arrows[room])) or '-'}")
    counts = {
        "rooms": len(arrows),
        "arrows": sum(map(len, arrows.values())),
        "floors": floors(arrows) if not circles else None,
        "circles": circles,
        "lines": lines,
    }
    print(json.dumps(counts))


def imports(tree: ast.Module, root: Path) -> Iterator[str]:
    """The rooms that a module imports, inside functions too."""
    seen_by_checkers = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in seen_by_checkers:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "cutaway":
            yield from (a.name for a in node.names if is_room(root, a.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cutaway."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("cutaway."))


def is_room(root: Path, name: str) -> bool:
    """Whether it is a module or a package, and not what a package offers."""
    return (root / name).is_dir() or (root / f"{name}.py").is_file()


def floors(arrows: dict[str, set[str]]) -> int:
    """How many rooms lie on the longest way down."""
    depth: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        depth[room] = 1 + max((depth[other] for other in arrows.get(room, ())), default=0)
    return max(depth.values())


if __name__ == "__main__":
    main()
