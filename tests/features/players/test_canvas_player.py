"""The player of a canvas: a screen of any size shows the pass it is at."""

import json
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutaway.cli.terminal.drawing import Style, width
from cutaway.engine.canvas import Rule
from cutaway.features.players.canvas_player import CanvasPlayer, pass_line, undoes
from cutaway.trace import Trace
from support.canvas_traces import RULES, events_of, file_of

PLAIN = Style(ansi=False, colour=False, unicode=True)
ASCII = Style(ansi=False, colour=False, unicode=False)
TRACES = [Trace.parse(file_of(*events_of(rule, cells=10))) for rule in RULES]
KEYS = [
    "left", "right", "shift-left", "page-down", "home", "end", "up", "down", " ", "e", "E", "?",
    "escape", "x", "tick",
]  # fmt: skip


def press(player, *keys):
    for key in keys:
        if key == "tick":
            player.tick()
        else:
            player.press(key)
    return player


@settings(max_examples=80)
@given(
    st.sampled_from(TRACES), st.lists(st.sampled_from(KEYS), max_size=8), st.integers(1, 130),
    st.integers(2, 40), st.sampled_from([PLAIN, ASCII]),
)  # fmt: skip
def test_any_keys_and_any_screen(trace, keys, columns, rows, style):
    player = press(CanvasPlayer(trace), *keys)
    lines = player.frame(columns, rows, style)
    assert len(lines) == rows
    assert all(width(line) <= columns for line in lines)
    assert style.unicode or all(line.isascii() for line in lines)
    assert 0 <= player.at <= player.last
    if not player.helping and columns > 12:
        assert f"pass {player.at + 1}/" in lines[0]


def test_committed_guessed_and_masked_cells_differ_without_colour():
    trace = Trace.parse(file_of(*events_of(Rule(steps=5, block=5), cells=10)))
    made, player = trace.passes[0], CanvasPlayer(trace)
    text = " ".join(player.frame(100, 24, PLAIN)[2:4])
    assert text.count("‹") == 5 - len(made.revealed)
    assert text.count("░") == 5
    plain = " ".join(player.frame(100, 24, ASCII)[2:4])
    assert plain.count("_") >= 5


def test_space_plays_to_the_end_and_again():
    player = press(CanvasPlayer(TRACES[0]), " ")
    assert player.pause_s
    for _ in range(player.last):
        player.tick()
    assert (player.at, player.pause_s) == (player.last, None)
    assert press(player, " ").at == 0


@pytest.mark.parametrize("trace", TRACES)
def test_e_goes_where_something_is_undone(trace):
    player = press(CanvasPlayer(trace), "e")
    places = [n for n in range(1, player.last + 1) if undoes(trace.passes[n])]
    assert player.at == (places[0] if places else 0)
    assert bool(player.message) != bool(places)


def test_every_pass_has_a_line_with_all_cells():
    for trace in TRACES:
        player = CanvasPlayer(trace)
        for index, state in enumerate(player.states):
            line = pass_line(PLAIN, player, index)
            assert line.count("░") == 10 - len(state)


def test_lines_and_json_where_there_is_no_terminal(printed, refused, tmp_path):
    path = tmp_path / "t"
    path.write_bytes(file_of(*events_of(RULES[1], cells=10)))
    trace = Trace.read(path)
    play = partial(printed, "trace", "play", path)
    said = play().splitlines()
    assert [line.split()[0] for line in said[1:-1]] == [
        str(n + 1) for n in range(len(trace.passes))
    ]
    found = [json.loads(line) for line in play("--json").splitlines()]
    assert [one["cells"].count(None) for one in found][-1] == 0
    assert sum(len(one["revealed"]) for one in found) == 10
    assert json.loads(play("--json", "--pass", 2)) == found[1]
    assert "--pass must be 1 to" in refused("trace", "play", path, "--pass", 99)
    assert "kv" not in play("--step", 4).splitlines()[0]


def test_on_a_terminal_it_plays_by_itself(terminal, tmp_path):
    """Space, and nothing more is typed until the last pass is shown."""
    path = tmp_path / "t"
    path.write_bytes(file_of(*events_of(RULES[1], cells=10)))
    last = len(Trace.read(path).passes)
    session = terminal("trace", "play", path, NO_COLOR="1")
    session.wait_for("pass 1/")
    session.type(" ")
    shown = session.wait_for(f"pass {last}/{last}")
    session.type("q")
    code, rest = session.end()
    assert code == 0
    assert "\x1b[38" not in shown + rest
