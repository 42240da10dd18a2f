"""Lessons on how a token is chosen: what is run, what is said of it, where sentences point."""

from collections.abc import Sequence
from math import exp

from cutaway.features.lessons import figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import (
    candidate,
    chance,
    first_difference,
    percent,
    point,
    quote,
    token_at,
    tokens,
)
from cutaway.sampling import Candidate
from cutaway.trace import Trace

RAIN = "The best thing about rainy days is"
ROBOT = "Once upon a time, a small robot"


def temperature(desk: Desk) -> Lesson:
    """One seed at three temperatures: the texts part where the likeliest token no longer wins."""
    temperatures = (0.2, 0.7, 1.6)
    runs = [
        desk.write(desk.smollm2.generate, RAIN, seed=8, temperature=t, top_p=1.0, max_tokens=24)
        for t in temperatures
    ]
    cold, warm, hot = runs
    at = first_difference(cold, hot)
    assert at == first_difference(warm, hot) == first_difference(cold, warm)
    first, second, third = (token_at(run, at) for run in runs)
    luck, rank = candidate(hot, at, third).luck, hot.steps[at].observed
    assert rank is not None
    assert luck is not None
    words = [first, " the", " people", second, " me"]
    return Lesson(
        "temperature",
        "What a temperature does",
        "Three runs have the same prompt, the same seed and the same luck. Only the temperature "
        "differs. Why do they write different texts?",
        [
            point(
                f"The first {at} tokens are the same in all three. Here, at temperature 0.2, "
                f"{quote(first)} is the likeliest by far: {chance(cold, at, first)} after the "
                "chain. It is drawn.", at,
            ),
            point(
                f"At 0.7 {quote(first)} has {chance(warm, at, first)} left. Each token has the "
                f"same luck as before, and now that of {quote(second)} is enough: the fourth "
                "likeliest is drawn.", at, run=2,
            ),
            point(
                f"At 1.6 the probabilities are much flatter. {quote(third)} is only number "
                f"{rank.rank} of the candidates and has {percent(exp(_final(hot, at)))}, but with "
                f"luck {luck:+.2f} it wins.", at, run=3,
            ),
            point(
                "The coldest and the hottest text side by side. Once they have parted, each reads "
                "its own words.", at,
                other=3, panel="tree",
            ),
        ],
        "Logits are divided by the temperature before they become probabilities. A small one lets "
        "the likeliest token win nearly always; a large one leaves the choice to luck.",
        [show_run(run, f"temperature {t}") for run, t in zip(runs, temperatures, strict=True)],
        figures.bars([
            (f"at {t}", _shares(run, at, words)) for run, t in zip(runs, temperatures, strict=True)
        ]),
        f"The same candidates at three temperatures: {first}, {second} and {third} are drawn.",
    )  # fmt: skip


def _shares(run: Trace, at: int, words: Sequence[str]) -> list[tuple[str, float, bool]]:
    """The probabilities of some candidates and of the drawn one, and which that is."""
    token = token_at(run, at)
    shares = [exp(candidate(run, at, word).final_logprob or 0) for word in words]
    rows = [(word, p, word == token) for word, p in zip(words, shares, strict=True)]
    return rows if token in words else [*rows, (token, exp(_final(run, at)), True)]


def _final(trace: Trace, step: int) -> float:
    """The log-probability of the drawn token after the chain."""
    seen = trace.steps[step].observed
    assert seen is not None
    assert seen.final_logprob is not None
    return seen.final_logprob


