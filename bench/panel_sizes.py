"""How many bits a weight takes in a GGUF file and in memory, format by format.

    python bench/panel_sizes.py [--write docs/quantize.md]

A step reads every panel once, so a weight's bits in memory determine the cost of a token. The last
line is one JSON document.
"""

from cutaway.base._native import packed_bytes
from cutaway.files.weights import FORMATS_BY_ID
from script import grid, parser_of, publish

ROWS, COLS = 16, 1024  # whole panels, and whole quant blocks of every format
KEPT = {
    "IQ3_XXS": "a magnitude of 3 bits and a sign", "IQ3_S": "the same",
    "IQ2_XXS": "a magnitude of 2 bits and a sign", "IQ2_XS": "the same", "IQ2_S": "the same",
    "IQ1_S": "a digit of 2 bits, and whether 1/8 is added or taken", "IQ1_M": "the same",
    "TQ1_0": "a digit of 2 bits, where the file has five in a byte",
    "Q2_K": "4 bits of scale and of minimum as a byte each", "Q3_K": "6 bits of scale as a byte",
}  # fmt: skip


def main() -> None:
    args = parser_of(__doc__, model=False, write="docs/quantize.md").parse_args()
    publish(table(), bits(), args.write, "panels")


def bits() -> dict[str, tuple[float, float]]:
    """The bits of a weight in the file and in memory, by format."""
    count = ROWS * COLS
    return {
        format.name: (
            8 * format.nbytes(count) / count,
            8 * packed_bytes(format.name, ROWS, COLS) / count,
        )
        for format in FORMATS_BY_ID.values()
    }


def table() -> str:
    """The table as the page shows it."""
    rows = (
        (name, f"{file:.4g}", f"{panel:.4g}", f"{panel / file:.2f}", KEPT.get(name, ""))
        for name, (file, panel) in bits().items()
    )
    return grid(("format", "bits in the file", "in memory", "ratio", "what more is kept"), rows)


if __name__ == "__main__":
    main()
