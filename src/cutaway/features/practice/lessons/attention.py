"""Lessons on attention: its weights, the ablation of a head, induction, and the causal mask.

The exercises compare weights with attributions and the effects of ablations.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cutaway.errors import InputError
from cutaway.features.practice import COUNT, Numbers, TokenAnswer
from cutaway.features.practice.exercises import Exercise, Table, number, number_rows
from cutaway.features.practice.lessons.scene import Scene
from cutaway.sampling.observe import row_hash
from cutaway.trace.figures import percent, probability

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.features.inside.ablate import AblatedPart
    from cutaway.features.inside.steps import Redraw
    from cutaway.features.inside.summary import HeadFigures


_BEST = 3  # the highest tokens by each of three figures


def attention_lesson(scene: Scene) -> list[Exercise]:
    """Ask which token has the most weight, and without which one the step's token loses most."""
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
        number_rows(names, {"position": places}),
        TokenAnswer(names, max(range(len(parts)), key=lambda row: parts[row].weight)),
        "a head must attend to something, even where it needs nothing.",
        (
            number_rows(names, {"position": places, "weight": _weights(parts)}),
            "The weights of a head add up to 100 %. One that needs nothing rests where it does "
            f"no harm: {sinks.sum()} of {sinks.size} have more than 30 % on the first token. "
            "So much attention does not mean much effect.",
        ),
    )


def _most_lost(scene: Scene, parts: "list[AblatedPart]") -> Exercise:
    names, ablation = _names(scene, parts), scene.ablation
    attributions = [number(part.attribution, sign=True) for part in parts]
    columns = {"weight": _weights(parts), "attribution": attributions}
    losses = [number(part.effect, sign=True) for part in parts]
    drawn_names = ["" if part.drawn is None else scene.name(part.drawn) for part in parts]
    return Exercise(
        "attention",
        "Attribution is how far what was read from a token moved the logits, toward "
        f"{scene.token} and away from {scene.name(ablation.rival)}. Now each token is deleted, "
        f"and the text run again. Without which does {scene.token} lose most?",
        number_rows(names, columns),
        TokenAnswer(names, max(range(len(parts)), key=lambda row: parts[row].effect)),
        "which of them says most about what may follow?",
        (
            number_rows(names, columns | {"log p lost": losses, "drawn": drawn_names}),
            f"With all of the text {scene.token} had "
            f"{percent(probability(ablation.logprob))}. Where 0.69 is lost it is half as "
            "likely, where 2.30 a tenth. The last column is what the same luck then draws.",
            "Weight, attribution and loss are three things. The last is an effect, not a cause: "
            "repeated words mask each other, and the text becomes odd.",
        ),
    )


def _names(scene: Scene, parts: "list[AblatedPart]") -> tuple[str, ...]:
    return tuple(scene.name(part.token_ids[0]) for part in parts)


def _weights(parts: "list[AblatedPart]") -> list[str]:
    return [percent(part.weight) for part in parts]


# -- ablate a head: its logit attribution beside the loss ------------------------------------------


_HEADS = 5
_LITTLE = 0.05  # a loss up to this share of the attribution counts as nothing
CHOICES = ("more than its attribution", "about as much", "less", "nothing, or less than nothing")
_ALIKE = (0.8, 1.25)  # a loss within these multiples of the attribution is about as much


