"""Cut it: what a head pushed, beside what is lost when it is really cut."""

from typing import TYPE_CHECKING

from cutaway.errors import InputError
from cutaway.lab.practice.answers import Token
from cutaway.lab.practice.exercises import Exercise
from cutaway.lab.practice.lessons.scene import Scene
from cutaway.lab.practice.tables import Table, number, numbered

if TYPE_CHECKING:
    from cutaway.lab.inside.draw import Redraw
    from cutaway.lab.inside.summary import Head

_HEADS = 5
_LITTLE = 0.05  # of the push: as good as nothing
CHOICES = ("more than it pushed", "about as much", "less", "nothing, or less than nothing")
_ALIKE = (0.8, 1.25)  # times the push: about as much


def lesson(scene: Scene) -> list[Exercise]:
    """How much of the lead is lost without the head that pushed most?"""
    from cutaway.lab.inside.draw import Redraw
    from cutaway.lab.inside.summary import heads

    look, found = scene.look, scene.pushes
    best = sorted(heads(look, found), key=lambda head: -head.push)[:_HEADS]
    if best[0].push <= 0:
        raise InputError("topic cut: no head pushed this step's token; take another step")
    redraw = Redraw.of(scene.llm, scene.trace, look.step, look.logits) if look.is_as_run else None
    rows = [(head, *_cut(scene, head, redraw)) for head in best]
    token, rival, most = scene.token, scene.name(found.rival), rows[0]
    return [
        Exercise(
            "cut",
            f"{_called(most[0])} pushed {token} above {rival} by {number(most[0].push)}, more than "
            f"any other of {look.sinks.size} heads. Now it is really cut: at this step its numbers "
            "become 0, and the layers behind it run again. How much of the lead of "
            f"{token} is lost?",
            numbered(CHOICES, {}),
            Token(CHOICES, judged(most[0].push, most[1])),
            "the layers behind the head see that it is missing.",
            (
                Table(
                    ("head", "push", "lost at this step", "lost in all of the text", "luck draws"),
                    tuple(
                        (
                            _called(head), *(number(x, sign=True) for x in (head.push, here, all_)),
                            drawn,
                        )
                        for head, here, all_, drawn in rows
                    ),
                ),
                "A push is what a head wrote, as the end of the model reads it. Layers behind it "
                "may erase what was written, and make up for a head that is cut: models repair "
                "themselves (McGrath et al. 2023; Rushing and Nanda 2024). So a push is not an "
                "effect, and nothing but a cut shows one.",
                "In the fourth column the head is cut for every token, so that others read other "
                "things, too. The last is what the same luck then draws.",
            ),
        )
    ]  # fmt: skip


def judged(push: float, lost: float) -> int:
    """Which of ``CHOICES`` is right."""
    low, high = _ALIKE
    share = lost / push
    bounds = (share > high, share >= low, share > _LITTLE, True)
    return bounds.index(True)


def _cut(scene: Scene, head: "Head", redraw: "Redraw | None") -> tuple[float, float, str]:
    """What is lost of the lead where the head is cut at this step and everywhere; what is drawn."""
    from cutaway.engine.interventions import scale
    from cutaway.lab.rerun.request import bound

    ids, llm, found = tuple(scene.ids), scene.llm, scene.pushes
    place, last = _called(head), len(ids) - 1
    cuts = scale(place, 0, positions=str(last)), scale(place, 0)
    texts = [(ids, bound(llm, scene.trace.head, [cut])) for cut in cuts]
    rows = dict(llm.last_rows(ids, texts))
    lead, here, all_ = (
        float(row[found.token]) - float(row[found.rival])
        for row in (scene.look.logits, rows[0], rows[1])
    )
    drawn = "" if redraw is None else scene.name(redraw.tokens(rows[1][None])[0])
    before = found.total / lead if lead else 1.0  # a logit scale, which pushes know nothing of
    return before * (lead - here), before * (lead - all_), drawn


def _called(head: "Head") -> str:
    return f"L{head.layer}.H{head.head}"
