"""Random schemas and texts: what can be written is valid, as jsonschema says."""

import json
from collections import Counter

import pytest

from cutaway.errors import InputError
from cutaway.text.grammar import Grammar
from cutaway.text.grammar.compiler import accepts
from cutaway.text.grammar.schema_checks import Judge
from support.schema_pairs import is_valid, pairs

REFUSED = (
    "allows no text", "Unsatisfiable schema", "Failed to generate regex", "not supported",
    "cannot be masked", "not disjoint", "Unimplemented keys", "must be checked token by token",
    "Regex is empty", "Unable to determine if regex is empty",
)  # fmt: skip


@pytest.mark.parametrize("thought", ["", "start: answer"], ids=["alone", "behind a thought"])
@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, 600), *(pytest.param(seed, 58_000, marks=pytest.mark.slow) for seed in (2, 3))],
)
def test_what_can_be_written_is_valid(seed, count, thought, monkeypatch):
    """By masks and by the judge, each alone: so neither has to help the other."""
    counts: Counter[str] = Counter()
    judges = Judge.takes
    for schema, texts in pairs(seed, count):
        grammar = Grammar("json_schema", json.dumps(schema), thought=thought)
        for text in texts:
            monkeypatch.setattr(Judge, "takes", lambda *_: True)
            try:
                masked = accepts(text, grammar).whole
            except InputError as error:
                assert any(said in str(error) for said in REFUSED), error
                counts["refused"] += 1
                break
            monkeypatch.setattr(Judge, "takes", judges)
            valid = is_valid(schema, text)
            assert valid or not masked, (schema, text)
            assert Judge({"": schema}).takes("", text.encode()) is valid, (schema, text)
            counts.update(pairs=1, valid=valid, written=masked)
    print(f"{dict(counts)}")
    assert counts["written"] > 0.7 * counts["valid"] > 0.1 * count
