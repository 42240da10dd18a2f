"""Traces of canvases that the mock engine writes."""

from dataclasses import replace

from cutaway.engine import Denoise, Ended, Pass, StopParams
from cutaway.engine.canvas import RULES as CANVAS_RULES
from cutaway.engine.canvas import ForcedCell, Rule
from cutaway.engine.events import chain_as_data
from cutaway.sampling import Observe, SamplingParams
from cutaway.trace import Head, Token
from cutaway.trace.record import DecoderRecord
from cutaway.trace.write import TraceLines, end_of
from support.engine_mock import MockRequest, make_engine, run_to_end
from support.mock_backend import END, VOCAB, noise, token_bytes

MASK = 0
RULES = [
    Rule(),
    Rule(steps=4),
    Rule(order="entropy", entropy_bound=4.0, noise="fresh"),
    Rule(threshold=0.02, block=5),
    Rule(steps=4, remask="lowest", draws_first=True),
    Rule(order="random", steps=9, schedule="linear", remask="sigma", remask_rate=0.5),
    Rule(threshold=0.02, remask="edit", edit_threshold=0.01, noise="fresh"),
    replace(CANVAS_RULES["diffusion-gemma"], entropy_bound=9.0, max_passes=5),
    Rule(forced_cells=(ForcedCell(1, 2, 77), ForcedCell(2, 2, 78))),
]


def token_of(token_id):
    """Return a token of the mock model."""
    return Token(token_id, b"" if token_id == MASK else token_bytes(token_id))


def events_of(
    rule,
    *,
    cells=8,
    prompt=(5, 6, 7, 8),
    suffix=(),
    attention="bidirectional",
    model=noise,
    seed=11,
):
    """Return (head, passes and steps in their order, end) of a canvas."""
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=seed)
    observe = Observe(top=4, track=(END,), stages=True)
    decoder = Denoise(rule, MASK, suffix)
    stops = StopParams(max_tokens=cells)
    request = MockRequest(prompt, params, stops, observe=observe, decoder=decoder)
    engine = make_engine(model, attention=attention, tells_places=True)
    [sequence] = engine.add(request.to_request(), 1)
    events = run_to_end(engine)
    head = Head(
        cutaway="0", model="mock", weights="0" * 64, tokenizer="0" * 64, backend="mock",
        tier="mock", threads=1, vocab_size=VOCAB, prompt=None, prompt_token_ids=prompt,
        chain=tuple(map(dict, chain_as_data(decoder.stages(params, constrained=True)))),
        params={"max_tokens": cells}, seed=seed, candidates=4, tracked_ids=(END,), end_ids=(END,),
        kv_bytes_per_token=4, decoder=DecoderRecord(rule, attention, False, MASK, suffix),
    )  # fmt: skip
    [end] = [event for event in events if isinstance(event, Ended)]
    assert not end.error and sequence.finish_reason
    return head, [e for e in events if isinstance(e, Pass) or hasattr(e, "sampled_id")], end_of(end)


def file_of(head, events, end=None):
    """Return the bytes of the trace file."""
    lines = TraceLines(token_of)
    parts = lines.head(head)
    for event in events:
        parts += lines.add(event)
    return b"".join([*parts, *(lines.end(end) if end else ())])
