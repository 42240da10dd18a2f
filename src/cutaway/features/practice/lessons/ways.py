"""Three ways to generate a text: their direction, what a mistake does, and what they cost.

The model writes the same number of tokens in each of its ways; every figure comes from these runs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutaway.base.counting import count_from_1
from cutaway.errors import InputError
from cutaway.features.practice import COUNT, Numbers, Unit
from cutaway.features.practice.exercises import Exercise, Table, number
from cutaway.features.practice.start import visible
from cutaway.requests.base import limits_of
from cutaway.trace.canvas import came_in
from cutaway.trace.figures import to_bits

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.requests.completion import Completion

TOPIC = "ways"
TEXT = "The king said: "
_CELLS = 24
_PASSES = 6  # passes of a way that reveals several cells at once
_AT = 3  # the cell or step of the mistake
_WRONG = "Z"
_SEED = 1
_ROUGHLY = Unit("12", 0, 2)


@dataclass(frozen=True)
class Ways:
    """A lesson: the text that the model continues, an introduction, and the questions."""

    text: str
    introduction: str
    exercises: tuple[Exercise, ...]


def ways(llm: "LLM", seed: int | None = None) -> Ways:
    """Make the questions for a causal model, which writes from left to right, or a canvas model.

    InputError if the model attends in blocks, or writes from noise instead of masks.
    """
    more: dict[str, Any] = {
        "seed": _SEED if seed is None else seed, "max_tokens": _CELLS, "ignore_eos": True,
    }  # fmt: skip
    attends_in_blocks = isinstance(llm.config.attention, int)
    if attends_in_blocks or not (llm.config.is_causal or limits_of(llm.model).fills_masks):
        problem = "attends in blocks" if attends_in_blocks else "writes from noise, without masks"
        raise InputError(
            "topic",
            f" {TOPIC}: this model {problem}: take a bidirectional one with masks, such as "
            "toy-canvas, or a causal one",
        )
    questions = _from_the_left(llm, more) if llm.config.is_causal else _on_canvas(llm, more)
    sees = "earlier tokens only" if llm.config.is_causal else "earlier and later tokens"
    return Ways(
        TEXT.strip(),
        f"{llm.name} writes {_CELLS} tokens here. A token of this model attends to {sees}: that "
        "decides in which ways it can write. Below is its text in each, with the same luck.",
        questions,
    )


# -- a model of canvases: it attends to earlier and later tokens -----------------------------


def _on_canvas(llm: "LLM", more: dict[str, Any]) -> tuple[Exercise, ...]:
    rules: dict[str, Any] = {
        "from the left, one a pass": "left",
        "the surest, one a pass": "confidence",
        f"the surest, {_PASSES} passes": {"steps": _PASSES},
        f"masked again, {_PASSES} passes": {"rule": "mask-predict", "steps": _PASSES},
    }
    runs = {name: llm.generate(TEXT, denoise=rule, **more) for name, rule in rules.items()}
    return (_direction(runs), _mistake(llm, more), _latency(runs))


def _late(came: list[int]) -> int:
    """Count the cells that were revealed after a later cell. came: the pass of each cell."""
    return sum(came[i] > min(came[i + 1 :]) for i in range(len(came) - 1))


def _direction(runs: dict[str, "Completion"]) -> Exercise:
    by_run = [[*came_in(done.passes).values()] for done in runs.values()]
    late, came = [_late(passes) for passes in by_run], by_run[1]
    order = sorted(range(len(came)), key=lambda cell: (came[cell], cell))
    rows = tuple(
        (name, str(count), visible_text(done))
        for (name, done), count in zip(runs.items(), late, strict=True)
    )
    return Exercise(
        TOPIC,
        f"Direction. {_CELLS} cells, and in each pass the surest of all is revealed. How many of "
        "them are revealed after a later cell, so that the model sees both sides? Two more or less "
        "are right, too.",
        Table(("way", "written with the same luck"), tuple((row[0], row[2]) for row in rows)),
        Numbers((late[1],), ("cells",), _ROUGHLY),
        "from the left it is none; in a random order, nearly all.",
        (
            Table(("way", "revealed after a later cell", "written"), rows),
            f"The order was: {', '.join(map(str, order))}. An autoregressive model has one "
            "direction; a masked one fills a gap from both sides; a diffusion model takes any "
            "order, and its rule decides which.",
        ),
    )


def _mistake(llm: "LLM", more: dict[str, Any]) -> Exercise:
    rules: dict[str, dict[str, Any]] = {
        "left": {"rule": "left"},
        "confidence": {"rule": "confidence", "steps": _PASSES},
        "mask-predict": {"rule": "mask-predict", "steps": _PASSES},
    }
    wrong = llm.tokenizer.encode(_WRONG)[-1]
    rows, stays = list[tuple[str, ...]](), 0
    for name, rule in rules.items():
        pass_index = _AT if name == "left" else 0  # when the cell has its turn
        forced = {**rule, "forced_cells": [(pass_index, _AT, wrong)]}
        done = llm.generate(TEXT, denoise=forced, **more)
        is_kept = done.token_ids[_AT] == wrong
        stays += is_kept
        rows.append((name, visible_text(done), "stayed" if is_kept else "was replaced"))
    wrong_name = visible(llm.tokenizer.token_name(wrong))
    return Exercise(
        TOPIC,
        f"A mistake. {wrong_name} is put into cell {count_from_1(_AT)}. Three "
        f"rules go on: from the left; the surest first, {_PASSES} passes; and Mask-Predict, which "
        "masks the least likely of all cells again after each pass. Under how many of the three "
        "is it still there at the end?",
        Table(("rule", "what it may take back"), (
            ("left", "nothing"), ("confidence", "nothing"),
            ("mask-predict", "the least likely, fewer in each pass"),
        )),
        Numbers((stays,), ("rules",), COUNT),
        "a rule that never masks a cell again keeps its token.",
        (
            Table(("rule", "written", "it"), tuple(rows)),
            "Writing from left to right, nothing is ever taken back. Nor does a canvas correct "
            "itself by being a canvas: its rule must mask cells again, and pay for the passes.",
        ),
    )  # fmt: skip


def _latency(runs: dict[str, "Completion"]) -> Exercise:
    rows = {name: sum(one_pass.rows for one_pass in done.passes) for name, done in runs.items()}
    surest_run = [*runs.values()][1]
    row_count = surest_run.passes[0].rows
    table = tuple(
        (
            name, str(len(done.passes)), str(rows[name]), number(_CELLS / len(done.passes)),
            number(to_bits(sum(one_pass.bound for one_pass in done.passes))),
        )
        for name, done in runs.items()
    )  # fmt: skip
    return Exercise(
        TOPIC,
        f"Latency. A pass computes {row_count} rows: prompt and canvas, since every token sees "
        f"every other. One cell a pass, {_CELLS} cells: how many rows does the whole canvas take?",
        Table(("way", "passes"), tuple((row[0], row[1]) for row in table)),
        Numbers((rows[[*rows][1]],), ("rows",), COUNT),
        "as many passes as cells.",
        (
            Table(("way", "passes", "rows", "tokens per pass", "bound, bits"), table),
            f"From left to right with a cache it is {row_count - 1} rows for the same text length: "
            "each token is computed once. A canvas is faster only where few passes are enough; the "
            "bound is the most that revealing cells together loses on average.",
        ),
    )


def visible_text(done: "Completion") -> str:
    """The text that was generated, on one line."""
    return " ".join(done.text.split()) or "(nothing)"


# -- a causal model --------------------------------------------------------------------------


def _from_the_left(llm: "LLM", more: dict[str, Any]) -> tuple[Exercise, ...]:
    loop = llm.generate(TEXT, **more)
    return _correction(llm, loop, more), _cost(llm, loop, more)


def _correction(llm: "LLM", loop: "Completion", more: dict[str, Any]) -> Exercise:
    instead = next(t for t in reversed(loop.token_ids) if t != loop.token_ids[_AT])
    other = llm.generate(TEXT, forced=[*loop.token_ids[:_AT], instead], **more)
    pairs = zip(loop.token_ids, other.token_ids, strict=False)
    changed = sum(a != b for a, b in list(pairs)[_AT + 1 :])
    drawn_row = ("as drawn", visible_text(loop))
    return Exercise(
        TOPIC,
        f"Direction, and a mistake. Another token is put in place {count_from_1(_AT)}, and "
        f"the model writes on with the same luck. How many of the {_AT} tokens before it "
        "change?",
        Table(("way", "written"), (drawn_row,)),
        Numbers((0,), ("tokens",), COUNT),
        "a written token is never revised.",
        (
            Table(("way", "written"), (drawn_row, ("with another token", visible_text(other)))),
            f"None before it; of those after it {changed} differ. Writing from left to "
            "right corrects nothing. A masked model fills the gap from both sides, and a "
            "diffusion model may mask the token again: ask toy-canvas (-m toy-canvas).",
        ),
    )


def _cost(llm: "LLM", loop: "Completion", more: dict[str, Any]) -> Exercise:
    canvas = llm.generate(TEXT, denoise={"rule": "left", "block": 1}, **more)
    prompt, rows = len(llm.tokenize(TEXT)), sum(one_pass.rows for one_pass in canvas.passes)
    same = "the same" if canvas.fingerprint == loop.fingerprint else "other"
    return Exercise(
        TOPIC,
        f"Latency. The prompt has {prompt} tokens, and {_CELLS} are written after it. Keys and "
        "values are kept. How many rows does the model compute?",
        Table(("prompt", "written"), ((str(prompt), str(_CELLS)),)),
        Numbers((rows,), ("rows",), COUNT),
        "each token is computed once; the last one is drawn, and not fed back.",
        (
            Table(
                ("way", "passes", "rows"),
                (("from left to right", str(len(canvas.passes)), str(rows)),),
            ),
            "As a canvas with blocks of one cell from the left, this model writes the same: "
            f"its fingerprint is {same}, {canvas.fingerprint}. A canvas of a diffusion model "
            f"computes all {prompt + _CELLS} rows in each of its passes.",
        ),
    )
