"""Continuing a run that was cut on servers: where one is lost, the next continues from the file."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

from cutaway.engine import Step
from cutaway.errors import CutawayError, InputError, ReplayError
from cutaway.rerun.answer_part import AnswerPart, UnreadableError
from cutaway.rerun.asking import RefusedError, Server, UnansweredError
from cutaway.rerun.request import check_from_left, settings_of
from cutaway.rerun.resume import RestOfTrace, check_cut
from cutaway.trace import End, Head, Token, Trace
from cutaway.trace.renames import VERSION, to_current
from cutaway.trace.steps import step_from_json

_SAME = (
    "weights", "tokenizer", "backend", "chain", "prompt_token_ids", "candidates", "tracked_ids",
)  # fmt: skip
"""Fields of the head that must be equal to the recorded ones, beside the settings."""


def resume_at(urls: Sequence[str], trace: Trace, key: str = "") -> Iterator[Step]:
    """Every step of the text, once; new steps are appended to the file.

    urls: of servers; each is used when those before it are lost
    key: their API key
    """
    check_cut(trace)
    check_from_left("--url", trace)
    assert trace.path is not None
    seen, lost = 0, ""
    for url in urls:
        try:
            for step in _written_at(url, trace, key):
                if step.index == seen:
                    seen += 1
                    yield step
            return
        except UnansweredError as error:
            lost = str(error)
        trace = Trace.read(trace.path)
    raise CutawayError(f"no server finished the text ({lost}); {trace.path} has what arrived")


def _written_at(url: str, trace: Trace, key: str) -> Iterator[Step]:
    """The steps of one server; ``UnansweredError`` where it is lost."""
    tokens, head = {**trace.tokens}, trace.head
    version = VERSION
    with ExitStack() as stack:
        rest: RestOfTrace | None = None
        for part in _records(url, _request(trace), key):
            version = part.fields.get("version", version)
            record = to_current(part.value, version)
            match record.get("kind"):
                case "head":
                    _check_same(url, head, _read(part, Head.from_json, record))
                    continue
                case "tok":
                    token = _read(part, Token.from_json, record)
                    tokens[token.id] = token
                    continue
                case "step" | "end":
                    pass
                case _:
                    raise part.unlike("a record of a trace")
            if rest is None:  # the tokens of the head are known
                rest = RestOfTrace(trace, head, partial(_known, url, tokens))
                stack.callback(rest.close)
            if record["kind"] == "step":
                step = _read(part, step_from_json, record, head)
                rest.add(step)
                yield step
            elif (end := _read(part, End.from_json, record)).reason != "aborted":
                if not rest.closed:
                    rest.end(end)
                if end.error:
                    raise CutawayError(f"{url}: {end.error}")
                return
        raise UnansweredError(f"{url}: its answer was cut")


def _known(url: str, tokens: Mapping[int, Token], token_id: int) -> Token:
    if token_id not in tokens:
        raise UnreadableError(f"{url}: a step names token {token_id}, of which it told no record")
    return tokens[token_id]


def _request(trace: Trace) -> dict[str, Any]:
    """The request for the whole text."""
    head = trace.head
    body = settings_of(head)
    own = [body.pop(name, None) for name in ("thought", "thinking_budget", "calls")]
    if any(own) or not isinstance(body.get("heal", False), bool):
        raise InputError(
            "--url: thoughts, calls beside a schema and healed prompts cannot be sent to a server"
        )
    body["interventions"] = [change.to_json() for change in head.interventions] or None
    body["logit_bias"] = {str(i): bias for i, bias in body.get("logit_bias", {}).items()}
    if body.get("json_schema") is not None:
        body["json_schema"] = json.loads(body["json_schema"])
    body |= {"forced": [*body["forced"]], "replay": [*trace.output_token_ids]}
    body |= {"prompt": [*head.prompt_token_ids], "candidates": head.candidates}
    body |= {"track": [*head.params.get("track", ())], "trace": True, "stream": True}
    return {name: value for name, value in body.items() if value is not None}


def _read(part: AnswerPart, read: Callable[..., Any], *record: Any) -> Any:
    """A record of a trace; ``UnreadableError`` where it is none."""
    try:
        return read(*record)
    except ValueError as error:
        raise UnreadableError(f"{part.where}: {error}") from None


def _records(url: str, body: dict[str, Any], key: str) -> Iterator[AnswerPart]:
    """The lines of a server's trace, as they arrive."""
    try:
        for event in Server(url, key, patient=True).events("/v1/completions", body):
            if event.has("error"):
                _refuse(url, event["error"].fields)
            for choice in event["choices"]:
                if cutaway := choice.get("cutaway"):
                    yield from cutaway.each("trace")
    except RefusedError as error:
        if error.status in (429, 503):  # another may have room
            raise UnansweredError(str(error)) from None
        if not error.error:
            raise
        _refuse(url, error.error)


def _refuse(url: str, error: Mapping[str, Any]) -> NoReturn:
    message = f"{url}: {error.get('message')}"
    if error.get("code") == "replay_differs":
        raise ReplayError(message)
    if error.get("type") == "server_error":  # it shuts down, or has failed: another may succeed
        raise UnansweredError(message)
    raise InputError(message)


def _check_same(url: str, recorded: Head, now: Head) -> None:
    others = [name for name in _SAME if getattr(recorded, name) != getattr(now, name)]
    was, has = settings_of(recorded), settings_of(now)
    others += [name for name in was if json.dumps(was[name]) != json.dumps(has.get(name))]
    if others:
        raise InputError(
            f"{url} has other {' and '.join(dict.fromkeys(others))} than recorded: name a server "
            "of the same model"
        )
