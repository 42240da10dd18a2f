"""cividis: a scale of colours that reads the same without colour vision.

From Nuñez, Anderton and Renslow, "Optimizing colormaps with consideration for color vision
deficiency", PLoS ONE 13(7), 2018; twelve points of it, and straight lines between them.
"""

_POINTS = (
    0x00204D, 0x00306F, 0x2A406C, 0x48526B, 0x5E626E, 0x727374,
    0x878479, 0x9E9677, 0xB6A971, 0xD0BE67, 0xEAD357, 0xFFEA46,
)  # fmt: skip


def cividis(share: float) -> tuple[int, int, int]:
    """Red, green and blue, 0 … 255, for a share of 0 (dark blue) to 1 (yellow)."""
    place = min(max(share, 0.0), 1.0) * (len(_POINTS) - 1)
    low = min(int(place), len(_POINTS) - 2)
    red, green, blue = (
        round(a + (b - a) * (place - low))
        for a, b in zip(_channels(_POINTS[low]), _channels(_POINTS[low + 1]), strict=True)
    )
    return red, green, blue


def _channels(colour: int) -> tuple[int, int, int]:
    return colour >> 16, colour >> 8 & 255, colour & 255
