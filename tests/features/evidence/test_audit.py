"""Audits: the tail by brute force, and what the luck of one's own seed, and of others', shows."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutaway import LLM, InputError
from cutaway.cli.main import main
from cutaway.features.evidence.audit import ALARM, audit, tail

SETTINGS = {"temperature": 1.0, "top_p": 0.95}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.integers(0, 8))
def test_the_tail_is_the_sum_over_all_outcomes(probabilities, count):
    every = product((0, 1), repeat=len(probabilities))
    mass = sum(
        prod(p if hit else 1 - p for p, hit in zip(probabilities, hits, strict=True))
        for hits in every
        if sum(hits) >= count
    )
    assert tail(probabilities, count) == pytest.approx(mass, abs=1e-12)


def test_a_small_tail_has_its_digits():
    assert tail([0.5] * 400, 400) == pytest.approx(0.5**400)


@pytest.fixture(scope="module")
def llm(tiny_path):
    return LLM(tiny_path, threads=1, progress=False)


@pytest.fixture(scope="module")
def written(llm):
    return llm.generate("ab", seed=7, max_tokens=40, ignore_eos=True, **SETTINGS)


def test_what_was_drawn_by_the_luck_matches_everywhere(llm, written):
    done = audit(llm, "ab", written.token_ids, 7, **SETTINGS)
    assert done.matches == 40
    assert done.false_alarm < ALARM
    assert {one.rank for one in done.tokens} == {1}
    assert done.verdict == "every token is the one that this luck draws"


def test_false_alarms_are_as_rare_as_they_are_told(llm, written):
    """Of 60 seeds that did not draw the text, about a tenth have a rate below a tenth."""
    rates = [audit(llm, "ab", written.token_ids, seed, **SETTINGS) for seed in range(100, 160)]
    assert all(one.false_alarm > 1e-4 for one in rates)
    assert sum(one.false_alarm < 0.1 for one in rates) <= 15
    mean = sum(one.matches for one in rates) / len(rates)
    assert mean == pytest.approx(rates[0].by_chance, abs=1.5)


def test_a_changed_token_and_other_settings_are_seen(llm, written):
    changed = list(written.token_ids)
    changed[20] = changed[20] + 1
    done = audit(llm, "ab", changed, 7, **SETTINGS)
    assert not done.tokens[20].matches
    assert "of 40 tokens by other arithmetic, settings or hands" in done.verdict
    colder = audit(llm, "ab", written.token_ids, 7, temperature=0.5)
    assert colder.matches < 40
    narrow = audit(llm, "ab", written.token_ids, 7, temperature=1.0, top_k=2)
    assert "the chain removes token" in narrow.verdict


@pytest.mark.parametrize(
    ("text", "settings", "what"),
    [([], {}, "no tokens"), ([5], {"temperature": 0}, "greedy"), ([5], {"top_p": 2}, "top_p")],
)
def test_one_sentence_for_what_cannot_be_audited(llm, text, settings, what):
    with pytest.raises(InputError, match=what):
        audit(llm, "ab", text, 7, **settings)


def test_the_command_reads_what_generate_prints(tiny_path, tmp_path, capsys):
    own = ["-m", str(tiny_path), "--temperature", "1", "-q"]
    wrote = ["--seed", "7", "--max-tokens", "30", "--ignore-eos", "--json"]
    assert main(["generate", "ab", *own, *wrote]) == 0
    (tmp_path / "texts.json").write_text(capsys.readouterr().out)
    assert main(["audit", str(tmp_path / "texts.json"), *own]) == 0
    assert "30 of 30" in capsys.readouterr().out
    (tmp_path / "other.jsonl").write_text('{"prompt": "ab", "token_ids": [5, 6, 7]}\n')
    assert main(["audit", str(tmp_path / "other.jsonl"), *own, "--seed", "3"]) == 1
    assert "the chain removes token 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("", "there are no texts"),
        ("{", "no JSON"),
        ("[1]", "must be a JSON object"),
        ('{"prompt": "a", "text": "b"}', "seed must be"),
        ('{"prompt": "a", "seed": 1}', "text must be a text or a list"),
    ],
)
def test_one_sentence_for_a_file_that_is_none(tiny_path, tmp_path, capsys, line, what):
    (tmp_path / "texts.jsonl").write_text(line)
    assert main(["audit", str(tmp_path / "texts.jsonl"), "-m", str(tiny_path)]) == 2
    assert what in capsys.readouterr().err
