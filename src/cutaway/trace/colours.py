"""The colour of every measure: one orange over whatever is behind it, the larger the more opaque.

So 0 is the background itself, in light and in dark, and a text on it keeps its colour: at the
largest value its contrast with the page's is still 4.5 to 1, and a scale of one hue reads the same
without colour vision. The page has the same two figures, from the catalogue. Knows no background.
"""

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
