"""bench/toys.py: what a toy's texts cost, and that its row says it."""

import json

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import toys
from cutaway import LLM


def test_costs_are_for_a_hundred_characters():
    with LLM("toy-writer", progress=False) as writer:
        prompt = len(writer.tokenize(toys.PROMPT))
        costs = toys.measure(writer, writer, {"max_tokens": 4, "temperature": 0}, texts=2)
        text = writer.generate(toys.PROMPT, max_tokens=4, temperature=0)
    assert costs.characters == 2 * len(text.text)
    assert (costs.passes, costs.rows) == (2 * 4, 2 * (prompt + 3))
    assert costs.per_hundred(costs.passes) == pytest.approx(100 * 4 / len(text.text))
    own = -sum(step.logprob for step in text.steps)
    assert costs.bits == pytest.approx(2 * own / toys.log(2), rel=1e-4)


def test_it_writes_the_table(tmp_path, monkeypatch, capsys):
    small = {
        name: (way, {**options, "max_tokens": 4}) for name, (way, options) in toys.WAYS.items()
    }
    monkeypatch.setattr(toys, "WAYS", small)
    page = tmp_path / "page.md"
    page.write_text("<!-- toys:begin -->\n<!-- toys:end -->\n")
    toys.main(["--judge", "toy-writer", "--texts", "1", "--write", str(page)])
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["toy"] for row in rows] == [f"`{name}`" for name in toys.WAYS]
    writer, *canvases = rows
    assert writer["bits per character"] == "1.41"
    assert all(row["bits per character"].startswith("at most ") for row in canvases)
    for row in rows:
        assert f"| {' | '.join(row.values())} |" in page.read_text()
