"""bench/inside_cost.py: that it looks, and writes what it measured."""

import json
from pathlib import Path

import pytest

import denoise
import inside_cost
import trace_cost
from cutaway import LLM
from panel_sizes import bits, table
from replay import WAYS, main, markdown
from routing_traces import conversations
from state_cache import _SHAPE, found_again
from trace_cost import Run, report

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import beside_streams


def test_it_writes_the_table(tiny_path, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- inside:begin -->\nold\n<!-- inside:end -->\nafter\n")
    arguments = ["-m", str(tiny_path), "--contexts", "20,40", "--without", "9", "--rounds", "2"]
    inside_cost.main([*arguments, "--write", str(page)])
    *_, last = capsys.readouterr().out.splitlines()
    document = json.loads(last)
    found = document["milliseconds"]
    assert [*found] == ["20", "40"]
    assert [*document["without"]] == ["9"]
    written = page.read_text()
    assert "old" not in written and written.startswith("before") and "after" in written
    for context in [*found.values(), *document["without"].values()]:
        assert all(value > 0 for value in context.values())
        for part, value in context.items():
            assert f"| {part} | " in written and f"{value:.1f}" in written


# -- trace cost ------------------------------------------------------------------------------------

# bench/trace_cost.py: its arithmetic, and that it records what it measures.


def test_the_cost_is_the_median_of_the_rounds():
    done = [(Run(0.010, 0.02), Run(0.011, 0.03), 900), (Run(0.020, 0.02), Run(0.021, 0.02), 900),
            (Run(0.010, 0.02), Run(0.030, 0.01), 900)]  # fmt: skip
    found = report(done, 10)
    assert found["cost"] == pytest.approx(0.1)
    assert found["cost_range"] == pytest.approx([0.05, 2.0])
    assert found["processor_cost"] == 0
    assert (found["without_ms"], found["with_ms"]) == pytest.approx((10, 21))
    assert found["bytes_per_token"] == 90


def test_it_runs_and_records(tiny_path, capsys):
    trace_cost.main(["-m", str(tiny_path), "--tokens", "12", "--rounds", "2", "--candidates", "3"])
    *_, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["benchmark"] == "trace_cost"
    assert found["bytes_per_token"] > 300
    assert found["without_ms"] > 0 and found["with_ms"] > 0


# -- state cache -----------------------------------------------------------------------------------

# bench/state_cache.py: fewer states find less of prompts again, and none finds the least.


def test_more_states_find_more_of_the_prompts():
    told = conversations(_SHAPE, 4 / 600, 600, 1, 1)
    none, some, all_of_them, without = (found_again(told, n, 1) for n in (0, 4, 1 << 30, None))
    assert none <= some <= all_of_them <= without
    assert none < without


# -- panel sizes -----------------------------------------------------------------------------------

# bench/panel_sizes.py: what docs/quantize.md says each format takes in memory is so.


PAGE = Path(__file__).parents[2] / "docs/quantize.md"


def test_the_page_has_the_table():
    assert f"<!-- panels:begin -->\n{table()}\n<!-- panels:end -->" in PAGE.read_text("utf-8")


def test_no_panel_is_smaller_than_the_file():
    assert all(panel >= file for file, panel in bits().values())


# -- replay bench ----------------------------------------------------------------------------------

# bench/replay.py: that it measures what it says, and what its table shows.


def test_it_runs_and_says_how_fast_each_way_was(tiny_path, capsys):
    main(["-m", str(tiny_path), "--prompt", "9", "--tokens", "12", "--rounds", "2"])
    *_, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["benchmark"] == "replay"
    for each in found["tokens_per_second"].values():
        assert [*each] == [*WAYS]
        assert all(value > 0 for value in each.values())


def test_the_table_has_the_ratios():
    line = markdown({"greedy": {"written": 100.0, "replayed": 450.0, "read as a prompt": 900.0}})
    assert line.splitlines()[-1] == "| greedy | 100 | 450 | 900 | 4.5 | 0.5 |"


# -- denoise bench ---------------------------------------------------------------------------------

# bench/denoise.py: that every way is taken in turns with the loop, and is written down.


def test_denoise_writes_the_table(tiny_path, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- denoise:begin -->\nold\n<!-- denoise:end -->\nafter\n")
    sizes = ["--prompt", "8", "--cells", "16", "--rounds", "2"]
    denoise.main(["-m", str(tiny_path), *sizes, "--write", str(page)])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    text = page.read_text()
    assert "old" not in text and text.endswith("after\n")
    assert [row["way"] for row in found] == ["the loop", *(way.title for way in denoise.WAYS)]
    assert all(f"| {row['way']} | {row['passes']} | {row['rows']} |" in text for row in found)
    loop, one, two, four = found[:4]
    assert (loop["passes"], loop["rows"]) == (16, 23)
    assert [(row["passes"], row["rows"]) for row in (one, two, four)] == [
        (16, 16 * 24), (8, 8 * 24), (4, 4 * 24),
    ]  # fmt: skip
    [noise] = [row for row in found if row["way"] == "canvas of noise, 8 passes"]
    assert (noise["passes"], noise["rows"]) == (8, 8 * 24)
    assert all(row["ms_a_pass"] > 0 and row["tokens_per_s"] > 0 for row in found)


@pytest.mark.parametrize(("attention", "means"), [("bidirectional", "bidirectional"), ("4", 4)])
def test_the_same_weights_are_seen_otherwise(tiny_path, tmp_path, attention, means):
    path = denoise.seen_as(tiny_path, attention, tmp_path)
    model = LLM(path, progress=False)
    assert (model.config.attention, model.tokenizer.mask_id) == (means, denoise.MASK)


# -- beside streams --------------------------------------------------------------------------------

# bench/beside_streams.py: a row for every target and number of prompts; a changed text fails.


SMALL = ["--repeats", "2", "--streams", "2", "--prompt", "60", "--prompts", "1,2", "--shared"]


def test_there_is_a_row_for_every_target(tiny_path, capsys):
    assert beside_streams.main(["-m", str(tiny_path), *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = [(row["prompts"], row["step_ms"]) for row in found["beside"]]
    assert rows == [(n, step_ms) for n in (1, 2) for step_ms in (0, 200, 1)]
    for row in (found["alone"], *found["beside"]):
        assert 0 < row["gap_p50_s"] <= row["gap_p95_s"] <= row["gap_max_s"]
    assert all(row["slower"] > 0 for row in found["beside"])
    assert len(beside_streams.markdown(found).splitlines()) == 2 + 1 + len(rows)


def test_a_text_that_a_target_changes_is_an_error(tiny_path, capsys, monkeypatch):
    real = beside_streams.run

    def wrong(llm, streams, prompts, step_ms):
        found = real(llm, streams, prompts, step_ms)
        changed = [(-1,) for _ in found.texts]
        return found if step_ms else beside_streams.replace(found, texts=changed)

    monkeypatch.setattr(beside_streams, "run", wrong)
    assert beside_streams.main(["-m", str(tiny_path), *SMALL, "--json"]) == 1


@pytest.mark.parametrize(
    "wrong", [["--step-ms", "fast"], ["--prompts", "0"], ["--streams", "64"], ["--repeats", "0"]]
)
def test_a_bad_flag_is_refused_before_a_model_is_loaded(wrong, capsys):
    with pytest.raises(SystemExit):
        beside_streams.parse(["-m", "none", *wrong])
    assert wrong[0] in capsys.readouterr().err
