"""Induction: a name that no text has had comes again, and a head looks at what followed it."""

from typing import TYPE_CHECKING

from cutaway.errors import InputError
from cutaway.features.practice.answers import TokenAnswer
from cutaway.features.practice.exercises import Exercise
from cutaway.features.practice.lessons.scene import Scene
from cutaway.features.practice.tables import Table, number, numbered
from cutaway.trace.figures import percent, probability

if TYPE_CHECKING:
    from cutaway.api.llm import LLM

_NAME = "Zorblat Quixnor"
TEXT = f"In the harbour lived {_NAME}, who mended nets. Every morning {_NAME}"
_HEADS = 5


def lesson(scene: Scene) -> list[Exercise]:
    """Where does the head look that has most on what followed?"""
    from cutaway.features.inside import ablate
    from cutaway.features.inside.summary import heads

    here, follower = repeated(scene.llm)
    look, llm = here.look, here.llm
    best = sorted(heads(look, here.attribution), key=lambda head: -head.induction)[:_HEADS]
    names, last = tuple(map(here.name, here.ids)), here.name(here.ids[-1])
    weights = look.weights[best[0].layer, best[0].head].tolist()
    hidden = ablate(llm, here.trace, 0, how="knock_out")
    [missed] = [part for part in hidden.parts if part.start == follower]
    return [
        Exercise(
            "induction",
            f"{_NAME}: a name that no text had before. Here it has begun a second time, and the "
            f"last token is {last}. Of {look.sinks.size} heads, {best[0].place} does most to "
            "continue it. Which token does it look at most? Write its number.",
            numbered(names, {}),
            TokenAnswer(names, best[0].most),
            f"what followed {last} the first time?",
            (
                numbered(names, {f"weight of {best[0].place}": [*map(percent, weights)]}),
                Table(
                    ("head", "token", "weight", f"what followed {last}", "attribution"),
                    tuple(
                        (
                            head.place, names[head.most], percent(head.weight),
                            percent(head.induction), number(head.attribution, sign=True),
                        )
                        for head in best
                    ),
                ),
                "An induction head looks at what followed the earlier place of its own token, and "
                "says it again (Olsson et al. 2022). It can, because a head of an earlier layer "
                "has written into each token which one is before it.",
                f"{here.token} had {percent(probability(hidden.logprob))}. With its earlier place "
                f"masked, it has {percent(probability(missed.logprob))}.",
            ),
        )
    ]  # fmt: skip


def repeated(llm: "LLM") -> tuple[Scene, int]:
    """The step that ends the name the second time, and where its token stood the first time.

    InputError where the model has no token twice in the name.
    """
    from cutaway.features.inside import unrecorded_trace

    ids = llm.tokenize(TEXT)
    for end in range(len(ids) - 1, len(ids) // 2, -1):
        for at in range(end - 2, -1, -1):
            if ids[at : at + 2] == ids[end - 1 : end + 1]:
                return Scene(llm, unrecorded_trace(llm, ids[:end], [ids[end]], 0), 0), at + 1
    raise InputError(f"topic induction: {llm.name} cuts the same name into other tokens each time")
