"""Count unclear names and sentences, by room; each room has a ceiling.

    python tools/words.py                   the table; fails where a room is above its ceiling
    python tools/words.py --list ROOM       each place in a room
    python tools/words.py --lower           write the counts as the new ceilings
    python tools/words.py --commits RANGE   also hold the subjects of git's commits to 72 characters

Three kinds are counted, by the words in the lists below, which are open to discussion:

names        assigned names that are a pronoun, a question or a participle: ``one``, ``found``
functions    functions named by a preposition or by a participle alone: ``of_texts``, ``told``
docstrings   docstrings, and comments above code, that begin without a subject: "Of the text."

A room is a folder of ``src/cutaway`` (a feature is one, too), the page's JavaScript, ``native`` or
``tests/support``. Python is read as a syntax tree, the other languages as tokens, which is a guess
where a language is ambiguous. A ceiling (words.json) is the number of times that each word occurs.
Ceilings fall and do not rise: ``--lower`` writes nothing while a kind's sum over all rooms is above
the ceilings' sum. If files move to another room, ``--lower`` moves their counts along.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from code_names import (
    Name,
    Token,
    cpp_names,
    javascript_names,
    leading_comments,
    tokens_of,
)

ROOT = Path(__file__).parents[1]
CEILINGS = Path(__file__).with_suffix(".json")
KINDS = ("names", "functions", "docstrings")
SUBJECT = 72  # characters
_MOST_PLACES = 12
_ADVICE = """\
Call a thing by what it is, let a function's name begin with what it does, and a docstring with a
subject or an imperative. Where files moved from another room, or a sweep has lowered the counts:
python tools/words.py --lower"""

_LISTS = {
    "pronouns and questions": """
        both each every its itself mine most many one ones others ours own some such that theirs
        them these this those
        how what where which who whose why""",
    "participles": """
        begun built chosen drawn fed forbidden found given gone grown heard held kept known laid
        lost made meant met paid said sent shown sought spent taken thought told understood won
        written
        added answered asked called compared considered counted described ended filled followed
        handled joined listed looked matched moved named needed noted offered parted passed placed
        printed refused stated tried turned wanted""",
    # A function's first word, but for idioms such as from_json, with_seed, as_text, on_tick.
    "prepositions": """
        about above across after against along among around at before behind below beside between
        beyond by during for in inside into near of off onto out outside over past through toward
        under until upon within""",
    "prepositions of idioms": "as from on to with without",
    "verbs in -ed": "embed exceed feed need proceed seed shed speed succeed",
    "beginnings of a docstring": """
        after as at before beside between by for from if in into its not of once that their these
        those to toward up when whose with within without""",
}
_WORDS = {title: frozenset(words.split()) for title, words in _LISTS.items()}
NAMES = _WORDS["pronouns and questions"] | _WORDS["participles"]


class Place(NamedTuple):
    """An occurrence of a word of the lists."""

    kind: str
    word: str  # of the lists above, or a participle
    name: str  # as written there; of a docstring, its beginning
    path: str
    line: int


Counts = dict[str, dict[str, dict[str, int]]]  # by room, kind and word


def main(argv: list[str] | None = None) -> int:
    """Print the table, and what is above a ceiling; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--list", metavar="ROOM", help="each place in a room")
    parser.add_argument("--lower", action="store_true", help="write the counts as ceilings")
    parser.add_argument("--commits", metavar="RANGE", help="as git has it: origin/main..")
    args = parser.parse_args(argv)
    rooms = read(ROOT)
    if args.list:
        if args.list not in rooms:
            parser.error(
                f"--list: there is no room {args.list!r}; the rooms are {', '.join(rooms)}"
            )
        for place in rooms[args.list]:
            print(f"{place.path}:{place.line}: {place.kind}: {place.name}")
        return 0
    ceilings: Counts = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    if args.lower:
        ceilings = lower(ceilings, count(rooms))
        CEILINGS.write_text(to_text(ceilings))
    print(table(rooms, ceilings))
    problems = [*excess(rooms, ceilings), *(long_subjects(args.commits) if args.commits else ())]
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(_ADVICE, file=sys.stderr)
    return 1 if problems else 0


