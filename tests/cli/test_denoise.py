"""``cutaway denoise``, and ``cutaway trace`` on canvases: on standard output and on a terminal."""

import io
import json
import os
import re
import signal
import subprocess
from argparse import Namespace
from functools import partial

import pytest

from cutaway import LLM
from cutaway.base.progress import inert
from cutaway.cli.denoise import CanvasView
from cutaway.engine.canvas import SETTING_WORDS, SETTINGS, ForcedCell, Rule
from cutaway.trace import Trace
from support import held_steps
from support.canvas_traces import events_of, file_of
from support.made_traces import read_embedded

SEED = ("--seed", "1", "--max-tokens", "12", "--temperature", "1")
OPTIONS = {"seed": 1, "max_tokens": 12, "temperature": 1.0}


@pytest.fixture(scope="module")
def llm(tiny_diffusion_path):
    return LLM(tiny_diffusion_path, progress=False)


@pytest.fixture
def denoise(tiny_diffusion_path, cutaway):
    return partial(cutaway, "denoise", "-m", tiny_diffusion_path, "ab")


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        ([], {}),
        (["--rule", "llada", "--steps", "5"], {"rule": "llada", "steps": 5}),
        (["--rule", "edit", "--edit-threshold", "0.1"], {"rule": "edit", "edit_threshold": 0.1}),
        (
            ["--block", "4", "--order", "random", "--noise", "fresh", "--draws-first"],
            {"block": 4, "order": "random", "noise": "fresh", "draws_first": True},
        ),
        (["--forced-cells", "3:8:9", "--forced-cells", "1:2:8"],
         {"forced_cells": [(2, 7, 9), (0, 1, 8)]}),
    ],
)  # fmt: skip
def test_the_flags_are_the_settings_of_a_rule(denoise, llm, flags, rule):
    code, out, error = denoise(*SEED, *flags, "--json")
    expected = llm.denoise("ab", **OPTIONS, **rule)
    document = json.loads(out)
    assert code == 0
    for name in ("text", "fingerprint", "passes"):
        assert document[name] == expected.to_dict()[name]
    assert document["params"]["denoise"] == json.loads(json.dumps(expected.params["denoise"]))
    rows = sum(made.rows for made in expected.passes)
    assert f"{len(expected.passes)} passes, {rows} rows" in error


def test_every_setting_has_words():
    assert tuple(SETTING_WORDS) == SETTINGS


def test_only_the_text_is_on_stdout(denoise, llm):
    expected = llm.denoise("ab", **OPTIONS, block=4).text
    assert denoise(*SEED, "--block", "4", "-q")[:2] == (0, expected)


def test_a_suffix_follows_the_canvas(denoise, llm):
    expected = llm.generate("ab", **OPTIONS, suffix="ba", denoise=True).text
    assert denoise(*SEED, "--suffix", "ba", "-q")[:2] == (0, expected)


def test_samples_come_under_rules_and_in_a_list(denoise, llm):
    samples = llm.denoise("ab", **OPTIONS, n=3, steps=4)
    out = denoise(*SEED, "--n", "3", "--steps", "4")[1]
    for place, sample in enumerate(samples, 1):
        assert f"--- {place} of 3 · seed {sample.seed} ---\n{sample.text}\n" in out
    documents = json.loads(denoise(*SEED, "--n", "3", "--steps", "4", "--json")[1])
    assert [one["fingerprint"] for one in documents] == [one.fingerprint for one in samples]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--rule", "foo"], "rule must be one of confidence, margin"),
        (["--threshold", "2"], "threshold must be between 0 and 1"),
        (["--threshold", "0.5", "--steps", "3"], "both say how many cells a pass reveals"),
        (["--steps", "many"], "--steps must be a whole number"),
        (["--remask", "sigma"], "say how many passes there are"),
        (["--forced-cells", "1:2"], "write PASS:CELL:ID"),
        (["--max-tokens", "0"], "--max-tokens: 0 writes nothing"),
        (["--max-tokens", "600"], "maximum context length is 512"),
        (["--logprobs", "2"], "add --json"),
        (["--candidates", "3"], "add --trace FILE"),
        (["--entropy", "3"], "did you mean '--entropy-bound'"),
        (["--grammar", "x"], "unknown option '--grammar'"),
    ],
)
def test_what_cannot_be_is_one_sentence(refused, tiny_diffusion_path, args, sentence):
    assert sentence in refused("denoise", "-m", tiny_diffusion_path, "ab", *args, "-q")


