"""Lessons on what computes the logits: heads, a canvas, drafts, rounded weights."""

from math import exp
from typing import Any

from cutaway.base.counting import count_from_1
from cutaway.features.inside.look import inside
from cutaway.features.inside.summary import heads
from cutaway.features.lessons import figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import (
    candidate,
    chance,
    first_difference,
    own_chance,
    percent,
    point,
    quote,
    token_at,
    tokens,
)
from cutaway.trace import Trace

MISS = (
    "Miss Odette Marlow lived by the sea. Every morning, people waved and said: Hello, Miss Odette"
)
RAIN = "The best thing about rainy days is"

READS, WRITES = (17, 4), (28, 2)
"""Heads of SmolLM2 that look at what came after an earlier occurrence of the last token."""


def induction(desk: Desk) -> Lesson:
    """A name that occurs once is found again by a head that looks for repetitions."""
    llm = desk.smollm2
    text = desk.write(llm.generate, MISS, temperature=0, seed=1, max_tokens=4)
    seen = inside(llm, text, 0)
    attribution = seen.logit_attribution()
    by = {(h.layer, h.head): h for h in heads(seen, attribution)}
    reads, writes = by[READS], by[WRITES]
    lens = seen.lens(1)
    name, rival = token_at(text, 0), text.name_of(attribution.rival)
    assert text.name_of(text.head.prompt_token_ids[reads.most]) == name
    assert reads.most == writes.most
    assert reads.induction == max(h.induction for h in by.values())
    assert writes.attribution == max(h.attribution for h in by.values())
    assert lens.settled == len(lens.ids) - 1  # rows: before the first layer, and after each
    ids = text.head.prompt_token_ids
    marked = {reads.most: "hot", reads.most - 1: "given", len(ids) - 1: "given"}
    tokens = [(text.name_of(i), marked.get(k, "")) for k, i in enumerate(ids)]
    return Lesson(
        "induction",
        "A head that finds the repeated name",
        "“Hello, Miss Odette” – and the model goes on with “Marlow”. It has seen this invented "
        "name once, a dozen words before. How does it know?",
        [
            point(f"The text breaks off after {quote(text.name_of(ids[-1]))}. The model gives "
                  f"{quote(name)} {own_chance(text.steps[0])}.", 0),
            point("Inside this step, the text is coloured by where attention goes. Head "
                  f"{READS[1]} of layer {READS[0]} puts {percent(reads.induction)} of its weight "
                  f"on {quote(name)}: the token that came after the "
                  f"{quote(text.name_of(ids[-1]))} of before.", 0, panel="inside",
                  inside={"map": "induction", "head": READS}),
            point(f"It finds the place. Head {WRITES[1]} of layer {WRITES[0]} looks there, too, "
                  f"and of all heads it adds most to the logit of {quote(name)}: "
                  f"{writes.attribution:+.2f} over {quote(rival)}.", 0, panel="inside",
                  inside={"by": "attribution", "head": WRITES}),
            point("The logit lens, further down, is what the model would say after each layer. "
                  f"{quote(name)} is first after the last layer alone: the decision is made "
                  "late.", 0, panel="inside"),
            point(f"The second half of the name, {quote(token_at(text, 1))}, comes the same way: "
                  f"{own_chance(text.steps[1])}.", 1, panel="inside",
                  inside={"map": "induction", "head": READS}),
        ],
        "Some attention heads look for an earlier place where the last token stood, and read what "
        "came after it. Such induction heads copy what was said once, even a name that no one had "
        "before.",
        [show_run(text, "the name", llm, (0, 1))],
        figures.strips(("", [*tokens, (" →", ""), (name, "hot")])),
        f"After the second Odette the head looks at {name}, which followed the first.",
    )  # fmt: skip


def intervention(desk: Desk) -> Lesson:
    """The name does not come once the head that writes it is cut."""
    llm = desk.smollm2
    text = desk.write(llm.generate, MISS, temperature=0, seed=1, max_tokens=12)
    change = f"L{WRITES[0]}.H{WRITES[1]} x 0"
    without = desk.branch(llm, text, 0, None, interventions=[change])
    token, other = token_at(text, 0), token_at(without, 0)
    assert token != other
    logit = candidate(text, 0, token).logit - candidate(text, 0, other).logit
    loss = logit - (candidate(without, 0, token).logit - candidate(without, 0, other).logit)
    return Lesson(
        "intervention",
        "One head less",
        f"In “A head that finds the repeated name”, head {WRITES[1]} of layer {WRITES[0]} wrote "
        "the name. That was an account of the sums. Is it also the cause?",
        [
            point(f"The model as it is: {quote(token)} has {own_chance(text.steps[0])} and is "
                  f"{logit:.2f} logits ahead of {quote(other)}.", 0),
            point("The head in question, and where it looks: of all 270 it adds most to "
                  f"{quote(token)}.", 0,
                  panel="inside", inside={"by": "attribution", "head": WRITES}),
            point(f"The second run has this one head multiplied by 0 from here on. {quote(token)} "
                  f"falls to {_own_chance(without, token)}, and {quote(other)} is "
                  "written.", 0, run=2),
            point(f"{loss:.2f} logits of the lead are gone. Inside: what all other heads add to "
                  f"{quote(token)} is not enough without this "
                  "one.", 0, run=2, panel="inside", inside={"by": "attribution"}),
            point("Both texts. The change is in the trace, so the second run can be replayed to "
                  "the bit, too.", 0, run=2,
                  other=1, panel="tree"),
        ],
        "Yes, here. Take one head of 270 away, and the name is not repeated. An attribution says "
        "what was added; only an intervention shows what depends on it.",
        [show_run(text, "as it is", llm, (0,)), show_run(without, f"head {WRITES[1]} of layer "
                                                            f"{WRITES[0]} at 0", llm, (0,))],
        figures.strips(
            ("as it is", [(" Hello, Miss Odette", "given"), *tokens(text, 0, 5)]),
            (f"{change}", [(" Hello, Miss Odette", "given"), *tokens(without, 0, 5)]),
        ),
        f"With the head the text goes on with {token}, without it with {other}.",
    )  # fmt: skip


