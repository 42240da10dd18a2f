"""Attention: its weights, and beside them attributions and the effect of an ablation."""

from typing import TYPE_CHECKING

from cutaway.features.practice.answers import TokenAnswer
from cutaway.features.practice.exercises import Exercise
from cutaway.features.practice.lessons.scene import Scene
from cutaway.features.practice.tables import number, numbered
from cutaway.trace.figures import percent, probability

if TYPE_CHECKING:
    from cutaway.features.inside.ablate import AblatedPart

_BEST = 3  # tokens that are the first by each of three figures


def lesson(scene: Scene) -> list[Exercise]:
    """Which token has the most weight? Without which is most lost?"""
    scene.need("attention", 2)
    best = [
        part
        for key in ("weight", "attribution", "effect")
        for part in sorted(scene.ablation.parts, key=lambda part: -abs(getattr(part, key)))[:_BEST]
    ]
    parts = sorted({part.start: part for part in best}.values(), key=lambda part: part.start)
    return [_most_weight(scene, parts), _most_lost(scene, parts)]


def _most_weight(scene: Scene, parts: "list[AblatedPart]") -> Exercise:
    names, sinks = _names(scene, parts), scene.look.sinks
    places = [str(part.start) for part in parts]
    return Exercise(
        "attention",
        f"Each of {sinks.size} heads shared its attention among the {len(scene.ids)} tokens "
        "before the step. Which of these did they look at most, on average?",
        numbered(names, {"position": places}),
        TokenAnswer(names, max(range(len(parts)), key=lambda row: parts[row].weight)),
        "a head must attend to something, even where it needs nothing.",
        (
            numbered(names, {"position": places, "weight": _weights(parts)}),
            "The weights of a head add up to 100 %. One that needs nothing rests where it does "
            f"no harm: {sinks.sum()} of {sinks.size} have more than 30 % on the first token. "
            "So much attention does not mean much effect.",
        ),
    )


def _most_lost(scene: Scene, parts: "list[AblatedPart]") -> Exercise:
    names, found = _names(scene, parts), scene.ablation
    attributions = [number(part.attribution, sign=True) for part in parts]
    columns = {"weight": _weights(parts), "attribution": attributions}
    lost = [number(part.effect, sign=True) for part in parts]
    drawn = ["" if part.drawn is None else scene.name(part.drawn) for part in parts]
    return Exercise(
        "attention",
        "Attribution is how far what was read from a token moved the logits, toward "
        f"{scene.token} and away from {scene.name(found.rival)}. Now each token is deleted, "
        f"and the text run again. Without which does {scene.token} lose most?",
        numbered(names, columns),
        TokenAnswer(names, max(range(len(parts)), key=lambda row: parts[row].effect)),
        "which of them says most about what may follow?",
        (
            numbered(names, columns | {"log p lost": lost, "drawn": drawn}),
            f"With all of the text {scene.token} had "
            f"{percent(probability(found.logprob))}. Where 0.69 is lost it is half as "
            "likely, where 2.30 a tenth. The last column is what the same luck then draws.",
            "Weight, attribution and loss are three things. The last is an effect, not a cause: "
            "repeated words mask each other, and the text becomes odd.",
        ),
    )


def _names(scene: Scene, parts: "list[AblatedPart]") -> tuple[str, ...]:
    return tuple(scene.name(part.token_ids[0]) for part in parts)


def _weights(parts: "list[AblatedPart]") -> list[str]:
    return [percent(part.weight) for part in parts]
