"""bench/panel_sizes.py: what docs/quantize.md says each format takes in memory is so."""

from pathlib import Path

from panel_sizes import bits, table

PAGE = Path(__file__).parents[2] / "docs/quantize.md"


def test_the_page_has_the_table():
    assert f"<!-- panels:begin -->\n{table()}\n<!-- panels:end -->" in PAGE.read_text("utf-8")


def test_no_panel_is_smaller_than_the_file():
    assert all(panel >= file for file, panel in bits().values())
