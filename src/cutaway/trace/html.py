"""Write a text as HTML without scripts; each token's background shows its surprise.

``tag`` and ``text`` escape all content. Does not know traces.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from cutaway.text.characters import printable

_LEVELS = 16  # from 0 to 8 bits, half a bit each
MOST_BITS = 8.0


class Markup(str):
    """HTML that is safe to show. Only this module turns other strings into Markup."""

    __slots__ = ()


def text(value: str) -> Markup:
    """Escape a text for HTML; unprintable characters become escape sequences."""
    return Markup(escape(printable(value)))


def tag(name: str, *content: str, **attributes: Any) -> Markup:
    """Return an element. Content that is not Markup is escaped; ``class_`` is "class"."""
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{''.join(pairs)}>{join(content)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Join parts, and escape those that are not Markup."""
    return Markup("".join(p if isinstance(p, Markup) else text(p) for p in parts))


@dataclass(frozen=True, slots=True)
class Chip:
    """A token in a text.

    bits    the token's surprise; None for a token of the prompt, which has no record
    title   the tooltip
    """

    label: str
    bits: float | None
    title: str | None = None


def strip(chips: Iterable[Chip]) -> Markup:
    """Return a row of tokens; each background shows the token's surprise."""
    return tag("div", *map(_chip, chips), class_="strip")


def _chip(chip: Chip) -> Markup:
    look = "t" if chip.bits is None else f"t s{_level(chip.bits)}"
    content = text(chip.label) if chip.label else tag("i", "∅")
    token = tag("span", content, class_=look, title=chip.title)
    return Markup(token + "<br>" * chip.label.count("\n"))


def _level(bits: float) -> int:
    return round(min(max(bits, 0.0), MOST_BITS) / MOST_BITS * _LEVELS)


def legend() -> Markup:
    """Return the legend of the colours."""
    marks = (tag("span", Markup("&emsp;"), class_=f"t s{i}") for i in range(0, _LEVELS + 1, 2))
    return tag("p", "surprise: 0 bits ", *marks, " 8 bits and more", class_="legend")


def style() -> Markup:
    """Return the style sheet, whose rules apply inside an element of class cutaway."""
    levels = (f".cutaway .s{i}{{background:{heat(i / _LEVELS)}}}\n" for i in range(_LEVELS + 1))
    return Markup(f"<style>{_STRIP}{''.join(levels)}</style>")


def show_surprise(chips: Iterable[Chip], facts: str = "") -> Markup:
    """Return a text for a notebook: a line of facts, the tokens, and the legend."""
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
# One orange shows every measure, more opaque for larger values. So 0 is the background itself, in
# light and dark mode. Text keeps its colour, with a contrast of 4.5 to 1 at the largest value. A
# scale of one hue needs no colour vision. The page gets hue and opacity from the catalogue.

ORANGE = (217, 72, 1)  # of ColorBrewer's Oranges
MAX_OPACITY = 0.82  # opacity of the largest value
_GREY, _BRIGHT = (128, 128, 128), (240, 100, 10)


def heat(share: float) -> str:
    """Return the colour of a share of 0 to 1, in CSS."""
    red, green, blue = ORANGE
    return f"rgb({red} {green} {blue} / {MAX_OPACITY * _clamp(share):.3g})"


def heat_of_text(share: float) -> tuple[int, int, int]:
    """Return (red, green, blue), 0 … 255, from grey to orange: legible on black and on white."""
    red, green, blue = (
        round(low + (high - low) * _clamp(share)) for low, high in zip(_GREY, _BRIGHT, strict=True)
    )
    return red, green, blue


def _clamp(share: float) -> float:
    return min(max(share, 0.0), 1.0)
