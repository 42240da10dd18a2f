"""The interactive players: what keys do, what fits on a screen, and the terminal afterwards."""

import io
import os
import re
import signal
import sys
from argparse import ArgumentParser
from dataclasses import replace
from functools import partial
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, CutawayError
from cutaway.cli.terminal.drawing import Style, fit, width
from cutaway.features.inside.look import inside
from cutaway.features.players import screen
from cutaway.features.players.play import _Looking, add_arguments
from cutaway.features.players.screen import Screen, keys_of
from cutaway.features.players.step_player import StepPlayer
from cutaway.trace import Trace, step_view
from support.trace_by_hand import END, made_bytes, made_step, made_text, made_trace

ALIVE = (1.8, 2.0, 1.5, 1.0, 0.0, -1.0)
CERTAIN = (-1.0, 9.0, 0.0, 0.0, 0.0, 0.0)
NAMES = {1: " 猫猫", 2: b"\xe4\xbd", 3: "\x1b[2J\n", 4: "e\u0301" * 9, 5: ""}

keys = st.lists(
    st.sampled_from(["left", "right", "shift-left", "shift-right", "home", "end", "up", "down",
                     "e", "E", "r", "R", "x", "X", "?", "escape", "page-down", "i", "z"]),
)  # fmt: skip


def mixed():
    """Steps: certain, rank 2, certain, where the end token survived, rank 5."""
    plan = ((1, CERTAIN), (2, None), (1, CERTAIN), (1, ALIVE), (5, None))
    steps = [made_step(i, t, row) if row else made_step(i, t) for i, (t, row) in enumerate(plan)]
    return made_trace(steps)


@pytest.mark.parametrize(
    ("pressed", "at"),
    [("right", 1), ("right right left", 1), ("end", 4), ("end right", 4), ("left", 0),
     ("end home", 0), ("shift-right", 4), ("page-down shift-left", 0), ("e", 1), ("e e", 3),
     ("r", 1), ("r r", 4), ("x", 3), ("end X", 3), ("end R", 1), ("end E", 3), ("z", 0)],
)  # fmt: skip
def test_keys_move(pressed, at):
    player = StepPlayer(mixed())
    for key in pressed.split():
        player.press(key)
    assert (player.at, player.message) == (at, "")


def test_a_search_that_finds_nothing_says_so_and_stays():
    player = StepPlayer(mixed(), 4)
    player.press("x")
    message = "no step where the end token could have been drawn after this one"
    assert (player.at, player.message) == (4, message)
    player.press("left")
    assert player.message == ""


@given(keys, st.integers(1, 150), st.integers(1, 50), st.booleans(), st.booleans())
def test_every_frame_fits(pressed, columns, rows, unicode, empty):
    trace = made_trace([], None) if empty else made_text(1, 2, 3, 4, 5, 1, END, 1, names=NAMES)
    player, style = StepPlayer(trace), Style(ansi=False, colour=False, unicode=unicode)
    for key in ["", *pressed]:
        player.press(key)
        lines = player.frame(columns, rows, style)
        assert len(lines) == rows
        for line in lines:
            assert width(line) <= columns
            assert line.isprintable()
            assert unicode or line.isascii()
        assert 0 <= player.at <= max(player.last, 0)
    player.press("q")
    assert player.done


def test_the_inside_of_a_step_is_looked_for_once():
    asked = []

    def look(step):
        asked.append(step)
        if step == 3:
            raise CutawayError("this step is not of that model")
        return [f"line {i} of {step}" for i in range(30)]

    player, style = StepPlayer(mixed(), look=look), Style(ansi=False, colour=False, unicode=True)
    for key, step in (("i", 0), ("right", 1), ("left", 0)):
        player.press(key)
        if player.waits:
            assert player.frame(80, 24, style)[2].startswith(" the model computes this step")
            player.find()
        assert player.frame(80, 24, style)[2] == f" line 0 of {step}"
    assert asked == [0, 1]
    player.press("down")
    assert player.frame(80, 24, style)[2] == " line 1 of 0"
    for _ in range(40):
        player.press("down")
    assert player.frame(80, 24, style)[22] == " line 29 of 0"
    player.press("i")
    assert not player.inside and any("rank" in line for line in player.frame(80, 24, style))
    for key in ("end", "left", "i"):
        player.press(key)
    player.find()
    assert (player.inside, player.message) == (False, "this step is not of that model")


