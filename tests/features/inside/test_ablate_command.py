"""``cutaway trace ablate``: what it prints, keeps and refuses."""

import json
import re
import signal
from itertools import count

import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.cli.terminal.drawing import Style, width
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.ablate_command import lines
from cutaway.trace import Trace

STEP = 6
PLAIN = Style(ansi=False, colour=False, unicode=True)
ASCII = Style(ansi=False, colour=False, unicode=False)
BRIGHT = Style(ansi=True, colour=True, unicode=True, truecolour=True)


@pytest.fixture(scope="module")
def run(small_path, tmp_path_factory):
    """The arguments up to the step."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    prompt = "ab a é\x1b 猫. So\nit was"
    LLM(small_path).generate(prompt, seed=3, max_tokens=12, trace=path, ignore_eos=True)
    return ["trace", "ablate", str(path), "-m", small_path, "-q", "--step", str(STEP)]


@pytest.fixture(scope="module")
def done(small_path, run):
    return ablate(LLM(small_path), Trace.read(run[2]), STEP)


def test_a_line_for_each_part_the_largest_effect_first(run, done, said):
    out = said(*run)
    assert out.startswith(f"step {STEP}: ")
    total = len(done.token_ids)
    assert out.splitlines()[1] == f"{total} of {total} tokens, each deleted"
    assert out.splitlines()[-1] == f"recomputed bit for bit: row hash {done.row_hash:016x}"
    assert "an effect, not a cause" in out
    assert "\x1b" not in out
    ordered = sorted(done.parts, key=lambda part: -abs(part.effect))
    rows = re.findall(r"^ +(\d+)  .*% +(\S+) +(\S+) +(\S+)", out, re.MULTILINE)
    assert rows == [
        (str(part.start), f"{part.attribution:+.3f}", f"{part.effect:+.3f}", f"{part.margin:+.3f}")
        for part in ordered[:24]
    ]
    assert f"the other {total - 24}: log p lost from" in out


def test_by_word_with_another_token(run, small_path, said):
    out = said(*run, "--by", "word", "--how", "other", "--other", "7", "--rival", "9")
    expected = ablate(
        LLM(small_path), Trace.read(run[2]), STEP, by="word", how="other", other=7, rival=9
    )
    assert f"{len(expected.parts)} words, each replaced by another token" in out
    assert "  instead  " in out


def test_json(run, done, said):
    data = json.loads(said(*run, "--json"))
    assert (data["row"], data["as_run"]) == (f"{done.row_hash:016x}", True)
    assert [part["effect"] for part in data["parts"]] == [part.effect for part in done.parts]
    assert (data["how"], data["by"], data["total"]) == ("delete", "token", done.total)
    assert all(len(part["tokens"]) == len(part["token_ids"]) for part in data["parts"])


def named(ids):
    return "".join(f"<{i}>" if i % 3 else "é猫\x1b"[i % 2 :] for i in ids)


@pytest.mark.parametrize("cells", [1, 7, 40, 300])
@pytest.mark.parametrize("style", [PLAIN, ASCII, BRIGHT])
def test_the_text_is_shown_whole_and_no_wider_than_the_screen(done, style, cells):
    shown = lines(done, named, style, cells)
    table = next(i for i, line in enumerate(shown) if line.startswith("position"))
    strip = shown[shown.index("") + 1 : table - 1]
    strip = strip if style.colour else strip[::2]
    bare = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in strip]
    assert all(width(line) <= max(cells, 2) for line in bare)
    assert "".join(bare) == style.text(named(done.token_ids))
    assert ("\x1b[" in "".join(strip)) == style.colour


def test_heights_are_below_the_parts_with_an_effect(done):
    best = max(done.parts, key=lambda part: part.effect)
    shown = lines(done, lambda ids: "x" * len(ids), PLAIN, 300)
    assert shown[3] == "x" * len(done.token_ids)
    heights = shown[4].ljust(len(shown[3]))
    assert heights[best.start] == max(heights)
    worthless = [part.start for part in done.parts if part.effect <= 0]
    assert {heights[at] for at in worthless} <= {" "}


def test_ctrl_c_keeps_what_is_done(run, monkeypatch, capsys):
    rows = LLM.last_rows

    def interrupted(*args, **how):
        for n, row in zip(count(), rows(*args, **how), strict=False):
            yield row
            if n == 2:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LLM, "last_rows", interrupted)
    assert main([*run]) == 130
    out = capsys.readouterr().out
    tried, total = re.findall(r"(\d+) of (\d+) tokens", out)[0]
    assert 3 <= int(tried) < int(total)
    assert out.count("%") == int(tried) + 2


def test_nothing_in_time(run, said):
    assert "Nothing was done in time." in said(*run, "--budget", "1e-9")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--by", "letter"], "by must be one of token, word, line, sentence"),
        (["--how", "hide"], "how must be one of delete, knock_out, other"),
        (["--budget", "0"], "budget_s must be a number of seconds above 0"),
        (["--other", "7"], "how must be other, too"),
        (["--rival", "9999"], "rival must be between 0 and 263"),
        (["--step", "12"], "step must be between 0 and 11"),
    ],
)
def test_what_is_refused(run, capsys, more, why):
    assert main([*run, *more]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
