"""Lessons on layers: after which layer the lens predicts the token; how experts are chosen."""

from collections.abc import Mapping

import numpy as np

from cutaway.compute.model.ops.mixture import Experts
from cutaway.errors import InputError
from cutaway.features.practice import SHARE, Numbers, Unit
from cutaway.features.practice.exercises import Exercise, Table, number
from cutaway.features.practice.lessons.scene import Scene
from cutaway.trace.figures import percent

_MAX_ROWS = 4  # rows before the answer, spread over the layers
_NEAR = 12  # an answer may be off by one for each so many layers of the model


def lens_lesson(scene: Scene) -> list[Exercise]:
    """Ask after how many layers the output head predicts the final token."""
    from cutaway.features.inside.lens import find_settled

    lens = scene.lens
    likeliest = lens.ids[:, 0]
    layers, last = len(likeliest) - 1, scene.name(int(likeliest[-1]))
    settled = find_settled(likeliest == likeliest[-1])
    assert settled is not None  # since it holds in the last row
    lens_rows = lens.rows(scene.name)
    rows = [(str(row.layer + 1), row.token, percent(row.probability)) for row in lens_rows]
    figures = [(str(row.rank), row.drawn_token or "") for row in lens_rows]
    heads = ("after", "token", "")
    return [
        Exercise(
            "lens",
            f"The model has {layers} layers, each of which adds to one stream of numbers; after "
            f"the last a head makes logits of them, and {last} was the likeliest. Apply "
            f"that head earlier: after how many layers is {last} the likeliest, and stays so?",
            Table(heads, tuple(rows[i] for i in range(0, layers, -(-layers // _MAX_ROWS)))),
            Numbers((settled,), ("layers",), Unit(str(layers // 2), 0, layers // _NEAR)),
            "the prediction often settles in the last layers only.",
            (
                Table(
                    (*heads, f"rank of {scene.token}", "drawn"),
                    tuple((*row, *more) for row, more in zip(rows, figures, strict=True)),
                ),
                _describe_settling(scene, lens.draw_settled),
                "Only the last layer feeds the output head: ignore guesses until they settle; the "
                "rank says more.",
            ),
        )
    ]


def _describe_settling(scene: Scene, row: int | None) -> str:
    if row is None:
        return "The chain of this run cannot be repeated here, so nothing is drawn."
    return (
        f"The last column is what the same luck would draw: {scene.token} from after {row} layers "
        "on."
    )


# -- experts: from the router's scores to the shares of those that compute a token -----------------


_ROWS = 8  # experts in a table
_BY_HAND = 3  # shares that a person works out by hand


def experts_lesson(scene: Scene) -> list[Exercise]:
    """Ask which shares the router gives a token's experts."""
    layer, op = _middle_mixture(scene)
    mixture = op.mixture
    ids, shares = scene.look.experts[layer]
    scores = scene.look.tensor(op.inputs[1]).astype(np.float64)
    attributions = scene.attribution.experts[layer]
    weights = np.exp(scores - scores.max())
    whole = weights[ids].sum() if mixture.normed else weights.sum()
    among = "of these" if mixture.normed else f"of all {len(scores)} experts"
    expert_ids = ids[:_BY_HAND].tolist()
    return [
        Exercise(
            "experts",
            f"Layer {layer} has {len(scores)} experts, and a router that scores them for each "
            f"token. The {len(ids)} of the highest scores compute it, each with a share: exp, over "
            f"the sum {among}, which is {number(float(whole), 3)}. Write the shares of "
            f"{', '.join(map(str, expert_ids))}.",
            _scores_table(scores, weights),
            Numbers(
                tuple(float(share) for share in shares[:_BY_HAND]),
                tuple(f"expert {i}" for i in expert_ids),
                SHARE,
            ),
            "divide by the sum, as in softmax.",
            (
                _shares_table(ids.tolist(), shares.tolist(), scores, attributions),
                f"Of this layer's experts the matrices of {len(ids)} are read for the token, and "
                f"{len(scores) - len(ids)} are left alone: so a mixture holds more weights than it "
                "computes with. The next token may be computed by others.",
                f"Attribution is how far each moved {scene.token} above "
                f"{scene.name(scene.attribution.rival)}.",
            ),
        )
    ]


def _middle_mixture(scene: Scene) -> tuple[int, Experts]:
    """Return the middle one of the layers with experts, and its op.

    InputError if no layer has experts, or if their shares are no plain softmax.
    """
    ops = [op for op in scene.llm.graph.ops if isinstance(op, Experts)]
    if not ops:
        raise InputError(
            "topic",
            f" experts: {scene.llm.name} has none, each token is computed by all of it: name "
            "a mixture with -m",
        )
    op = ops[len(ops) // 2]
    if op.mixture.gating != "softmax" or op.mixture.scale != 1 or "choosing_bias" in op.weights:
        raise InputError(
            "topic",
            f" experts: the shares in {scene.llm.name} are no plain softmax of the scores, "
            "which this lesson is about: name another mixture with -m",
        )
    return [*scene.look.experts][len(ops) // 2], op


def _scores_table(scores: np.ndarray, weights: np.ndarray) -> Table:
    """List the best experts, the best first."""
    rows = tuple(
        (str(i), number(float(scores[i])), number(float(weights[i]), 3))
        for i in np.argsort(-scores, kind="stable")[:_ROWS].tolist()
    )
    return Table(("expert", "score", "exp"), rows)


def _shares_table(
    ids: list[int], shares: list[float], scores: np.ndarray, attributions: Mapping[int, float]
) -> Table:
    return Table(
        ("expert", "score", "share", "attribution"),
        tuple(
            (
                str(i), number(float(scores[i])), percent(share),
                number(attributions[i], 3, sign=True),
            )
            for i, share in zip(ids, shares, strict=True)
        ),
        bars=tuple(shares),
    )  # fmt: skip
