"""The definition of a sequence's text: the loop without engine, batch, blocks and automata."""

from cutaway.engine import FinishReason, StopParams
from cutaway.sampling import History, build_chain
from cutaway.sampling.chain import choose, run_stages
from cutaway.sampling.definitions import Context
from cutaway.sampling.observe import START, chain_hash, row_hash
from support.engine_mock import MockRequest, Written
from support.mock_backend import END, Model, token_bytes


def first_stop(data: bytes, stops: tuple[str, ...]) -> tuple[bytes, str | None]:
    """Return (text before the first completed stop, that stop); the longest wins a tie."""
    for end in range(1, len(data) + 1):
        completed = [stop for stop in stops if data[:end].endswith(stop.encode())]
        if completed:
            longest = max(completed, key=lambda stop: len(stop.encode()))
            return data[: end - len(longest.encode())], longest
    return data, None


def write_by_definition(request: MockRequest, model: Model, *, context: int) -> Written:
    """Return the finished text of a request, by definition."""
    tokens, fingerprints, data = list(request.prompt), [START], b""
    stops = tuple(request.stops.stop)
    while True:
        token = _draw_by_definition(request, model, tokens, fingerprints)
        tokens.append(token)
        output = tokens[len(request.prompt) :]
        ends = _ends(request.stops, token)
        data += b"" if ends else token_bytes(token)
        before, stop = first_stop(data, stops)
        reason, matched = _reason(request.stops, token, stop, len(output), len(tokens) == context)
        if reason is not None:
            text = before.decode("utf-8", "replace")
            return Written(tuple(output), text, tuple(fingerprints[1:]), reason, matched)


def _draw_by_definition(request: MockRequest, model: Model, tokens, fingerprints) -> int:
    logits, start = model(tuple(tokens)), len(request.prompt)
    fingerprints.append(chain_hash(fingerprints[-1], row_hash(logits)))
    if len(tokens) - start < len(request.run.forced):
        return request.run.forced[len(tokens) - start]
    params, context = request.params, Context(History(tokens[:start], tokens[start:]))
    survivors = run_stages(build_chain(params), logits, context)[-1]
    return choose(survivors, params, params.seed or 0, len(tokens))


def _ends(stops: StopParams, token: int) -> bool:
    return token in stops.stop_token_ids or (token == END and not stops.ignore_eos)


def _reason(stops: StopParams, token: int, stop: str | None, count: int, full: bool):
    if stop is not None:
        return FinishReason.STOP_STRING, stop
    if token in stops.stop_token_ids:
        return FinishReason.STOP_TOKEN, token
    if _ends(stops, token):
        return FinishReason.END_TOKEN, token
    if count == stops.max_tokens:
        return FinishReason.MAX_TOKENS, None
    return (FinishReason.CONTEXT_FULL if full else None), None