def test_a_model_that_writes_reveals_one_cell_at_a_time_from_the_left(tiny_path, printed, refused):
    flags = [*SEED, "-q", "-m", tiny_path, "ab"]
    assert "writes from left to right, with generate" in refused("denoise", *flags)
    revealed = printed("denoise", "--order", "left", "--block", "1", *flags)
    assert printed("generate", *flags) == revealed


def test_without_a_model_it_is_the_toy(printed):
    expected = LLM("toy-canvas").denoise("Mr. ", **OPTIONS).text
    assert printed("denoise", "Mr. ", *SEED, "-q") == expected


def test_generate_names_what_reveals(refused, tiny_diffusion_path):
    assert "use cutaway denoise or cutaway fill" in refused(
        "generate", "-m", tiny_diffusion_path, "ab"
    )


def test_chat_reveals_by_a_rule_and_names_it_where_none_is_given(
    tiny_diffusion_path, llm, printed, refused
):
    model = ["chat", "-q", "-m", tiny_diffusion_path, *SEED]
    assert "use cutaway chat --denoise RULE" in refused(*model)
    asked = [{"role": "user", "content": "ab"}]
    expected = llm.chat(asked, **OPTIONS, denoise="margin")
    out = printed(*model, "--denoise", "margin", stdin=b"ab\n")
    assert out.removesuffix("\n") == expected.text


# -- on a terminal -----------------------------------------------------------------------------


@pytest.fixture
def on_terminal(terminal, tiny_diffusion_path):
    def run(*args, **env):
        command = ["denoise", "-m", tiny_diffusion_path, "ab", *args]
        code, written = terminal(*command, rows=24, columns=40, **env).end()
        assert code == 0
        return written

    return run


def test_on_a_terminal_the_canvas_fills_in_place(on_terminal, llm):
    """Drawn over itself in each pass, and gone where the text is."""
    flags = (*SEED[:2], *SEED[4:], "--max-tokens", "60", "--steps", "3", "-q")
    written = on_terminal(*flags)
    expected = llm.denoise("ab", seed=1, max_tokens=60, temperature=1, steps=3)
    masked = [int(n) for n in re.findall(r"(\d+) of 60 cells masked", written)]
    assert masked == [40, 20, 0]
    drawn, _, text = written.rpartition("\x1b[J")
    seen = inert(expected.text, Namespace(isatty=lambda: True))
    assert text.replace("\r\n", "\n") == seen + "\n"
    assert drawn.count("\x1b[J") == 2
    assert "\x1b[2m░" in drawn


def test_no_color_means_no_colour(on_terminal):
    written = on_terminal(*SEED, "-q", NO_COLOR="1")
    assert "░" in written
    assert "\x1b[2m░" not in written and "\x1b[1m" not in written


class Terminal(io.StringIO):
    """One that says that it is."""

    encoding = "utf-8"

    def isatty(self):
        return True


