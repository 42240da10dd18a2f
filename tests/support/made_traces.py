"""Traces that hypothesis makes up without a run: their figures are arbitrary, but valid."""

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from cutaway.engine import Phases, Step
from cutaway.sampling import Candidate, Observation, Stage, StageReport
from cutaway.text.grammar import KINDS, Grammar
from cutaway.trace import End, Head, Parent, Token, Trace, TraceWriter
from cutaway.trace.record import REASONS, GrammarRecord, SizesRecord
from cutaway.trace.steps import SOURCES

VOCAB = 60

IDS = st.integers(0, VOCAB - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)
WORDS = st.integers(0, 2**64 - 1)
NATURALS = st.one_of(st.integers(0, 99), WORDS)
SEVERAL = st.lists(IDS, max_size=4).map(tuple)
RULES = st.sampled_from(
    [
        {"stage": "temperature", "temperature": 0.7},
        {"stage": "top_k", "k": 40},
        {"stage": "logit_bias", "bias": {5: -1.5, 17: 100.0}},
    ]
)
GRAMMARS = st.builds(
    lambda g, engine: GrammarRecord(g.kind, g.text, g.sha256, engine, g.compact),
    st.builds(Grammar, st.sampled_from(KINDS), TEXTS, st.booleans()),
    TEXTS,
)
HEADS = st.builds(
    Head, cutaway=TEXTS, model=TEXTS, weights=HASHES, tokenizer=HASHES, backend=TEXTS, tier=TEXTS,
    threads=NATURALS, vocab_size=st.just(VOCAB), prompt=st.none() | TEXTS,
    prompt_token_ids=SEVERAL, chain=st.lists(RULES, max_size=3).map(tuple),
    params=st.fixed_dictionaries({"logit_bias": st.dictionaries(IDS, NUMBERS, max_size=2)}),
    seed=WORDS, candidates=NATURALS, tracked_ids=SEVERAL, end_ids=SEVERAL,
    kv_bytes_per_token=NATURALS,
    parent=st.none() | st.builds(Parent, trace=HASHES, step=NATURALS, token_id=IDS),
    grammar=st.none() | GRAMMARS, sizes=st.none() | st.builds(SizesRecord, *[NATURALS] * 7),
)  # fmt: skip
ENDS = st.builds(
    End, reason=st.sampled_from(REASONS), matched=st.none() | TEXTS | NATURALS,
    usage=st.just({"prompt_tokens": 5, "cached_tokens": 0, "completion_tokens": 3}),
    fingerprint=WORDS.map("{:016x}".format), text=TEXTS, error=st.none() | TEXTS,
    speculation=st.just({"proposed": 3, "accepted": 1}),
)  # fmt: skip


@st.composite
def draw_observation(draw, head, token_id):
    """Draw a valid step's observation under this head."""
    ids = dict.fromkeys([*draw(SEVERAL), token_id, *head.tracked_ids])
    stages = len(head.chain)
    rows = [
        Candidate(
            i, draw(SINGLES), draw(SINGLES),
            draw(st.none() | st.integers(0, stages - 1)) if stages else None,
            draw(st.none() | NUMBERS), draw(st.none() | NUMBERS), draw(NATURALS),
        )
        for i in ids
    ]  # fmt: skip
    reports = [
        StageReport(
            Stage("any", {}), draw(NATURALS), draw(NUMBERS), draw(SEVERAL), draw(NUMBERS),
            draw(st.none() | SINGLES),
        )
        for _ in range(stages)
    ]  # fmt: skip
    return Observation(
        draw(SINGLES), draw(NUMBERS), draw(NUMBERS), draw(NATURALS), draw(NUMBERS),
        draw(st.none() | NATURALS), draw(st.none() | NUMBERS), draw(NUMBERS), tuple(rows),
        tuple(reports), tuple(draw(st.lists(NATURALS, max_size=5))), (),
    )  # fmt: skip


@st.composite
def runs(draw, steps=4):
    """Draw a head, steps that the engine could emit, and an end or None."""
    head, events = draw(HEADS), []
    for index in range(draw(st.integers(0, steps))):
        token_id = draw(IDS)
        events.append(
            Step(
                0, index, len(head.prompt_token_ids) + index, token_id, draw(IDS),
                draw(st.sampled_from(SOURCES)), draw(TEXTS), 1, draw(NUMBERS), 3,
                draw(draw_observation(head, token_id)), Phases(0.25, 0.0, 0.5, 0.125), draw(WORDS),
                draw(WORDS), draw(st.none() | IDS),
            )
        )  # fmt: skip
    return head, events, draw(st.none() | ENDS)


def tell(token_id: int) -> Token:
    """Return the token of an id: a part of a character, a name, or a word."""
    if token_id % 3 == 0:
        return Token(token_id, bytes([0x80 + token_id]))
    return Token(token_id, b"", f"<{token_id}>") if token_id % 3 == 1 else Token(token_id, b" w")


def write(path: Path, run) -> None:
    """Write the trace file of a run."""
    head, steps, end = run
    with TraceWriter(path, head, tell) as writer:
        for step in steps:
            writer.add(step)
        if end:
            writer.end(end)


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a trace that is not gzipped."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def read_embedded(page):
    """Return the trace that a page contains, as a browser reads it."""
    (inside,) = re.findall(r'id="trace-1" data-name="[^"]*">(.*?)</script>', page, re.DOTALL)
    return Trace.parse(inside.encode())
