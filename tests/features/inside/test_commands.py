"""``cutaway trace inside``: what it prints, writes and refuses."""

import json
import re
import signal
from html.parser import HTMLParser
from itertools import count

import numpy as np
import pytest

from cutaway import LLM
from cutaway.cli.main import main
from cutaway.cli.terminal.drawing import Style, width
from cutaway.features.inside.ablate import ablate
from cutaway.features.inside.ablate_command import lines
from cutaway.features.inside.look import inside
from cutaway.files.weights.safetensors import SafetensorsFile
from cutaway.trace import Trace
from cutaway.trace.figures import percent

STEP = 6


@pytest.fixture(scope="module")
def run(small_path, tmp_path_factory):
    """The arguments up to the step."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    LLM(small_path).generate("ab a\x1b", seed=3, max_tokens=12, trace=path, ignore_eos=True)
    return ["trace", "inside", str(path), "-m", small_path, "-q", "--step", str(STEP + 1)]


@pytest.fixture(scope="module")
def look(small_path, run):
    return inside(LLM(small_path), Trace.read(run[2]), STEP)


@pytest.mark.parametrize(
    "more", [[], ["--rival", "7"], ["--layer", "1"], ["--tensor", "logit_rows"], ["--nearest"]]
)
def test_the_last_line_is_the_proof(run, look, said, more):
    out = said(*run, *more)
    assert out.splitlines()[-1] == f"recomputed bit for bit: row hash {look.row_hash:016x}"
    assert "\x1b" not in out


def test_the_whole_step(run, look, said):
    out, found = said(*run), look.logit_attribution()
    assert out.startswith(f"step {STEP + 1}: ")
    assert (
        f"its logit is {abs(found.total):.3f} {'below' if found.total < 0 else 'above'} that of"
        in out
    )
    assert re.search(rf"^together +{re.escape(f'{found.total:+.3f}')}$", out, re.MULTILINE)
    for words in ("Attention is not effect", "Attribution is not the effect", "until they settle"):
        assert words in out
    weight = look.weights.mean(axis=(0, 1))
    assert f"{weight.argmax():8d}" in out
    assert len([line for line in out.splitlines() if line.startswith("before")]) == 1


def test_one_head(run, look, said):
    lines = said(*run, "--layer", "1", "--head", "2").splitlines()
    assert lines[0].startswith(f"L1.H2: attribution {look.logit_attribution().heads[1, 2]:+.3f}")
    first = lines[3].split()
    assert int(first[0]) == look.weights[1, 2].argmax()
    assert first[-2] == f"{look.writes[1, 2].flat[look.weights[1, 2].argmax()]:.4f}"


def test_json(run, look, said):
    data = json.loads(said(*run, "--rival", "9", "--json"))
    found = look.logit_attribution(9)
    assert data["logit_attribution"]["parts"] == dict(found.parts)
    assert (data["row"], data["as_run"]) == (f"{look.row_hash:016x}", True)
    assert [row["rank"] for row in data["lens"]] == look.lens().rank.tolist()
    assert sum(p["weight"] for p in data["positions"]) == pytest.approx(1)
    assert sum(h["attribution"] for h in data["heads"]) == pytest.approx(found.heads.sum())
    assert "tensor" not in data
    data = json.loads(said(*run, "--json", "--tensor", "blk.1.attend"))
    assert data["tensor"] == {"blk.1.attend": look.tensor("blk.1.attend").tolist()}


def test_a_file_of_all_arrays(run, look, tmp_path, said, capsys):
    out = tmp_path / "look.safetensors"
    said(*run, "--out", str(out), "--tensor", "blk.1.attend")
    file, found = SafetensorsFile(out), look.logit_attribution()
    for name, expected in (
        ("weights", look.weights), ("writes", look.writes),
        ("attribution.positions", found.positions), ("blk.1.attend", look.tensor("blk.1.attend")),
    ):  # fmt: skip
        got = file.raw(name)[:].view(np.float32).reshape(file.info(name).shape)
        np.testing.assert_array_equal(got, expected.astype(np.float32))
    raw = out.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    about = header["__metadata__"]
    assert about["row"] == f"{look.row_hash:016x}"
    assert about["parts"].split(",") == [*found.parts]
    assert header["lens.ids"] == {
        "dtype": "I32", "shape": [3, 5], "data_offsets": header["lens.ids"]["data_offsets"]
    }  # fmt: skip
    assert main([*run, "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_reference_says_that_it_is_not_what_ran(run, said):
    out = said(*run, "--backend", "reference")
    assert "not what ran" in out.splitlines()[1]
    assert out.splitlines()[-1].endswith("is not the recorded one: another arithmetic computed it")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--head", "1"], "--head: say of which layer"),
        (["--layer", "2"], "--layer must be between 0 and 1"),
        (["--layer", "0", "--head", "4"], "--head must be between 0 and 3"),
        (["--tensor", "nothing"], "there is no 'nothing'"),
        (["--rival", "9999"], "rival must be between 0 and 263"),
        (["--rival", "no token"], "is not one token"),
        (["--layer", "0", "--json"], "--layer: the document holds all layers"),
    ],
)
def test_what_is_refused(run, capsys, more, why):
    assert main([*run, *more]) == 2
    assert why in capsys.readouterr().err
    assert main([*run[:-1], "13"]) == 2
    assert "--step must be 1 to 12, not 13" in capsys.readouterr().err


def test_the_nearest_embeddings(run, look, said, capsys):
    lines = said(*run, "--nearest").splitlines()
    document = json.loads(said(*run, "--nearest", "--json"))["nearest"]
    assert [near["token_id"] for near in document] == look.nearest().ids.tolist()
    for line, near in zip(lines[3:], document, strict=False):
        assert f"{near['cosine']:+.3f}" in line
    assert main([*run, "--nearest", "--layer", "1"]) == 2
    assert "--nearest: goes with no --tensor" in capsys.readouterr().err


# -- ablate command --------------------------------------------------------------------------------

# ``cutaway trace ablate``: what it prints, keeps and refuses.


PLAIN = Style(ansi=False, colour=False, unicode=True)
ASCII = Style(ansi=False, colour=False, unicode=False)
BRIGHT = Style(ansi=True, colour=True, unicode=True, truecolour=True)


@pytest.fixture(scope="module")
def ablated_run(small_path, tmp_path_factory):
    """The arguments up to the step."""
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    prompt = "ab a é\x1b 猫. So\nit was"
    LLM(small_path).generate(prompt, seed=3, max_tokens=12, trace=path, ignore_eos=True)
    return ["trace", "ablate", str(path), "-m", small_path, "-q", "--step", str(STEP + 1)]


@pytest.fixture(scope="module")
def done(small_path, ablated_run):
    return ablate(LLM(small_path), Trace.read(ablated_run[2]), STEP)


def test_a_line_for_each_part_the_largest_effect_first(ablated_run, done, said):
    out = said(*ablated_run)
    assert out.startswith(f"step {STEP + 1}: ")
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


def test_by_word_with_another_token(ablated_run, small_path, said):
    out = said(*ablated_run, "--by", "word", "--how", "other", "--other", "7", "--rival", "9")
    expected = ablate(
        LLM(small_path), Trace.read(ablated_run[2]), STEP, by="word", how="other", other=7, rival=9
    )
    assert f"{len(expected.parts)} words, each replaced by another token" in out
    assert "  instead  " in out


def test_json_of_ablations(ablated_run, done, said):
    data = json.loads(said(*ablated_run, "--json"))
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


def test_ctrl_c_keeps_what_is_done(ablated_run, monkeypatch, capsys):
    rows = LLM.last_rows

    def interrupted(*args, **how):
        for n, row in zip(count(), rows(*args, **how), strict=False):
            yield row
            if n == 2:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LLM, "last_rows", interrupted)
    assert main([*ablated_run]) == 130
    out = capsys.readouterr().out
    tried, total = re.findall(r"(\d+) of (\d+) tokens", out)[0]
    assert 3 <= int(tried) < int(total)
    assert out.count("%") == int(tried) + 2


def test_nothing_in_time(ablated_run, said):
    assert "Nothing was done in time." in said(*ablated_run, "--budget", "1e-9")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--by", "letter"], "by must be one of token, word, line, sentence"),
        (["--how", "hide"], "how must be one of delete, knock_out, other"),
        (["--budget", "0"], "budget_s must be a number of seconds above 0"),
        (["--other", "7"], "how must be other, too"),
        (["--rival", "9999"], "rival must be between 0 and 263"),
        (["--step", "13"], "--step must be 1 to 12, not 13"),
    ],
)
def test_what_ablate_refuses(ablated_run, capsys, more, why):
    assert main([*ablated_run, *more]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1


# -- notebook --------------------------------------------------------------------------------------

# A look in a notebook shows every figure; it runs and fetches nothing.


HOSTILE = '<img src=x onerror=alert(1)>&amp;"\x1b[2J\u202e'
SHOWN_STEP = 3


@pytest.fixture(scope="module")
def shown_look(small_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebook")
    llm = LLM(small_path)
    llm.generate(HOSTILE, seed=3, max_tokens=6, trace=folder / "run.jsonl", ignore_eos=True)
    return inside(llm, Trace.read(folder / "run.jsonl"), SHOWN_STEP)


class Read(HTMLParser):
    """Elements by name, with their attributes, and whatever is text."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self.open = [], "", []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_it_is_static_and_two_can_be_on_one_page(shown_look):
    page = shown_look._repr_html_()
    read = Read(page + shown_look._repr_html_())
    allowed = {"div", "p", "b", "span", "svg", "rect", "line", "g", "title",
               "table", "tr", "th", "td"}  # fmt: skip
    assert {tag for tag, _ in read.elements} == allowed
    names = {name for _, attributes in read.elements for name in attributes}
    assert not {n for n in names if n.startswith("on") or n in ("id", "class", "href", "src")}
    assert "url(" not in page and "http" not in page
    assert "\x1b" not in page and "\u202e" not in page
    assert "<img" not in page and "&lt;" in page
    assert page == shown_look._repr_html_()


