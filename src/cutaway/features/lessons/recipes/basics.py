"""Lessons on the loop: a step by hand, softmax, its ends, its price."""

from math import exp
from typing import Any

from cutaway.features.lessons import figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import (
    candidate,
    chance,
    own_chance,
    percent,
    point,
    quote,
    token_at,
    tokens,
)
from cutaway.sampling import Observation
from cutaway.trace import Trace

ANIMAL = "My favourite animal is the"


def five_steps(desk: Desk) -> Lesson:
    """One round of the loop in five steps, with the sums that a reader can check."""
    text = desk.write(
        desk.smollm2.generate, ANIMAL, seed=146, temperature=1.0, top_p=1.0, max_tokens=12
    )
    seen = _observation(text, 0)
    best, pick = seen.candidates[0], candidate(text, 0, token_at(text, 0))
    top, name = text.name_of(best.id), token_at(text, 0)
    read = len(text.head.prompt_token_ids)
    assert best.id != pick.id
    assert text.steps[1].position == text.steps[0].position + 1
    return Lesson(
        "by-hand",
        "The loop in five steps, by hand",
        "forward pass → logits → softmax → sample → append: a text is this loop, once for each "
        "token. What happens in one round of it?",
        [
            point(f"Forward pass. The model reads the {read} tokens of “{ANIMAL}” and computes one "
                  "row of numbers: all that it has to say about the next token.", 0),
            point(f"Logits. The row has a number for each of {text.head.vocab_size:,} tokens. "
                  f"{quote(top)} has the largest, {best.logit:.2f}; {quote(name)} has "
                  f"{pick.logit:.2f}.", 0, candidate=pick.rank - 1),
            point(f"Softmax. e to the logit, divided by the sum over all tokens, which is e to the "
                  f"{seen.log_sum_exp:.2f}: {quote(top)} has "
                  f"{percent(exp(best.logit - seen.log_sum_exp))}, {quote(name)} "
                  f"{percent(exp(pick.logit - seen.log_sum_exp))}.", 0, candidate=0),
            point("Sample. A token's score is the logarithm of its chance, and its luck added; the "
                  f"highest wins. {_sum(text, top)}; {_sum(text, name)}. {quote(name)} is "
                  "drawn.", 0, candidate=pick.rank - 1),
            point(f"Append. {quote(name)} is put after the text, and the loop begins again: now "
                  f"the model reads {read + 1} tokens instead of {read}, and draws "
                  f"{quote(token_at(text, 1))}.", 1),
        ],
        "The model reads, softmax turns its numbers into chances, one token is drawn and put "
        "after the text. Then all of it again: a text of a thousand tokens is a thousand rounds.",
        [show_run(text, "the loop")],
        figures.strips(("read", [(ANIMAL, "given")]), ("appended", tokens(text, 0, 5))),
        f"After the text that was read, {name} is appended, then the next tokens.",
    )  # fmt: skip


def _observation(trace: Trace, step: int) -> Observation:
    seen = trace.steps[step].observed
    assert seen is not None
    return seen


def _sum(trace: Trace, token: str) -> str:
    """The score of a token at the first step as a sum, which is right as it is printed."""
    c = candidate(trace, 0, token)
    assert c.final_logprob is not None
    assert c.luck is not None
    parts = round(c.final_logprob, 2), round(c.luck, 2)
    score = c.final_logprob + c.luck
    assert abs(sum(parts) - score) < 0.005
    return f"{quote(token)}: {_with_sign(parts[0])} {_with_sign(parts[1])} = {_with_sign(score)}"


