"""Changed texts beside others: each writes what it would have written alone, whatever is shared."""

from hypothesis import given
from hypothesis import strategies as st

from cutaway.engine import RunParams, StopParams
from cutaway.engine.interventions import BoundInterventions, Intervention, PlacedIntervention, scale
from support.engine_mock import MockRequest, make_engine, written
from support.mock_backend import NOT_SEEN, VOCAB, narrow

BLOCK = 4
BEGIN = [*b"abbaabab" * 4]
TEXTS = st.tuples(st.integers(1, len(BEGIN)), st.sampled_from(["", "a", "b"])).map(
    lambda pair: (*BEGIN[: pair[0]], *pair[1].encode())
)
SPANS = st.sampled_from([((0, 99),), ((5, 5),), ((9, 99),), ((2, 3), (30, 31)), ()])
PLACED = st.builds(
    lambda factor, spans: PlacedIntervention(scale("L0", factor), "token", 0, 1, spans),
    st.sampled_from([1, 3, -2]), SPANS,
)  # fmt: skip
KNOCKED_OUT = st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 30)).map(
    lambda t: (t[0], t[0] + t[1], t[2])
)
BOUND = st.none() | st.builds(
    BoundInterventions,
    st.lists(PLACED, max_size=2).map(tuple),
    st.lists(KNOCKED_OUT, max_size=2).map(tuple),
)
REQUESTS = st.builds(
    MockRequest,
    TEXTS,
    stops=st.builds(StopParams, max_tokens=st.integers(1, 9)),
    run=st.builds(
        RunParams, kv_cache=st.booleans(),
        speculate=st.sampled_from(["off", "ngram", "jacobi", "draft"]), priority=st.integers(0, 1),
    ),
    interventions=BOUND,
)  # fmt: skip


def by_definition(request: MockRequest) -> list[int]:
    """Token by token: what each row stores, and what the last one sees of it."""
    given, tokens = request.interventions, [*request.prompt]
    placed, hidden = (given.placed, given.knocked_out) if given else ((), ())
    for _ in range(request.stops.max_tokens):
        stored = [float(token) for token in tokens]
        for one in placed:
            for first, last in one.spans:
                for p in range(first, min(last + 1, len(tokens))):
                    stored[p] *= one.intervention.number
        row = len(tokens) - 1
        for first, last, start in hidden:
            for p in range(first, min(last + 1, row)):
                if row >= start:
                    stored[p] = NOT_SEEN
        tokens.append(int(narrow(tuple(map(int, stored))).argmax()))
        if tokens[-1] == VOCAB - 1:
            break
    return tokens[len(request.prompt) :]


@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=5), rows=st.integers(5, 40),
    kv_blocks=st.integers(24, 60), cache=st.booleans(), window=st.sampled_from([0, 5]),
    before=st.integers(0, 3),
)  # fmt: skip
def test_each_text_is_its_own(requests, rows, kv_blocks, cache, window, before):
    engine = make_engine(
        narrow, block=BLOCK, kv_blocks=kv_blocks, rows=rows, prefix_cache=cache, window=window,
        max_num_seqs=5, draft=narrow,
    )  # fmt: skip
    sequences, events = [], []
    for request in requests:
        sequences.append(request.add_to(engine))
        for _ in range(before):
            events += engine.step()
    while not engine.is_idle:
        events += engine.step()
    for request, sequence in zip(requests, sequences, strict=True):
        assert [*written(sequence, events).token_ids] == by_definition(request)
    assert engine.blocks.free == engine.blocks.count


def bound(first: int, factor: float = 3) -> BoundInterventions:
    change = Intervention("scale", "L0", factor)
    return BoundInterventions((PlacedIntervention(change, "token", 0, 1, ((first, 99),)),), ())


def cached(engine, interventions) -> int:
    request = MockRequest(tuple(BEGIN), stops=StopParams(max_tokens=1), interventions=interventions)
    return request.finish(engine).sequence.num_cached_tokens


def test_what_lies_before_the_first_change_is_shared_and_nothing_behind():
    engine = make_engine(narrow, block=BLOCK)
    whole = (len(BEGIN) - 1) // BLOCK * BLOCK
    assert [cached(engine, None), cached(engine, None)] == [0, whole]
    assert [cached(engine, bound(0)), cached(engine, bound(0))] == [0, whole]
    assert [cached(engine, bound(10)), cached(engine, bound(10))] == [8, whole]
    assert cached(engine, bound(10, 2)) == cached(engine, bound(11)) == 8
    assert cached(engine, BoundInterventions((), ((6, 9, 0),))) == 4  # from row 7 on
    assert cached(engine, BoundInterventions((), ((6, 9, 20),))) == 20
    assert cached(engine, None) == whole


def test_rows_before_the_first_change_run_with_the_others():
    engine = make_engine(narrow, block=BLOCK, rows=16, prefix_cache=False)
    stops = StopParams(max_tokens=2, ignore_eos=True)
    MockRequest(tuple(BEGIN[:8]), stops=stops).add_to(engine)
    MockRequest(tuple(BEGIN[:22]), stops=stops, interventions=bound(20)).add_to(engine)
    while not engine.is_idle:
        engine.step()
    assert engine.backend.runs == [16, 1, 14, 1]
