"""Cut it: a head's logit attribution, beside what is lost when it is ablated."""

from typing import TYPE_CHECKING

from cutaway.errors import InputError
from cutaway.features.practice.answers import TokenAnswer
from cutaway.features.practice.exercises import Exercise
from cutaway.features.practice.lessons.scene import Scene
from cutaway.features.practice.tables import Table, number, numbered

if TYPE_CHECKING:
    from cutaway.features.inside.redraw import Redraw
    from cutaway.features.inside.summary import HeadFigures

_HEADS = 5
_LITTLE = 0.05  # of the attribution: counts as nothing
CHOICES = ("more than its attribution", "about as much", "less", "nothing, or less than nothing")
_ALIKE = (0.8, 1.25)  # times the attribution: about as much


def lesson(scene: Scene) -> list[Exercise]:
    """How much of the lead is lost without the head of the largest attribution?"""
    from cutaway.features.inside.redraw import Redraw
    from cutaway.features.inside.summary import heads

    look, found = scene.look, scene.attribution
    best = sorted(heads(look, found), key=lambda head: -head.attribution)[:_HEADS]
    if best[0].attribution <= 0:
        raise InputError(
            "topic cut: no head has a positive attribution to this step's token; take another step"
        )
    redraw = Redraw.of(scene.llm, scene.trace, look.step, look.logits) if look.is_as_run else None
    rows = [(head, *_cut(scene, head, redraw)) for head in best]
    token, rival, most = scene.token, scene.name(found.rival), rows[0]
    return [
        Exercise(
            "cut",
            f"{most[0].place} adds {number(most[0].attribution)} to {token} over "
            f"{rival}, more than any other of {look.sinks.size} heads. Now it is ablated: its "
            "output at this step becomes 0, and the layers after it run again. How much of the "
            f"lead of {token} is lost?",
            numbered(CHOICES, {}),
            TokenAnswer(CHOICES, judged(most[0].attribution, most[1])),
            "the layers after the head read a stream without it.",
            (
                Table(
                    (
                        "head", "attribution", "lost at this step", "lost in all of the text",
                        "drawn",
                    ),
                    tuple(
                        (
                            head.place,
                            *(number(x, sign=True) for x in (head.attribution, here, all_)), drawn,
                        )
                        for head, here, all_, drawn in rows
                    ),
                ),
                "An attribution is what a head wrote, as the output head reads it. Later layers "
                "may erase what was written, and make up for a head that is ablated: models repair "
                "themselves (McGrath et al. 2023; Rushing and Nanda 2024). So an attribution is "
                "not an effect: only the ablation shows one.",
                "In the fourth column the head is ablated for every token, so later rows read "
                "other keys and values, too. The last is what the same luck then draws.",
            ),
        )
    ]  # fmt: skip


def judged(attribution: float, lost: float) -> int:
    """Which of ``CHOICES`` is right."""
    low, high = _ALIKE
    share = lost / attribution
    bounds = (share > high, share >= low, share > _LITTLE, True)
    return bounds.index(True)


def _cut(scene: Scene, head: "HeadFigures", redraw: "Redraw | None") -> tuple[float, float, str]:
    """What the lead loses without the head at this step, and everywhere; and what is drawn then."""
    from cutaway.engine.interventions import scale
    from cutaway.rerun.request import bound

    ids, llm, found = tuple(scene.ids), scene.llm, scene.attribution
    place, last = head.place, len(ids) - 1
    cuts = scale(place, 0, positions=str(last)), scale(place, 0)
    texts = [(ids, bound(llm, scene.trace.head, [cut])) for cut in cuts]
    rows = dict(llm.last_rows(ids, texts))
    lead, here, all_ = (
        float(row[found.token]) - float(row[found.rival])
        for row in (scene.look.logits, rows[0], rows[1])
    )
    drawn = "" if redraw is None else scene.name(redraw.tokens(rows[1][None])[0])
    before = found.total / lead if lead else 1.0  # a logit scale, which attributions do not include
    return before * (lead - here), before * (lead - all_), drawn
