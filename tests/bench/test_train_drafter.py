"""bench/train_drafter.py: what it refuses before it trains."""

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[test-transformers]'")

import train_drafter


@pytest.mark.parametrize("texts", [0, train_drafter.BATCH - 1])
def test_fewer_texts_than_a_step_needs_are_refused(texts):
    with pytest.raises(SystemExit, match="a step needs 2: raise --texts or --length"):
        train_drafter.check_count(texts)
    train_drafter.check_count(train_drafter.BATCH)
