"""bench/agent_hour.py: how many turns it needs, and which of them may read tokens again."""

import pytest

from agent_hour import BLOCK, DISK, MEMORY, Answered, parse, reads_blocks_again, row


def answers(*read_again):
    return [Answered(1.0, 2.0, 50, again, "by schema") for again in read_again]


@pytest.mark.parametrize("turns", ["0", "1", "2", "3"])
def test_too_few_turns_are_refused_before_anything_runs(turns, capsys):
    with pytest.raises(SystemExit):
        parse(["--turns", turns])
    assert f"--turns must be at least 4, not {turns}" in capsys.readouterr().err


def test_the_fewest_turns_have_all_figures():
    turns = answers(*[0] * parse(["--turns", "4"]).turns)
    assert row("m", DISK, turns)[-1] == "4 of 4"


@pytest.mark.parametrize("turn", range(6))
def test_no_turn_reads_a_whole_block_again(turn):
    read = [0] * 6
    read[turn] = BLOCK - 1
    assert not reads_blocks_again({"m": {DISK: answers(*read), MEMORY: answers(*[99] * 6)}})
    read[turn] = BLOCK
    assert reads_blocks_again({"m": {DISK: answers(*read), MEMORY: answers(*[0] * 6)}})