def test_lines_never_wrap_and_wide_characters_fit(llm, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    view = CanvasView(screen, lambda _: "語".encode(), 3, 200)
    for event in llm.stream("ab", **OPTIONS | {"max_tokens": 200}, denoise={"steps": 2}).events():
        if type(event).__name__ == "Pass":
            view.take_pass(event, draw=True)
    drawn = re.sub(r"\x1b\[\d*m", "", screen.getvalue())
    lines = re.split(r"\r\n|\r(?:\x1b\[\d+A)?\x1b\[J", drawn)
    assert max(sum(2 if c == "語" else 1 for c in line) for line in lines) in (78, 79)
    assert view.revealed_count == 200 and view.unfinished_text() == "語" * 200


def test_ctrl_c_keeps_the_blocks_that_are_finished(tiny_diffusion_path, llm):
    flags = ["--max-tokens", "400", "--block", "2", "--seed", "1", "--ignore-eos"]
    args = ["denoise", "-m", tiny_diffusion_path, "ab", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with held_steps.run(20, *args, **pipes) as process:
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
    assert process.returncode == 130
    whole = llm.denoise("ab", seed=1, max_tokens=400, block=2, ignore_eos=True).text
    kept = (first + out).decode("utf-8", "replace")
    assert 0 < len(kept) < len(whole)
    assert "aborted" in error.decode()


def test_an_unfinished_block_is_shown_beside_the_text(denoise, monkeypatch):
    seen = CanvasView.take_pass

    def interrupt(view, made, *, draw):
        seen(view, made, draw=draw)
        if made.index == 4:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(CanvasView, "take_pass", interrupt)
    code, out, error = denoise(*SEED)
    assert (code, out) == (130, "")
    told = re.search(r"stopped with (\d+) cells of an unfinished block: (.*)\n", error)
    assert told and int(told[1]) == 12 - told[2].count("░") > 0


# -- ``cutaway trace`` on canvases: what the verbs print that need the file alone ------------------


FORCED = Rule(steps=6, forced_cells=(ForcedCell(2, 3, 77),))


@pytest.fixture
def file(tmp_path):
    """A function that writes a canvas of 12 cells; its path."""

    def write(rule=Rule(steps=6), name="canvas.jsonl"):  # noqa: B008
        path = tmp_path / name
        path.write_bytes(file_of(*events_of(rule, cells=12)))
        return path

    return write


def test_why_tells_the_life_of_a_cell(printed, file):
    said = printed("trace", "why", file(FORCED), 4)
    assert "Cell 4, at position 7; the rule: order confidence, steps 6, forced_cells 1" in said
    assert "Pass 3: 'M' was given" in said
    found = json.loads(printed("trace", "why", file(FORCED, "b"), 4, "--json"))
    assert found[-1]["index"] == 2
    assert found[-1]["event"] == "forced"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(steps=6), "Next in line was cell"),
        (Rule(steps=6), "missed by"),
        (Rule(steps=1), "No masked cell was left."),
        (Rule(steps=3, remask="lowest"), "made way for the mask (remask lowest)"),
        (Rule(threshold=0.02, remask="edit", edit_threshold=0.01, noise="fresh"), "took the place"),
    ],
)
def test_why_names_what_happened(printed, file, rule, words):
    path = file(rule)
    assert any(words in printed("trace", "why", path, cell) for cell in range(1, 13))


def test_why_needs_a_cell_that_there_is(refused, file):
    assert "CELL must be 1 to 12, not 13" in refused("trace", "why", file(), "13")
    assert "cells count from 1, and there is no 0" in refused("trace", "why", file(), "0")


def test_diff_names_the_pass_and_the_cell(printed, file):
    a, b = file(), file(FORCED, "fork.jsonl")
    said = printed("trace", "diff", a, b)
    assert "The first 2 passes are equal." in said
    assert "In pass 3 cell" in said and "B has 'M' there" in said
    assert "All 6 passes are equal." in printed("trace", "diff", a, a)


def test_export_has_a_row_for_each_cell_of_each_pass(printed, file):
    path = file()
    said = printed("trace", "export", path, "--format", "passes")
    assert said.count("\n") >= sum(len(made.cells) for made in Trace.read(path).passes)


def test_static_play_begins_with_the_figures(printed, file):
    said = printed("trace", "play", file(), "--static").splitlines()
    assert "6 passes of 96 rows, 2.00 tokens each, order" in said[0]
    assert "bound " in said[0]


def test_a_page_holds_the_canvas_as_it_is_on_record(printed, file, tmp_path):
    path, page = file(), tmp_path / "x.html"
    assert printed("trace", "export", path, "--html", page) == ""
    held, trace = read_embedded(page.read_text()), Trace.read(path)
    assert (held.passes, held.steps, held.end) == (trace.passes, trace.steps, trace.end)
