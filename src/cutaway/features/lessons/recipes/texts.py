"""Lessons on whole texts: twenty of each strategy, and the model's own beside a human's."""

from collections.abc import Sequence
from importlib.resources import files
from math import log
from typing import Any, NamedTuple

from cutaway.features.experiments.exposure import exposure
from cutaway.features.lessons import drawings, figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.drawings import Curve
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import (
    first_difference,
    own_chance,
    percent,
    point,
    quote,
    token_at,
)
from cutaway.trace import Trace

TOWN = "My favourite place in town is"
TEXTS, LENGTH = 20, 48
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "pure": {"temperature": 1, "top_p": 1.0},
    "top-k 20": {"temperature": 1, "top_p": 1.0, "top_k": 20},
    "top-p 0.9": {"temperature": 1, "top_p": 0.9},
    "temperature 0.5": {"temperature": 0.5, "top_p": 1.0},
}
GROUP = 4
"""Tokens in a row that count as a repetition if they stand in the text twice."""


class Variety(NamedTuple):
    """Figures of a strategy's texts.

    different: how many of the texts; vocabulary: different tokens in all of them; repeats: the
    share of groups of four tokens that stood in their text before; bits: mean surprise of a token
    """

    different: int
    vocabulary: int
    repeats: float
    bits: float


def strategies(desk: Desk) -> Lesson:
    """Twenty texts of each strategy, from one prompt and the same twenty lucks."""
    llm = desk.smollm2
    runs, varieties = {}, {}
    for name, settings in STRATEGIES.items():
        options = {"max_tokens": LENGTH, "candidates": 8, **settings}
        runs[name] = desk.write(llm.generate, TOWN, seed=1, **options)
        texts = [llm.generate(TOWN, seed=seed, **options) for seed in range(1, TEXTS + 1)]
        bits = [-step.logprob / log(2) for text in texts for step in text.steps]
        varieties[name] = Variety(
            len({text.token_ids for text in texts}),
            len({token_id for text in texts for token_id in text.token_ids}),
            sum(_repeats(text.token_ids) for text in texts) / TEXTS,
            sum(bits) / len(bits),
        )
    greedy, pure = varieties["greedy"], varieties["pure"]
    assert greedy.different == 1
    assert greedy.repeats > 0.8
    assert max(v.repeats for name, v in varieties.items() if name != "greedy") < 0.1
    assert pure.vocabulary == max(v.vocabulary for v in varieties.values())
    assert pure.bits == max(v.bits for v in varieties.values())
    return _strategies_lesson(runs, varieties)


def _repeats(token_ids: Sequence[int]) -> float:
    groups = [tuple(token_ids[at : at + GROUP]) for at in range(len(token_ids) - GROUP + 1)]
    return 1 - len(set(groups)) / len(groups)


def _strategies_lesson(runs: dict[str, Trace], varieties: dict[str, Variety]) -> Lesson:
    greedy, pure, k, p, cool = varieties.values()
    traces = [*runs.values()]
    loop = traces[0]
    ids = loop.output_token_ids
    at = next(k for k in range(2, len(ids)) if _is_word(loop, k) and ids[k] == ids[k - 2])
    parting = first_difference(traces[1], traces[2])
    return Lesson(
        "strategies",
        "Five strategies, the same luck",
        f"“{TOWN} …” is continued {TEXTS} times by each of five strategies. Which writes more than "
        "one text, which goes round in circles, which goes astray?",
        [
            point(f"Greedy takes the likeliest token each time: all {TEXTS} texts are one. Here "
                  f"{quote(token_at(loop, at))} comes again, and from now on the loop feeds "
                  f"itself: {percent(greedy.repeats)} of its groups of four are repetitions.", at),
            point("Pure sampling draws from the model's own probabilities, unlikely tokens "
                  f"included: {pure.different} texts, {pure.vocabulary} different tokens, "
                  f"{pure.bits:.1f} bits of surprise a token, and soon no sense.", parting, run=2),
            point(f"Top-k keeps the 20 likeliest tokens. The luck of "
                  f"{quote(token_at(traces[1], parting))} is of no use where it was removed: "
                  f"{quote(token_at(traces[2], parting))} is drawn. {k.bits:.1f} bits a token.",
                  parting, run=3),
            point("Top-p keeps as many as hold 90%: few where the model is sure, many where it is "
                  f"not. {p.vocabulary} different tokens, {p.bits:.1f} bits.", parting, run=4),
            point("Temperature 0.5 removes nothing, and makes the likely likelier: "
                  f"{cool.different} texts, {cool.vocabulary} different tokens, {cool.bits:.1f} "
                  f"bits, and {percent(cool.repeats)} repetitions.", 0, run=5, other=2,
                  panel="tree"),
        ],
        "Only greedy writes one text, and it is the one that loops. The others differ in how far "
        "they go from the likeliest token: more variety, more surprise, and in the end less sense.",
        [show_run(trace, name) for name, trace in runs.items()],
        figures.bars([
            (f"{name}: {v.bits:.1f} bits", [("", v.vocabulary / pure.vocabulary, True)])
            for name, v in varieties.items()
        ]),
        f"How many different tokens the {TEXTS} texts of each strategy have.",
        _strategies_table(runs, varieties),
    )  # fmt: skip


