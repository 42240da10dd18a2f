"""Changes of bytes, JSON and text, drawn from a seeded generator: equal seeds, equal inputs."""

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, 1, 2, 3, 5, 7, 31, 32, 33, 255, 256, 257, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53,
    2**63 - 1, 2**63, 2**64 - 1, -1, -2, -(2**31), -(2**63), 0.0, -0.0, 0.5, 1.0, 1e-300, 1e300,
    float("nan"), float("inf"), -float("inf"),
)  # fmt: skip
ODD: tuple[Any, ...] = (
    *NUMBERS, None, True, False, "", "x", "\udc80", "\0", "\x1b[2J\n", "9" * 400, "a" * 3000, [],
    [None],
    {}, {"a": 1}, [[1]], 10**400,
)  # fmt: skip
PIECES = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\0" * 8,
    b"\1" + b"\0" * 7,
    b"\x80",
    b"null",
    b"-1",
    b"1e999",
    b"\n",
    b'"',
)


def a_few(rng: Random) -> int:
    """Return a number of changes: one to four, mostly one or two."""
    return rng.choice((1, 1, 1, 2, 2, 3, 4))


def odd_number(rng: Random, value: Any = 1) -> Any:
    """Return another number: a limit, or a number close to ``value``."""
    near = isinstance(value, int | float) and abs(value) < 2**63 and rng.random() < 0.5
    return (
        rng.choice((value + 1, value - 1, value * 2, value // 2, -value))
        if near
        else rng.choice(NUMBERS)
    )


def mutate_bytes(rng: Random, raw: bytes) -> bytes:
    """Return bytes after a few replacements, insertions, deletions, copies or cuts."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(raw) + 1)
        if rng.random() < 0.1:
            raw = raw[:at]
            continue
        piece = rng.choice((*PIECES, rng.randbytes(rng.randrange(1, 9)), raw[at : at + 20]))
        raw = (
            raw[:at]
            + piece
            + raw[at + rng.choice((0, 1, len(piece), len(piece), len(piece) + 9)) :]
        )
    return raw


def mutate_text(rng: Random, text: str, words: Sequence[str]) -> str:
    """Return a text with a few words of a language inserted, removed, repeated or nested."""
    for _ in range(rng.choice((1, 2, 2, 3, 5))):
        text = text[:400_000]
        a, b = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        word = rng.choice(words)
        text = rng.choice((
            text[:a] + word + text[a:], text[:a] + word + text[a + len(word) :],
            text[:a] + text[min(b, a + 9) :],
            text[:b] + text[a:b][:200] + text[b:], text[:a] + word * rng.choice((2, 9,
            300)) + text[a:],
        ))  # fmt: skip
    return text


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document; of long lists, a few."""
    words_left = [path]
    if isinstance(value, dict | list):
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, inner in items if len(items) < 60 else items[:: len(items) // 20]:
            words_left += places(inner, (*path, key))
    return words_left


def mutate_json(rng: Random, document: Any, odd: Sequence[Any] = ODD) -> Any:
    """Return a copy with a few values replaced, removed, added or moved."""
    document = copy.deepcopy(document)
    for _ in range(a_few(rng)):
        if everywhere := places(document)[1:]:
            *way, key = rng.choice(everywhere)
            place, another = _descend(document, way), _descend(document, rng.choice(everywhere))
            _change(rng, place, key, copy.deepcopy(rng.choice((another, *[rng.choice(odd)] * 4))))
    return document


def _change(rng: Random, place: Any, key: Any, other: Any) -> None:
    """Change or replace the value at a key, or add another value next to it."""
    value, kind = place[key], rng.randrange(8)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, list):
        place.insert(key, other)
    elif kind == 1:
        place[rng.choice(("more", "", "type", "\udc80"))] = other
    elif kind == 2 and isinstance(value, list):
        place[key] = value * rng.choice((2, 50))
    elif kind < 5 and isinstance(value, int | float):
        place[key] = odd_number(rng, value)
    elif kind < 5 and isinstance(value, str):
        place[key] = mutate_text(rng, value, ("a", "\0", "{", "é", "\n", "\udc80", "0"))
    else:
        place[key] = other


def mutate_json_by_type(rng: Random, document: Any) -> Any:
    """Return a copy with a few values replaced by others of their type, which may be valid."""
    document = copy.deepcopy(document)
    everywhere = places(document)[1:]
    texts = [value for way in everywhere if isinstance(value := _descend(document, way), str)]
    for *way, key in rng.sample(everywhere, min(rng.choice((1, 1, 2, 5)), len(everywhere))):
        try:
            place = _descend(document, way)
            place[key]
        except LookupError:  # an earlier change shortened a list
            continue
        match place[key]:
            case bool():
                place[key] = not place[key]
            case int() as number:
                neighbours = (0, 1, 2, number + 1, number * 2, number // 2, 2**31 - 1, 2**63)
                place[key] = rng.choice((number - 1, *neighbours) if number else neighbours)
            case float() as number:
                place[key] = rng.choice((0.0, -0.0, 1.0, -number, number * 2, 1e-300, 1e30, 1e308))
            case str():
                place[key] = rng.choice((*texts, "", "a", "\x1b[2J", "</script>", "日本"))
            case list() as values:
                values[:] = rng.choice((values[:-1], values[::-1], values + values[:1]))
    return document


def _descend(document: Any, way: Sequence[Any]) -> Any:
    for key in way:
        document = document[key]
    return document