def test_every_figure_is_shown(shown_look):
    read, found, lens = (
        Read(shown_look._repr_html_()),
        shown_look.logit_attribution(),
        shown_look.lens(1),
    )
    titles = [a["title"] for tag, a in read.elements if tag == "span"]
    weights, attributions = shown_look.weights.mean(axis=(0, 1)), found.positions.sum(axis=(0, 1))
    assert titles == [
        f"position {i}: {percent(weight)}, attribution {attribution:+.3f}"
        for i, (weight, attribution) in enumerate(zip(weights, attributions, strict=True))
    ]
    for layer, head in np.ndindex(found.heads.shape):
        assert f"L{layer}.H{head}: attribution {found.heads[layer, head]:+.3f}" in read.text
    for name, attribution in found.parts.items():
        assert f"{name}: attribution {attribution:+.3f}" in read.text
    assert f"rounding: attribution {found.rounding:+.3f}" in read.text
    assert sum(tag == "tr" for tag, _ in read.elements) == 1 + len(lens.rank)
    for rank in lens.rank:
        assert re.search(rf"\b{rank:,}\b", read.text)
    assert f": {found.total:+.3f}" in read.text
    assert f"recomputed bit for bit: row hash {shown_look.row_hash:016x}" in read.text
    for words in ("Attention is not effect", "Attribution is not the effect", "until they settle"):
        assert words in read.text


def test_a_tint_is_of_the_scale_and_the_text_keeps_its_colour(shown_look):
    tinted = re.findall(r'style="background:([^;]*);([^"]*)"', shown_look._repr_html_())
    assert len(tinted) == len(shown_look.token_ids)
    for colour, others in tinted:
        assert colour.startswith("rgb(217 72 1 / ")
        assert "color" not in others