def read(root: Path) -> dict[str, list[Place]]:
    """Return the places of each room of a checkout, in the order of the rooms' names."""
    rooms: dict[str, list[Place]] = defaultdict(list)
    for path in sorted((root / "src/cutaway").rglob("*.py")):
        rooms[room_of(path.relative_to(root / "src/cutaway"))] += python_places(path, root)
    for path in sorted((root / "tests/support").rglob("*.py")):
        rooms["tests/support"] += python_places(path, root)
    for path in sorted((root / "src/cutaway").rglob("*.js")):
        rooms["javascript"] += code_places(path, root, javascript_names)
    for path in sorted((root / "native").rglob("*")):
        if path.suffix in (".cpp", ".h", ".inc", ".def"):
            rooms["native"] += code_places(path, root, cpp_names)
    return dict(sorted(rooms.items()))


def room_of(path: Path) -> str:
    """Return the room of a file of the package, whose path is relative to it."""
    folders = path.parent.parts
    depth = 2 if folders[:1] == ("features",) else 1
    return "/".join(folders[:depth]) or "cutaway"


def python_places(path: Path, root: Path) -> Iterator[Place]:
    """Yield the places of a Python file; a name counts once in a function or class."""
    where = path.relative_to(root).as_posix()

    def walk(node: ast.AST, scope: set[str]) -> Iterator[Place]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_property = any("property" in ast.unparse(mark) for mark in node.decorator_list)
            yield from name_places(node.name, where, node.lineno, not is_property)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield from sentence_places(node.value.value, where, node.lineno)
        elif (name := assigned(node)) and name not in scope:
            scope.add(name)
            yield from name_places(name, where, getattr(node, "lineno", 0))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            scope = set()
        for child in ast.iter_child_nodes(node):
            yield from walk(child, scope)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), set())


def assigned(node: ast.AST) -> str:
    """Return the name that a node of the syntax tree assigns; "" for none."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.arg(arg=name) | ast.alias(asname=str(name)):
            return name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
            return name
    return ""


def name_places(name: str, path: str, line: int, is_function: bool = False) -> Iterator[Place]:
    """Yield the place of a name, if a list has it."""
    first, *rest = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).strip("_$").lower().split("_")
    if not is_function:
        if first in NAMES and not rest:
            yield Place("names", first, name, path, line)
    elif first in _WORDS["prepositions"] or (not rest and is_bare(first)):
        yield Place("functions", first, name, path, line)


def is_bare(word: str) -> bool:
    """Whether this word alone, as a function's name, names neither an action nor a result."""
    is_participle = len(word) > 4 and word.endswith("ed") and word not in _WORDS["verbs in -ed"]
    return is_participle or word in NAMES | _WORDS["prepositions of idioms"]


def sentence_places(text: str, path: str, line: int) -> Iterator[Place]:
    """Yield the place of a docstring or comment that begins without a subject."""
    first = re.match(r"\s*(\w+)", text)
    if first and first[1].lower() in _WORDS["beginnings of a docstring"]:
        start = " ".join(text.split())[:60]
        yield Place("docstrings", first[1].lower(), start, path, line)


def code_places(
    path: Path, root: Path, names: Callable[[list[Token]], Iterator[Name]]
) -> Iterator[Place]:
    """Yield the places of a file in JavaScript or C++; names: those it declares."""
    where = path.relative_to(root).as_posix()
    tokens = tokens_of(path.read_text(encoding="utf-8"))
    for name in names(tokens):
        yield from name_places(name.name, where, name.line, name.is_function)
    for text, line in leading_comments(tokens):
        yield from sentence_places(text, where, line)


def count(rooms: dict[str, list[Place]]) -> Counts:
    """Return how often each word occurs."""
    counts: Counts = {}
    for room, places in rooms.items():
        for kind in KINDS:
            words = Counter(place.word for place in places if place.kind == kind)
            counts.setdefault(room, {})[kind] = dict(sorted(words.items()))
    return counts


