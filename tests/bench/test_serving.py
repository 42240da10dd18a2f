"""bench/serving.py: what it measures is what it says, and a changed text is an error."""

import json

import pytest

pytest.importorskip("cutaway.base._native", reason="the native backend was not built")

import serving
import serving_runs
from support.random_llama import write_tiny_llama

SMALL = ["--repeats", "1", "--streams", "3", "--prompt", "300", "--threads", "1", "--json"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("serving") / "tiny.gguf", context=1024)


@pytest.fixture(autouse=True)
def plain_prompts(monkeypatch):
    """The tiny model has no chat template."""
    monkeypatch.setattr(serving.LLM, "chat_prompt", lambda self, messages: messages[0]["content"])


def run(path, capsys):
    code = serving.main(["-m", str(path), *SMALL])
    return code, json.loads(capsys.readouterr().out)


def test_every_part_is_measured(path, capsys):
    code, found = run(path, capsys)
    assert code == 0
    assert len(found["drafts"]) == 18
    assert all(row["equal"] and row["ratio"] > 0 for row in found["drafts"])
    assert any(row["accepted"] > 0 for row in found["drafts"])
    assert found["prefix"]["cached_tokens"] == 384  # whole blocks of the 400 that are shared
    assert 0 < found["streams"]["outside_plan"] < 1
    assert found["beside"]["itl_beside_worst_s"] >= found["beside"]["itl_beside_s"] > 0


def test_the_table_goes_where_it_is_asked_for(path, capsys, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- serving:begin -->\n<!-- serving:end -->\nb\n")
    assert serving.main(["-m", str(path), *SMALL, "--write", str(readme)]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("a", "b")
    assert f"**{found['prefix']['ratio']:.2f}×**" in readme.read_text()
    assert len(lines) == 4 + 2 + 18 + 4  # what was there, the head, ngram, the rest


def test_a_guess_that_changes_a_text_is_an_error(path, capsys, monkeypatch):
    real = serving_runs.decode

    def wrong(llm, prompts, speculate, **options):
        done = real(llm, prompts, speculate, **options)
        return done if speculate == "off" else serving_runs.replace(done, texts=((1,),))

    monkeypatch.setattr(serving.runs, "decode", wrong)
    code, found = run(path, capsys)
    assert code == 1
    assert not any(row["equal"] for row in found["drafts"])


@pytest.mark.parametrize("wrong", [["--repeats", "0"], ["--streams", "1"], ["--prompt", "0"]])
def test_numbers_that_cannot_be(wrong, capsys):
    with pytest.raises(SystemExit) as ended:
        serving.parse(wrong)
    assert ended.value.code == 2
    assert "must be above 0" in capsys.readouterr().err
