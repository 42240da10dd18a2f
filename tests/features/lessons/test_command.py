"""``cutaway lessons`` writes pages that open from disk."""

import pytest

from cutaway.cli.main import main
from cutaway.features.lessons import LESSONS


def test_all_lessons_and_an_index_are_written(tmp_path, capsys):
    out = tmp_path / "new folder"
    assert main(["lessons", str(out)]) == 0
    pages = {"index", "class", *LESSONS}
    assert {path.name for path in out.iterdir()} == {f"{name}.html" for name in pages}
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["MB"] * len(
        LESSONS
    )
    for name in LESSONS:
        assert "static/" not in (out / f"{name}.html").read_text("utf-8").split("<body", 1)[0]
        assert f'href="{name}.html"' in (out / "index.html").read_text("utf-8")
    plan = (out / "class.html").read_text("utf-8")
    assert 'href="softmax.html#point=2"' in plan
    assert "<link" not in plan
    assert "static/" not in plan


def test_one_lesson_is_written_without_an_index(tmp_path):
    assert main(["lessons", str(tmp_path), "canvas"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["canvas.html"]


def test_a_misspelt_lesson_is_refused_before_any_is_written(tmp_path, capsys):
    assert main(["lessons", str(tmp_path / "out"), "canvas", "canvass"]) == 2
    assert "LESSON must be one of by-hand, " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys, name):
    (tmp_path / "file").write_text("")
    assert main(["lessons", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / name) in error
    assert error.count("\n") == 1
