"""Full logits, computed again: those that the run drew from, or an error."""

from dataclasses import replace

import numpy as np
import pytest

from cutaway import CutawayError, InputError
from cutaway.cli.main import main
from cutaway.rerun import logits


def test_they_are_what_the_record_was_made_from(tiny, trace):
    rows = logits(tiny, trace)
    assert rows.shape == (24, 264)
    assert rows.dtype == np.float32
    for step, row in zip(trace.steps, rows, strict=True):
        assert step.observed.maximum == row.max()
        assert all(row[c.id] == np.float32(c.logit) for c in step.observed.candidates)


def test_other_weights_are_an_error_at_the_first_step(other, trace):
    with pytest.raises(CutawayError, match="the logits of step 0 are not those on record"):
        logits(other, trace)


def test_another_hash_is_an_error_at_its_step(tiny, trace):
    wrong = trace.steps[7]._replace(logits_hash=0)
    changed = replace(trace, steps=(*trace.steps[:7], wrong, *trace.steps[8:]))
    with pytest.raises(CutawayError, match="step 7 are not those"):
        logits(tiny, changed)


def test_a_trace_without_steps(tiny, trace):
    with pytest.raises(InputError, match="no steps"):
        logits(tiny, replace(trace, steps=(), end=None))


def test_the_command_writes_a_file_of_numpy(tiny, trace, folder, tmp_path, capsys):
    out = tmp_path / "näive run.npy"
    args = ["trace", "logits", str(trace.path), "-m", str(folder / "tiny.gguf"), "--out", str(out)]
    assert main(args) == 0
    assert "24 steps of 264 logits" in capsys.readouterr().err
    np.testing.assert_array_equal(np.load(out), logits(tiny, trace))
    assert main(args) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*args[:-1], str(tmp_path / "no" / "such.npy")]) == 2
    assert "cannot be written; name a file in a folder that can" in capsys.readouterr().err
