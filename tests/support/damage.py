"""What can happen to the bytes of a file."""

from hypothesis import strategies as st


def damage(draw, raw, pieces):
    """The bytes after one to four replacements, insertions, deletions or cuts."""
    places = st.integers(0, len(raw))
    for _ in range(draw(st.integers(1, 4))):
        at, piece = draw(places), draw(pieces)
        removed = draw(st.sampled_from([0, 1, len(piece), len(piece), len(raw)]))
        raw = raw[:at] + piece + raw[at + removed :]
    return raw