def stages(desk: Desk) -> Lesson:
    """What each stage of the chain removes, at one step."""
    text = desk.write(
        desk.smollm2.generate, "On the last day of summer, we", seed=2, temperature=1.2, top_k=40,
        top_p=0.9, min_p=0.05, max_tokens=24,
    )  # fmt: skip
    at = 9
    seen = text.steps[at].observed
    assert seen is not None
    by = {str(stage["stage"]): k for k, stage in enumerate(text.head.chain)}
    left = {name: seen.stages[k].survivors for name, k in by.items()}
    assert left["top_k"] > left["top_p"] > left["min_p"] > 1
    token = token_at(text, at)
    removed = next(text.name_of(c.id) for c in seen.candidates if c.removed_by == by["min_p"])
    sure = next(s.index for s in text.steps if s.survivors == 1)
    best = text.name_of(seen.candidates[0].id)
    candidates = [c for c in seen.candidates if c.rank <= text.head.candidates]
    return Lesson(
        "stages",
        "Candidates, cut stage by stage",
        f"A vocabulary has {text.head.vocab_size} tokens. Between the model and the draw, a chain "
        "of stages removes most of them. Which stage removes what?",
        [
            point("The chain in its order: temperature 1.2, top-k 40, top-p 0.9, min-p 0.05. Here "
                  f"the model gives {quote(best)} the most.", at),
            point(f"Temperature removes nothing; it flattens. Top-k keeps the {left['top_k']} "
                  "likeliest, whatever their probability.", at, candidate=1),
            point(f"Top-p keeps the fewest whose probabilities add up to 90%: {left['top_p']} of "
                  "them. The letter beside a token says which stage removed "
                  "it.", at, candidate=left["top_p"] - 1),
            point("Min-p removes what has less than a twentieth of the likeliest one's "
                  f"probability, such as {quote(removed)}: {left['min_p']} are left, and "
                  f"{quote(token)} is drawn.", at, candidate=left["min_p"]),
            point(f"Another step, another picture: of {quote(token_at(text, sure))} the model is "
                  f"sure, and only {text.steps[sure].survivors} survives.", sure),
        ],
        "Top-k cuts at a number, top-p at a sum, min-p at a share of the best. Each reacts "
        "differently to a model that is sure and to one that is not.",
        [show_run(text, "the run")],
        figures.bars([
            (f"{name.replace('_', '-')}: {left[name]}", _bars(candidates, by[name]))
            for name in ("top_k", "top_p", "min_p")
        ]),
        f"The likeliest candidates; {left['top_k']}, then {left['top_p']}, then {left['min_p']} "
        "are left.",
    )  # fmt: skip


def _bars(candidates: Sequence[Candidate], stage: int) -> list[tuple[str, float, bool]]:
    """Bars of candidates, and whether a stage leaves them."""
    high = candidates[0].logit
    return [  # square roots, or only the first would be seen
        ("", exp((c.logit - high) / 2), c.removed_by is None or c.removed_by > stage)
        for c in candidates
    ]


def snowball(desk: Desk) -> Lesson:
    """One token is exchanged, and the model goes on with the same luck."""
    at, other = 9, " small"
    text = desk.write(
        desk.smollm2.generate, ROBOT, seed=2, temperature=0.8, top_p=0.95, max_tokens=40
    )
    fork = desk.branch(desk.smollm2, text, at, other)
    token = token_at(text, at)
    rest = [*zip(text.steps[at + 1 :], fork.steps[at + 1 :], strict=False)]
    same = sum(a.token_id == b.token_id for a, b in rest)
    assert same * 4 < len(rest)
    assert "alien vessel" in text.text
    assert "island" in fork.text
    after = at + 1
    luck = candidate(text, after, token_at(text, after)).luck
    assert luck is not None
    return Lesson(
        "snowball",
        "A snowball",
        f"One word of forty is changed: {quote(token)} becomes {quote(other)}. The luck stays the "
        "same. How much of the rest does?",
        [
            point("The text as it was drawn. Its robot stands at the edge of a massive alien "
                  f"vessel. {quote(token)} had {chance(text, at, token)}.", at),
            point(f"In the second run {quote(other)} is put in its place, by hand: the arrow "
                  "marks it. The model goes on by itself, with the luck that each place "
                  "had.", at, run=2),
            point(f"At the very next step {quote(token_at(text, after))} was drawn in the first "
                  f"run, with luck {luck:+.2f}. After {quote(other)} other candidates are likely, "
                  f"and {quote(token_at(fork, after))} is drawn.",
                  after, run=2),
            point(f"Of the {len(rest)} tokens after the change, {same} are the same. The alien "
                  "vessel has become an island.", at, run=2, other=1, panel="tree"),
            point("Both runs as a tree. On a page with its model, each token can be changed in "
                  "this way.", at, run=2,
                  panel="tree"),
        ],
        "Almost nothing. Every later step reads the changed word, so its candidates differ, so "
        "another is drawn, which the next step reads as well. A text is only as stable as its "
        "least certain token.",
        [show_run(text, "as drawn"), show_run(fork, "changed")],
        figures.strips(("as drawn", tokens(text, at, 16)), ("one token "
                                                           "changed", tokens(fork, at, 16))),
        f"Two texts that are the same up to {token}, and then are not.",
    )  # fmt: skip
