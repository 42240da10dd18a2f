"""Lessons on writing in a form, and in no direction."""

import json
from typing import Any

from cutaway.features.lessons import figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import (
    own_chance,
    point,
    quote,
    token_at,
    tokens,
)
from cutaway.trace import Trace

CAT = "Tell me about a cat: its name and its age."
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def structured_output(desk: Desk) -> Lesson:
    """One question with the mask of a schema and without it, with one luck."""
    messages = [{"role": "user", "content": CAT}]
    settings: dict[str, Any] = {"seed": 2, "temperature": 0.7, "top_p": 0.95, "max_tokens": 40}
    free = desk.write(desk.smollm2.chat, messages, **settings)
    masked = desk.write(desk.smollm2.chat, messages, json_schema=SCHEMA, **settings)
    answer = json.loads(masked.text)
    names = [token_at(masked, step.index) for step in masked.steps]
    first = masked.steps[0]
    assert first.observed is not None
    left = first.observed.stages[0]
    assert token_at(free, 0) == masked.name_of(first.unconstrained_id or 0)
    age = names.index("age")
    alone = sum(step.source == "grammar" for step in masked.steps)
    name = answer["name"]
    return Lesson(
        "structured-output",
        "The same question with a mask and without",
        "A program wants to read the answer: a name and an age, as JSON. The model would rather "
        "tell a story. How can the form be certain?",
        [
            point(f"Mask off. The answer begins with {quote(token_at(free, 0))} and goes on as "
                  "prose, which no program can rely on.", 0),
            point("Mask on, the same logits and the same luck. Of "
                  f"{masked.head.vocab_size:,} tokens the mask leaves {left.survivors}, those that "
                  "a valid answer can begin with. "
                  f"{quote(names[0])} is drawn, to which the model itself gave "
                  f"{own_chance(first)}.", 0, run=2),
            point(f"The name of a field: the schema says “age”, and nothing else is left. The "
                  f"mask wrote {alone} of {len(names)} tokens in this way.", age, run=2),
            point(f"The age is the model's own choice, among the numbers: {answer['age']}.",
                  _digits(names, age), run=2),
            point(f"The answer is whole, and the mask lets only the end come. The cat is called "
                  f"{name}; whether that is true, no mask can say.", len(names) - 1, run=2,
                  panel="why"),
        ],
        "Before each draw a mask takes away every token that would break the form; softmax shares "
        "the chances among the rest. So the form is certain. The content is still a draw.",
        [show_run(free, "mask off"), show_run(masked, "mask on")],
        figures.strips(("mask off", tokens(free, limit=16)), ("mask on", tokens(masked, limit=20))),
        "The answer as prose, and as JSON.",
    )  # fmt: skip


def _digits(names: list[str], after: int) -> int:
    return next(i for i in range(after, len(names)) if names[i].strip().isdigit())


CELLS = 4


def three_other_ways(desk: Desk) -> Lesson:
    """One sentence, of which a part is filled in, denoised with a mistake in it, and revised."""
    fill, denoise, stuck, revise = _write_each_way(desk)
    assert (fill.text, denoise.text, revise.text) == ("w", "know", "know")
    assert stuck.text.startswith("Z")
    order = [_letters(denoise, i)[0] for i in range(len(denoise.passes))]
    assert order[0] != "k"
    last = {"panel": "canvas", "pass": len(revise.passes) - 1}
    return Lesson(
        "three-other-ways",
        "Fill, denoise, revise: three other ways to write",
        "Most models write from left to right and take nothing back. One sentence, three models "
        "of writing that do not: what can each do that the loop cannot?",
        [
            point("Fill, as autoencoding models do. One letter is hidden in “universally "
                  f"ackno▢ledged”, and the model sees what is before it and after it: "
                  f"{quote(fill.text)}, {own_chance(fill.steps[0])}.", 0,
                  panel="canvas", **{"pass": 0}),
            point(f"Denoise, as diffusion models do. {CELLS} letters are hidden, and the surest "
                  f"comes first: {quote(order[0])}, which is not the first of the "
                  "word.", _cell(denoise, 0), run=2, panel="canvas", **{"pass": 0}),
            point(f"After {len(denoise.passes)} passes, in the order {', '.join(order)}, the word "
                  f"is whole: “ac{denoise.text}ledged”.", 0, run=2, panel="canvas",
                  **{"pass": len(denoise.passes) - 1}),
            point("A mistake: a Z is put into the first cell. This rule takes nothing back, and "
                  f"the rest is made to fit: “ac{stuck.text}ledged”.", 0, run=3, panel="canvas",
                  **{"pass": len(stuck.passes) - 1}),
            point("Revise. The same mistake, and a rule that hides the least likely cells again "
                  f"and writes them anew: after {len(revise.passes)} passes it is "
                  f"“ac{revise.text}ledged” again.", 0, run=4, **last),
        ],
        "Filling sees both sides, denoising has no direction, revising takes mistakes back. Each "
        "pays for it: a pass computes every cell, where a step of the loop computes one token.",
        [show_run(fill, "fill"), show_run(denoise, "denoise"), show_run(stuck, "a mistake stays"),
         show_run(revise, "revise")],
        figures.strips(
            ("fill", [("ackno", "given"), ("w", "hot"), ("ledged", "given")]),
            ("denoise", [("ac", "given"), ("know", "hot"), ("ledged", "given")]),
            ("with a mistake", [("ac", "given"), ("Z", "gone"), (stuck.text[1:], "hot"),
                                ("ledged", "given")]),
            ("revised", [("ac", "given"), (revise.text, "hot"), ("ledged", "given")]),
        ),
        "A word, filled in, denoised, with a mistake, and revised.",
    )  # fmt: skip


def _write_each_way(desk: Desk) -> tuple[Trace, Trace, Trace, Trace]:
    """Fill a word, denoise it, denoise it with a mistake that stays, and revise the mistake."""
    before, after, model = "It was universally ac", "ledged.", desk.toy_canvas

    def write(prompt: str, cells: int, **rule: Any) -> Trace:
        return desk.write(
            model.generate, prompt, suffix=after, max_tokens=cells, seed=1, temperature=0,
            denoise=rule,
        )  # fmt: skip

    mistake = {"forced_cells": [(0, 0, model.tokenizer.encode("Z")[-1])]}
    return (
        write(before + "kno", 1, rule="confidence"),
        write(before, CELLS, rule="confidence"),
        write(before, CELLS, rule="confidence", **mistake),
        write(before, CELLS, rule="mask-predict", steps=6, **mistake),
    )


def _letters(trace: Trace, index: int) -> list[str]:
    """The letters that a pass reveals."""
    return [trace.name_of(cell.token_id) for cell in trace.passes[index].revealed]


def _cell(trace: Trace, index: int) -> int:
    """The first cell that a pass reveals."""
    return trace.passes[index].revealed[0].position - len(trace.head.prompt_token_ids)
