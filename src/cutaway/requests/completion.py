"""Completion: the finished text of one sequence, with its record."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, NamedTuple

from cutaway.engine import Pass, Speculation, Step, Usage
from cutaway.errors import InputError
from cutaway.sampling import Logprobs, ReadRow


class Timing(NamedTuple):
    """Seconds and rates; a rate is None if nothing was measured."""

    load_s: float
    ttft_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None


class Aligned(NamedTuple):
    """How one of n samples was chosen by its importance weight.

    chosen     the index of the chosen sample
    neg_log_z  the ``neg_log_z`` of each sample
    weights    exp(-neg_log_z) of each sample, divided by the sum over all samples
    """

    chosen: int
    neg_log_z: tuple[float, ...]
    weights: tuple[float, ...]


class Between(NamedTuple):
    """How a text between a prompt and a suffix was found.

    method      "tokens": with the model's FIM tokens; "canvas": revealed between both; "bayes":
                chosen by Bayes' rule; only then are the next four set
    drawn       how many continuations of the prompt were written
    candidates  how many of their prefixes were weighed
    share       the chosen prefix's share of the total weight
    logprob     the natural log-probability of the suffix after prompt and text
    """

    method: str
    drawn: int | None = None
    candidates: int | None = None
    share: float | None = None
    logprob: float | None = None


class ToolCall(NamedTuple):
    """A call that an answer makes. arguments: JSON, or the text for a custom tool."""

    id: str
    name: str
    arguments: str

    def values(self) -> dict[str, Any]:
        """The arguments by name; InputError where the answer was cut within them."""
        try:
            values = json.loads(self.arguments)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise InputError(f"the call of {self.name} has no whole arguments: raise max_tokens")
        return values


_ANSWER = ("text", "finish_reason", "matched", "usage", "token_ids")
_SETTINGS = ("seed", "params", "params_source", "chain")


@dataclass(frozen=True)
class Completion:
    """The result of one prompt. ``token_ids`` includes the token that ended the text.

    matched        the stop string, or the id of the end or stop token, that ended the text
    params         every setting in force; ``params_source`` has the origin of each
    chain          the stages applied, in order, with their rules
    fingerprint    16 hex digits: equal fingerprints mean equal logits, bit for bit
    prompt_logprobs  of each prompt token after the first, where the request wants them
    speculation    draft tokens proposed and accepted, each of which saved a step, and their cost
    notes          what may be wrong with the prompt: a BOS token given twice, or not at all; and
                   which keywords of a schema were checked token by token
    error          why the text ended, if ``finish_reason`` is "error"
    logprobs       of each token, where the request wants them
    steps          the Steps, one per token
    neg_log_z      minus the log of the probability mass that a constraint left, summed over the
                   drawn tokens: known with n > 1 under a grammar, a trace, ``ledger`` or
                   ``align``; else None
    aligned        how ``align`` chose this text among n, if it did
    between        how the text before a suffix was found, if a suffix was given
    passes         of a canvas: its passes
    new_messages   of a chat: what to append to its messages; the last of them is the answer
    reasoning_tokens  of a chat: tokens of the thought before the answer
    """

    model: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    matched: str | int | None
    usage: Usage
    params: Mapping[str, Any]
    params_source: Mapping[str, str]
    chain: Sequence[Mapping[str, Any]]
    seed: int
    timing: Timing
    fingerprint: str
    prompt_logprobs: tuple[ReadRow, ...]
    speculation: Speculation
    notes: tuple[str, ...]
    error: str | None
    logprobs: tuple[Logprobs, ...]
    steps: tuple[Step, ...]
    neg_log_z: float | None = None
    aligned: Aligned | None = None
    between: Between | None = None
    passes: tuple[Pass, ...] = ()
    new_messages: tuple[Mapping[str, Any], ...] = ()
    reasoning_tokens: int = 0

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls in the answer of a chat."""
        calls = self.new_messages[-1].get("tool_calls", ()) if self.new_messages else ()
        inner = ((call["id"], call[call["type"]]) for call in calls)
        return tuple(
            ToolCall(call_id, body["name"], body.get("arguments", body.get("input", "")))
            for call_id, body in inner
        )

    def __repr__(self) -> str:
        """Return the most important fields; all of them would fill pages."""
        call_names = ("tool_calls",) if self.tool_calls else ()
        names = ("text", *call_names, "finish_reason", "usage")
        return f"Completion({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def _repr_html_(self) -> str:
        """Return the tokens as HTML, shaded by surprise, without scripts, for a notebook."""
        from cutaway.trace.figures import bits  # imported late: it takes 20 ms of a cold start
        from cutaway.trace.html import Chip, show_surprise

        chips = [
            Chip(s.text, bits(s.logprob), f"token {s.token_id}: {bits(s.logprob):.2f} bits")
            for s in self.steps
        ]
        if held_back := self.text[sum(len(step.text) for step in self.steps) :]:
            chips.append(Chip(held_back, None, "held back until the text was aborted"))
        return show_surprise(chips)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``--json`` prints: the answer first, the settings last.

        It has every field but ``steps``.
        """
        middle = (f.name for f in fields(self) if f.name not in (*_ANSWER, *_SETTINGS, "steps"))
        document = {name: getattr(self, name) for name in (*_ANSWER, *middle, *_SETTINGS)}
        document["passes"] = [_pass_to_json(canvas_pass) for canvas_pass in self.passes]
        for name in ("usage", "timing"):
            document[name] = document[name]._asdict()
        document["speculation"] = self.speculation.to_json()
        for name in ("aligned", "between"):
            document[name] = document[name] and document[name]._asdict()
        document["logprobs"] = [logprobs._asdict() for logprobs in self.logprobs]
        document["prompt_logprobs"] = [read._asdict() for read in self.prompt_logprobs]
        return document


def _pass_to_json(canvas_pass: Pass) -> dict[str, Any]:
    """Return a pass as JSON, without the cells that it left unchanged."""
    return {
        "block": list(canvas_pass.block),
        "rows": canvas_pass.rows,
        "revealed": [[cell.position, cell.now] for cell in canvas_pass.revealed],
        "edited": [
            [cell.position, cell.was, cell.now]
            for cell in canvas_pass.cells
            if None not in (cell.was, cell.now) and cell.was != cell.now
        ],
        "masked_again": list(canvas_pass.masked_again),
        "bound": canvas_pass.bound,
    }


class Stopwatch:
    """The times at which a request, its first token and its latest token came."""

    def __init__(self, start: float | None = None) -> None:
        self.start = perf_counter() if start is None else start
        self.first: float | None = None
        self.last = self.start

    def token(self, at: float | None = None) -> None:
        """Note a token. at: its time on the clock of ``perf_counter``; None: now."""
        self.last = perf_counter() if at is None else at
        self.first = self.first or self.last

    def timing(self, load_s: float, prompt_tokens: int, tokens: int, delayed: int = 0) -> Timing:
        """Return times and rates; the first token counts as prefill, the others as decoding.

        delayed: tokens that were drawn before the first one was delivered
        """
        if self.first is None:
            return Timing(load_s, None, None, None)
        ttft, decode, num_decoded = (
            self.first - self.start,
            self.last - self.first,
            tokens - 1 - delayed,
        )
        # Where forced tokens all come with the first token, no decoding was measured.
        rate = num_decoded / decode if decode and num_decoded > 0 else None
        return Timing(load_s, ttft, None if delayed else prompt_tokens / ttft, rate)


def held_text(steps: Sequence[Step], token_bytes: Callable[[int], bytes]) -> str:
    """Return the part of these tokens' text that no step has shown; an early end releases it."""
    whole = b"".join(token_bytes(step.token_id) for step in steps)
    return whole.decode("utf-8", "replace")[sum(len(step.text) for step in steps) :]