def total(counts: Counts, kind: str, room: str = "") -> int:
    """Return how often a kind occurs in a room, or in all."""
    rooms = [counts.get(room, {})] if room else counts.values()
    return sum(sum(kinds.get(kind, {}).values()) for kinds in rooms)


def lower(ceilings: Counts, counts: Counts) -> Counts:
    """Return the counts, or the ceilings as they were while a kind's sum is above theirs."""
    if ceilings and any(total(counts, kind) > total(ceilings, kind) for kind in KINDS):
        return ceilings
    return counts


def excess(rooms: dict[str, list[Place]], ceilings: Counts) -> Iterator[str]:
    """Yield a message for each room and kind above its ceiling: the words, and their places.

    If files changed since the ceilings were written, only places in these files are listed.
    """
    counts, changed = count(rooms), files_changed_since(CEILINGS)
    for room, kind in ((room, kind) for room in rooms for kind in KINDS):
        number, ceiling = total(counts, kind, room), total(ceilings, kind, room)
        if number <= ceiling:
            continue
        earlier = ceilings.get(room, {}).get(kind, {})
        risen = [word for word, times in counts[room][kind].items() if times > earlier.get(word, 0)]
        yield f"{room}: {number} {kind} of the words in tools/words.py; its ceiling is {ceiling}:"
        yield "  more than before: " + ", ".join(
            f"{word} ({earlier.get(word, 0)}, now {counts[room][kind][word]})" for word in risen
        )
        places = [place for place in rooms[room] if place.kind == kind and place.word in risen]
        places = [place for place in places if place.path in changed] or places
        yield from (f"  {place.path}:{place.line}: {place.name}" for place in places[:_MOST_PLACES])
        if len(places) > _MOST_PLACES:
            yield f"  and {len(places) - _MOST_PLACES} more: python tools/words.py --list {room}"


def files_changed_since(path: Path) -> set[str]:
    """Return the files that changed since the last commit of a file; none without git."""
    try:
        commit = git("log", "-1", "--format=%H", "--", str(path)).strip()
        return set(git("diff", "--name-only", commit).splitlines()) if commit else set()
    except (OSError, subprocess.CalledProcessError):
        return set()


def git(*arguments: str) -> str:
    """Return what git prints of the checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def long_subjects(commits: str) -> Iterator[str]:
    """Yield a message for each commit whose subject is too long; merges are left out."""
    log = git("log", "--no-merges", "--format=%h %s", commits)
    for line in log.splitlines():
        commit, _, subject = line.partition(" ")
        if len(subject) > SUBJECT:
            yield f"{commit}: a subject of {len(subject)} characters, above {SUBJECT}: {subject}"


def table(rooms: dict[str, list[Place]], ceilings: Counts) -> str:
    """Return the counts by room; a ceiling in brackets where it can be lowered or is broken."""
    counts = count(rooms)
    lines = [f"{'':<24}" + "".join(f"{kind:>18}" for kind in KINDS)]
    for room in (*rooms, ""):
        cells = [f"{room or 'in all':<24}"]
        for kind in KINDS:
            number, ceiling = total(counts, kind, room), total(ceilings, kind, room)
            cells.append(f"{f'({ceiling}) ' if number != ceiling else ''}{number}".rjust(18))
        lines.append("".join(cells))
    return "\n".join(lines)


def to_text(ceilings: Counts) -> str:
    """Return the ceilings as JSON, a kind of a room on each line."""
    rooms = [
        f"{json.dumps(room)}: {{\n"
        + ",\n".join(f"  {json.dumps(kind)}: {json.dumps(kinds[kind])}" for kind in KINDS)
        + "\n}"
        for room, kinds in ceilings.items()
    ]
    return "{\n" + ",\n".join(rooms) + "\n}\n"


if __name__ == "__main__":
    raise SystemExit(main())
