"""Damage to the bytes of a file, and to the fields of its records."""

from typing import Any

from hypothesis import strategies as st


def damage(draw, raw, pieces):
    """Return the bytes after one to four replacements, insertions, deletions or cuts."""
    places = st.integers(0, len(raw))
    for _ in range(draw(st.integers(1, 4))):
        at, piece = draw(places), draw(pieces)
        removed = draw(st.sampled_from([0, 1, len(piece), len(piece), len(raw)]))
        raw = raw[:at] + piece + raw[at + removed :]
    return raw


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 9, 1.5, 2**64, 10**400, "", "x", "\udc80", [], [None], {}, {"a": 1}, [[1]],
)  # fmt: skip


def put_odd_value(draw, place):
    """Put an odd value into a record: into a field, at most two objects deep, or a new one."""
    for _ in range(draw(st.integers(0, 2))):
        deeper = [v for v in place.values() if isinstance(v, dict) and v]
        place = draw(st.sampled_from(deeper)) if deeper else place
    place[draw(st.sampled_from([*place, "more"]))] = draw(st.sampled_from(ODD))
