"""Assertions on an answer for tests of prompts, and the messages of failing tests.

So that the prompt can be improved, a failure names the token at which the text came nearest to the
wanted one, the token that won, by how much, and the stage that removed the wanted token. This
module does not need pytest.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import TYPE_CHECKING, Any, NoReturn

from cutaway.base.counting import count_from_1
from cutaway.errors import InputError

if TYPE_CHECKING:
    from cutaway.api.llm import LLM
    from cutaway.engine import Step
    from cutaway.features.integrations.served import ServedAnswer, ServedModel
    from cutaway.requests.completion import Completion
    from cutaway.sampling import Candidate


__tracebackhide__ = True  # pytest then shows the test, and not this module


class TestedAnswer:
    """An answer and assertions on it. Each assertion returns the answer, so that another can
    follow."""

    def __init__(
        self, llm: "LLM | ServedModel", prompt: Any, completion: "Completion | ServedAnswer",
        options: Mapping[str, Any],
        fingerprint: "Callable[[TestedAnswer], None]",
    ) -> None:  # fmt: skip
        self.llm, self.prompt, self.completion, self.options = llm, prompt, completion, options
        self._check_fingerprint = fingerprint

    @property
    def text(self) -> str:
        """The text of the answer."""
        return self.completion.text

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the logits of all its steps: 16 hex digits."""
        return self.completion.fingerprint

    @property
    def entropy(self) -> float:
        """The mean entropy of the model before each token, in nats."""
        steps = self.completion.steps
        return sum(map(_entropy, steps)) / max(1, len(steps))

    # -- assertions ----------------------------------------------------------------------------

    def contains(self, wanted: str) -> "TestedAnswer":
        """Assert that the text contains ``wanted``."""
        if wanted not in self.text:
            self._red(f"has no {wanted!r}", wanted)
        return self

    def lacks(self, unwanted: str) -> "TestedAnswer":
        """Assert that the text does not contain ``unwanted``."""
        if unwanted in self.text:
            step = self._step_at(self.text.index(unwanted))
            self._fail(
                f"has {unwanted!r}, from token {count_from_1(step.index)}: {self._runner_up(step)}"
            )
        return self

    def equals(self, wanted: str) -> "TestedAnswer":
        """Assert that the text equals ``wanted``, except for white space around it."""
        if self.text.strip() != wanted.strip():
            self._red(f"is not {wanted!r}", wanted)
        return self

    def matches(self, pattern: str) -> "TestedAnswer":
        """Assert that the regular expression matches somewhere in the text."""
        if not re.search(pattern, self.text):
            step, _ = self._closest()
            self._fail(
                f"has nothing that matches {pattern!r}; its least certain token is "
                f"{count_from_1(step.index)}: {self._runner_up(step)}"
            )
        return self

    def has_json(self, schema: Mapping[str, Any]) -> "TestedAnswer":
        """Assert that the text is JSON that the engine's grammar of this schema accepts."""
        try:
            json.loads(self.text)
        except ValueError as error:
            self._fail(f"is no JSON: {error}")
        verdict = self.llm.accepts(self.text, json_schema=schema)
        if not verdict:
            at = "its end" if verdict.at is None else f"character {verdict.at}"
            self._fail(f"does not match the schema at {at}")
        return self

    def calls(self, name: str, **arguments: Any) -> "TestedAnswer":
        """Assert that one of the tool calls has this name and at least these arguments."""
        calls = [(call.name, call.values()) for call in self.completion.tool_calls]
        if not any(c == name and arguments.items() <= values.items() for c, values in calls):
            self._fail(f"does not call {name}({arguments}); its calls: {calls or 'none'}")
        return self

    def probable(self, answer: str, at_least: float) -> "TestedAnswer":
        """Assert that P(answer | prompt) is at least ``at_least``, whatever the text is."""
        [score] = self.llm.score(self.prompt, [answer])
        if (p := exp(score.total)) < at_least:
            worst = min(range(len(score.logprobs)), key=score.logprobs.__getitem__)
            token, share = self._show(score.token_ids[worst]), exp(score.logprobs[worst])
            self._fail(
                f"P({answer!r}) is {p:.3g}, below {at_least}: its least likely token is {token}, "
                f"with {share:.3g}", of="",
            )  # fmt: skip
        return self

    def margin(self, at_least: float) -> "TestedAnswer":
        """Assert that at each step the drawn token leads every rival by this many logits."""
        step, margin = self._closest()
        if margin < at_least:
            at = f"token {count_from_1(step.index)}: {self._runner_up(step)}"
            self._fail(f"has a margin of {margin:.3f}, below {at_least}, at {at}")
        return self

    def certain(self, at_most: float) -> "TestedAnswer":
        """Assert that the mean entropy before each token is at most ``at_most`` nats."""
        if self.entropy > at_most:
            step = max(self.completion.steps, key=_entropy)
            self._fail(
                f"has a mean entropy of {self.entropy:.2f} nats, above {at_most}; most at token "
                f"{count_from_1(step.index)}, {_entropy(step):.2f}: {self._runner_up(step)}"
            )
        return self

    def same_bits(self) -> "TestedAnswer":
        """Assert that the fingerprint equals the one in the file beside the test."""
        self._check_fingerprint(self)
        return self

    # -- messages of a failing test ----------------------------------------------------------------

    def parted_from(self, tokens: Sequence[int], fingerprint: str) -> str:
        """Say where the text first differs from the recorded text.

        tokens, fingerprint: those of the recorded text
        """
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
        was = self._show(tokens[at])
        return f"token {count_from_1(at)} was {was}: {self._runner_up(step)} (text: {self.text!r})"

    def _red(self, complaint: str, phrase: str) -> NoReturn:
        near = self._nearest(phrase)
        self._fail(f"{complaint}; {near}" if near else complaint)

    def _fail(self, complaint: str, *, of: str = "the text ") -> NoReturn:
        raise AssertionError(f"{of}{complaint}\ntext: {self.text!r}")

    def _nearest(self, phrase: str) -> str:
        """Say where the first token of a phrase came nearest to being drawn."""
        firsts = set()
        for form in (phrase, f" {phrase.lstrip()}"):
            try:
                firsts.add(self.llm.score(self.prompt, [form])[0].token_ids[0])
            except InputError:
                continue
        near_misses = [
            (_gap(step, candidate), step, candidate)
            for step in self.completion.steps
            for candidate in _seen(step)
            if candidate.id in firsts
        ]
        if not near_misses:
            return (
                f"{phrase!r} never begins among the {self.options['candidates']} likeliest tokens"
            )
        gap, step, loser = min(near_misses, key=lambda near_miss: near_miss[0])
        winner = _winner(step)
        sentence = (
            f"nearest at token {count_from_1(step.index)}: {self._show(loser.id)} "
            f"(rank {loser.rank}, logit {loser.logit:.2f}) lost to "
            f"{self._show(winner.id)} ({winner.logit:.2f}) by {gap:.2f}"
        )
        if loser.removed_by is not None and step.observed:
            sentence += f", and {step.observed.stages[loser.removed_by].stage.name} removed it"
        return (
            f"{sentence}; ask(…, logit_bias={{{loser.id}: {gap + 0.01:.2f}}}) would draw it there"
        )

    def _runner_up(self, step: "Step") -> str:
        other = min(_rivals(step), key=lambda rival: _gap(step, rival), default=None)
        token = self._show(step.token_id)
        if other is None:
            return f"{token}, without another candidate"
        return f"{token} came before {self._show(other.id)} by {_gap(step, other):.2f}"

    def _closest(self) -> "tuple[Step, float]":
        """Find the step that was nearest to drawing another token, and that token's gap."""
        gaps = [
            (min((_gap(step, rival) for rival in _rivals(step)), default=float("inf")), step.index)
            for step in self.completion.steps
        ]
        if not gaps:
            self._fail("is empty, and no token has a margin")
        margin, index = min(gaps)
        return self.completion.steps[index], margin

    def _step_at(self, offset: int) -> "Step":
        """Find the step whose text has the character at this offset."""
        for step in self.completion.steps:
            offset -= len(step.text)
            if offset < 0:
                return step
        return self.completion.steps[-1]

    def _show(self, token_id: int) -> str:
        tokenizer = self.llm.tokenizer
        data = tokenizer.token_bytes(token_id)
        return repr(data.decode("utf-8", "replace")) if data else tokenizer.token_name(token_id)


def _entropy(step: "Step") -> float:
    return step.observed.entropy if step.observed else 0.0


def _seen(step: "Step") -> "Sequence[Candidate]":
    """The candidates that the step recorded."""
    return step.observed.candidates if step.observed else ()


def _rivals(step: "Step") -> "list[Candidate]":
    """The candidates that could have been drawn instead."""
    return [
        candidate
        for candidate in _seen(step)
        if candidate.id != step.token_id and candidate.removed_by is None
    ]


def _winner(step: "Step") -> "Candidate":
    """The candidate that was drawn."""
    return next(candidate for candidate in _seen(step) if candidate.id == step.token_id)


def _gap(step: "Step", other: "Candidate") -> float:
    """Return how far the drawn token was ahead, in units of the logit before the temperature.

    Logits are compared; where luck draws, logits plus luck are compared.
    """
    assert step.observed is not None
    rules = [stage.stage.rule for stage in step.observed.stages]
    t = next((rule["temperature"] for rule in rules if "temperature" in rule), 1.0) or 1.0
    ahead, behind = (
        candidate.logit + candidate.delta + (candidate.luck or 0.0) * t
        for candidate in (_winner(step), other)
    )
    return ahead - behind
