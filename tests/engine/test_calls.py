"""How many functions a step calls for each of its rows: what Python costs with many streams."""

import sys
from pathlib import Path

import cutaway
from cutaway.engine import StopParams
from support.engine_mock import GREEDY, MockRequest, make_engine, steps_of

OWN = str(Path(cutaway.__file__).parent)
MOST_CALLS = 63
STOPS = StopParams(max_tokens=20, ignore_eos=True)


def calls_of_a_step(streams):
    engine = make_engine(kv_blocks=200)
    for i in range(streams):
        MockRequest((1, 2, i), GREEDY, STOPS).add_to(engine)
    for _ in range(3):
        engine.step()
    calls = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            calls.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        events = engine.step()
    finally:
        sys.setprofile(None)
    assert len(steps_of(events)) == streams
    return len(calls)


def test_a_row_costs_few_calls():
    assert (calls_of_a_step(32) - calls_of_a_step(8)) / 24 <= MOST_CALLS