def _with_sign(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


FRANCE = "What is the capital of France?"


def endings(desk: Desk) -> Lesson:
    """One answer, cut by an end token, by a limit, by a stop string, and by nothing."""
    messages = [{"role": "user", "content": FRANCE}]
    settings: dict[str, Any] = {"seed": 2, "temperature": 0.8, "top_p": 0.95, "max_tokens": 60}
    whole, short, cut, on = (
        desk.write(desk.smollm2.chat, messages, **settings | more)
        for more in ({}, {"max_tokens": 5}, {"stop": ","}, {"ignore_eos": True})
    )
    reasons = [run.end.reason for run in (whole, short, cut, on) if run.end]
    assert reasons == ["end_token", "max_tokens", "stop_string", "max_tokens"]
    count = len(whole.steps)
    assert on.output_token_ids[:count] == whole.output_token_ids
    assert short.output_token_ids == whole.output_token_ids[: len(short.steps)]
    assert "Python" in on.text
    end = whole.steps[-1]
    return Lesson(
        "endings",
        "Three ways to stop, and what comes after the end",
        "Four runs have the same question, the same seed and the same luck. What stops a model, "
        "and what does it write if nothing does?",
        [
            point(f"The end token, {quote(whole.name_of(end.token_id))}, is drawn as token "
                  f"{count} of the answer: the model gave it {own_chance(end)} here. It is a token "
                  "like any other, and not shown.", count - 1, panel="why"),
            point(f"A limit: after {len(short.steps)} tokens (max_tokens) the answer is cut, in "
                  f"the middle of a sentence: “{short.text}”.", len(short.steps) - 1, run=2,
                  panel="why"),
            point(f"A stop string, here a comma: the answer ends before it, after “{cut.text}”. "
                  "The program looks for it; the model knows nothing of it.",
                  len(cut.steps) - 1, run=3, panel="why"),
            point("The end token ignored. The first "
                  f"{count} tokens are the same; then the model goes on, and makes up the next "
                  "question of a conversation that nobody has: “Write a Python function …”.",
                  count, run=4),
            point(f"It writes {len(on.steps) - count} tokens that nobody asked for, until the "
                  "limit cuts it.", len(on.steps) - 1, run=4, panel="why"),
        ],
        "The model can only draw its end token. Limits and stop strings are the program's. "
        "Without all three it never stops: there is always a next token.",
        [show_run(whole, "end token"), show_run(short, "limit of 5"), show_run(cut, "stop string"),
         show_run(on, "end token ignored")],
        figures.strips(("end token", tokens(whole, count - 1, 24)),
                       ("limit of 5", tokens(short)), ("stop string", tokens(cut)),
                       ("ignored", [(token_at(on, i), "gone" if i > count else "")
                                    for i in range(count - 3, count + 9)])),
        "The same answer, whole, cut by a limit, cut by a comma, and going on after its end.",
    )  # fmt: skip


def softmax(desk: Desk) -> Lesson:
    """The same logits at five temperatures."""
    temperatures = (1.0, 0.2, 0.7, 1.5, 0.0)
    runs = [
        desk.write(desk.smollm2.generate, ANIMAL, seed=384, temperature=t, top_p=1.0, max_tokens=8)
        for t in temperatures
    ]
    plain, cold, warm, hot, argmax = runs
    assert len({run.steps[0].logits_hash for run in runs}) == 1
    seen = _observation(plain, 0)
    first, second = (plain.name_of(c.id) for c in seen.candidates[:2])
    apart = seen.candidates[0].logit - seen.candidates[1].logit
    mild, wild = token_at(plain, 0), token_at(hot, 0)
    assert token_at(cold, 0) == token_at(argmax, 0) == first
    assert token_at(warm, 0) == mild != first
    assert wild not in (first, mild)
    return Lesson(
        "softmax",
        "Softmax and the temperature",
        "Five runs begin with the same logits, equal in every bit. Only the temperature differs. "
        "What does it do to the chances?",
        [
            point(f"Temperature 1: softmax as it is. {quote(first)} is {apart:.2f} logits above "
                  f"{quote(second)}, and so e to the {apart:.2f} = {exp(apart):.2f} times as "
                  f"likely: {chance(plain, 0, first)} and {chance(plain, 0, second)}.", 0),
            point("At 0.2 the logits are divided by 0.2 before softmax: five times the distance. "
                  f"{quote(first)} has {chance(cold, 0, first)}, {quote(second)} "
                  f"{chance(cold, 0, second)}.", 0, run=2),
            point(f"At 0.7 {quote(first)} has {chance(warm, 0, first)}, and with its luck "
                  f"{quote(mild)} is drawn, from {chance(warm, 0, mild)}.", 0, run=3),
            point(f"At 1.5 the chances are nearly even: {quote(first)} has "
                  f"{chance(hot, 0, first)} left, and {quote(wild)} is drawn, number "
                  f"{_observation(hot, 0).rank:,} of the candidates.", 0, run=4),
            point("At 0 nothing can be divided. The largest logit is taken, which is called "
                  f"argmax: {quote(first)}, always, and luck has no part in it.", 0, run=5),
        ],
        "It stretches or shrinks the distances between logits before softmax makes chances of "
        "them. What the model knows is in the logits, and no temperature changes these.",
        [show_run(run, f"temperature {t:g}") for run, t in zip(runs, temperatures, strict=True)],
        figures.bars([(f"at {t:g}", _bars(run)) for run, t in sorted(
            zip(runs, temperatures, strict=True), key=lambda pair: pair[1])]),
        f"The chances of four tokens at five temperatures: {first}, {mild} and {wild} are drawn.",
    )  # fmt: skip


def _bars(run: Trace) -> list[tuple[str, float, bool]]:
    """The chances of the likeliest candidates and the drawn one; at temperature 0 all is one's."""
    seen, pick = _observation(run, 0), token_at(run, 0)
    bars = {run.name_of(c.id): c for c in seen.candidates[:4]} | {pick: candidate(run, 0, pick)}
    greedy = run.steps[0].source == "greedy"
    return [
        (name, float(name == pick) if greedy else exp(c.final_logprob or 0), name == pick)
        for name, c in bars.items()
    ]


QUESTIONS = ("What do cats eat?", "And dogs?", "And birds?")


def cost(desk: Desk) -> Lesson:
    """A conversation of three questions, each of which sends again all that was said."""
    messages, runs = list[dict[str, str]](), list[Trace]()
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        runs.append(desk.write(
            desk.smollm2.chat, [*messages], seed=2, temperature=0.7, top_p=0.95, max_tokens=40
        ))  # fmt: skip
        messages.append({"role": "assistant", "content": runs[-1].text})
    read = [len(run.head.prompt_token_ids) for run in runs]
    answers = [len(run.steps) for run in runs]
    assert read[0] + answers[0] < read[1]
    assert read[1] + answers[1] < read[2]
    totals = sum(read), sum(answers)
    return Lesson(
        "cost",
        "What a conversation costs",
        "Tokens that a model reads and tokens that it writes are counted, and each has a price. "
        "Three short questions: how many tokens are paid?",
        [
            point(f"The first question, and what a chat puts around it, are {read[0]} tokens. The "
                  f"answer has {answers[0]}.", 0),
            point(f"The second question has two words. But a model remembers nothing: all that was "
                  f"said is sent again, {read[1]} tokens (the grey ones), for {answers[1]} new "
                  "ones.", 0, run=2),
            point(f"With the third question it is {read[2]} tokens, for {answers[2]} new "
                  "ones. The first question is paid the third time.", 0, run=3),
            point(f"In all {totals[0]} tokens were read and {totals[1]} written. Where a written "
                  f"token costs four times as much as one that is read, reading makes "
                  f"{percent(totals[0] / (totals[0] + 4 * totals[1]))} of the price.",
                  answers[2] - 1, run=3),
        ],
        "Each question pays for the whole conversation before it, so the price grows with the "
        "square of its length. (A server that keeps what it has read computes less; most ask a "
        "lower price for it.)",
        [show_run(run, f"question {n}") for n, run in enumerate(runs, 1)],
        figures.strips(*(
            (f"question {n}", [(f" {count} tokens read ", "given"), (f" {new} written ", "hot")])
            for n, (count, new) in enumerate(zip(read, answers, strict=True), 1)
        )),
        f"Three questions: {read[0]}, {read[1]} and {read[2]} tokens are read.",
    )  # fmt: skip
