"""Continue a run that was cut short: the same request, with the recorded tokens as ``replay``.

A model in this process computes the rest, or servers do: if a server is lost, the next continues
from the file.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NoReturn

from cutaway.api.llm import LLM
from cutaway.base.counting import count_from_1
from cutaway.compute.backends import bits_of
from cutaway.engine import Pass, Step
from cutaway.errors import CutawayError, InputError, ReplayError
from cutaway.requests.sync_llm import Stream
from cutaway.rerun.asking import AnswerPart, RefusedError, Server, UnansweredError, UnreadableError
from cutaway.rerun.request import (
    check_from_left,
    check_vocabulary,
    disagreements,
    prompt_of,
    refuse_others,
    settings_of,
)
from cutaway.trace import End, Head, Token, Trace, TraceWriter
from cutaway.trace.check import VERSION, to_current
from cutaway.trace.steps import step_from_json
from cutaway.trace.write import TokenOf

# -- a model here ------------------------------------------------------------------------------


def check_cut(trace: Trace) -> None:
    """Raise InputError unless this is a cut run's trace, in a file that can be continued."""
    name = trace.path or "the trace"
    if trace.end:
        raise InputError(
            f"{name} has an end already ({trace.end.reason}): there is nothing to resume; "
            "'cutaway trace branch' writes another text from any of its steps"
        )
    if trace.path is None or trace.path.suffix == ".gz":
        raise InputError(
            f"{name}: a gzipped trace cannot be continued after a cut: unpack it first, with "
            "gzip -dc into another file"
        )


def resume(llm: LLM, trace: Trace, **changes: Any) -> Stream:
    """Stream the whole text: compute its recorded part like a prompt, and append the rest.

    The file is then as if the run had never been cut, except for times. Each recorded step and pass
    must have the same logits again: if one differs, the text ends with a ReplayError, and the
    file stays unchanged, except for an incomplete last line.

    changes: ``speculate`` and ``kv_cache``, if other than recorded. Raises InputError if the run
    has ended, or if the model, the backend or the grammar are not the recorded ones.
    """
    check_cut(trace)
    check_vocabulary(llm, trace)
    head = trace.head
    options = (
        settings_of(head)
        | _observation_options(head)
        | {"replay": trace.output_token_ids}
        | changes
    )
    stream = llm.stream(prompt_of(llm, head), **options)
    try:
        refuse_others(disagreements(head, llm, stream), head.model)
        stream.record(partial(RestOfTrace, trace))
    except BaseException:
        stream.close()
        raise
    return stream


def _observation_options(head: Head) -> dict[str, Any]:
    """Return the keywords with which each step has the same observations as the recorded step."""
    speculate = str(head.params.get("speculate", "off"))
    return {
        "candidates": head.candidates,
        "track": tuple(head.params.get("track", ())),
        "speculate": "off" if speculate.startswith("draft") else speculate,
    }


class RestOfTrace:
    """A sink that compares recorded steps and passes, and writes those that follow.

    A run that is cut again, or differs from the recorded one, leaves the file without an end.
    """

    def __init__(self, trace: Trace, _: Head, token_of: TokenOf) -> None:
        assert trace.path is not None
        self._trace, self._steps_seen = trace, 0
        self._file = TraceWriter(trace.path, trace.head, token_of, rest_of=trace)

    @property
    def closed(self) -> bool:
        """Whether nothing can follow."""
        return self._file.closed

    def add(self, event: Step | Pass) -> None:
        """Compare the next step or pass with the recorded one, or write it if there is none."""
        is_step = isinstance(event, Step)
        self._steps_seen += is_step
        recorded = (self._trace.steps if is_step else self._trace.passes)[event.index :]
        if not recorded:
            self._file.add(event)
        elif event.fingerprint != recorded[0].fingerprint:
            self._refuse(f"{'step' if is_step else 'pass'} {count_from_1(event.index)}")
        elif isinstance(event, Step) and event.token_id != self._trace.steps[event.index].token_id:
            self._file.close()  # the text ends with an error about it

    def end(self, end: End) -> None:
        """Write why the text ended, unless it was cut again or stopped within the recorded part."""
        if end.reason == "aborted" or self._steps_seen < len(self._trace.steps):
            self._file.close()
        else:
            self._file.end(end)

    def close(self) -> None:
        """Leave the file without an end."""
        self._file.close()

    def _refuse(self, place: str) -> None:
        self._file.close()
        raise ReplayError(
            f"{self._trace.path}: {place} differs from the recorded logits: other weights or "
            "another arithmetic wrote it; nothing was added"
        )


# -- servers -----------------------------------------------------------------------------------

_SAME = (
    "weights", "tokenizer", "backend", "chain", "prompt_token_ids", "candidates", "tracked_ids",
)  # fmt: skip
"""Fields of the head that must be equal to the recorded ones, besides the settings."""


def resume_at(urls: Sequence[str], trace: Trace, key: str = "") -> Iterator[Step]:
    """Yield every step of the text once, and append new steps to the file.

    urls: the servers; each is used when the servers before it are lost
    key: the servers' API key
    """
    check_cut(trace)
    check_from_left("--url", trace)
    assert trace.path is not None
    seen, reason = 0, ""
    for url in urls:
        try:
            for step in _written_at(url, trace, key):
                if step.index == seen:
                    seen += 1
                    yield step
            return
        except UnansweredError as error:
            reason = str(error)
        trace = Trace.read(trace.path)
    raise CutawayError(f"no server finished the text ({reason}); {trace.path} has what arrived")


def _written_at(url: str, trace: Trace, key: str) -> Iterator[Step]:
    """Yield the steps of one server; ``UnansweredError`` if it is lost."""
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
                rest = RestOfTrace(trace, head, partial(_find_token, url, tokens))
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


def _find_token(url: str, tokens: Mapping[int, Token], token_id: int) -> Token:
    if token_id not in tokens:
        raise UnreadableError(f"{url}: a step names token {token_id}, of which it told no record")
    return tokens[token_id]


def _request(trace: Trace) -> dict[str, Any]:
    """Return the request for the whole text."""
    head = trace.head
    body = settings_of(head)
    unsendable = [body.pop(name, None) for name in ("thought", "thinking_budget", "calls")]
    if any(unsendable) or not isinstance(body.get("heal", False), bool):
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
    """Read a record of a trace; ``UnreadableError`` if it is invalid."""
    try:
        return read(*record)
    except ValueError as error:
        raise UnreadableError(f"{part.place}: {error}") from None


def _records(url: str, body: dict[str, Any], key: str) -> Iterator[AnswerPart]:
    """Yield the lines of a server's trace as they arrive."""
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
    differing = [name for name in _SAME if getattr(recorded, name) != getattr(now, name)]
    if bits_of(recorded.backend) == bits_of(now.backend):
        differing = [name for name in differing if name != "backend"]
    was, has = settings_of(recorded), settings_of(now)
    differing += [name for name in was if json.dumps(was[name]) != json.dumps(has.get(name))]
    if differing:
        raise InputError(
            f"{url} has other {' and '.join(dict.fromkeys(differing))} than recorded: name a "
            "server of the same model"
        )
