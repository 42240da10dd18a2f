"""Every view of every valid trace: whatever its figures are, nothing fails and nothing leaks."""

import csv
import io
import json

from hypothesis import given
from hypothesis import strategies as st

from cutaway.cli.terminal.drawing import Style, width
from cutaway.features.players import step_player
from cutaway.features.players.step_player import StepPlayer
from cutaway.trace import Trace, diff_texts, step_view, to_csv, to_html, to_openai, why
from support.made_traces import embedded, runs, write


@given(runs(), st.booleans())
def test_every_view_of_anything(tmp_path_factory, run, unicode):
    path = tmp_path_factory.mktemp("any") / "run.jsonl"
    write(path, run)
    trace, style = Trace.read(path), Style(ansi=False, colour=False, unicode=unicode)
    # Figures at the end of float64 may add up to infinity; those of a run never do.
    json.dumps([step_view(trace, s).to_dict() for s in trace.steps])
    json.dumps([why(trace).to_dict(), diff_texts(trace, trace).to_dict()])
    json.dumps([to_openai(trace), to_openai(trace, "after")])
    assert len(list(csv.reader(io.StringIO(to_csv(trace))))) == 1 + len(trace.steps)
    assert embedded(to_html(trace)).steps == trace.steps
    shown = [step_player.summary(style, trace), step_player.ending(style, trace)]
    shown += [step_player.step_line(style, trace, step) for step in trace.steps]
    shown += StepPlayer(trace).frame(90, 40, style)
    for line in shown:
        assert line.isprintable()
        assert unicode or line.isascii()
    assert max(map(width, StepPlayer(trace).frame(90, 40, style))) <= 90
