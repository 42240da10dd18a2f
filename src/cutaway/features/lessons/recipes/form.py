"""Lessons on the form of a text: where it stops, and what a grammar leaves to the model."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cutaway.base.counting import count_from_1
from cutaway.features.lessons import figures
from cutaway.features.lessons.desk import Desk, show_run
from cutaway.features.lessons.lesson import Lesson
from cutaway.features.lessons.sentences import (
    candidate,
    chance,
    own_chance,
    point,
    quote,
    token_at,
    tokens,
)
from cutaway.trace import Trace


def why_it_stopped(desk: Desk) -> Lesson:
    """A text that could have ended early goes on because a comma was drawn."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = desk.write(
        desk.smollm2.chat, messages, max_tokens=60, temperature=0.8, top_p=0.95, seed=2
    )
    at = [token_at(text, step.index) for step in text.steps].index(" Paris") + 1
    assert token_at(text, at) == ","
    short = desk.branch(desk.smollm2, text, at, ".")
    end = text.steps[-1]
    token = text.name_of(end.token_id)
    assert text.end is not None
    assert short.end is not None
    assert text.end.reason == short.end.reason == "end_token"
    assert all(
        candidate(text, step.index, token).removed_by is not None for step in text.steps[:-1]
    )
    assert len(text.steps) > 2 * len(short.steps)
    assert len(short.steps) == at + 2
    before = len(text.steps) - 2
    luck = candidate(text, len(text.steps) - 1, token).luck
    assert luck is not None
    return Lesson(
        "why-it-stopped",
        "Why it stopped",
        "A model has no idea of an end. Why does this answer go on after it has said all, and why "
        "does it stop at last?",
        [
            point(f"{quote(token)} is a token like any other: the end is drawn. Up to here top-p "
                  "removed it at each step, since it was next to "
                  "impossible.", at - 1, panel="timelines"),
            point(f"The fork in the road. A full stop had {chance(text, at, '.')}, a comma "
                  f"{chance(text, at, ',')}, and the comma had more luck.", at),
            point(f"After a comma no sentence can end. The next full stop comes {before - at} "
                  "tokens later.", before),
            point(f"Now the end token has {own_chance(end)}, and with luck {luck:+.2f} it is "
                  "drawn. The panel says what could have ended the text "
                  "before.", len(text.steps) - 1, panel="why"),
            point(f"The second run has the full stop at step {count_from_1(at)} instead. There "
                  f"the end token has {own_chance(short.steps[-1])}, and the text ends at "
                  "once.", at + 1, run=2),
        ],
        "It stops when the end token is drawn. That token becomes likely only where a sentence "
        "could end, so a single comma has made this answer twice as long.",
        [show_run(text, "with a comma"), show_run(short, "with a full stop")],
        figures.strips(("with a comma", tokens(text, at, 30)), ("with a full "
                                                               "stop", tokens(short, at))),
        "The same answer with a comma and with a full stop, after which it ends.",
    )  # fmt: skip


def _weather(city: Literal["Paris", "Rome", "Oslo"], days: int = 1) -> dict[str, Any]:
    """The weather of a city.

    days: how many to look ahead
    """
    return {"city": city, "days": days}


_weather.__name__ = "get_weather"


def _wishes_of(text: Trace) -> dict[int, str]:
    """What would have been drawn without the grammar, by the steps where that is another token."""
    return {
        step.index: text.name_of(step.unconstrained_id)
        for step in text.steps
        if step.unconstrained_id is not None and step.unconstrained_id != step.token_id
    }


def _struck(names: Sequence[str], wishes: Mapping[int, str]) -> str:
    """What was wanted, above what was allowed."""
    return figures.strips(
        ("wanted", [
            (wishes.get(i, name), "gone" if i in wishes else "given")
            for i, name in enumerate(names)
        ]),
        ("allowed", [(n, "hot" if i in wishes else "") for i, n in enumerate(names)]),
    )  # fmt: skip


def tool_call(desk: Desk) -> Lesson:
    """A small model that would rather chat is held to a call by a grammar."""
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    text = desk.write(
        desk.smollm2.chat, messages, tools=[_weather], tool_choice="required",
        parallel_tool_calls=False, max_tokens=60, temperature=0.7, seed=1,
    )  # fmt: skip
    names = [token_at(text, step.index) for step in text.steps]
    first = text.steps[0]
    wishes = _wishes_of(text)
    alone = sum(step.source == "grammar" for step in text.steps)
    name, field, city = names.index("get"), names.index("city"), names.index("Paris")
    assert 0 in wishes
    assert name in wishes
    assert field in wishes
    assert city not in wishes
    return Lesson(
        "tool-call",
        "A tool call, forced by a schema",
        "This small model is asked for the weather and has a function get_weather(city, days). It "
        "would rather chat. How can its answer be a valid call all the same?",
        [
            point(f"The model wanted to begin with {quote(wishes[0])}. The schema allows only the "
                  "beginning of a call: it removed all but one token. The model itself had given "
                  f"that {own_chance(first)}.", 0),
            point("The name of the function: the same luck would have drawn "
                  f"{quote(wishes[name])}. The only name that exists is get_weather, so nothing "
                  "else is left.", name),
            point(f"The field: the model wanted {quote(wishes[field])}. The schema calls it "
                  f"{quote('city')}.", field),
            point("The city is the model's own choice. Of Paris, Rome and Oslo it takes "
                  f"{quote('Paris')}, from the question.", city),
            point(f"{alone} of {len(text.steps)} tokens were the only ones left. The text ends "
                  "where the call is whole.",
                  len(text.steps) - 1, panel="why"),
        ],
        "At each step a grammar, made of the function's schema, removes every token that no valid "
        "call can have there. What remains is drawn as usual. So the form is certain; whether the "
        "content is right is up to the model.",
        [show_run(text, "the call")],
        _struck(names[:24], wishes),
        "The tokens that the model wanted are struck; below them the call that the schema allowed.",
    )  # fmt: skip