def cut_lesson(scene: Scene) -> list[Exercise]:
    """Ask how much of the token's lead is lost without the head with the largest attribution."""
    from cutaway.features.inside.steps import Redraw
    from cutaway.features.inside.summary import heads

    look, attribution = scene.look, scene.attribution
    best = sorted(heads(look, attribution), key=lambda head: -head.attribution)[:_HEADS]
    if best[0].attribution <= 0:
        raise InputError(
            "topic",
            " cut: no head has a positive attribution to this step's token; take another step",
        )
    redraw = (
        Redraw.from_step(scene.llm, scene.trace, look.step, look.logits) if look.is_as_run else None
    )
    rows = [(head, *_cut(scene, head, redraw)) for head in best]
    token, rival, strongest = scene.token, scene.name(attribution.rival), rows[0]
    return [
        Exercise(
            "cut",
            f"{strongest[0].place} adds {number(strongest[0].attribution)} to {token} over "
            f"{rival}, more than any other of {look.sinks.size} heads. Now it is ablated: its "
            "output at this step becomes 0, and the layers after it run again. How much of the "
            f"lead of {token} is lost?",
            number_rows(CHOICES, {}),
            TokenAnswer(CHOICES, judge_loss(strongest[0].attribution, strongest[1])),
            "the layers after the head read a stream without it.",
            (
                _losses_table(rows),
                "An attribution is what a head wrote, as the output head reads it. Later layers "
                "may erase what was written, and make up for a head that is ablated: models repair "
                "themselves (McGrath et al. 2023; Rushing and Nanda 2024). So an attribution is "
                "not an effect: only the ablation shows one.",
                "In the fourth column the head is ablated for every token, so later rows read "
                "other keys and values, too. The last is what the same luck then draws.",
            ),
        )
    ]  # fmt: skip


def _losses_table(rows: "list[tuple[HeadFigures, float, float, str]]") -> Table:
    columns = "head", "attribution", "lost at this step", "lost in all of the text", "drawn"
    return Table(
        columns,
        tuple(
            (head.place, *(number(x, sign=True) for x in (head.attribution, here, all_)), name)
            for head, here, all_, name in rows
        ),
    )


def judge_loss(attribution: float, loss: float) -> int:
    """Return the index of the right answer in ``CHOICES``."""
    low, high = _ALIKE
    share = loss / attribution
    bounds = (share > high, share >= low, share > _LITTLE, True)
    return bounds.index(True)


def _cut(scene: Scene, head: "HeadFigures", redraw: "Redraw | None") -> tuple[float, float, str]:
    """Measure the lead's loss without the head, and the token drawn then.

    Returns (loss without the head at this step's position, loss without it at all positions, name
    of the token drawn without it at all positions; "" where ``redraw`` is None).
    """
    from cutaway.engine.interventions import scale
    from cutaway.methods.rows import GivenText
    from cutaway.rerun.request import bound

    ids, llm, attribution = tuple(scene.ids), scene.llm, scene.attribution
    place, last = head.place, len(ids) - 1
    cuts = scale(place, 0, positions=str(last)), scale(place, 0)
    prompt_tokens = len(scene.trace.head.prompt_token_ids)
    texts = [GivenText(ids, bound(llm, scene.trace.head, [cut]), prompt_tokens) for cut in cuts]
    rows = dict(llm.last_rows(GivenText(ids, prompt_tokens=prompt_tokens), texts))
    lead, here, all_ = (
        float(row[attribution.token]) - float(row[attribution.rival])
        for row in (scene.look.logits, rows[0], rows[1])
    )
    drawn_name = "" if redraw is None else scene.name(redraw.tokens(rows[1][None])[0])
    scale_factor = (
        attribution.total / lead if lead else 1.0
    )  # a logit scale, which attributions do not include
    return scale_factor * (lead - here), scale_factor * (lead - all_), drawn_name


# -- induction: a new name comes again, and a head attends to the token that followed it -----------


_NAME = "Zorblat Quixnor"
TEXT = f"In the harbour lived {_NAME}, who mended nets. Every morning {_NAME}"


def induction_lesson(scene: Scene) -> list[Exercise]:
    """Ask where a head attends.

    It is the head with the most weight on the token that followed the last token's earlier place.
    """
    from cutaway.features.inside.ablate import ablate
    from cutaway.features.inside.summary import heads

    _check_hides_later_tokens(scene.llm, "induction")
    here, follower = repeat_name(scene.llm)
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
            number_rows(names, {}),
            TokenAnswer(names, best[0].most),
            f"what followed {last} the first time?",
            (
                number_rows(names, {f"weight of {best[0].place}": [*map(percent, weights)]}),
                _inductions_table(best, names, last),
                "An induction head looks at what followed the earlier place of its own token, and "
                "says it again (Olsson et al. 2022). It can, because a head of an earlier layer "
                "has written into each token which one is before it.",
                f"{here.token} had {percent(probability(hidden.logprob))}. With its earlier place "
                f"masked, it has {percent(probability(missed.logprob))}.",
            ),
        )
    ]  # fmt: skip