def _strategies_table(runs: dict[str, Trace], varieties: dict[str, Variety]) -> str:
    head = (
        "strategy", "different texts", "different tokens", "repeated", "bits a token", "the first",
    )  # fmt: skip
    rows = [
        (name, f"{v.different}", f"{v.vocabulary}", percent(v.repeats), f"{v.bits:.1f}",
         _beginning(runs[name]))
        for name, v in varieties.items()
    ]  # fmt: skip
    caption = (
        f"{TEXTS} texts of {LENGTH} tokens for each strategy, with the same {TEXTS} lucks. "
        f"Repeated: the share of groups of {GROUP} tokens that stood in their text before. Bits: "
        "how much the tokens surprised the model."
    )
    return drawings.figure(drawings.table(head, rows), caption)


def _is_word(trace: Trace, step: int) -> bool:
    return token_at(trace, step).strip().isalpha()


def _beginning(trace: Trace) -> str:
    return f"…{trace.text[:60]}…".replace("\n", "↵")


BEFORE, AFTER, SEED, PLACE = 32, 24, 5, 5


def exposure_bias(desk: Desk) -> Lesson:
    """A human's text read, and the model's own, drawn and greedy, from the same points on."""
    llm = desk.smollm2
    book = files("cutaway.features.lessons.recipes").joinpath("river_bank.txt").read_text("utf-8")
    options: dict[str, Any] = {"before": BEFORE, "tokens": AFTER, "seed": SEED}
    sampled = exposure(llm, book, **options)
    greedy = exposure(llm, book, temperature=0, **options)
    window = sampled.windows[PLACE]
    keywords = {"max_tokens": AFTER, "seed": SEED, "top_p": 1.0, "candidates": 10}
    texts: dict[str, dict[str, Any]] = {
        "a human's text, read": {"temperature": 1, "forced": window.human},
        "its own, drawn": {"temperature": 1},
        "its own, greedy": {"temperature": 0},
    }
    runs = {
        name: desk.write(llm.generate, window.context, **keywords, **more)
        for name, more in texts.items()
    }
    sums = [
        c.mean(axis=0).cumsum().tolist() for c in (sampled.reads, sampled.writes, greedy.writes)
    ]
    read, wrote, wrote_greedily = (total[-1] for total in sums)
    assert abs(read - wrote) < read / 10
    assert wrote_greedily < read / 2
    return _exposure_lesson(runs, sums, len(sampled.windows))


def _exposure_lesson(runs: dict[str, Trace], sums: list[list[float]], windows: int) -> Lesson:
    human, sampled, _ = runs.values()
    read, wrote, wrote_greedily = (f"{total[-1] / AFTER:.1f}" for total in sums)
    hard = max(human.steps, key=lambda step: -step.logprob)
    chart = drawings.chart(
        [
            Curve(f"a human's, read: {read} a token", sums[0], hot=True),
            Curve(f"its own, drawn: {wrote}", sums[1]),
            Curve(f"its own, greedy: {wrote_greedily}", sums[2]),
        ],
        "token after the cut", "bits of surprise so far",
    )  # fmt: skip
    caption = (
        f"The surprise of a text's tokens, added up: means over {windows} places of the first page "
        "of The Wind in the Willows (Kenneth Grahame, 1908)."
    )
    return Lesson(
        "exposure",
        "Raised on books, fed on itself",
        "In training a model reads what people wrote. When it writes, it reads what it wrote "
        "itself. Is that the same kind of text?",
        [
            point("The first run reads: each token is the human's, the model only says how likely "
                  f"it was. {quote(token_at(human, hard.index))} surprises it most: it had given "
                  f"it {own_chance(hard)}.", hard.index),
            point("From the same place it writes, and draws from its own probabilities. Its "
                  "tokens surprise it about as much as the human's, as they should: "
                  f"{wrote} bits a token, and {read} for the human's.", 0, run=2),
            point("The words are its own from the first on, and every later step reads them. "
                  "Nothing in training showed it how to go on from such a text.",
                  first_difference(human, sampled), run=2, other=1, panel="tree"),
            point("If the likeliest token is always taken, the text has "
                  f"{wrote_greedily} bits a token. No person writes so predictably, so this text "
                  "is further from all that was read in training.", 0, run=3),
            point("The chart adds the surprise up: the human's text and the drawn one climb "
                  "together, the greedy one stays below.", 0, run=3, other=1, panel="tree"),
        ],
        "Not quite, and it cannot see the difference: each mistake becomes part of what it reads, "
        "which is called exposure bias. Drawing keeps its texts as surprising as a human's; taking "
        "the likeliest token does not.",
        [show_run(trace, name) for name, trace in runs.items()],
        figures.bars([
            (name, [("", float(bits) / float(read), name == "human")])
            for name, bits in (("human", read), ("drawn", wrote), ("greedy", wrote_greedily))
        ]),
        f"Bits a token: a human's text {read}, its own {wrote}, greedy {wrote_greedily}.",
        drawings.figure(chart, caption),
    )  # fmt: skip