def test_the_inside_shows_heads_beside_the_lens(tiny_path, tmp_path):
    path = tmp_path / "run.jsonl"
    LLM(tiny_path, threads=1).generate("ab", trace=path, max_tokens=4, ignore_eos=True, seed=1)
    args = build_args(path, tiny_path)
    trace = Trace.read(path)
    for unicode in (True, False):
        style = Style(ansi=False, colour=False, unicode=unicode)
        lines = _Looking(args, trace, style)(2)
        assert lines[-1] == f"recomputed bit for bit: row hash {trace.steps[2].logits_hash:016x}"
        heads = [line for line in lines if line.startswith("    ")]
        assert len(heads) == len(inside(LLM(tiny_path, threads=1), trace, 2).lens(1).rank) - 1
        assert set("".join(heads)) & set("▁▂▃▄▅▆▇█" if unicode else "_.-:=+*#")
    other = replace(trace, head=replace(trace.head, vocab_size=7))
    with pytest.raises(CutawayError, match="vocabulary"):
        _Looking(args, other, style)(2)


def build_args(path, model):
    parser = ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([str(path), "-m", str(model)])


def test_the_chosen_candidate_is_in_sight():
    player = StepPlayer(made_text(5))
    lines = player.frame(90, 14, Style(ansi=False, colour=False, unicode=True))
    assert any(line.startswith(" ●  ␣idea") for line in lines)


@pytest.mark.parametrize("unicode", [True, False])
def test_eighty_columns_hold_the_keys_and_the_names_of_the_columns(unicode):
    style = Style(ansi=False, colour=False, unicode=unicode)
    *_, last = lines = StepPlayer(made_text(1, 2)).frame(80, 24, style)
    assert last.endswith("x end")
    assert "\\u" not in last
    assert any(line.endswith("removed by") for line in lines)


@pytest.mark.parametrize("unicode", [True, False])
def test_forty_columns_hold_the_whole_help_and_whole_names_of_keys(unicode):
    style = Style(ansi=False, colour=False, unicode=unicode)
    player = StepPlayer(made_text(1, 2))
    wide = player.frame(200, 40, style)[-1].split(" · " if unicode else " | ")
    narrow = player.frame(40, 24, style)[-1].split(" · " if unicode else " | ")
    assert len(narrow) > 2 and narrow == wide[: len(narrow)]
    player.press("?")
    shown = [" ".join(player.frame(columns, 60, style)[:-1]).split() for columns in (200, 40)]
    assert shown[0] == shown[1]


def test_a_score_is_shown_where_the_chain_left_the_token():
    player = StepPlayer(made_text(1))
    style = Style(ansi=False, colour=False, unicode=True)
    lines = player.frame(90, 24, style)
    (head,) = (line for line in lines if line.endswith("removed by"))
    end = head.index("score") + len("score")
    view = step_view(player.trace, player.trace.steps[0])
    shown = {line[4:].split()[0]: line[end - 6 : end].strip() for line in lines if " → " in line}
    for one in view.candidates:
        kept = one.luck is not None and one.final_probability
        score = f"{log(one.final_probability) + one.luck:.2f}" if kept else ""
        assert shown[one.token.replace(" ", "␣")] == score
    assert any(shown.values())


@pytest.mark.parametrize("columns", [60, 100])
def test_the_prompt_stands_before_the_text(columns):
    trace = made_text(1, 2)
    prompt = "".join(map(trace.name_of, trace.head.prompt_token_ids))
    style = Style(ansi=False, colour=False, unicode=True)
    assert StepPlayer(trace).frame(columns, 24, style)[2] == f" {style.text(prompt)}"
    long = replace(trace.head, prompt_token_ids=trace.head.prompt_token_ids * 99)
    line = StepPlayer(replace(trace, head=long)).frame(columns, 24, style)[2]
    assert line.startswith(" …") and width(line) == columns - 1


def test_a_help_longer_than_the_screen_scrolls():
    player, style = StepPlayer(made_text(1, 2)), Style(ansi=False, colour=False, unicode=True)
    player.press("?")
    whole = player.frame(80, 80, style)[:-1]
    for place in range(3):
        assert player.frame(80, 12, style)[:-1] == whole[place : place + 11]
        player.press("down")
    for _ in range(60):
        player.press("down")
    assert player.frame(80, 12, style)[10].startswith(" kv ")


