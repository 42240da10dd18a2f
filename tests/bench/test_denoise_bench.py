"""bench/denoise.py: that every way is taken in turns with the loop, and is written down."""

import json

import pytest

import denoise
from cutaway import LLM


def test_it_writes_the_table(tiny_path, tmp_path, capsys):
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
    assert all(row["ms_a_pass"] > 0 and row["tokens_per_s"] > 0 for row in found)


@pytest.mark.parametrize(("attention", "means"), [("bidirectional", "bidirectional"), ("4", 4)])
def test_the_same_weights_are_seen_otherwise(tiny_path, tmp_path, attention, means):
    path = denoise.seen_as(tiny_path, attention, tmp_path)
    model = LLM(path, progress=False)
    assert (model.config.attention, model.tokenizer.mask_id) == (means, denoise.MASK)