def _own_chance(trace: Trace, token: str) -> str:
    """The model's token probability of a candidate at the first step."""
    seen = trace.steps[0].observed
    assert seen is not None
    return percent(exp(candidate(trace, 0, token).logit - seen.log_sum_exp))


def canvas(desk: Desk) -> Lesson:
    """A diffusion model reveals a text in no direction, one cell or several in a pass."""
    cells = 32
    slow, fast = (
        desk.write(desk.toy_canvas.denoise, "Mr. Darcy ", max_tokens=cells, seed=2, steps=steps)
        for steps in (cells, 8)
    )
    ((start, letter),) = _cells_of(slow, 0)
    assert start != 0
    together = _cells_of(fast, 0)
    loss = sum(p.bound for p in fast.passes)
    assert loss > sum(p.bound for p in slow.passes) == 0
    return Lesson(
        "canvas",
        "A canvas: writing without a direction",
        "A diffusion model begins with empty cells and fills them in any order. Which does it "
        "fill first, and what is lost if it fills several at once?",
        [
            point(f"The first pass looks at all {cells} cells and keeps the one of which it is "
                  f"surest: {quote(letter)} in cell {count_from_1(start)}, "
                  "in the middle of nowhere.", start, panel="canvas", **{"pass": 0}),
            point("A few passes later there are islands. Each new cell sees what is on its left "
                  "and on its right.",
                  _cells_of(slow, 9)[0][0], panel="canvas", **{"pass": 9}),
            point(f"After {len(slow.passes)} passes the text is whole. (The model is a toy of "
                  "single letters.)", start,
                  panel="canvas", **{"pass": len(slow.passes) - 1}),
            point(f"The second run has only {len(fast.passes)} passes. Its first one keeps "
                  f"{len(together)} cells that do not know of each "
                  "other.", together[0][0], run=2, panel="canvas", **{"pass": 0}),
            point(f"Its text is worse: “{fast.text.strip()}”. Up to {loss:.1f} nats are lost by "
                  "filling cells together; one cell at a time loses "
                  "nothing.", together[0][0], run=2, panel="canvas",
                  **{"pass": len(fast.passes) - 1}),
        ],
        "It fills what it is surest of, on either side of what is there. Several cells in one "
        "pass are faster, but each is drawn without knowing the others, so they fit together less "
        "well.",
        [show_run(run, f"{len(run.passes)} passes") for run in (slow, fast)],
        figures.cells([_row(slow, at, cells) for at in (0, 4, 9, 16, 24, len(slow.passes) - 1)]),
        "The canvas after six of its passes: letters appear in no order, until all cells are "
        "filled.",
    )  # fmt: skip


def _cells_of(trace: Trace, index: int) -> list[tuple[int, str]]:
    """The cells that a pass reveals, and their tokens."""
    first = len(trace.head.prompt_token_ids)
    return [(c.position - first, trace.name_of(c.token_id)) for c in trace.passes[index].revealed]


def _row(trace: Trace, index: int, cells: int) -> list[tuple[str, str]]:
    """All cells after a pass, those that it reveals marked."""
    now: dict[int, tuple[str, str]] = {}
    for i in range(index + 1):
        now |= {at: (word, "hot" if i == index else "given") for at, word in _cells_of(trace, i)}
    return [now.get(at, ("", "")) for at in range(cells)]


ROUTINE = "Monday: open at 9, close at 5.\nTuesday: open at 9, close at 5.\nWednesday:"
DREAM = "The dream began in a city made of"


