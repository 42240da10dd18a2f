"""bench/beside_streams.py: a row for every target and number of prompts; a changed text fails."""

import json

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import beside_streams

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