def _inductions_table(heads: "list[HeadFigures]", names: tuple[str, ...], last: str) -> Table:
    return Table(
        ("head", "token", "weight", f"what followed {last}", "attribution"),
        tuple(
            (
                head.place, names[head.most], percent(head.weight),
                percent(head.induction), number(head.attribution, sign=True),
            )
            for head in heads
        ),
    )  # fmt: skip


def repeat_name(llm: "LLM") -> tuple[Scene, int]:
    """Find the step that ends the name's second occurrence.

    Returns the step, and its token's position in the first occurrence. InputError if the two
    occurrences have no two tokens in common.
    """
    from cutaway.features.inside.steps import unrecorded_trace

    ids = llm.tokenize(TEXT)
    for end in range(len(ids) - 1, len(ids) // 2, -1):
        for at in range(end - 2, -1, -1):
            if ids[at : at + 2] == ids[end - 1 : end + 1]:
                return Scene(llm, unrecorded_trace(llm, ids[:end], [ids[end]], 0), 0), at + 1
    raise InputError(
        "topic", f" induction: {llm.name} cuts the same name into other tokens each time"
    )


# -- the causal mask: a changed token changes no earlier row, as their bits prove ------------------


_ROWS = 10  # rows of a table
_LEAST = 3  # tokens of a text, so that one has a token before and a token after it
_DIGITS = 8  # hex digits of a hash


def mask_lesson(scene: Scene) -> list[Exercise]:
    """Ask how many rows of logits change when one token changes."""
    scene.need("mask", _LEAST)
    _check_hides_later_tokens(scene.llm, "mask")
    ids = scene.ids
    first = max(len(ids) - _ROWS, 0)
    names, place = [scene.name(token) for token in ids[first:]], (len(ids) - first) // 2
    before = scene.logits(ids, first)
    other = _likeliest_but(before[place - 1], ids[first + place])
    after = scene.logits([*ids[: first + place], other, *ids[first + place + 1 :]], first)
    pairs = [(_short_hash(a), _short_hash(b)) for a, b in zip(before, after, strict=True)]
    changed = sum(a != b for a, b in pairs)
    becomes = [f"becomes {scene.name(other)}" if i == place else "" for i in range(len(names))]
    fates = [
        text if a != b else "the same bits" for text, (a, b) in zip(becomes, pairs, strict=True)
    ]
    return [
        Exercise(
            "mask",
            "Each token has a row of numbers: how likely each token of the vocabulary is to "
            f"follow. Here are the last {len(names)} tokens of the text; one of them is replaced. "
            "How many of their rows change?",
            number_rows(names, {"": becomes}),
            Numbers((changed,), ("rows",), COUNT),
            "whose row can see the token that is replaced?",
            (
                number_rows(
                    names,
                    {"row": [a for a, _ in pairs], "row after": [b for _, b in pairs], "": fates},
                ),
                "These are hashes of whole rows: where they are the same, no bit differs. A token "
                "sees itself and earlier tokens, and never later ones. That is the "
                "causal mask.",
                "So what was computed for a text holds whatever comes after it, and can be kept: "
                "keys and values are cached, and every token is computed once.",
            ),
        )
    ]


def _likeliest_but(row: NDArray[np.float32], token: int) -> int:
    logits = row.copy()
    logits[token] = -np.inf
    return int(logits.argmax())


def _check_hides_later_tokens(llm: "LLM", topic: str) -> None:
    """Raise InputError where a token of the prompt sees later ones."""
    if llm.config.attention == "prefix-lm":
        raise InputError(
            "topic", f" {topic}: this model reads its prompt to both sides: take another"
        )


def _short_hash(row: NDArray[np.float32]) -> str:
    return f"{row_hash(row):016x}"[:_DIGITS]
