"""bench/inside_cost.py: that it looks, and writes what it measured."""

import json

import inside_cost


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