def speculation(desk: Desk) -> Lesson:
    """Drafts save passes on routine text, few on surprising text, and change no bit."""
    plain, quick, dream = (
        desk.write(
            desk.smollm2.generate, prompt, seed=5, temperature=0.6, max_tokens=48, speculate=drafts
        )
        for prompt, drafts in ((ROUTINE, "off"), (ROUTINE, "ngram"), (DREAM, "ngram"))
    )
    assert plain.end is not None
    assert quick.end is not None
    assert dream.end is not None
    assert plain.output_token_ids == quick.output_token_ids
    assert plain.end.fingerprint == quick.end.fingerprint
    routine, surprising = quick.end.speculation, dream.end.speculation
    assert 2 * routine["accepted"] > routine["proposed"]
    assert 2 * surprising["accepted"] < surprising["proposed"]
    steps = len(quick.steps)
    passes = steps - routine["accepted"]
    first = _first_draft(quick)
    return Lesson(
        "speculation",
        "Drafts: guessed, checked, kept or refused",
        "Some tokens are guessed before the model has computed them, which saves time. Is the "
        "text still what the model would have written? And when does it save anything?",
        [
            point("Without drafts: one pass of the model for each token, "
                  f"{len(plain.steps)} in all.", 0),
            point(f"With them, {routine['proposed']} tokens were guessed, each a copy of what "
                  f"followed the same words before. Underlined are the {routine['accepted']} "
                  "that were right.", first, run=2),
            point("The model checks several guesses in one pass. "
                  f"{quote(token_at(quick, first))} was kept, because with its luck the model "
                  f"draws this very token here. {steps} tokens took {passes} passes.",
                  first, run=2),
            point(f"The same {steps} tokens, and one fingerprint of every logit in both runs: "
                  f"{plain.end.fingerprint}.", first, run=2, other=1, panel="tree"),
            point(f"A dream repeats little: of {surprising['proposed']} guesses "
                  f"{surprising['accepted']} were right, and the rest were refused. "
                  f"{len(dream.steps)} tokens took {len(dream.steps) - surprising['accepted']} "
                  "passes.", _first_draft(dream), run=3),
        ],
        "Yes, to the bit: a guess is kept only where it is what the model draws with its luck. It "
        f"saves passes where a text is routine: {routine['accepted']} of {steps} here, and "
        f"{surprising['accepted']} of {len(dream.steps)} in a dream.",
        [
            show_run(plain, "hours, without drafts"),
            show_run(quick, "hours, with drafts"),
            show_run(dream, "a dream, with drafts"),
        ],
        figures.strips(("hours", _drafts(quick)), ("a dream", _drafts(dream))),
        "Two texts; the tokens that were guessed correctly are marked, most of the first.",
    )  # fmt: skip


def _first_draft(trace: Trace) -> int:
    return next(step.index for step in trace.steps if step.source == "draft")


def _drafts(trace: Trace) -> list[tuple[str, str]]:
    return [(token_at(trace, s.index), "hot" if s.source == "draft" else "") for s in trace.steps]


def quantisations(desk: Desk) -> Lesson:
    """The same weights in three formats, with one luck: the coarser, the earlier the texts part."""
    settings: dict[str, Any] = {"seed": 2, "temperature": 0.8, "top_p": 0.95, "max_tokens": 28}
    published = desk.write(desk.smollm2.generate, RAIN, **settings)
    eight, four = (
        desk.write(desk.quantise(form).generate, RAIN, **settings) for form in ("q8_0", "q4_0")
    )
    near, far = first_difference(published, eight), first_difference(published, four)
    assert far < near
    token, other = token_at(published, far), token_at(four, far)
    same = token_at(published, 3)
    assert same == token_at(four, 3) == token_at(eight, 3)

    return Lesson(
        "quantisations",
        "Three roundings, one luck",
        "Weights are rounded to save memory. With the same luck, how long do models with "
        "differently rounded weights write the same text?",
        [
            point("SmolLM2 as it is published, 5 bits a weight (Q4_1).", 3),
            point(f"The same weights in 8 bits (Q8_0). {quote(same)} has {chance(eight, 3, same)} "
                  f"here and {chance(published, 3, same)} there: rounding moves every logit a "
                  "little.", 3, run=2),
            point(f"In 4.5 bits (Q4_0), rounded once more. Up to step {far} the text is the same, "
                  "since no difference was large enough to change which token "
                  "wins.", far - 1, run=3),
            point(f"At step {count_from_1(far)} the first run gave {quote(token)} "
                  f"{chance(published, far, token)} and {quote(other)} "
                  f"{chance(published, far, other)}. After the rounding they have "
                  f"{chance(four, far, token)} and {chance(four, far, other)}, and with the "
                  f"same luck {quote(other)} wins.", far, run=3),
            point(f"The 8-bit copy agrees for {near} tokens, the 4-bit copy for "
                  f"{far}.", far, run=1, other=3,
                  panel="tree"),
        ],
        "Until the first close decision. Since the luck is the same, every difference comes from "
        "the weights, which makes one luck a fine scale for what a rounding does.",
        [
            show_run(published, "Q4_1, as published"),
            show_run(eight, "Q8_0"),
            show_run(four, "Q4_0"),
        ],
        figures.strips(
            ("Q4_1, as published", tokens(published, far, 13)), ("Q4_0", tokens(four, far, 13)),
        ),
        f"Two texts that agree for {far} tokens.",
    )  # fmt: skip
