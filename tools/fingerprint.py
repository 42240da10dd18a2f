"""Writes a fixed text with the packaged model and compares its bits: the same from every wheel.

    python fingerprint.py      exit code 1 if the bits differ

Runs wherever a wheel is installed, on each instruction set of the machine. Uses no path of this
checkout, and nothing outside of the wheel.
"""

import os
import sys

EXPECTED = "6a93227b6f5def41"
"""The fingerprint of all logits of 48 cells, on any machine; a new one means a new ARITHMETIC."""


def main() -> int:
    """Print a line for each instruction set; return 1 if one differs."""
    from cutaway import LLM
    from cutaway.base import _native

    wrong = 0
    for name in _native.tiers().split(","):
        os.environ["CUTAWAY_ISA"] = name
        with LLM("toy-canvas", progress=False) as llm:
            found = llm.denoise("It is a truth", max_tokens=48, seed=7).fingerprint
        wrong += found != EXPECTED
        print(f"{name}: {found}" + (f", not {EXPECTED}" if found != EXPECTED else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