def test_no_escapes_where_there_is_no_colour():
    colourless = Style(ansi=True, colour=False, unicode=True)
    text = "\n".join(StepPlayer(made_text(1, 2)).frame(80, 24, colourless))
    assert set(re.findall(r"\x1b\[([\d;]*)m", text)) <= {"", "1", "2", "7"}
    colourful = Style(ansi=True, colour=True, unicode=True)
    assert "\x1b[38;5;" in "\n".join(StepPlayer(made_text(1, 2)).frame(80, 24, colourful))


def test_nothing_is_erased_behind_a_line_that_fills_the_screen(capsys):
    """The cursor stays on the last cell there, and erasing would take that cell."""
    Screen(0).draw(["abc", "def"])
    assert capsys.readouterr().out == "\x1b[H\x1b[Kabc\r\n\x1b[Jdef"


@pytest.mark.parametrize(
    ("typed", "names"),
    [("\x1b[D\x1b[C", ["left", "right"]), ("\x1bOA", ["up"]), ("\x1b[1;2C", ["shift-right"]),
     ("\x1b[H\x1b[4~", ["home", "end"]), ("q", ["q"]), ("\x1b", ["escape"]), ("\x1b[99~e", ["e"]),
     ("é\x1b[5~", ["é", "page-up"])],
)  # fmt: skip
def test_keys_have_names(typed, names):
    assert keys_of(typed) == names


@given(st.text(), st.integers(0, 20))
def test_fitted_text_has_its_width(text, cells):
    shown = Style(ansi=False, colour=False, unicode=True).text(text)
    assert width(fit(shown, cells)) == cells


# -- a terminal ----------------------------------------------------------------------------------


@pytest.fixture
def session(terminal, tmp_path):
    """Begin ``trace play`` of thirty steps."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(made_bytes([made_step(i, i % 5 + 1) for i in range(30)]))
    return partial(terminal, "trace", "play", path)


def ended(session):
    """The exit code; the other screen was left."""
    code, seen = session.end()
    assert "\x1b[?1049l" in seen
    return code


def test_a_session(session):
    session = session()
    session.wait_for(" step 1/30")
    session.type("\x1b[C")
    session.wait_for(" step 2/30")
    session.type("\x1b[F")
    session.wait_for(" step 30/30")
    session.type("?")
    session.wait_for("show or leave this help")
    session.type("q")
    assert ended(session) == 0


def test_a_new_size_is_drawn_at_once(session):
    session = session()
    session.wait_for(" step 1/30")
    session.wait_for("\x1b[J")
    session.resize(12, 50)
    session.process.send_signal(signal.SIGWINCH)
    session.wait_for("\x1b[H")
    assert session.wait_for("\x1b[J").count("\n") == 11
    session.type("q")
    assert ended(session) == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_terminal_is_restored_whatever_ends_it(session, number, code):
    session = session()
    session.wait_for("\x1b[J")
    session.process.send_signal(number)
    assert ended(session) == code


def test_ctrl_c_on_the_keyboard(session):
    session = session()
    session.wait_for("\x1b[J")
    session.type("\x03")
    assert ended(session) == 130


def test_ctrl_z_gives_the_terminal_back_and_takes_it_again(session):
    session = session()
    session.wait_for("\x1b[J")
    session.type("\x1a")  # a session's leader cannot be stopped: it continues at once
    session.wait_for("\x1b[?1049l")
    session.wait_for("\x1b[?1049h")
    session.wait_for(" step 1/30")
    session.type("q")
    assert ended(session) == 0


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_no_colour_is_minded(session, no_color, coloured):
    session = session(NO_COLOR=no_color)
    assert ("\x1b[38;" in session.wait_for("\x1b[J")) == coloured
    session.type("q")
    assert session.end()[0] == 0


def test_a_dumb_terminal_gets_lines(session):
    code, seen = session(TERM="dumb").end()
    assert code == 0
    assert "\x1b" not in seen and "ended: max_tokens" in seen


# -- the other screen: what a handler writes while the program itself is writing -------------------


def test_a_signal_may_come_while_the_screen_is_drawn(monkeypatch):
    """Ctrl-Z leaves the other screen at once; Python's buffer refuses who comes in between."""
    reader, writer = os.pipe()

    class Terminal(io.RawIOBase):
        def writable(self):
            return True

        def fileno(self):
            return writer

        def write(self, data):
            screen._leave(lambda: None)  # the handler
            return len(data)

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Terminal())))
    screen.Screen(0).draw(["a line"])
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        assert said.read().endswith(b"\x1b[?1049l")
