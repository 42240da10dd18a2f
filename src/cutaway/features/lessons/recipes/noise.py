"""A lesson on text that begins as noise, beside text from the left and text from masks."""

from math import log
from typing import NamedTuple

from cutaway import LLM
from cutaway.base.counting import count_from_1
from cutaway.engine import Pass
from cutaway.engine.canvas import Rule
from cutaway.features.lessons import drawings, figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import point, quote
from cutaway.trace import Point, Trace

SENTENCE = "It is a truth universally acknowledged, that"
CELLS, TOKENS = 28, 11
COOL = {"temperature": 0.7, "top_p": 1.0, "seed": 1}


class WayCosts(NamedTuple):
    """What a text took. bits: the judge's surprise, for each character."""

    passes: int
    rows: int
    bits: float


def noise(desk: Desk) -> Lesson:
    """One sentence from the left, from masks and from noise, each read by the same judge."""
    left = desk.write(desk.toy_writer.generate, SENTENCE, max_tokens=TOKENS, **COOL)
    masks = desk.write(desk.toy_canvas.denoise, SENTENCE, max_tokens=CELLS, **COOL)
    noised = desk.write(desk.toy_noise.denoise, SENTENCE, max_tokens=CELLS, seed=1)
    texts = {"from the left": left, "from masks": masks, "from noise": noised}
    costs = {way: _costs(text, desk.smollm2) for way, text in texts.items()}
    by_bits = sorted(costs.values(), key=lambda cost: cost.bits)
    assert by_bits == [*costs.values()]
    by_left, by_masks, by_noise = costs.values()
    assert 10 * by_left.rows < by_noise.rows < by_masks.rows
    return _lesson(texts, costs)


def _costs(text: Trace, judge: LLM) -> WayCosts:
    [likelihood] = judge.score(SENTENCE, [text.text])
    read, steps = len(text.head.prompt_token_ids), len(text.steps)
    return WayCosts(
        len(text.passes) or steps,
        sum(canvas_pass.rows for canvas_pass in text.passes) or read + steps - 1,
        -likelihood.total / log(2) / len(text.text),
    )


def _lesson(texts: dict[str, Trace], costs: dict[str, WayCosts]) -> Lesson:
    noised = texts["from noise"]
    return Lesson(
        "noise",
        "From the left, from masks, from noise",
        "A text can be written word by word, be uncovered, or come out of noise. One sentence, "
        "three toys that have read the same six novels: what does each way cost, and what does a "
        "reader think of it?",
        _points(texts, costs),
        "Here the left wins: fewest rows, and the text that surprises least. (Its toy is also the "
        "larger one, and knows pieces of words.) Masks and noise compute the whole canvas in every "
        "pass. Noise needs fewer passes than masks, since a pass keeps several cells, and its text "
        "is worse. Both pay off only with a model that is sure of many cells at once.",
        [show_run(text, way) for way, text in texts.items()],
        figures.cells([
            _row(noised, canvas_pass)
            for canvas_pass in (*noised.passes[:: len(noised.passes) // 6], noised.passes[-1])
        ]),
        "The canvas in some of its passes: characters that were kept stand out from the noise, "
        "until all are text.",
        _table(texts, costs, _rule(noised)),
    )  # fmt: skip


def _points(texts: dict[str, Trace], costs: dict[str, WayCosts]) -> list[Point]:
    left, masks, noised = texts.values()
    by_left, by_masks, by_noise = costs.values()
    assert not any(canvas_pass.masked_again for canvas_pass in masks.passes)
    return [
        point(f"From the left: {by_left.passes} tokens, each drawn after the one before, and "
              f"none is touched again: {quote(left.text)}.", 0),
        point(f"From masks: {CELLS} empty cells, one character each. A pass looks at all of "
              "them and fills the one of which the model is surest. What is filled stays: "
              f"{quote(masks.text)}.", 0, run=2, panel="canvas",
              **{"pass": len(masks.passes) - 1}),
        *_noise_points(noised),
        point("SmolLM2, which writes from left to right and wrote none of them, reads all "
              f"three: {by_left.bits:.1f} bits a character, {by_masks.bits:.1f} and "
              f"{by_noise.bits:.1f}. The models computed {by_left.rows:,}, "
              f"{by_masks.rows:,} and {by_noise.rows:,} rows.", 0),
    ]  # fmt: skip


def _noise_points(noised: Trace) -> list[Point]:
    first, last = noised.passes[0], noised.passes[-1]
    middle = noised.passes[len(noised.passes) // 2]
    back = next(canvas_pass for canvas_pass in noised.passes if canvas_pass.masked_again)
    number = sum(len(canvas_pass.masked_again) for canvas_pass in noised.passes)
    rule = _rule(noised)
    assert len(noised.passes) < (rule.max_passes or 0)
    return [
        point(f"From noise: every cell has a random character, {quote(_read(noised, first))}. "
              "No mask tells the model which of them are wrong. It keeps "
              f"{_count_kept(first)}; all others become noise again.", 0, run=3,
              panel="canvas", **{"pass": 0}),
        point(f"Pass {count_from_1(back.index)} takes back what an earlier one kept. In all "
              f"passes that happens {number} times. A mask that is gone stays "
              "gone.", _cell(noised, back), run=3, panel="canvas",
              **{"pass": back.index}),
        point(f"Halfway, in pass {count_from_1(middle.index)}, the model reads "
              f"{quote(_read(noised, middle))}.", 0, run=3, panel="canvas",
              **{"pass": middle.index}),
        point(f"After {len(noised.passes)} passes, of {rule.max_passes} at most, the likeliest "
              "characters no longer change and the model is sure of them: "
              f"{quote(noised.text)}.", 0, run=3, panel="canvas", **{"pass": last.index}),
    ]  # fmt: skip


def _table(texts: dict[str, Trace], costs: dict[str, WayCosts], rule: Rule) -> str:
    head = "way", "passes", "rows", "bits a character", "text"
    rows = [
        (way, f"{cost.passes}", f"{cost.rows:,}", f"{cost.bits:.2f}", f"…{texts[way].text}…")
        for way, cost in costs.items()
    ]
    return drawings.figure(
        drawings.table(head, rows),
        f"“{SENTENCE} …”, continued in three ways. A row is one token that the model computes, "
        "which takes most of a large model's time; of toys, choosing among the cells takes longer. "
        "Bits: how much the text surprises SmolLM2. "
        f"The temperature is {COOL['temperature']}; of noise it falls from {rule.t_max} towards "
        f"{rule.t_min}.",
    )


def _rule(trace: Trace) -> Rule:
    assert trace.head.decoder is not None
    return trace.head.decoder.rule


def _read(trace: Trace, canvas_pass: Pass) -> str:
    """The characters that a pass read."""
    return "".join(trace.name_of(cell.read or 0) for cell in canvas_pass.cells)


def _count_kept(canvas_pass: Pass) -> str:
    number = len(canvas_pass.revealed)
    return "one cell" if number == 1 else f"{number} cells"


def _cell(trace: Trace, canvas_pass: Pass) -> int:
    """The first cell that a pass takes back."""
    return canvas_pass.masked_again[0] - len(trace.head.prompt_token_ids)


def _row(trace: Trace, canvas_pass: Pass) -> list[tuple[str, str]]:
    """The characters that a pass read, those marked that earlier passes kept."""
    return [
        (trace.name_of(cell.read or 0), "given" if cell.was is None else "hot")
        for cell in canvas_pass.cells
    ]
