"""bench/replay.py: that it measures what it says, and what its table shows."""

import json

from replay import WAYS, main, markdown


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
