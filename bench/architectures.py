"""How far cutaway is from transformers, architecture by architecture.

    python bench/architectures.py [--only NAME,NAME] [--write docs/models-measured.md]

For each row of the tables in tests/support/random_models.py and diffusion_models.py a small random
model is made with transformers (its shapes odd enough to catch a mistake), saved as a folder, and
read by cutaway.
The table has, over the logits of 40 tokens: the largest logit; the largest difference of
`reference` from transformers, both in float32; and the root mean square of the difference of `cpu`
from `reference`, as a share of the logits' own: `cpu` keeps keys and values in 16 bits, and rounds
activations to 8 bits where weights are quantised (here to Q8_0). Differences are larger than of
trained models, since a random model's attention is sharp everywhere.
--write puts the table between <!-- architectures:begin --> and <!-- architectures:end -->.
"""

import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cutaway import LLM
from script import check_page, grid, parser_of, publish, words

TESTS = Path(__file__).resolve().parents[1] / "tests"
TOKENS = 40

Logits = NDArray[np.float32]


def measured(models: Any, name: str) -> dict[str, Any]:
    """The figures of one row."""
    rng = np.random.default_rng(1)
    ids = rng.integers(3, models.VOCAB, TOKENS).tolist()
    with TemporaryDirectory() as folder:
        model = models.save(name, Path(folder))
        theirs = models.logits(model, ids)
        context = models.context(name)
        exact = LLM(folder, backend="reference", context=context).logits(ids)
        ours = LLM(folder, backend="cpu", context=context).logits(ids).copy()
        eight = [
            LLM(folder, backend=backend, context=context, quantize="q8_0").logits(ids).copy()
            for backend in ("reference", "cpu")
        ]
    row = models.row(name)
    return {
        "name": name,
        "architecture": row.architecture,
        "class": row.config.removesuffix("Config"),
        "largest": float(np.abs(theirs).max()),
        "reference": float(np.abs(exact - theirs).max()),
        "cpu": relative(ours, exact),
        "q8_0": relative(eight[1], eight[0]),
    }


def relative(ours: Logits, exact: Logits) -> float:
    """The root mean square of ours - exact, divided by that of exact."""
    return float(np.sqrt(np.mean((ours - exact) ** 2) / np.mean(exact**2)))


def markdown(rows: list[dict[str, Any]]) -> str:
    head = (
        "model", "in GGUF", "in transformers", "largest logit", "`reference` from transformers",
        "`cpu` from `reference`", "with Q8_0 weights",
    )  # fmt: skip
    return grid(head, (
        (r["name"], f"`{r['architecture']}`", r["class"], f"{r['largest']:.1f}",
         f"{r['reference']:.0e}", f"{r['cpu']:.2%}", f"{r['q8_0']:.1%}")
        for r in rows
    ))  # fmt: skip


def parse() -> Namespace:
    parser = parser_of(__doc__, model=False, write="docs/models-measured.md")
    parser.add_argument("--only", type=words)
    return parser.parse_args()


def main() -> None:
    args = parse()
    check_page(args.write, "architectures")
    sys.path.insert(0, str(TESTS))
    plain = import_module("support.random_models")
    canvas = import_module("support.diffusion_models")
    predicting = {**plain.FAMILIES, **plain.FORMULAS, **plain.ENCODERS}  # tokens, not vectors
    made = dict.fromkeys(predicting, plain) | dict.fromkeys(canvas.DIFFUSION, canvas)
    rows = [measured(made[name], name) for name in args.only or made]
    publish(markdown(rows), rows, args.write, "architectures")


if __name__ == "__main__":
    main()
