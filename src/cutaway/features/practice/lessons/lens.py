"""From which layer on the logit lens predicts the token that came."""

from cutaway.features.practice.answers import Numbers, Unit
from cutaway.features.practice.exercises import Exercise
from cutaway.features.practice.lessons.scene import Scene
from cutaway.features.practice.tables import Table
from cutaway.trace.figures import percent

_SHOWN = 4  # rows before the answer, spread over the layers
_NEAR = 12  # layers of a model for which the answer may be off by one; twice as many, by two


def lesson(scene: Scene) -> list[Exercise]:
    """After how many layers does the head predict the final token?"""
    from cutaway.features.inside.lens import settled_from

    lens = scene.lens
    said = lens.ids[:, 0]
    layers, last = len(said) - 1, scene.name(int(said[-1]))
    settled = settled_from(said == said[-1])
    assert settled is not None  # since it holds in the last row
    every = lens.rows(scene.name)
    rows = [(str(row.layer + 1), row.token, percent(row.probability)) for row in every]
    figures = [(str(row.rank), row.drawn_token or "") for row in every]
    heads = ("after", "token", "")
    return [
        Exercise(
            "lens",
            f"The model has {layers} layers, each of which adds to one stream of numbers; after "
            f"the last a head makes logits of them, and {last} was the likeliest. Apply "
            f"that head earlier: after how many layers is {last} the likeliest, and stays so?",
            Table(heads, tuple(rows[i] for i in range(0, layers, -(-layers // _SHOWN)))),
            Numbers((settled,), ("layers",), Unit(str(layers // 2), 0, layers // _NEAR)),
            "the prediction often settles in the last layers only.",
            (
                Table(
                    (*heads, f"rank of {scene.token}", "drawn"),
                    tuple((*row, *more) for row, more in zip(rows, figures, strict=True)),
                ),
                _settled(scene, lens.draw_settled),
                "Only the last layer feeds the output head: ignore guesses until they settle; the "
                "rank says more.",
            ),
        )
    ]


def _settled(scene: Scene, row: int | None) -> str:
    if row is None:
        return "The chain of this run cannot be repeated here, so nothing is drawn."
    return (
        f"The last column is what the same luck would draw: {scene.token} from after {row} layers "
        "on."
    )
