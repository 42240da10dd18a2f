"""A text whose tokens have their surprise as background, as HTML without scripts.

All content passes through ``tag`` or ``text``, which escape it. Refuses to know traces.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from cutaway.text.characters import printable

_LEVELS = 16  # from 0 to 8 bits, half a bit each
MOST_BITS = 8.0


class Markup(str):
    """HTML that is safe to show. Only this module makes it from other strings."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Escaped characters; those that are not printable are written as escape sequences."""
    return Markup(escape(printable(value)))


def tag(name: str, *content: str, **attributes: Any) -> Markup:
    """An element. Content that is no markup is escaped; ``class_`` is the attribute class."""
    given = (
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{''.join(given)}>{join(content)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """One after the other."""
    return Markup("".join(p if isinstance(p, Markup) else text(p) for p in parts))


@dataclass(frozen=True, slots=True)
class Chip:
    """A token in a text.

    bits    its surprise; None for a token of the prompt, which has none on record
    title   shown when a pointer rests on it
    """

    shown: str
    bits: float | None
    title: str | None = None


def strip(chips: Iterable[Chip]) -> Markup:
    """Tokens one after the other; the background of each is its surprise."""
    return tag("div", *map(_chip, chips), class_="strip")


def _chip(chip: Chip) -> Markup:
    look = "t" if chip.bits is None else f"t s{_level(chip.bits)}"
    content = text(chip.shown) if chip.shown else tag("i", "∅")
    token = tag("span", content, class_=look, title=chip.title)
    return Markup(token + "<br>" * chip.shown.count("\n"))


def _level(bits: float) -> int:
    return round(min(max(bits, 0.0), MOST_BITS) / MOST_BITS * _LEVELS)


def legend() -> Markup:
    """What the colours mean."""
    marks = (tag("span", Markup("&emsp;"), class_=f"t s{i}") for i in range(0, _LEVELS + 1, 2))
    return tag("p", "surprise: 0 bits ", *marks, " 8 bits and more", class_="legend")


def style() -> Markup:
    """The style sheet; its rules hold inside an element of class cutaway."""
    levels = (f".cutaway .s{i}{{background:{heat(i / _LEVELS)}}}\n" for i in range(_LEVELS + 1))
    return Markup(f"<style>{_STRIP}{''.join(levels)}</style>")


def by_surprise(chips: Iterable[Chip], facts: str = "") -> Markup:
    """A text for a notebook: a line of facts, the tokens, and what their marks mean."""
    line = [tag("p", facts, class_="legend")] if facts else []
    return tag("div", style(), *line, strip(chips), legend(), class_="cutaway")


_STRIP = """
.cutaway .strip{font:15px/2.1 ui-monospace,Menlo,Consolas,monospace;overflow-wrap:anywhere}
.cutaway .t{white-space:pre-wrap;color:inherit;text-decoration:none;unicode-bidi:isolate;
 border-radius:2px;margin-right:1px}
.cutaway .t i{opacity:.5}
.cutaway .legend{font:12px sans-serif;opacity:.8}
"""


# -- colours -----------------------------------------------------------------------------------
# The colour of every measure is one orange over whatever is behind it, the larger the more opaque.
# So 0 is the background itself, in light and in dark, and a text on it keeps its colour: at the
# largest value its contrast with the page's is still 4.5 to 1, and a scale of one hue reads the
# same without colour vision. The page has the same two figures, from the catalogue.

ORANGE = (217, 72, 1)  # of ColorBrewer's Oranges
MOST = 0.82  # opacity of the largest value
_GREY, _BRIGHT = (128, 128, 128), (240, 100, 10)


def heat(share: float) -> str:
    """The colour of a share of 0 to 1, as CSS writes it."""
    red, green, blue = ORANGE
    return f"rgb({red} {green} {blue} / {MOST * _within(share):.3g})"


def heat_of_text(share: float) -> tuple[int, int, int]:
    """Red, green, blue, 0 … 255, for a terminal: grey to orange, legible on black and on white."""
    red, green, blue = (
        round(low + (high - low) * _within(share)) for low, high in zip(_GREY, _BRIGHT, strict=True)
    )
    return red, green, blue


def _within(share: float) -> float:
    return min(max(share, 0.0), 1.0)
