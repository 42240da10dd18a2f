"""What a test of a prompt may assert of an answer, and what a red test says.

A failure names the token at which the text came nearest to what was asked, what it lost to, by how
much, and the stage that removed it; so that it can be mended. pytest is not needed here.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import TYPE_CHECKING, Any, NoReturn

from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.engine import Step
    from cutaway.features.integrations.served import ServedAnswer, ServedModel
    from cutaway.requests.completion import Completion
    from cutaway.sampling import Candidate


__tracebackhide__ = True  # pytest shows the test, not how it is asserted here


class TestedAnswer:
    """A text, with assertions that return the answer, so that one can follow another."""

    def __init__(
        self, llm: "LLM | ServedModel", prompt: Any, completion: "Completion | ServedAnswer",
        options: Mapping[str, Any],
        fingerprint: "Callable[[TestedAnswer], None]",
    ) -> None:  # fmt: skip
        self.llm, self.prompt, self.completion, self.options = llm, prompt, completion, options
        self._check_fingerprint = fingerprint

    @property
    def text(self) -> str:
        """The answer."""
        return self.completion.text

    @property
    def fingerprint(self) -> str:
        """Of the logits of all its steps, 16 hex digits."""
        return self.completion.fingerprint

    @property
    def entropy(self) -> float:
        """The mean entropy of the model before each token, in nats."""
        steps = self.completion.steps
        return sum(map(_entropy, steps)) / max(1, len(steps))

    # -- assertions ----------------------------------------------------------------------------

    def contains(self, wanted: str) -> "TestedAnswer":
        """The text has this in it."""
        if wanted not in self.text:
            self._red(f"has no {wanted!r}", wanted)
        return self

    def lacks(self, unwanted: str) -> "TestedAnswer":
        """The text does not have this in it."""
        if unwanted in self.text:
            step = self._at(self.text.index(unwanted))
            self._fail(f"has {unwanted!r}, from token {step.index}: {self._runner_up(step)}")
        return self

    def equals(self, wanted: str) -> "TestedAnswer":
        """The text is this, but for white space around it."""
        if self.text.strip() != wanted.strip():
            self._red(f"is not {wanted!r}", wanted)
        return self

    def matches(self, pattern: str) -> "TestedAnswer":
        """The regular expression is found in the text."""
        if not re.search(pattern, self.text):
            step, _ = self._closest()
            self._fail(
                f"has nothing that matches {pattern!r}; its least certain token is {step.index}: "
                f"{self._runner_up(step)}"
            )
        return self

    def has_json(self, schema: Mapping[str, Any]) -> "TestedAnswer":
        """The text is JSON that the schema accepts, by the engine's own grammar."""
        try:
            json.loads(self.text)
        except ValueError as error:
            self._fail(f"is no JSON: {error}")
        found = self.llm.accepts(self.text, json_schema=schema)
        if not found:
            at = "its end" if found.at is None else f"character {found.at}"
            self._fail(f"does not match the schema at {at}")
        return self

    def calls(self, name: str, **arguments: Any) -> "TestedAnswer":
        """One of its tool calls has this name and at least these arguments."""
        made = [(call.name, call.values()) for call in self.completion.tool_calls]
        if not any(c == name and arguments.items() <= given.items() for c, given in made):
            self._fail(f"does not call {name}({arguments}); its calls: {made or 'none'}")
        return self

    def probable(self, answer: str, at_least: float) -> "TestedAnswer":
        """P(answer | prompt) under the model itself, whatever the text is."""
        [found] = self.llm.score(self.prompt, [answer])
        if (p := exp(found.total)) < at_least:
            worst = min(range(len(found.logprobs)), key=found.logprobs.__getitem__)
            token, share = self._shown(found.token_ids[worst]), exp(found.logprobs[worst])
            self._fail(
                f"P({answer!r}) is {p:.3g}, below {at_least}: its least likely token is {token}, "
                f"with {share:.3g}", of="",
            )  # fmt: skip
        return self

    def margin(self, at_least: float) -> "TestedAnswer":
        """No token would be another if a logit changed by less than this."""
        step, margin = self._closest()
        if margin < at_least:
            at = f"token {step.index}: {self._runner_up(step)}"
            self._fail(f"has a margin of {margin:.3f}, below {at_least}, at {at}")
        return self

    def certain(self, at_most: float) -> "TestedAnswer":
        """The mean entropy before its tokens is at most so many nats."""
        if self.entropy > at_most:
            step = max(self.completion.steps, key=_entropy)
            self._fail(
                f"has a mean entropy of {self.entropy:.2f} nats, above {at_most}; most at token "
                f"{step.index}, {_entropy(step):.2f}: {self._runner_up(step)}"
            )
        return self

    def same_bits(self) -> "TestedAnswer":
        """Its fingerprint is the one that is kept beside the test."""
        self._check_fingerprint(self)
        return self

    # -- what a red test says ------------------------------------------------------------------

    def parted_from(self, tokens: Sequence[int], fingerprint: str) -> str:
        """A sentence on a text that had other bits when it was kept."""
        now = self.completion.token_ids
        at = next((n for n, (a, b) in enumerate(zip(tokens, now, strict=False)) if a != b), None)
        if at is None and len(tokens) == len(now):
            return (
                f"fingerprint {self.fingerprint}, and {fingerprint} was kept: the same tokens from "
                "other logits, so other weights or another arithmetic"
            )
        if at is None:
            return f"the text has {len(now)} tokens, and {len(tokens)} were kept; they agree so far"
        step = self.completion.steps[at]
        was = self._shown(tokens[at])
        return f"token {at} was {was}: {self._runner_up(step)} (text: {self.text!r})"

    def _red(self, what: str, wanted: str) -> NoReturn:
        near = self._nearest(wanted)
        self._fail(f"{what}; {near}" if near else what)

    def _fail(self, what: str, *, of: str = "the text ") -> NoReturn:
        raise AssertionError(f"{of}{what}\ntext: {self.text!r}")

    def _nearest(self, wanted: str) -> str:
        """Where the first token of ``wanted`` was nearest to being drawn."""
        firsts = set()
        for form in (wanted, f" {wanted.lstrip()}"):
            try:
                firsts.add(self.llm.score(self.prompt, [form])[0].token_ids[0])
            except InputError:
                continue
        found = [
            (_gap(step, one), step, one)
            for step in self.completion.steps
            for one in _seen(step)
            if one.id in firsts
        ]
        if not found:
            return (
                f"{wanted!r} never begins among the {self.options['candidates']} likeliest tokens"
            )
        gap, step, one = min(found, key=lambda each: each[0])
        drawn = next(each for each in _seen(step) if each.id == step.token_id)
        said = (
            f"nearest at token {step.index}: {self._shown(one.id)} (rank {one.rank}, logit "
            f"{one.logit:.2f}) lost to {self._shown(drawn.id)} ({drawn.logit:.2f}) by {gap:.2f}"
        )
        if one.removed_by is not None and step.observed:
            said += f", and {step.observed.stages[one.removed_by].stage.name} removed it"
        return f"{said}; ask(…, logit_bias={{{one.id}: {gap + 0.01:.2f}}}) would draw it there"

    def _runner_up(self, step: "Step") -> str:
        other = min(_others(step), key=lambda one: _gap(step, one), default=None)
        drawn = self._shown(step.token_id)
        if other is None:
            return f"{drawn}, without another candidate"
        return f"{drawn} came before {self._shown(other.id)} by {_gap(step, other):.2f}"

    def _closest(self) -> "tuple[Step, float]":
        """The step nearest to another token, and how near."""
        gaps = [
            (min((_gap(step, one) for one in _others(step)), default=float("inf")), step.index)
            for step in self.completion.steps
        ]
        if not gaps:
            self._fail("is empty, and no token has a margin")
        margin, index = min(gaps)
        return self.completion.steps[index], margin

    def _at(self, offset: int) -> "Step":
        """The step whose text has this character."""
        for step in self.completion.steps:
            offset -= len(step.text)
            if offset < 0:
                return step
        return self.completion.steps[-1]

    def _shown(self, token_id: int) -> str:
        tokenizer = self.llm.tokenizer
        data = tokenizer.token_bytes(token_id)
        return repr(data.decode("utf-8", "replace")) if data else tokenizer.token_name(token_id)


def _entropy(step: "Step") -> float:
    return step.observed.entropy if step.observed else 0.0


def _seen(step: "Step") -> "Sequence[Candidate]":
    """Those that are on record."""
    return step.observed.candidates if step.observed else ()


def _others(step: "Step") -> "list[Candidate]":
    """Those that could have been drawn."""
    return [one for one in _seen(step) if one.id != step.token_id and one.removed_by is None]


def _gap(step: "Step", other: "Candidate") -> float:
    """By how much the drawn token was ahead: of logits, and where luck draws of logit + luck, in
    units of the logit before the temperature."""
    assert step.observed is not None
    own = next(one for one in _seen(step) if one.id == step.token_id)
    rules = [stage.stage.rule for stage in step.observed.stages]
    t = next((rule["temperature"] for rule in rules if "temperature" in rule), 1.0) or 1.0
    keys = [one.logit + one.delta + (one.luck or 0.0) * t for one in (own, other)]
    return keys[0] - keys[1]
